//! Watches of stores in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;

use super::change::tests::text;
use super::*;
use crate::store::*;
use crate::{Chaos, Error, ErrorKind, Faults, Finding, Guard, MemoryStore};

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
        assert!(watch.due.unwrap() >= begun + limit * 4, "a failed sample is followed by a rest");
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
    for (kind, is_left_out) in
        [(ErrorKind::Damaged, true), (ErrorKind::Unreachable, false), (ErrorKind::Denied, false)]
    {
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
    let client = Client::new(Arc::new(Counting::default())).unwrap();
    let more = 10;
    let mut guards = Vec::new();
    for number in 0..Watch::PER_SAMPLE + more {
        guards.push(hold(&client, &format!("{number:04}")).await);
    }
    let mut watch = client.watch("").every(OFTEN);
    watch.next().await.unwrap();
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
    let client = Client::new(Arc::new(Counting::default())).unwrap();
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
    watch.next().await.unwrap();
    assert_eq!(watch.locks().count(), guards.len());
    let mut read = BTreeSet::new();
    for round in 0..4 {
        let before = Instant::now();
        watch.next_batch().await.unwrap();
        let now: Vec<_> =
            watch.known.values().filter(|seen| seen.at >= before).map(|s| &s.state.name).collect();
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

/// A store that fails to read once, and counts what it is asked.
#[derive(Debug, Default)]
struct Counting {
    store: MemoryStore,
    lists: AtomicUsize,
    reads: AtomicUsize,
    /// The read that fails; 0: none does.
    failing: usize,
    pushes: bool,
}

#[async_trait]
impl Store for Counting {
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
        if self.reads.fetch_add(1, Ordering::SeqCst) + 1 == self.failing {
            return Err(Error::new(ErrorKind::Unreachable, "inspect", "it restarts"));
        }
        self.store.inspect(name).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.store.list(prefix).await
    }
    fn changes(&self, prefix: &str) -> Option<ChangeHints> {
        self.store.changes(prefix).filter(|_| self.pushes)
    }
    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.store.evict(eviction).await
    }
    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        self.store.audit(name).await
    }
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.store.diagnose().await
    }
}

#[tokio::test]
async fn a_snapshot_is_read_in_pages_and_a_fault_does_not_begin_it_anew() {
    let count = 3 * Watch::PER_SAMPLE + 10;
    let failing = 2 * Watch::PER_SAMPLE + 5;
    let store = Arc::new(Counting { failing, ..Counting::default() });
    let client = Client::new(store.clone()).unwrap();
    let mut guards = Vec::new();
    for number in 0..count {
        guards.push(hold(&client, &format!("{number:05}")).await);
    }
    let mut watch = client.watch("").every(OFTEN);
    for pages in 1..=2 {
        assert_eq!(watch.next_batch().await.unwrap(), [], "not all are read");
        assert_eq!(watch.locks().count(), pages * Watch::PER_SAMPLE, "they are shown already");
        assert_eq!(store.reads.load(Ordering::SeqCst), pages * Watch::PER_SAMPLE);
    }
    assert!(watch.next().await.unwrap_err().is_transient());
    let WatchEvent::Snapshot(snapshot) = watch.next().await.unwrap() else { panic!() };
    assert_eq!(snapshot.len(), count);
    assert_eq!(store.lists.load(Ordering::SeqCst), 1);
    let reads = store.reads.load(Ordering::SeqCst);
    assert!(reads <= count + Watch::PER_SAMPLE, "{reads} reads of {count} locks");
}

#[tokio::test]
async fn a_store_that_pushes_is_asked_for_what_has_changed_and_nothing_else() {
    let store = Arc::new(Counting { pushes: true, ..Counting::default() });
    let client = Client::new(store.clone()).unwrap();
    let other = hold(&client, "other").await;
    // Were it sampled, nothing would be seen before the test ends.
    let mut watch = client.watch("a").every(Duration::from_secs(3600));
    assert_eq!(watch.source(), WatchSource::Sampled, "nothing has come yet");
    watch.next().await.unwrap();
    // That the store listens is a reason to look again.
    watch.next_batch().await.unwrap();
    assert_eq!(watch.source(), WatchSource::Pushed);
    let lists = store.lists.load(Ordering::SeqCst);
    let reads = store.reads.load(Ordering::SeqCst);
    let guard = hold(&client, "a").await;
    let owner = guard.owner();
    other.release().await.unwrap();
    assert_eq!(text(&change(&mut watch).await), format!("acquired {owner}"));
    guard.release().await.unwrap();
    assert_eq!(text(&change(&mut watch).await), format!("released {owner}"));
    assert_eq!(store.lists.load(Ordering::SeqCst), lists);
    assert!(store.reads.load(Ordering::SeqCst) <= reads + 3, "at most one for each call");
}

#[tokio::test]
async fn a_watch_goes_on_by_sampling_when_a_store_ceases_to_push() {
    let store = Arc::new(Counting::default());
    let client = Client::new(store).unwrap();
    let mut watch = client.watch("").every(OFTEN);
    watch.next().await.unwrap();
    let (sender, hints) = ChangeHints::new();
    sender.any_changed();
    watch.hints = Some(hints);
    watch.next_batch().await.unwrap();
    watch.next_batch().await.unwrap();
    assert_eq!(watch.source(), WatchSource::Pushed);
    drop(sender);
    let guard = hold(&client, "a").await;
    assert_eq!(text(&change(&mut watch).await), format!("acquired {}", guard.owner()));
    assert_eq!(watch.source(), WatchSource::Sampled);
}
