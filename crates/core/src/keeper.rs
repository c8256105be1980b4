//! Renews leases and records their loss: one task for all leases of a client, on a thread of its own, so
//! that renewals do not depend on the user's runtime.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_proto::{Action, Backoff, Occupancy, Watchdog};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::client::within;
use crate::clock::Alarm;
use crate::lease::Lease;
use crate::listener::{HandleLoss, LossListener};
use crate::{
    Background, Claim, Clock, Error, ErrorKind, Hold, Mode, Moment, OwnerId, Renewal, Result, Store,
};

/// Renews leases in time, and marks them as in danger or lost, from [`watch`](Keeper::watch) to
/// [`forget`](Keeper::forget).
///
/// A lease that is released before its first renewal costs three entries in a table and no wake-up: the task
/// sleeps until the earliest alarm that it knew of, and is woken only for an earlier one.
#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Keeper {
    /// Starts the task on a background thread, with all resources that it will need.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        call_timeout: Duration,
        background: &Background,
    ) -> Result<Self> {
        let _inside = background.runtime().enter();
        let clock = store.capabilities().clock;
        let alarm = Alarm::new(clock).map_err(|error| {
            let why = format!("no timer to renew leases by ({error}): raise the limit on files");
            Error::new(ErrorKind::Internal, "make a client", why).caused_by(error)
        })?;
        let leases = Arc::new(Mutex::new(LeaseTable::default()));
        store.subscribe_losses(LossListener::new(&leases));
        let shared =
            Arc::new(Shared { store, clock, call_timeout, leases, earlier: Notify::new() });
        let task = tokio::spawn(keep(Arc::clone(&shared), alarm)).abort_handle();
        Ok(Self { shared, task })
    }

    /// Whether leases are no longer renewed: the task has panicked, or its timer failed.
    pub(crate) fn is_gone(&self) -> bool {
        self.task.is_finished()
    }

    /// Renews this lease from now on.
    pub(crate) fn watch(&self, lease: Arc<Lease>, watchdog: Watchdog) {
        if self.shared.leases.lock().add(lease, watchdog) {
            self.shared.earlier.notify_one();
        }
    }

    /// Renews this lease from now on in place of the one that it succeeds. `since` is when its term began
    /// anew, if it did. False if its predecessor is lost: then nothing changes.
    pub(crate) fn replace(&self, lease: &Arc<Lease>, since: Option<Moment>) -> bool {
        let Some(is_earlier) = self.shared.leases.lock().replace(lease, since) else {
            return false;
        };
        if is_earlier {
            self.shared.earlier.notify_one();
        }
        true
    }

    /// Leases of this client that are in the way of a claim.
    pub(crate) fn in_the_way_of(&self, claim: &Claim) -> Vec<Arc<Lease>> {
        self.shared.leases.lock().in_the_way_of(claim)
    }

    /// Stops renewing the lease of this owner.
    pub(crate) fn forget(&self, owner: OwnerId) {
        self.shared.leases.lock().remove(owner);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the keeper, its task and its renewals share.
#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    /// The clock that the store's terms run on.
    clock: Clock,
    call_timeout: Duration,
    /// Behind its own pointer: the store's listener must not keep the store alive.
    leases: Arc<Mutex<LeaseTable>>,
    /// An alarm was set that is earlier than the one that the task sleeps for.
    earlier: Notify,
}

/// The leases that are renewed, by their owners, and when each needs attention next.
#[derive(Debug)]
struct LeaseTable {
    leases: HashMap<OwnerId, TrackedLease>,
    alarms: BTreeSet<(Moment, OwnerId)>,
    /// The owners by the hashes of their locks' names.
    by_name: BTreeSet<(u64, OwnerId)>,
    hasher: RandomState,
    /// When the task wakes up by itself.
    wakes_at: Moment,
    /// The latest losses of holds that are not in the table: a guard of one may be about to be made.
    untracked_losses: VecDeque<Hold>,
}

/// How many untracked losses are remembered.
const UNTRACKED_LOSSES: usize = 64;

#[derive(Debug)]
struct TrackedLease {
    lease: Arc<Lease>,
    watchdog: Watchdog,
    backoff: Backoff,
    alarm: Moment,
}

impl TrackedLease {
    /// A renewal was confirmed: the term began anew at `since`.
    fn renewed(&mut self, since: Moment) {
        self.watchdog.handle_renewed(since);
        if !self.watchdog.is_in_danger() && !self.lease.extend(self.watchdog.deadline()) {
            // The guard has found it lost by the clock: it must not be renewed any longer.
            self.watchdog.handle_not_held();
        }
        self.backoff = backoff(self.lease.claim.ttl);
    }

    /// The store says that it does not hold.
    fn lose(&mut self) {
        if let Some(Action::Lost(reason)) = self.watchdog.handle_not_held() {
            self.lease.lose(reason);
        }
    }
}

/// Renewals that fail are made again several times in a term.
fn backoff(ttl: Duration) -> Backoff {
    Backoff::new(ttl / 60, ttl / 12)
}

const NEVER: Moment = Moment::from_nanos(u64::MAX);

impl Default for LeaseTable {
    fn default() -> Self {
        Self {
            leases: HashMap::new(),
            alarms: BTreeSet::new(),
            by_name: BTreeSet::new(),
            hasher: RandomState::new(),
            wakes_at: NEVER,
            untracked_losses: VecDeque::new(),
        }
    }
}

impl LeaseTable {
    /// Adds a lease. True if the task must be woken for an earlier alarm.
    fn add(&mut self, lease: Arc<Lease>, watchdog: Watchdog) -> bool {
        let alarm = watchdog.poll_timeout();
        let hold = Hold::new(lease.claim.owner, lease.token);
        let backoff = backoff(lease.claim.ttl);
        self.alarms.insert((alarm, hold.owner));
        self.by_name.insert((self.hasher.hash_one(&lease.claim.name), hold.owner));
        self.leases.insert(hold.owner, TrackedLease { lease, watchdog, backoff, alarm });
        if self.untracked_losses.contains(&hold) {
            self.lost(hold);
        }
        self.ring_for(alarm)
    }

    /// Puts a lease in the place of its predecessor, which has the same owner. `None` if that is lost; else
    /// whether the task must be woken for an earlier alarm.
    fn replace(&mut self, lease: &Arc<Lease>, since: Option<Moment>) -> Option<bool> {
        let hold = Hold::new(lease.claim.owner, lease.token);
        let tracked = self.leases.get_mut(&hold.owner)?;
        if tracked.lease.loss().is_some() {
            return None;
        }
        tracked.lease = Arc::clone(lease);
        if let Some(since) = since {
            tracked.renewed(since);
        }
        if self.untracked_losses.contains(&hold) {
            self.lost(hold);
        }
        let alarm = self.set_alarm(hold.owner);
        Some(self.ring_for(alarm))
    }

    fn remove(&mut self, owner: OwnerId) {
        if let Some(tracked) = self.leases.remove(&owner) {
            self.alarms.remove(&(tracked.alarm, owner));
            let name = &tracked.lease.claim.name;
            self.by_name.remove(&(self.hasher.hash_one(name), owner));
        }
    }

    /// The leases that are in the way of a claim, as far as they are among the first few of its lock.
    fn in_the_way_of(&self, claim: &Claim) -> Vec<Arc<Lease>> {
        const LOOKED_AT: usize = 64;
        let hash = self.hasher.hash_one(&claim.name);
        let [first, last] = [0, u8::MAX].map(|byte| (hash, OwnerId::from_bytes([byte; 16])));
        let named = self.by_name.range(first..=last).take(LOOKED_AT);
        let leases = named.filter_map(|(_, owner)| Some(&self.leases.get(owner)?.lease));
        let excludes = |mode: Mode| {
            let mut room = Occupancy::default();
            room.enter(mode);
            !room.admits(claim.mode)
        };
        let is_obstacle = |lease: &&Arc<Lease>| {
            let held = &lease.claim;
            held.name == claim.name && excludes(held.mode) && lease.is_valid()
        };
        leases.filter(is_obstacle).cloned().collect()
    }

    /// Marks leases that are in danger or lost by `now`, and returns those to renew.
    fn due(&mut self, now: Moment) -> Vec<(Arc<Lease>, Duration)> {
        let mut renewals = Vec::new();
        while let Some(&(alarm, owner)) = self.alarms.first()
            && alarm <= now
        {
            let Some(tracked) = self.leases.get_mut(&owner) else {
                self.alarms.pop_first();
                continue;
            };
            while let Some(action) = tracked.watchdog.poll_action(now) {
                match action {
                    Action::Renew => {
                        let limit = tracked.watchdog.renewal_timeout();
                        renewals.push((Arc::clone(&tracked.lease), limit));
                    }
                    Action::Danger => tracked.lease.warn(),
                    Action::Lost(reason) => tracked.lease.lose(reason),
                }
            }
            self.set_alarm(owner);
        }
        renewals
    }

    /// Records how a renewal went. True if the task must be woken for an earlier alarm.
    fn settle(&mut self, owner: OwnerId, sent: Moment, outcome: Option<Renewal>) -> bool {
        let Some(tracked) = self.leases.get_mut(&owner) else {
            return false;
        };
        match outcome {
            Some(Renewal::Renewed) => tracked.renewed(sent),
            Some(Renewal::Lost) => tracked.lose(),
            None => {
                tracked.lease.held.renewal_missed();
                let pause = tracked.backoff.next(tracked.lease.claim.owner.chance(sent));
                tracked.watchdog.handle_failed(tracked.lease.now(), pause);
            }
        }
        let alarm = self.set_alarm(owner);
        self.ring_for(alarm)
    }

    /// The store reports that a hold is over. A later grant of the same claim is not affected.
    fn lost(&mut self, hold: Hold) {
        let tracked = self.leases.get_mut(&hold.owner);
        match tracked.filter(|tracked| tracked.lease.token == hold.token) {
            Some(tracked) => tracked.lose(),
            None => {
                self.untracked_losses.truncate(UNTRACKED_LOSSES - 1);
                self.untracked_losses.push_front(hold);
            }
        }
        self.set_alarm(hold.owner);
    }

    fn set_alarm(&mut self, owner: OwnerId) -> Moment {
        let Some(tracked) = self.leases.get_mut(&owner) else {
            return NEVER;
        };
        self.alarms.remove(&(tracked.alarm, owner));
        tracked.alarm = tracked.watchdog.poll_timeout();
        self.alarms.insert((tracked.alarm, owner));
        tracked.alarm
    }

    /// When to wake up next. An alarm that is still to come is kept even if its lease is gone:
    /// waking once for nothing is cheaper than being woken for every lease that comes and goes.
    fn next_alarm(&mut self, now: Moment) -> Moment {
        let first = self.alarms.first().map_or(NEVER, |(alarm, _)| *alarm);
        if self.wakes_at <= now || first < self.wakes_at {
            self.wakes_at = first;
        }
        self.wakes_at
    }

    fn ring_for(&mut self, alarm: Moment) -> bool {
        let earlier = alarm < self.wakes_at;
        if earlier {
            self.wakes_at = alarm;
        }
        earlier
    }
}

impl HandleLoss for Mutex<LeaseTable> {
    fn handle_loss(&self, hold: Hold) {
        self.lock().lost(hold);
    }
}

/// Renews the leases of the table, until it is aborted.
async fn keep(shared: Arc<Shared>, alarm: Alarm) {
    loop {
        let (renewals, next) = {
            let mut leases = shared.leases.lock();
            let now = shared.clock.now();
            let renewals = leases.due(now);
            (renewals, leases.next_alarm(now))
        };
        for (lease, limit) in renewals {
            tokio::spawn(renew(Arc::clone(&shared), lease, limit));
        }
        tokio::select! {
            () = shared.earlier.notified() => {}
            slept = alarm.sleep_until(next) => if let Err(error) = slept {
                tracing::error!(%error, "the timer failed: leases end with their TTL");
                return;
            },
        }
    }
}

/// One renewal. It is a task of its own, so one that hangs delays neither other renewals nor the deadline.
async fn renew(shared: Arc<Shared>, lease: Arc<Lease>, limit: Duration) {
    let sent = shared.clock.now();
    let limit = limit.min(shared.call_timeout);
    let outcome = match within(limit, "renew", shared.store.renew(&lease.claim)).await {
        Ok(renewal) => Some(renewal),
        Err(error) => {
            let error = error.about(&lease.claim.name);
            tracing::warn!(%error, "renewal failed");
            // A store that knows that the lock is gone need not be asked again.
            let lost = error.kind() == ErrorKind::Lost;
            lease.note_failure(error);
            lost.then_some(Renewal::Lost)
        }
    };
    if shared.leases.lock().settle(lease.claim.owner, sent, outcome) {
        shared.earlier.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::WeakBackground;
    use crate::{LossReason, Token, now};

    const HOUR: Duration = Duration::from_secs(3600);

    fn lease() -> Arc<Lease> {
        granted(None, now() + Duration::from_secs(29))
    }

    fn granted(token: Option<Token>, deadline: Moment) -> Arc<Lease> {
        let background = WeakBackground::default();
        Arc::new(Lease::new(Claim::sample(), token, deadline, None, Clock::Boot, background))
    }

    #[tokio::test]
    async fn leases_that_are_released_at_once_wake_the_keeper_once() {
        let mut leases = LeaseTable::default();
        let mut rings = 0;
        for _ in 0..100 {
            let watchdog = Watchdog::new(now(), Duration::from_secs(30), None);
            let lease = lease();
            let owner = lease.claim.owner;
            rings += u32::from(leases.add(lease, watchdog));
            leases.remove(owner);
            // The keeper looks, as it does whenever it is woken.
            leases.next_alarm(now());
        }
        assert_eq!(rings, 1);
        assert!(leases.alarms.is_empty() && leases.leases.is_empty());
    }

    #[tokio::test]
    async fn a_lease_that_needs_attention_sooner_wakes_the_keeper() {
        let mut leases = LeaseTable::default();
        let slow = Watchdog::new(now(), Duration::from_secs(30), None);
        let quick = Watchdog::new(now(), Duration::from_secs(3), None);
        assert!(leases.add(lease(), slow.clone()));
        assert!(!leases.add(lease(), slow));
        assert!(leases.add(lease(), quick));
    }

    fn over(owner: OwnerId, token: Option<Token>) -> Hold {
        Hold::new(owner, token)
    }

    #[tokio::test]
    async fn a_loss_that_is_reported_before_the_guard_is_made_is_not_missed() {
        let mut leases = LeaseTable::default();
        let watchdog = Watchdog::new(now(), Duration::from_secs(30), None);
        let lease = lease();
        leases.lost(over(lease.claim.owner, None));
        for _ in 1..UNTRACKED_LOSSES {
            leases.lost(over(OwnerId::random(), None));
        }
        leases.add(Arc::clone(&lease), watchdog);
        assert_eq!(lease.loss(), Some(LossReason::NotHeld));
        leases.lost(over(OwnerId::random(), None));
        assert_eq!(leases.untracked_losses.len(), UNTRACKED_LOSSES, "their number is bounded");
    }

    #[tokio::test]
    async fn a_lease_that_its_guard_found_lost_is_not_renewed_any_longer() {
        let mut leases = LeaseTable::default();
        let lease = granted(None, now());
        let owner = lease.claim.owner;
        leases.add(Arc::clone(&lease), Watchdog::new(now(), Duration::from_secs(30), None));
        assert!(!lease.is_valid(), "by the clock, before the keeper has looked");
        // The reply to a renewal arrives late.
        leases.settle(owner, now(), Some(Renewal::Renewed));
        assert_eq!(leases.alarms.first(), Some(&(NEVER, owner)));
    }

    #[tokio::test]
    async fn a_reported_loss_ends_only_the_grant_that_it_names() {
        let (mut leases, token) = (LeaseTable::default(), Some(Token::new(7)));
        let watchdog = Watchdog::new(now(), Duration::from_secs(30), None);
        let [lost, other] = [token, token].map(|token| granted(token, now() + HOUR));
        for lease in [&lost, &other] {
            leases.add(Arc::clone(lease), watchdog.clone());
        }
        let owner = lost.claim.owner;
        for stale in [None, Some(Token::new(6))] {
            leases.lost(over(owner, stale));
        }
        leases.lost(over(OwnerId::random(), token));
        assert!(lost.is_valid(), "a report about an older grant has no effect");
        for _ in 0..2 {
            leases.lost(over(owner, token));
        }
        assert_eq!(lost.loss(), Some(LossReason::NotHeld));
        assert!(other.is_valid());
        let next = leases.alarms.first().unwrap().1;
        assert_eq!(next, other.claim.owner, "nothing is scheduled for a lost lease");
    }
}
