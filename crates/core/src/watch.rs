//! What happens to the locks of a store, as a stream of changes.

mod change;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use change::{Look, Seen};
use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::{Instant, sleep_until};

pub use self::change::{Change, ChangeKind, ChangedClaim, Intervention};
use crate::{AuditRecord, Client, ErrorKind, LockName, LockState, Result, require_runtime};

/// The changes of all locks whose names begin with a prefix, from [`Client::watch`]: first a snapshot,
/// then what changes.
///
/// The store is sampled: it is asked for its locks at each interval, and successive states are compared. So a
/// lock that is taken and released between two samples is not seen.
///
/// The cost is bounded. The snapshot reads every lock once. After that, a sample lists the names and reads at
/// most [`PER_SAMPLE`](Self::PER_SAMPLE) locks: those that are new or chosen by [`focus`](Self::focus), then
/// those with the most waiters, then the others in turn. A lock that is free again is seen in the list. It also
/// reads the audit records of at most as many locks from which a claim has gone: where more have, an eviction
/// from one of the others is reported as a release.
/// A lock that cannot be read although the store answers, such as a damaged one, is logged once and left out.
///
/// Between two samples is a rest of three times as long as the first took, failed or not, and of at most 30 s.
///
/// ```
/// # use std::sync::Arc;
/// use tenure::{ChangeKind, WatchEvent};
/// # use tenure::{Client, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let mut watch = client.watch("orders/").every(std::time::Duration::from_millis(100));
/// let WatchEvent::Snapshot(locks) = watch.next().await? else { unreachable!("it comes first") };
/// assert!(locks.is_empty());
///
/// let guard = client.mutex("orders/42")?.acquire().await?;
/// let WatchEvent::Change(change) = watch.next().await? else { unreachable!("no call failed") };
/// assert_eq!(change.kind, ChangeKind::Acquired);
/// assert_eq!(change.claim.token, guard.token());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Watch {
    client: Client,
    prefix: String,
    every: Duration,
    /// When the next sample is due. `None`: at once.
    due: Option<Instant>,
    /// `None` before the first sample.
    known: Option<BTreeMap<LockName, Seen>>,
    focus: BTreeSet<LockName>,
    /// The last lock that was read in its turn.
    turn: Option<LockName>,
    /// Locks that could not be read, which was logged.
    unreadable: BTreeSet<LockName>,
    /// The store shows no records of evictions.
    lacks_records: bool,
    /// The last sample failed.
    failed: bool,
    events: VecDeque<WatchEvent>,
}

/// What a [`Watch`] reports.
#[expect(clippy::large_enum_variant, reason = "one is alive at a time, and most are changes")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum WatchEvent {
    /// The locks that are held or waited for when the watch begins. It comes first, and once.
    Snapshot(Vec<LockState>),
    /// A claim on a lock has changed.
    Change(Change),
    /// The store answers again after an error. What changed meanwhile is reported next.
    Recovered,
}

/// One look at the store.
struct Sample {
    look: Look,
    states: Vec<LockState>,
    /// The audit records of locks from which a claim has gone.
    records: HashMap<LockName, Vec<AuditRecord>>,
    lacks_records: bool,
    turn: Option<LockName>,
}

impl Watch {
    const EVERY: Duration = Duration::from_secs(1);

    /// The number of locks that a sample reads at the most, after the first.
    pub const PER_SAMPLE: usize = 1_000;

    /// How much longer than the last sample the time until the next one is, at the least.
    const REST: u32 = 3;
    const LONGEST_REST: Duration = Duration::from_secs(30);

    pub(crate) fn new(client: Client, prefix: &str) -> Self {
        Self {
            client,
            prefix: prefix.to_owned(),
            every: Self::EVERY,
            due: None,
            known: None,
            focus: BTreeSet::new(),
            turn: None,
            unreadable: BTreeSet::new(),
            lacks_records: false,
            failed: false,
            events: VecDeque::new(),
        }
    }

    /// The same watch with another interval between two samples than a second; at least a millisecond.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(Duration::from_millis(1));
        self.due = None;
        self
    }

    /// Reads these locks in every sample, also where there are many others: for what a user looks at.
    pub fn focus(&mut self, locks: impl IntoIterator<Item = LockName>) {
        self.focus = locks.into_iter().take(Self::PER_SAMPLE / 2).collect();
    }

    /// The locks that are held or waited for, sorted by name, as they were seen last, and how long ago that
    /// was. Empty before the first event.
    pub fn locks(&self) -> impl Iterator<Item = (&LockState, Duration)> {
        let now = Instant::now();
        let age = move |seen: &Seen| now.saturating_duration_since(seen.at);
        self.known.iter().flat_map(|known| known.values()).map(move |seen| (&seen.state, age(seen)))
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// A sample that failed. The watch goes on with the next call.
    ///
    /// # Cancel safety
    /// Safe to drop and call again: no event is lost. A sample that was under way is made again.
    pub async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            self.look().await?;
        }
    }

    /// Waits until the store has been looked at again, and returns what was seen to change: often nothing.
    /// For a program that shows [`locks`](Self::locks).
    ///
    /// # Errors
    /// A sample that failed. The watch goes on with the next call.
    ///
    /// # Cancel safety
    /// Safe to drop and call again: no event is lost. A sample that was under way is made again.
    pub async fn next_batch(&mut self) -> Result<Vec<WatchEvent>> {
        if self.events.is_empty() {
            self.look().await?;
        }
        Ok(std::mem::take(&mut self.events).into())
    }

    /// Samples the store when that is due.
    async fn look(&mut self) -> Result<()> {
        require_runtime("watch locks")?;
        if let Some(due) = self.due {
            sleep_until(due).await;
        }
        let begun = Instant::now();
        let sample = self.sample().await;
        let rest = (begun.elapsed() * Self::REST).min(Self::LONGEST_REST);
        self.due = Some((begun + self.every).max(Instant::now() + rest));
        match sample {
            Ok(sample) => self.take(sample),
            Err(error) => {
                self.failed = true;
                return Err(error);
            }
        }
        Ok(())
    }

    async fn sample(&mut self) -> Result<Sample> {
        let names = self.client.list(&self.prefix).await?;
        let (read, turn) = match &self.known {
            None => (names.clone(), None),
            Some(known) => self.choose(known, &names),
        };
        self.unreadable.retain(|name| names.binary_search(name).is_ok());
        let mut states = self.client.inspect_each(read, &mut self.unreadable).await?;
        let look = Look { now: Instant::now(), at: SystemTime::now() };
        for name in self.known.iter().flat_map(|known| known.keys()) {
            if names.binary_search(name).is_err() {
                states.push(LockState::free(name.clone()));
            }
        }
        states.sort_by(|a, b| a.name.cmp(&b.name));
        let (records, lacks_records) = self.records(&states).await?;
        Ok(Sample { look, states, records, lacks_records, turn })
    }

    /// The locks to read, and the last of those that are read in their turn.
    fn choose(
        &self,
        known: &BTreeMap<LockName, Seen>,
        names: &[LockName],
    ) -> (Vec<LockName>, Option<LockName>) {
        if names.len() <= Self::PER_SAMPLE {
            return (names.to_vec(), None);
        }
        // A quarter is for the locks whose turn it is, so that each is read some time.
        let preferred = Self::PER_SAMPLE / 4 * 3;
        let mut chosen = BTreeSet::new();
        let is_new =
            |name: &&LockName| !known.contains_key(name) && !self.unreadable.contains(name);
        let new = names.iter().filter(is_new);
        let focused = self.focus.iter().filter(|name| names.binary_search(name).is_ok());
        chosen.extend(focused.chain(new).take(preferred).cloned());
        let waiters = |seen: &&Seen| seen.state.waiters.len();
        let mut contended: Vec<_> = known.values().filter(|seen| waiters(seen) > 0).collect();
        contended.sort_by_key(|seen| std::cmp::Reverse(waiters(seen)));
        for seen in contended {
            if chosen.len() >= preferred {
                break;
            }
            if names.binary_search(&seen.state.name).is_ok() {
                chosen.insert(seen.state.name.clone());
            }
        }
        let from = self.turn.as_ref().map_or(0, |turn| names.partition_point(|name| name <= turn));
        let mut turn = None;
        for name in names[from..].iter().chain(&names[..from]) {
            if chosen.len() >= Self::PER_SAMPLE {
                break;
            }
            chosen.insert(name.clone());
            turn = Some(name.clone());
        }
        (chosen.into_iter().collect(), turn)
    }

    /// The audit records of the locks from which a claim has gone: they tell an eviction from a release. Those of
    /// at most [`PER_SAMPLE`](Self::PER_SAMPLE) locks are read.
    async fn records(
        &self,
        states: &[LockState],
    ) -> Result<(HashMap<LockName, Vec<AuditRecord>>, bool)> {
        let Some(known) = self.known.as_ref().filter(|_| !self.lacks_records) else {
            return Ok((HashMap::new(), self.lacks_records));
        };
        let lost_one = |state: &&LockState| {
            known.get(&state.name).is_some_and(|seen| seen.lacks_a_claim(state))
        };
        let gone = states.iter().filter(lost_one).map(|state| state.name.clone());
        let names: Vec<_> = gone.take(Self::PER_SAMPLE).collect();
        let client = self.client.clone();
        let read = move |name: LockName| {
            let client = client.clone();
            async move { (client.audit(name.as_str()).await, name) }.boxed()
        };
        let mut audits = stream::iter(names).map(read).buffer_unordered(Client::READERS);
        let mut records = HashMap::new();
        while let Some((audit, name)) = audits.next().await {
            match audit {
                Ok(found) => drop(records.insert(name, found)),
                Err(error) => match error.kind() {
                    ErrorKind::Unsupported | ErrorKind::Denied => return Ok((records, true)),
                    _ => return Err(error),
                },
            }
        }
        Ok((records, false))
    }

    /// Compares a sample with what was known.
    fn take(&mut self, sample: Sample) {
        let Sample { look, states, records, lacks_records, turn } = sample;
        self.lacks_records = lacks_records;
        self.turn = turn;
        if std::mem::take(&mut self.failed) && self.known.is_some() {
            self.events.push_back(WatchEvent::Recovered);
        }
        let first = self.known.is_none();
        let known = self.known.get_or_insert_default();
        if first {
            let held = states.iter().filter(|state| !state.is_free()).cloned();
            self.events.push_back(WatchEvent::Snapshot(held.collect()));
        }
        for state in states {
            let seen = known.remove(&state.name);
            let seen = seen.unwrap_or_else(|| Seen::free(state.name.clone(), look.now));
            if !first {
                let records = records.get(&state.name).map_or(&[][..], Vec::as_slice);
                let changes = seen.changes(&state, records, look);
                self.events.extend(changes.into_iter().map(WatchEvent::Change));
            }
            if !state.is_free() {
                known.insert(state.name.clone(), seen.then(state, look.now));
            }
        }
    }
}

impl Client {
    /// How many locks are read at a time.
    const READERS: usize = 16;

    /// The states of these locks, in this order. Left out are those that cannot be read although the store
    /// answers, such as damaged ones: they are logged and added to `unreadable`, unless they are there already.
    pub(crate) async fn inspect_each(
        &self,
        names: Vec<LockName>,
        unreadable: &mut BTreeSet<LockName>,
    ) -> Result<Vec<LockState>> {
        let client = self.clone();
        let read = move |name: LockName| {
            let client = client.clone();
            // Boxed, because the compiler cannot see otherwise that the caller's future can be sent.
            async move { (client.inspect(name.as_str()).await, name) }.boxed()
        };
        let mut reads = stream::iter(names).map(read).buffered(Self::READERS);
        let mut states = Vec::new();
        while let Some((state, name)) = reads.next().await {
            match state {
                Ok(state) => {
                    unreadable.remove(&name);
                    states.push(state);
                }
                Err(error) if error.is_transient() || error.kind() == ErrorKind::Denied => {
                    return Err(error);
                }
                Err(error) => {
                    if !unreadable.contains(&name) {
                        tracing::warn!(lock = %name, %error, "a lock is left out: it cannot be read");
                        unreadable.insert(name);
                    }
                }
            }
        }
        Ok(states)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;

    use super::change::tests::text;
    use super::*;
    use crate::store::*;
    use crate::{Chaos, Error, Faults, Finding, Guard, MemoryStore};

    const OFTEN: Duration = Duration::from_millis(1);

    async fn hold(client: &Client, name: &str) -> Guard {
        client.mutex(name).unwrap().acquire().await.unwrap()
    }

    async fn change(watch: &mut Watch) -> Change {
        match watch.next().await.unwrap() {
            WatchEvent::Change(change) => change,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_watch_reports_a_snapshot_then_changes_and_goes_on_after_an_outage() {
        let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
        let client = Client::new(chaos.clone()).unwrap();
        let hasty = client.clone().with_call_timeout(Duration::from_millis(20)).unwrap();
        let guard = hold(&client, "a/1").await;
        let other = hold(&client, "b").await;
        let mut watch = hasty.watch("a/").every(OFTEN);
        let WatchEvent::Snapshot(snapshot) = watch.next().await.unwrap() else { panic!() };
        assert_eq!(snapshot.len(), 1);
        let texts: Vec<_> = Change::from_snapshot(&snapshot).iter().map(text).collect();
        assert_eq!(texts, [format!("acquired {}", guard.owner())]);

        chaos.pause();
        for _ in 0..2 {
            let begun = Instant::now();
            assert!(watch.next().await.unwrap_err().is_transient());
            let limit = Duration::from_millis(20);
            assert!(
                watch.due.unwrap() >= begun + limit * 4,
                "a failed sample is followed by a rest"
            );
            watch.due = None;
        }
        chaos.resume();
        let owner = guard.owner();
        guard.release().await.unwrap();
        assert_eq!(watch.next().await.unwrap(), WatchEvent::Recovered);
        assert_eq!(text(&change(&mut watch).await), format!("released {owner}"));
        other.release().await.unwrap();
    }

    /// A store in which one lock is damaged.
    #[derive(Debug)]
    struct Damaged {
        store: MemoryStore,
        name: &'static str,
        kind: ErrorKind,
    }

    #[async_trait]
    impl Store for Damaged {
        fn capabilities(&self) -> Capabilities {
            self.store.capabilities()
        }
        async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
            self.store.claim(claim, policy).await
        }
        async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
            self.store.wait(claim, ticket).await
        }
        async fn renew(&self, claim: &Claim) -> Result<Renewal> {
            self.store.renew(claim).await
        }
        async fn release(&self, claim: &Claim) -> Result<Released> {
            self.store.release(claim).await
        }
        async fn inspect(&self, name: &LockName) -> Result<LockState> {
            if name.as_str() == self.name {
                return Err(Error::new(self.kind, "inspect", "not what tenure writes"));
            }
            self.store.inspect(name).await
        }
        async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
            self.store.list(prefix).await
        }
        async fn evict(&self, eviction: &Eviction) -> Result<Released> {
            self.store.evict(eviction).await
        }
        async fn diagnose(&self) -> Result<Vec<Finding>> {
            self.store.diagnose().await
        }
    }

    #[tokio::test]
    async fn a_lock_that_cannot_be_read_is_left_out_and_the_others_are_shown() {
        for (kind, is_left_out) in [
            (ErrorKind::Damaged, true),
            (ErrorKind::Unreachable, false),
            (ErrorKind::Denied, false),
        ] {
            let store = Damaged { store: MemoryStore::new(), name: "b", kind };
            let client = Client::new(Arc::new(store)).unwrap();
            let mut guards = Vec::new();
            for name in ["a", "b", "c"] {
                guards.push(hold(&client, name).await);
            }
            let mut watch = client.watch("").every(OFTEN);
            let found = client.inspect_all("").await;
            let event = watch.next().await;
            if is_left_out {
                let names = |states: &[LockState]| -> Vec<_> {
                    states.iter().map(|state| state.name.to_string()).collect()
                };
                assert_eq!(names(&found.unwrap()), ["a", "c"]);
                let WatchEvent::Snapshot(snapshot) = event.unwrap() else { panic!() };
                assert_eq!(names(&snapshot), ["a", "c"]);
                let owner = guards.pop().unwrap().owner();
                assert_eq!(text(&change(&mut watch).await), format!("released {owner}"));
            } else {
                assert_eq!(found.unwrap_err().kind(), kind);
                assert_eq!(event.unwrap_err().kind(), kind);
            }
        }
    }

    #[tokio::test]
    async fn a_watch_can_be_followed_by_a_spawned_task() {
        let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
        let mut watch = client.watch("");
        let spawned = tokio::spawn(async move {
            client.inspect_all("").await.unwrap();
            watch.next().await.unwrap()
        });
        assert_eq!(spawned.await.unwrap(), WatchEvent::Snapshot(Vec::new()));
    }

    #[tokio::test]
    async fn an_eviction_is_reported_as_one_with_its_reason() {
        let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
        let guard = hold(&client, "a").await;
        let mut watch = client.watch("").every(OFTEN);
        watch.next().await.unwrap();
        let owner = guard.owner().to_string();
        assert!(client.evict("a", &owner, "it hangs").await.unwrap());
        let change = change(&mut watch).await;
        assert_eq!(text(&change), format!("evicted {owner}: it hangs"));
        assert_eq!(change.by.map(|by| by.pid), Some(std::process::id()));
    }

    #[tokio::test]
    async fn a_sample_reads_a_bounded_number_of_audit_records() {
        let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
        let more = 10;
        let mut guards = Vec::new();
        for number in 0..Watch::PER_SAMPLE + more {
            guards.push(hold(&client, &format!("{number:04}")).await);
        }
        let mut watch = client.watch("").every(OFTEN);
        watch.next_batch().await.unwrap();
        for (number, guard) in guards.iter().enumerate() {
            let owner = guard.owner().to_string();
            assert!(client.evict(&format!("{number:04}"), &owner, "all go").await.unwrap());
        }
        let mut kinds = HashMap::new();
        for event in watch.next_batch().await.unwrap() {
            let WatchEvent::Change(change) = event else { panic!("{event:?}") };
            *kinds.entry(change.kind).or_insert(0) += 1;
        }
        let expected = [(ChangeKind::Evicted, Watch::PER_SAMPLE), (ChangeKind::Released, more)];
        assert_eq!(kinds, expected.into());
    }

    #[tokio::test]
    async fn a_sample_of_many_locks_reads_a_bounded_number_and_each_in_its_turn() {
        let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
        let mut guards = Vec::new();
        for number in 0..3 * Watch::PER_SAMPLE {
            guards.push(hold(&client, &format!("{number:04}")).await);
        }
        let contended: LockName = "2222".parse().unwrap();
        let focused: LockName = "2345".parse().unwrap();
        let waiting = tokio::spawn({
            let lock = client.mutex(contended.as_str()).unwrap();
            async move { lock.acquire().await.unwrap() }
        });
        while client.inspect(contended.as_str()).await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let mut watch = client.watch("").every(OFTEN);
        watch.focus([focused.clone()]);
        watch.next_batch().await.unwrap();
        assert_eq!(watch.locks().count(), guards.len());
        let mut read = BTreeSet::new();
        for round in 0..4 {
            let before = Instant::now();
            watch.next_batch().await.unwrap();
            let known = watch.known.as_ref().unwrap();
            let now: Vec<_> =
                known.values().filter(|seen| seen.at >= before).map(|s| &s.state.name).collect();
            assert!(now.len() <= Watch::PER_SAMPLE, "round {round}: {}", now.len());
            assert!(now.contains(&&contended) && now.contains(&&focused), "round {round}");
            read.extend(now.into_iter().cloned());
        }
        assert_eq!(read.len(), guards.len(), "each lock has had its turn");
        // A release is seen at once, whichever locks are read in this sample.
        let owner = guards.remove(17).owner();
        assert_eq!(text(&change(&mut watch).await), format!("released {owner}"));
        waiting.abort();
    }
}
