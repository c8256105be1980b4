//! What happens to the locks of a store, as a stream of changes.

mod change;
mod read;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use change::{Look, Seen};
use tokio::time::{Instant, sleep_until};

pub use self::change::{Change, ChangeKind, ChangedClaim, Intervention};
use crate::hints::{ChangeHints, Hint};
use crate::{AuditRecord, Client, LockName, LockState, Result, require_runtime};

/// The changes of all locks whose names begin with a prefix, from [`Client::watch`]: first a snapshot,
/// then what changes.
///
/// The store is sampled: it is asked for its locks at each interval, and successive states are compared. So a
/// lock that is taken and released between two samples is not seen. A store that can say which locks change
/// ([`source`](Self::source)) is asked for these at once, besides.
///
/// The cost is bounded. The snapshot reads every lock once, a page of [`PER_SAMPLE`](Self::PER_SAMPLE) at a
/// time; an error in between does not begin it anew. After that, a sample lists the names and reads at
/// most as many locks: those that are new or chosen by [`focus`](Self::focus), then
/// those with the most waiters, then the others in turn. A lock that is free again is seen in the list. It also
/// reads the audit records of at most as many locks from which a claim has gone: where more have, an eviction
/// from one of the others is reported as a release.
/// A lock that cannot be read although the store answers, such as a damaged one, is logged once and left out.
///
/// After each look at the store, successful or not, the watch pauses for three times as long as it took, at
/// most 30 s.
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
    /// Until when the store rests after the last look, whatever it says meanwhile.
    rests_until: Option<Instant>,
    stage: Stage,
    known: BTreeMap<LockName, Seen>,
    /// What the store says. `None`: it says nothing, or has ceased to.
    hints: Option<ChangeHints>,
    /// A hint has come.
    is_pushed: bool,
    /// What may have changed since the last look.
    hinted: Hint,
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

/// How a [`Watch`] learns of changes, from [`Watch::source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchSource {
    /// The store says at once which locks have changed.
    Pushed,
    /// The store is asked at each interval: what comes and goes in between is not seen.
    Sampled,
}

impl WatchSource {
    /// "pushed" or "sampled".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::Sampled => "sampled",
        }
    }
}

/// How far a watch has come.
#[derive(Debug)]
enum Stage {
    /// The names are not known yet.
    Listing,
    /// These locks of the snapshot are not read yet.
    Reading(VecDeque<LockName>),
    /// The snapshot has been reported.
    Following,
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

    /// What the store says within this time is looked at together.
    const COALESCE: Duration = Duration::from_millis(20);

    /// The number of locks that a sample reads at the most.
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
            rests_until: None,
            stage: Stage::Listing,
            known: BTreeMap::new(),
            hints: None,
            is_pushed: false,
            hinted: Hint::default(),
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

    /// Reads these locks in every sample, also where there are many others: for what a user looks at. Of more than
    /// half as many as a sample reads, the first.
    pub fn focus(&mut self, locks: impl IntoIterator<Item = LockName>) {
        self.focus = locks.into_iter().take(Self::PER_SAMPLE / 2).collect();
    }

    /// The locks that are held or waited for, sorted by name, as they were seen last, and how long ago that
    /// was. While the snapshot is read, those that have been read.
    pub fn locks(&self) -> impl Iterator<Item = (&LockState, Duration)> {
        let now = Instant::now();
        let age = move |seen: &Seen| now.saturating_duration_since(seen.at);
        self.known.values().map(move |seen| (&seen.state, age(seen)))
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

    /// Waits until the store has been looked at again, and returns what was seen to change: often nothing, and
    /// nothing while the pages of the snapshot are read. For a program that shows [`locks`](Self::locks).
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

    /// Whether the store says when locks change, or is only asked at each interval. What it says is checked by
    /// samples all the same.
    pub fn source(&self) -> WatchSource {
        let is_pushed = self.is_pushed && self.hints.is_some();
        if is_pushed { WatchSource::Pushed } else { WatchSource::Sampled }
    }

    /// Looks at the store when that is due: at all locks, the next page of the snapshot, or those that the store
    /// says have changed.
    async fn look(&mut self) -> Result<()> {
        require_runtime("watch locks")?;
        let is_all = self.until_due().await;
        let begun = Instant::now();
        let looked = match &self.stage {
            Stage::Following if is_all => self.sample().await.map(|sample| self.take(sample)),
            Stage::Following => self.sample_hinted().await.map(|sample| self.take(sample)),
            Stage::Listing | Stage::Reading(_) => self.read_page().await,
        };
        let rest = (begun.elapsed() * Self::REST).min(Self::LONGEST_REST);
        let after = |rest| Instant::now() + rest;
        self.rests_until = Some(after(rest.max(Self::COALESCE.min(self.every))));
        let due = match &self.stage {
            // The next page comes as soon as the store has rested.
            Stage::Reading(_) if looked.is_ok() => after(rest),
            Stage::Following if !is_all && looked.is_ok() => {
                self.due.map_or_else(|| after(rest), |due| due.max(after(rest)))
            }
            _ => (begun + self.every).max(after(rest)),
        };
        self.due = Some(due);
        if looked.is_err() {
            self.failed = true;
            self.rests_until = self.due;
        }
        looked
    }

    /// Waits until the store is to be looked at. Returns whether all locks are; if not, those in `hinted` are.
    async fn until_due(&mut self) -> bool {
        let due = self.due.unwrap_or_else(Instant::now);
        if !matches!(self.stage, Stage::Following) {
            sleep_until(due).await;
            return true;
        }
        if self.hints.is_none() {
            self.is_pushed = false;
            self.hints = self.client.store().changes(&self.prefix);
        }
        loop {
            let has_hint = self.hinted.others || !self.hinted.names.is_empty();
            let look_at = match self.rests_until.filter(|_| has_hint) {
                Some(rests_until) => rests_until.min(due),
                None => due,
            };
            let Some(hints) = &mut self.hints else {
                sleep_until(look_at).await;
                return true;
            };
            tokio::select! {
                biased;
                () = sleep_until(look_at) => return look_at == due || self.hinted.others,
                hint = hints.next() => match hint {
                    Some(hint) => {
                        self.is_pushed = true;
                        self.hinted.others |= hint.others;
                        self.hinted.names.extend(hint.names);
                        if self.hinted.names.len() > Self::PER_SAMPLE {
                            self.hinted = Hint { others: true, ..Hint::default() };
                        }
                    }
                    None => self.hints = None,
                }
            }
        }
    }

    /// Reads the next locks of the snapshot. An error costs no more than what this call has read.
    async fn read_page(&mut self) -> Result<()> {
        if matches!(self.stage, Stage::Listing) {
            let names = self.client.list(&self.prefix).await?;
            self.stage = Stage::Reading(names.into());
        }
        let Stage::Reading(unread) = &self.stage else { return Ok(()) };
        let page: Vec<_> = unread.iter().take(Self::PER_SAMPLE).cloned().collect();
        let size = page.len();
        let states = self.client.inspect_each(page, &mut self.unreadable).await?;
        let now = Instant::now();
        for state in states.into_iter().filter(|state| !state.is_free()) {
            let seen = Seen::free(state.name.clone(), now);
            self.known.insert(state.name.clone(), seen.then(state, now));
        }
        if let Stage::Reading(unread) = &mut self.stage {
            unread.drain(..size);
            if unread.is_empty() {
                self.stage = Stage::Following;
                self.failed = false;
                let states = self.known.values().map(|seen| seen.state.clone()).collect();
                self.events.push_back(WatchEvent::Snapshot(states));
            }
        }
        Ok(())
    }

    async fn sample(&mut self) -> Result<Sample> {
        let names = self.client.list(&self.prefix).await?;
        let (read, turn) = self.choose(&names);
        self.unreadable.retain(|name| names.binary_search(name).is_ok());
        let mut states = self.client.inspect_each(read, &mut self.unreadable).await?;
        for name in self.known.keys() {
            if names.binary_search(name).is_err() {
                states.push(LockState::free(name.clone()));
            }
        }
        states.sort_by(|a, b| a.name.cmp(&b.name));
        self.with_records(states, turn).await
    }

    /// Reads the locks that the store says have changed.
    async fn sample_hinted(&mut self) -> Result<Sample> {
        let names = self.hinted.names.iter().cloned().collect();
        let states = self.client.inspect_each(names, &mut self.unreadable).await?;
        self.with_records(states, self.turn.clone()).await
    }

    async fn with_records(&self, states: Vec<LockState>, turn: Option<LockName>) -> Result<Sample> {
        let look = Look { now: Instant::now(), at: SystemTime::now() };
        let (records, lacks_records) = self.records(&states).await?;
        Ok(Sample { look, states, records, lacks_records, turn })
    }

    /// Compares a sample with what was known.
    fn take(&mut self, sample: Sample) {
        let Sample { look, states, records, lacks_records, turn } = sample;
        self.lacks_records = lacks_records;
        self.turn = turn;
        self.hinted = Hint::default();
        if std::mem::take(&mut self.failed) {
            self.events.push_back(WatchEvent::Recovered);
        }
        for state in states {
            let seen = self.known.remove(&state.name);
            let seen = seen.unwrap_or_else(|| Seen::free(state.name.clone(), look.now));
            let records = records.get(&state.name).map_or(&[][..], Vec::as_slice);
            let changes = seen.changes(&state, records, look);
            self.events.extend(changes.into_iter().map(WatchEvent::Change));
            if !state.is_free() {
                self.known.insert(state.name.clone(), seen.then(state, look.now));
            }
        }
    }
}

#[cfg(test)]
mod tests;
