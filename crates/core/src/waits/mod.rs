//! Waits that are long: which process held the lock meanwhile, remembered in the store for a day.
//!
//! A client that records ([`Client::with_long_waits`]) looks at a lock only when one of its claims has waited
//! longer than the threshold, and then more and more rarely. When such a wait is over it is remembered here,
//! and written into one of a few cells of the store soon after. So a short wait costs one entry in a table, and
//! a long one a few calls.

mod record;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

pub use self::record::{LongWait, Party};
use self::record::{REMEMBERED_FOR, cycles};
use crate::cells::contract::{CellSpace, Expiry};
use crate::cells::slot::{Outcome, Slot};
use crate::client::Inner;
use crate::{
    Claim, Client, Error, ErrorKind, Holder, LockName, LockState, Moment, Result, Token, now,
};

/// How many cells share the waits of all locks.
const CELLS: usize = 8;
/// How often a client writes, at the most.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// How often a write is tried when other clients write at the same time.
const WRITES: usize = 5;
/// The longest time between two looks at the holders of a lock.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How many waits are looked at in one go.
const LOOKS: usize = 1_024;
/// How many locks are looked at in one go.
const LOCKS: usize = 64;
/// How many locks a call of [`Client::long_waits`] reads at the most.
const READ: usize = 10_000;

/// The waits of a store that were long, from [`Client::long_waits`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LongWaits {
    /// For each lock, waiter and holder, how long that waiter waited. The most waiter-seconds come first.
    pub waits: Vec<LongWait>,
    /// Cycles: each process waited for a lock that the next one held, and the last for one of the first, at the
    /// same time. It is a deadlock, unless one of these processes has other tasks that release its lock.
    pub deadlocks: Vec<Vec<LongWait>>,
    /// Whether the store remembers waits that are over. If not, only present ones are shown.
    pub has_history: bool,
    /// How many locks were not looked at, because there are too many: their present waits are missing.
    pub unread: usize,
}

impl Client {
    /// A client of the same store that remembers each wait for a lock which took longer than `threshold`: the
    /// lock, the process that waited, the process that held the lock meanwhile, since when and for how long.
    /// [`long_waits`](Self::long_waits) and `tenure blame` show them, on any machine, for a day. Each such wait is
    /// also logged, as a warning of the `tracing` crate.
    ///
    /// They are kept in eight small values of the store. A client writes five seconds after the last write at the
    /// soonest, and when it is [closed](Self::close). What it cannot write is forgotten, and so are the waits of
    /// a process that is killed. A store without values (Redlock) remembers nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a threshold below 10 ms; otherwise as [`new`](Self::new).
    pub fn with_long_waits(self, threshold: Duration) -> Result<Self> {
        if threshold < Duration::from_millis(10) {
            let why = "the threshold is too short: a wait of less than 10 ms is not long";
            return Err(Error::new(ErrorKind::Invalid, "make a client", why));
        }
        let mut settings = self.inner.settings();
        settings.long_wait = Some(threshold);
        self.with(settings)
    }

    /// The long waits of all clients that record them ([`with_long_waits`](Self::with_long_waits)), as far as
    /// they ended within the time `since` or are not over; and the present waits for locks that begin with
    /// `prefix`, of any client.
    ///
    /// A wait that has not ended is attributed to the current holder, for the time that it has held the lock.
    /// The call reads at most 10,000 locks, those with remembered waits first.
    ///
    /// # Errors
    /// Faults of the store.
    ///
    /// # Cancel safety
    /// Safe to drop: it changes nothing.
    pub async fn long_waits(&self, prefix: &str, since: Duration) -> Result<LongWaits> {
        let mut has_history = true;
        let mut waits = Vec::new();
        for number in 0..CELLS {
            let read = async { self.cell_of_waits(number)?.read().await };
            match read.await {
                Ok(seen) => waits.extend(seen.value().map(LongWait::read).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::Unsupported => has_history = false,
                Err(error) => return Err(error),
            }
        }
        let now = SystemTime::now();
        LongWait::forget(&mut waits, now.checked_sub(since).unwrap_or(SystemTime::UNIX_EPOCH));
        waits.retain(|wait| wait.lock.as_str().starts_with(prefix));
        let threshold = self.inner.settings().long_wait.unwrap_or(Duration::from_secs(1));
        let mut names = self.list(prefix).await?;
        let waited_for: BTreeSet<_> = waits.iter().map(|wait| wait.lock.clone()).collect();
        names.sort_by_key(|name| !waited_for.contains(name));
        let unread = names.len().saturating_sub(READ);
        names.truncate(READ);
        for state in self.inspect_each(names, &mut BTreeSet::new()).await? {
            waits.extend(present_waits(&state, threshold, now));
        }
        let deadlocks = cycles(&waits);
        waits.sort_by_key(|wait| Reverse(wait.total));
        Ok(LongWaits { waits, deadlocks, has_history, unread })
    }

    fn cell_of_waits(&self, number: usize) -> Result<Slot> {
        cell(&self.inner, number)
    }
}

fn cell(inner: &Arc<Inner>, number: usize) -> Result<Slot> {
    Slot::of(Arc::clone(inner), CellSpace::LongWaits, LockName::new(&number.to_string())?)
}

/// The cell for the waits of a lock: the same in every process.
fn cell_of(lock: &LockName) -> usize {
    let mix =
        |hash: usize, byte: u8| hash.wrapping_mul(31).wrapping_add(usize::from(byte)) & 0xffff;
    lock.as_str().bytes().fold(0, mix) % CELLS
}

/// The current waits that exceed `threshold`.
fn present_waits(state: &LockState, threshold: Duration, now: SystemTime) -> Vec<LongWait> {
    let blocker = blocker(&state.holders);
    let long = state.waiters.iter().filter(|waiter| waiter.age >= threshold);
    long.map(|waiter| {
        let held = blocker.and_then(|holder| holder.age).unwrap_or(waiter.age);
        let total = waiter.age.min(held);
        LongWait {
            lock: state.name.clone(),
            waiter: waiter.into(),
            blocker: blocker.map(Party::from),
            token: blocker.and_then(|holder| holder.token),
            since: now.checked_sub(total).unwrap_or(now),
            until: now,
            waits: 1,
            total,
            longest: total,
            is_waiting: true,
        }
    })
    .collect()
}

/// The holder that has held the lock for the longest time.
fn blocker(holders: &[Holder]) -> Option<&Holder> {
    holders.iter().max_by_key(|holder| holder.age)
}

/// Records the waits of a client.
#[derive(Clone)]
pub(crate) struct Recorder(Arc<Shared>);

struct Shared {
    threshold: Duration,
    waits: Mutex<Waits>,
    /// Held while waits are written.
    writing: tokio::sync::Mutex<()>,
    /// A wait needs attention before the task wakes up, one that is to be written is over, or the client is.
    changed: Notify,
}

#[derive(Default)]
struct Waits {
    open: HashMap<u64, OpenWait>,
    /// When each open wait is to be looked at, the first one first: so that many waits cost no scan.
    due: BTreeSet<(Moment, u64)>,
    next: u64,
    /// Waits that are over and not written yet.
    over: Vec<LongWait>,
    /// When the task wakes up by itself.
    wakes_at: Moment,
    /// The store keeps no values, or denies them.
    is_refused: bool,
}

/// A wait that is not over.
struct OpenWait {
    lock: LockName,
    waiter: Party,
    began: Moment,
    began_at: SystemTime,
    /// The blockers seen so far, each with the time that it blocked.
    blamed: Vec<Blame>,
    looked: Moment,
    look_again: Moment,
}

struct Blame {
    blocker: Option<Party>,
    token: Option<Token>,
    time: Duration,
    /// The first and the last moment of the wait at which it is known to have held the lock. If it is not known,
    /// from when until when none was seen.
    first: Moment,
    last: Moment,
}

/// A wait, from its creation until it is dropped.
pub(crate) struct Recorded {
    recorder: Recorder,
    id: u64,
    pub(crate) is_granted: bool,
}

impl Recorder {
    /// A recorder without waits. Its task is [`serve`](Self::serve).
    pub(crate) fn new(threshold: Duration) -> Self {
        let (waits, writing, changed) = Default::default();
        Self(Arc::new(Shared { threshold, waits, writing, changed }))
    }

    /// Looks at the locks and writes, until the client is gone.
    pub(crate) async fn serve(self, client: Weak<Inner>) {
        let shared = &self.0;
        let pause = shared.threshold.min(Duration::from_secs(1)) / 4;
        let mut write_at = now();
        loop {
            let wake_at = {
                let mut waits = shared.waits.lock();
                waits.wakes_at = waits.next_due(write_at).max(now() + pause);
                waits.wakes_at
            };
            tokio::select! {
                () = shared.changed.notified() => {}
                () = sleep(wake_at.since(now()).min(LONGEST_PAUSE)) => {}
            }
            let Some(client) = client.upgrade() else { return };
            self.look(&client).await;
            let is_over = !shared.waits.lock().over.is_empty();
            if write_at <= now() && is_over {
                self.write(&client).await;
                write_at = now() + WRITE_EVERY;
            }
        }
    }

    pub(crate) fn begin(&self, claim: &Claim, began: Moment) -> Recorded {
        let mut waits = self.0.waits.lock();
        let id = waits.next;
        waits.next += 1;
        let (host, pid) = (Some(claim.origin.host.clone()), Some(claim.origin.pid));
        let wait = OpenWait {
            lock: claim.name.clone(),
            waiter: Party { host, pid, label: claim.label.to_string() },
            began,
            began_at: SystemTime::now(),
            blamed: Vec::new(),
            looked: began,
            look_again: began + self.0.threshold,
        };
        let wakes_too_late = waits.wakes_at > wait.look_again;
        waits.due.insert((wait.look_again, id));
        waits.open.insert(id, wait);
        drop(waits);
        if wakes_too_late {
            self.0.changed.notify_one();
        }
        Recorded { recorder: self.clone(), id, is_granted: false }
    }

    /// Looks at the holders of the locks for which claims have waited long.
    async fn look(&self, client: &Inner) {
        let due = self.0.waits.lock().take_due(now());
        let mut does_answer = true;
        for (lock, ids) in due {
            let mut seen = None;
            // An outage costs one call timeout, not one for each lock.
            if does_answer {
                let looking = client.store.holders(&lock);
                match client.call("look at the holders of", looking).await {
                    Ok(holders) => seen = Some(holders),
                    Err(error) => {
                        tracing::debug!(%lock, %error, "the holder is not known");
                        does_answer = !error.is_transient();
                    }
                }
            }
            let (mut waits, now) = (self.0.waits.lock(), now());
            for id in ids {
                waits.looked(id, seen.as_deref(), now);
            }
        }
    }

    /// Writes the waits that have ended. Waits for a write in progress first, and takes as long as a few calls
    /// at most. Waits that are not written are kept for the next time, also if this is dropped.
    pub(crate) async fn write(&self, client: &Arc<Inner>) {
        let _turn = self.0.writing.lock().await;
        let over = std::mem::take(&mut self.0.waits.lock().over);
        let mut by_cell: BTreeMap<usize, Unwritten> = BTreeMap::new();
        for wait in over {
            let unwritten = || Unwritten { recorder: self.clone(), waits: Vec::new() };
            by_cell.entry(cell_of(&wait.lock)).or_insert_with(unwritten).waits.push(wait);
        }
        let limit = client.call_timeout * 2;
        join_all(by_cell.into_iter().map(|(number, mut unwritten)| async move {
            let adding = add(client, number, unwritten.waits.clone());
            match tokio::time::timeout(limit, adding).await {
                Ok(Ok(())) => unwritten.waits.clear(),
                Ok(Err(error))
                    if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Denied) =>
                {
                    tracing::debug!(%error, "long waits are not remembered");
                    unwritten.waits.clear();
                    self.0.waits.lock().is_refused = true;
                }
                failed => tracing::debug!(?failed, "long waits are not written yet"),
            }
        }))
        .await;
    }

    /// The client is gone.
    pub(crate) fn end(&self) {
        self.0.changed.notify_one();
    }
}

/// Waits that are over, on their way to the store. Those that are left in it when it is dropped are written later.
struct Unwritten {
    recorder: Recorder,
    waits: Vec<LongWait>,
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        let over = &mut self.recorder.0.waits.lock().over;
        for wait in self.waits.drain(..) {
            wait.remember(over);
        }
    }
}

/// Adds waits to those in a cell.
async fn add(client: &Arc<Inner>, number: usize, waits: Vec<LongWait>) -> Result<()> {
    let slot = cell(client, number)?;
    let mut seen = slot.read().await?;
    for _ in 0..WRITES {
        let mut all = seen.value().map(LongWait::read).unwrap_or_default();
        LongWait::forget_old_and_future(&mut all, SystemTime::now());
        let mut is_new = false;
        for wait in &waits {
            is_new |= wait.clone().remember(&mut all);
        }
        if !is_new {
            return Ok(());
        }
        let bytes = LongWait::write(&all);
        match slot.swap(&seen, Some(bytes), Expiry::After(REMEMBERED_FOR)).await? {
            Outcome::Done(_) => return Ok(()),
            Outcome::Conflict(current) => seen = current,
        }
    }
    let why = "others write at the same time: tried again later";
    Err(Error::new(ErrorKind::Busy, "remember long waits", why))
}

impl Waits {
    /// When there is something to do, if waits that are over are written at `write_at`.
    fn next_due(&self, write_at: Moment) -> Moment {
        let never = Moment::from_nanos(u64::MAX);
        let look = self.due.first().map_or(never, |(due, _)| *due);
        if self.over.is_empty() { look } else { look.min(write_at) }
    }

    /// The waits to look at now, by lock: at most [`LOOKS`] for [`LOCKS`] locks. They are due again when they were
    /// [`looked`](Self::looked) at.
    fn take_due(&mut self, now: Moment) -> BTreeMap<LockName, Vec<u64>> {
        let mut by_lock: BTreeMap<LockName, Vec<u64>> = BTreeMap::new();
        for _ in 0..LOOKS {
            let Some(&first) = self.due.first().filter(|(due, _)| *due <= now) else { break };
            if let Some(wait) = self.open.get(&first.1) {
                if by_lock.len() >= LOCKS && !by_lock.contains_key(&wait.lock) {
                    break;
                }
                by_lock.entry(wait.lock.clone()).or_default().push(first.1);
            }
            self.due.remove(&first);
        }
        by_lock
    }

    /// Takes in what a look found; `None`: nothing.
    fn looked(&mut self, id: u64, holders: Option<&[Holder]>, now: Moment) {
        let Some(wait) = self.open.get_mut(&id) else { return };
        wait.look_again = now + now.since(wait.began).min(LONGEST_PAUSE);
        if let Some(holders) = holders {
            wait.blame(blocker(holders), now);
        }
        self.due.insert((wait.look_again, id));
    }

    /// Takes out a wait that is over.
    fn close(&mut self, id: u64) -> Option<OpenWait> {
        let wait = self.open.remove(&id)?;
        self.due.remove(&(wait.look_again, id));
        Some(wait)
    }
}

impl OpenWait {
    /// Attributes the time since the last look to `holder`, for as long as it has held the lock, and the
    /// remainder to the previous blocker.
    fn blame(&mut self, holder: Option<&Holder>, now: Moment) {
        let looked = std::mem::replace(&mut self.looked, now);
        let passed = now.since(looked);
        let Some(holder) = holder else { return self.blame_the_last(looked, passed) };
        let held = holder.age.unwrap_or(passed).min(passed);
        if held < passed {
            self.blame_the_last(looked, passed - held);
        }
        let (blocker, token) = (Some(Party::from(holder)), holder.token);
        match self.blamed.iter_mut().find(|blame| blame.blocker == blocker) {
            Some(blame) => {
                blame.time += held;
                (blame.token, blame.last) = (token, now);
            }
            None => {
                let first = looked + (passed - held);
                self.blamed.push(Blame { blocker, token, time: held, first, last: now });
            }
        }
    }

    /// The holder of this time was not seen: it may be the one that was seen last.
    fn blame_the_last(&mut self, first: Moment, time: Duration) {
        let last = first + time;
        match self.blamed.last_mut() {
            Some(blame) => {
                blame.time += time;
                if blame.blocker.is_none() {
                    blame.last = last;
                }
            }
            None => self.blamed.push(Blame { blocker: None, token: None, time, first, last }),
        }
    }

    /// What to remember of it.
    fn end(mut self, now: Moment) -> Vec<LongWait> {
        self.blame_the_last(self.looked, now.since(self.looked));
        let Self { lock, waiter, began, began_at, blamed, .. } = self;
        let at = |moment: Moment| began_at + moment.since(began);
        let wait = |Blame { blocker, token, time, first, last }| LongWait {
            lock: lock.clone(),
            waiter: waiter.clone(),
            blocker,
            token,
            since: at(first),
            until: at(last),
            waits: 1,
            total: time,
            longest: time,
            is_waiting: false,
        };
        blamed.into_iter().map(wait).collect()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let shared = &self.recorder.0;
        let now = now();
        let open = shared.waits.lock().close(self.id);
        let Some(open) = open else { return };
        let waited = now.since(open.began);
        if waited < shared.threshold {
            return;
        }
        let ended = open.end(now);
        let worst = ended.iter().max_by_key(|wait| wait.total).cloned();
        let mut waits = shared.waits.lock();
        if !waits.is_refused {
            for wait in ended {
                wait.remember(&mut waits.over);
            }
            shared.changed.notify_one();
        }
        drop(waits);
        // Last, and without the mutex: a log may be slow to write, or use this client.
        if let Some(worst) = worst {
            let lock = worst.lock;
            let outcome = if self.is_granted { "granted" } else { "given up" };
            let blocker = worst.blocker.as_ref().map(ToString::to_string);
            let blocker = blocker.as_deref().unwrap_or("unknown");
            let token = worst.token.map(Token::get);
            tracing::warn!(%lock, ?waited, outcome, blocker, token, "long wait for a lock");
        }
    }
}

impl Recorder {
    pub(crate) fn threshold(&self) -> Duration {
        self.0.threshold
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("threshold", &self.0.threshold).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::NoSubscriber;
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;
    use crate::{Chaos, Faults, MemoryStore, Mutex as Lock};

    const LONG: Duration = Duration::from_millis(10);

    fn client() -> Client {
        Client::new(Arc::new(MemoryStore::new())).unwrap().with_long_waits(LONG).unwrap()
    }

    async fn waits(client: &Client) -> Vec<LongWait> {
        client.long_waits("", Duration::from_secs(60)).await.unwrap().waits
    }

    /// Waits until the claim has waited for so long that it is recorded with its blocker.
    async fn until_blamed(client: &Client) {
        let recorder = client.inner.long_waits.as_ref().unwrap();
        let blamed = || recorder.0.waits.lock().open.values().any(|wait| !wait.blamed.is_empty());
        let blaming = async {
            while !blamed() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), blaming)
            .await
            .expect("the wait is looked at");
    }

    #[tokio::test]
    async fn a_long_wait_is_remembered_with_the_holder_when_it_is_over() {
        let client = client();
        let options = crate::Options::new().label("nightly report");
        let lock = client.mutex("a").unwrap();
        let guard = lock.clone().with(options).acquire().await.unwrap();
        let token = guard.token();
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        until_blamed(&client).await;
        let [present] = &waits(&client).await[..] else { panic!("one waits") };
        assert!(present.is_waiting);
        guard.release().await.unwrap();
        let second = waiting.await.unwrap();
        client.close().await;

        // Another client, after the stall.
        let operator = Client::new(Arc::clone(client.store())).unwrap();
        let found = operator.long_waits("", Duration::from_secs(60)).await.unwrap();
        let [wait] = &found.waits[..] else { panic!("{found:?}") };
        let blocker = wait.blocker.as_ref().unwrap();
        assert_eq!((blocker.pid, &*blocker.label), (Some(std::process::id()), "nightly report"));
        assert_eq!((wait.lock.as_str(), wait.waits, wait.token), ("a", 1, token));
        assert!(!wait.is_waiting && wait.total >= LONG && wait.total == wait.longest);
        assert!(found.has_history && found.deadlocks.is_empty());
        assert_eq!(operator.long_waits("b", Duration::from_secs(60)).await.unwrap().waits, []);
        second.release().await.unwrap();
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_is_remembered_and_a_short_one_is_not() {
        let client = client();
        let lock = client.mutex("a").unwrap();
        let guard = lock.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.map(drop) }
        });
        until_blamed(&client).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        client.close().await;
        let [wait] = &waits(&client).await[..] else { panic!("the wait was long") };
        assert!(wait.blocker.is_some());

        let patient = client.clone().with_long_waits(Duration::from_secs(3600)).unwrap();
        let lock = patient.mutex("b").unwrap();
        let other = lock.acquire().await.unwrap();
        let brief = Duration::from_millis(20);
        lock.acquire_within(brief).await.unwrap_err();
        patient.close().await;
        assert_eq!(waits(&patient).await.len(), 1);
        for guard in [guard, other] {
            guard.release().await.unwrap();
        }
    }

    /// A client that records, and this many waits for locks of all cells that are over and not written.
    fn client_with_waits(chaos: &Arc<Chaos>, count: usize) -> Client {
        let store: Arc<dyn crate::Store> = chaos.clone();
        let client = Client::new(store).unwrap().with_call_timeout(Duration::from_millis(100));
        // Its task has nothing to do before the test is over.
        let client = client.unwrap().with_long_waits(Duration::from_secs(3600)).unwrap();
        let mut waits = client.inner.long_waits.as_ref().unwrap().0.waits.lock();
        for number in 0..count {
            let wait = open(&format!("{number}"), "w", 0, SystemTime::now());
            for ended in wait.end(second(1)) {
                ended.remember(&mut waits.over);
            }
        }
        drop(waits);
        client
    }

    #[tokio::test]
    async fn waits_whose_writing_was_given_up_are_written_with_the_next_ones() {
        let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
        let client = client_with_waits(&chaos, 20);
        chaos.pause();
        assert!(client.close().now_or_never().is_none());
        chaos.resume();
        client.close().await;
        assert_eq!(waits(&client).await.len(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn writing_waits_takes_a_few_call_timeouts_in_an_outage() {
        let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
        let client = client_with_waits(&chaos, 20);
        let recorder = client.inner.long_waits.as_ref().unwrap();
        let cells: BTreeSet<_> =
            recorder.0.waits.lock().over.iter().map(|wait| cell_of(&wait.lock)).collect();
        assert_eq!(cells.len(), CELLS);
        chaos.pause();
        let begun = tokio::time::Instant::now();
        client.close().await;
        let limit = client.call_timeout() * 4;
        assert!(begun.elapsed() <= limit, "{:?}", begun.elapsed());
        assert_eq!(recorder.0.waits.lock().over.len(), 20, "kept for the next time");
    }

    #[tokio::test]
    async fn present_waits_are_looked_for_among_a_bounded_number_of_locks() {
        let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
        let mut guards = Vec::new();
        for number in 0..READ + 3 {
            guards.push(client.mutex(&format!("{number:06}")).unwrap().acquire().await.unwrap());
        }
        let found = client.long_waits("", Duration::from_secs(60)).await.unwrap();
        assert_eq!(found.unread, 3);
        let found = client.long_waits("0001", Duration::from_secs(60)).await.unwrap();
        assert_eq!(found.unread, 0);
    }

    #[test]
    fn a_look_takes_a_bounded_number_of_waits_and_each_in_its_turn() {
        let mut waits = Waits::default();
        let count = 3 * LOOKS as u64;
        for id in 0..count {
            let wait = open("a", "w", 0, SystemTime::now());
            waits.due.insert((wait.look_again, id));
            waits.open.insert(id, wait);
        }
        assert!(waits.take_due(second(0)).is_empty(), "none is due yet");
        waits.close(0).unwrap();
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            let due = waits.take_due(second(2));
            let ids = &due.values().next().unwrap();
            assert!(ids.len() <= LOOKS);
            for id in *ids {
                assert!(seen.insert(*id), "{id} was looked at before the others");
                waits.looked(*id, Some(&[holder("x", 2)]), second(2));
            }
        }
        assert_eq!(seen.len() as u64, count - 1);
        assert_eq!(waits.next_due(second(0)), second(4), "after as long as it has waited");
        (1..count).for_each(|id| drop(waits.close(id).unwrap()));
        assert!(waits.due.is_empty());
    }

    /// A log that waits for a lock when it is told of a long wait.
    struct Waiting {
        lock: Lock,
        has_waited: Arc<AtomicBool>,
    }

    impl Subscriber for Waiting {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN && metadata.target().ends_with("waits")
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            if !self.has_waited.swap(true, Ordering::SeqCst) {
                assert!(self.lock.acquire().now_or_never().is_none());
            }
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_log_that_waits_for_a_lock_of_the_same_client_does_not_block_it() {
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let lock = client().mutex("a").unwrap();
                let guard = lock.acquire().await.unwrap();
                let has_waited = Arc::new(AtomicBool::new(false));
                let log = Waiting { lock: lock.clone(), has_waited: Arc::clone(&has_waited) };
                // With a second one, events that other tests reach first are not switched off for this thread.
                let _second = tracing::Dispatch::new(NoSubscriber::default());
                let _listens = tracing::subscriber::set_default(log);
                lock.acquire_within(3 * LONG).await.unwrap_err();
                assert!(has_waited.load(Ordering::SeqCst));
                guard.release().await.unwrap();
            });
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    fn second(number: u64) -> Moment {
        Moment::default() + Duration::from_secs(number)
    }

    fn party(label: &str) -> Party {
        Party {
            host: Some("h".into()),
            pid: Some(u32::from(label.as_bytes()[0])),
            label: label.into(),
        }
    }

    fn holder(label: &str, age: u64) -> Holder {
        let mut holder = Holder::new(label, crate::Mode::Exclusive);
        let Party { host, pid, label } = party(label);
        (holder.host, holder.pid, holder.label) = (host, pid, label);
        holder.age = Some(Duration::from_secs(age));
        holder
    }

    /// A wait that began at this second after `epoch`.
    fn open(lock: &str, waiter: &str, began: u64, epoch: SystemTime) -> OpenWait {
        OpenWait {
            lock: lock.parse().unwrap(),
            waiter: party(waiter),
            began: second(began),
            began_at: epoch + Duration::from_secs(began),
            blamed: Vec::new(),
            looked: second(began),
            look_again: second(began + 1),
        }
    }

    #[test]
    fn the_time_is_put_down_to_those_that_held_the_lock() {
        let mut wait = open("a", "w", 0, SystemTime::now());
        // The holder of the first two seconds is not known.
        wait.blame(Some(&holder("x", 3)), second(5));
        wait.blame(Some(&holder("x", 5)), second(7));
        wait.blame(Some(&holder("y", 1)), second(10));
        wait.blame(None, second(11));
        let times: Vec<_> = wait
            .end(second(13))
            .into_iter()
            .map(|wait| (wait.blocker.map(|blocker| blocker.label), wait.total.as_secs()))
            .collect();
        assert_eq!(times, [(None, 2), (Some("x".into()), 7), (Some("y".into()), 4)]);
    }

    #[test]
    fn a_wait_for_a_lock_that_its_blocker_took_later_is_no_deadlock() {
        for (other, is_deadlock) in [("x", false), ("y", true)] {
            let epoch = SystemTime::now();
            // X holds L for the first two seconds, then Y; A waits ten seconds.
            let mut first = open("l", "a", 0, epoch);
            for (look, label, age) in [(1, "x", 1), (2, "x", 2), (4, "y", 2), (8, "y", 6)] {
                first.blame(Some(&holder(label, age)), second(look));
            }
            let mut second_wait = open("m", other, 5, epoch);
            second_wait.blame(Some(&holder("a", 9)), second(6));
            let mut waits = first.end(second(10));
            waits.extend(second_wait.end(second(9)));
            assert_eq!(!cycles(&waits).is_empty(), is_deadlock, "{other} waits for A");
        }
    }
}
