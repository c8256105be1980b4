//! What happens to the locks of a store, as a stream of changes.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::{Client, Holder, LockName, LockState, Result, Token, Waiter, require_runtime};

/// The changes of all locks whose names begin with a prefix, from [`Client::watch`]: first a snapshot,
/// then what changes.
///
/// The store is sampled: it is asked for all its locks at each interval, and successive states are
/// compared. So a lock that is taken and released between two samples is not seen, and the cost is one
/// call for the list and one for each lock that is held or waited for.
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
    ticks: Option<Interval>,
    every: Duration,
    /// `None` before the first sample.
    before: Option<Vec<LockState>>,
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

/// One change of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Change {
    /// When it was seen, by this machine's clock.
    pub at: SystemTime,
    /// The lock.
    pub lock: LockName,
    /// What happened.
    pub kind: ChangeKind,
    /// The claim that it happened to.
    pub claim: ChangedClaim,
    /// The claim that held the lock before, if it was handed over.
    pub from: Option<ChangedClaim>,
}

/// What happened to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum ChangeKind {
    /// It holds the lock, and was not seen to wait for it, or took it from no holder that was seen.
    Acquired,
    /// It held the lock and no longer does.
    Released,
    /// It waited, and holds the lock now in the place of a holder that no longer does.
    HandedOver,
    /// It began to wait.
    Waiting,
    /// It waited, and neither waits nor holds now.
    Gone,
}

/// A holder or waiter of which a [`Change`] speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ChangedClaim {
    /// The owner id, as the store spells it.
    pub owner: String,
    /// Its machine, if known.
    pub host: Option<String>,
    /// Its process id, if known.
    pub pid: Option<u32>,
    /// What the lock is held for. May be empty.
    pub label: String,
    /// The fencing token, for a holder on a store that gives one.
    pub token: Option<Token>,
}

impl Watch {
    const EVERY: Duration = Duration::from_secs(1);

    pub(crate) fn new(client: Client, prefix: &str) -> Self {
        Self {
            client,
            prefix: prefix.to_owned(),
            ticks: None,
            every: Self::EVERY,
            before: None,
            failed: false,
            events: VecDeque::new(),
        }
    }

    /// The same watch with another interval between two samples than a second; at least a millisecond.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(Duration::from_millis(1));
        self.ticks = None;
        self
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
            require_runtime("watch locks")?;
            let ticks = self.ticks.get_or_insert_with(|| {
                let mut ticks = interval(self.every);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                ticks
            });
            ticks.tick().await;
            match self.client.inspect_all(&self.prefix).await {
                Ok(after) => self.compare(after),
                Err(error) => {
                    self.failed = true;
                    return Err(error);
                }
            }
        }
    }

    fn compare(&mut self, after: Vec<LockState>) {
        if std::mem::take(&mut self.failed) && self.before.is_some() {
            self.events.push_back(WatchEvent::Recovered);
        }
        match self.before.replace(after.clone()) {
            Some(before) => {
                let changes = changes(&before, &after, SystemTime::now());
                self.events.extend(changes.into_iter().map(WatchEvent::Change));
            }
            None => self.events.push_back(WatchEvent::Snapshot(after)),
        }
    }
}

impl ChangeKind {
    /// In two words at most: "acquired", "released", "handed over", "waiting", "gone".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Released => "released",
            Self::HandedOver => "handed over",
            Self::Waiting => "waiting",
            Self::Gone => "gone",
        }
    }
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Change {
    /// The changes that lead from a store without locks to this snapshot: a holder was acquired, a waiter
    /// waits. For a program that shows a snapshot as it shows changes.
    pub fn from_snapshot(snapshot: &[LockState]) -> Vec<Self> {
        changes(&[], snapshot, SystemTime::now())
    }
}

/// What happened between two samples, sorted by the names of the locks.
fn changes(before: &[LockState], after: &[LockState], at: SystemTime) -> Vec<Change> {
    let mut locks: BTreeMap<&LockName, (Option<&LockState>, Option<&LockState>)> = BTreeMap::new();
    before.iter().for_each(|state| locks.entry(&state.name).or_default().0 = Some(state));
    after.iter().for_each(|state| locks.entry(&state.name).or_default().1 = Some(state));
    let mut changes = Vec::new();
    for (name, (before, after)) in locks {
        let free = LockState::free(name.clone());
        changes_of_one_lock(before.unwrap_or(&free), after.unwrap_or(&free), at, &mut changes);
    }
    changes
}

fn changes_of_one_lock(
    before: &LockState,
    after: &LockState,
    at: SystemTime,
    changes: &mut Vec<Change>,
) {
    let held = |state: &LockState, owner: &str| state.holders.iter().any(|h| h.owner == owner);
    let waited = |state: &LockState, owner: &str| state.waiters.iter().any(|w| w.owner == owner);
    let mut add = |kind, claim: ChangedClaim, from| {
        let lock = after.name.clone();
        changes.push(Change { at, lock, kind, claim, from });
    };
    let mut left = before.holders.iter().filter(|holder| !held(after, &holder.owner));
    let came = after.holders.iter().filter(|holder| !held(before, &holder.owner));
    let (heirs, mut acquired): (Vec<_>, Vec<_>) =
        came.partition(|holder| waited(before, &holder.owner));
    for heir in heirs {
        match left.next() {
            Some(predecessor) => {
                add(ChangeKind::HandedOver, heir.into(), Some(predecessor.into()));
            }
            // It waited for more permits than were left, or for a holder that no sample showed.
            None => acquired.push(heir),
        }
    }
    left.for_each(|holder| add(ChangeKind::Released, holder.into(), None));
    acquired.into_iter().for_each(|holder| add(ChangeKind::Acquired, holder.into(), None));
    for waiter in &after.waiters {
        if !waited(before, &waiter.owner) && !held(before, &waiter.owner) {
            add(ChangeKind::Waiting, waiter.into(), None);
        }
    }
    for waiter in &before.waiters {
        if !waited(after, &waiter.owner) && !held(after, &waiter.owner) {
            add(ChangeKind::Gone, waiter.into(), None);
        }
    }
}

impl From<&Holder> for ChangedClaim {
    fn from(holder: &Holder) -> Self {
        Self {
            owner: holder.owner.clone(),
            host: holder.host.clone(),
            pid: holder.pid,
            label: holder.label.clone(),
            token: holder.token,
        }
    }
}

impl From<&Waiter> for ChangedClaim {
    fn from(waiter: &Waiter) -> Self {
        Self {
            owner: waiter.owner.clone(),
            host: waiter.host.clone(),
            pid: waiter.pid,
            label: waiter.label.clone(),
            token: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Chaos, Faults, MemoryStore, Mode};

    /// `"a: x y | z"`: the lock `a`, held by x and y, waited for by z.
    fn sample(text: &str) -> Vec<LockState> {
        text.split_terminator(';').map(state).collect()
    }

    fn state(text: &str) -> LockState {
        let (name, claims) = text.split_once(':').unwrap();
        let (holders, waiters) = claims.split_once('|').unwrap_or((claims, ""));
        LockState::new(
            name.trim().parse().unwrap(),
            holders.split_whitespace().map(|owner| Holder::new(owner, Mode::Shared)).collect(),
            waiters.split_whitespace().map(|owner| Waiter::new(owner, Mode::Shared)).collect(),
        )
    }

    fn text(change: &Change) -> String {
        let from = change.from.as_ref().map(|from| format!(" from {}", from.owner));
        let from = from.unwrap_or_default();
        format!("{} {} {}{from}", change.lock, change.kind, change.claim.owner)
    }

    #[test]
    fn each_change_is_reported_once() {
        for (before, after, expected) in [
            ("", "", &[][..]),
            ("a: x | y", "a: x | y", &[]),
            ("", "a: x", &["a acquired x"]),
            ("a: x", "", &["a released x"]),
            ("a: x", "a: x | y", &["a waiting y"]),
            ("a: x | y", "a: x", &["a gone y"]),
            ("a: x | y", "a: y", &["a handed over y from x"]),
            ("a: x | y z", "a: y | z", &["a handed over y from x"]),
            ("a: x", "a: y", &["a released x", "a acquired y"]),
            ("a: x | y", "a: x y", &["a acquired y"]),
            ("a: w | r s", "a: r s", &["a handed over r from w", "a acquired s"]),
            ("a: x | y", "", &["a released x", "a gone y"]),
            ("a: x; b: y", "b: z", &["a released x", "b released y", "b acquired z"]),
        ] {
            let changes = changes(&sample(before), &sample(after), SystemTime::UNIX_EPOCH);
            let texts: Vec<String> = changes.iter().map(text).collect();
            assert_eq!(texts, expected, "{before} -> {after}");
        }
    }

    #[tokio::test]
    async fn a_watch_reports_a_snapshot_then_changes_and_goes_on_after_an_outage() {
        let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
        let client = Client::new(chaos.clone()).unwrap();
        let hasty = client.clone().with_call_timeout(Duration::from_millis(20)).unwrap();
        let guard = client.mutex("a/1").unwrap().acquire().await.unwrap();
        let other = client.mutex("b").unwrap().acquire().await.unwrap();
        let mut watch = hasty.watch("a/").every(Duration::from_millis(1));
        let WatchEvent::Snapshot(snapshot) = watch.next().await.unwrap() else { panic!() };
        assert_eq!(snapshot.len(), 1);
        let texts: Vec<_> = Change::from_snapshot(&snapshot).iter().map(text).collect();
        assert_eq!(texts, [format!("a/1 acquired {}", guard.owner())]);

        chaos.pause();
        for _ in 0..2 {
            assert!(watch.next().await.unwrap_err().is_transient());
        }
        chaos.resume();
        let owner = guard.owner();
        guard.release().await.unwrap();
        assert_eq!(watch.next().await.unwrap(), WatchEvent::Recovered);
        let WatchEvent::Change(change) = watch.next().await.unwrap() else { panic!() };
        assert_eq!(text(&change), format!("a/1 released {owner}"));
        other.release().await.unwrap();
    }
}
