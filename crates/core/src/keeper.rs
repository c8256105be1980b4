//! Keeps leases alive, and hears of their loss: one task for all leases of a client, on a thread
//! of its own, so that renewals do not depend on the user's runtime.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_proto::{Action, Backoff, Watchdog};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use crate::client::within;
use crate::clock::Alarm;
use crate::lease::Lease;
use crate::listener::LossListener;
use crate::{
    Background, Clock, Error, ErrorKind, Hold, Moment, OwnerId, Renewal, Result, Store, metric,
};

/// Watches over leases from [`watch`](Keeper::watch) to [`forget`](Keeper::forget): renews them in
/// time, and tells of danger and loss, each lease for itself.
///
/// A lease that comes and goes before its first renewal costs two entries in a table and no
/// wake-up: the task sleeps until the earliest alarm it knew of, and is only woken for an earlier
/// one.
#[derive(Debug)]
pub(crate) struct Keeper {
    round: Arc<Round>,
    task: AbortHandle,
}

impl Keeper {
    /// Starts keeping leases on a background thread, with everything that it will need.
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
        let round = Arc::new(Round {
            store,
            clock,
            call_timeout,
            book: Mutex::new(Book::default()),
            earlier: Notify::new(),
        });
        let (listener, news) = LossListener::new();
        round.store.subscribe_losses(listener);
        let task = tokio::spawn(go_round(Arc::clone(&round), alarm, news)).abort_handle();
        Ok(Self { round, task })
    }

    /// Whether leases are no longer kept: the keeper's task has panicked, or its timer failed.
    pub(crate) fn is_gone(&self) -> bool {
        self.task.is_finished()
    }

    /// Takes a lease into care.
    pub(crate) fn watch(&self, lease: Arc<Lease>, watchdog: Watchdog) {
        if self.round.book.lock().add(lease, watchdog) {
            self.round.earlier.notify_one();
        }
    }

    pub(crate) fn forget(&self, owner: OwnerId) {
        self.round.book.lock().remove(owner);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Round {
    store: Arc<dyn Store>,
    /// The clock that its terms run on.
    clock: Clock,
    call_timeout: Duration,
    book: Mutex<Book>,
    earlier: Notify,
}

/// The leases in care by their owners, fresh for each, and when each next needs attention.
#[derive(Debug)]
struct Book {
    wards: HashMap<OwnerId, Ward>,
    alarms: BTreeSet<(Moment, OwnerId)>,
    /// When the task wakes up by itself.
    set_for: Moment,
    /// The last losses of holds that were not in care: a guard may be about to be made of one.
    strays: VecDeque<Hold>,
}

/// How many of those are remembered.
const STRAYS: usize = 64;

#[derive(Debug)]
struct Ward {
    lease: Arc<Lease>,
    watchdog: Watchdog,
    backoff: Backoff,
    alarm: Moment,
}

impl Ward {
    /// Its term began anew.
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

impl Default for Book {
    fn default() -> Self {
        Self {
            wards: HashMap::new(),
            alarms: BTreeSet::new(),
            set_for: NEVER,
            strays: VecDeque::new(),
        }
    }
}

impl Book {
    /// Whether the new ward's alarm is earlier than any the task knows of.
    fn add(&mut self, lease: Arc<Lease>, watchdog: Watchdog) -> bool {
        let alarm = watchdog.poll_timeout();
        let hold = Hold { owner: lease.claim.owner, token: lease.token };
        let backoff = backoff(lease.claim.ttl);
        self.alarms.insert((alarm, hold.owner));
        self.wards.insert(hold.owner, Ward { lease, watchdog, backoff, alarm });
        if self.strays.contains(&hold) {
            self.lost(hold);
        }
        self.ring_for(alarm)
    }

    fn remove(&mut self, owner: OwnerId) {
        if let Some(ward) = self.wards.remove(&owner) {
            self.alarms.remove(&(ward.alarm, owner));
        }
    }

    /// Does what is due by `now`, and answers which leases to renew.
    fn due(&mut self, now: Moment) -> Vec<(Arc<Lease>, Duration)> {
        let mut renewals = Vec::new();
        while let Some(&(alarm, owner)) = self.alarms.first()
            && alarm <= now
        {
            let Some(ward) = self.wards.get_mut(&owner) else {
                self.alarms.pop_first();
                continue;
            };
            while let Some(action) = ward.watchdog.poll_action(now) {
                match action {
                    Action::Renew => {
                        let limit = ward.watchdog.renewal_timeout();
                        renewals.push((Arc::clone(&ward.lease), limit));
                    }
                    Action::Danger => ward.lease.warn(),
                    Action::Lost(reason) => ward.lease.lose(reason),
                }
            }
            self.set_alarm(owner);
        }
        renewals
    }

    /// Takes note of how a renewal went. True if the task must be woken for an earlier alarm.
    fn settle(&mut self, owner: OwnerId, sent: Moment, outcome: Option<Renewal>) -> bool {
        let Some(ward) = self.wards.get_mut(&owner) else {
            return false;
        };
        match outcome {
            Some(Renewal::Renewed) => ward.renewed(sent),
            Some(Renewal::Lost) => ward.lose(),
            None => {
                metric::renewal_missed();
                let pause = ward.backoff.next(ward.lease.claim.owner.chance(sent));
                ward.watchdog.handle_failed(ward.lease.now(), pause);
            }
        }
        let alarm = self.set_alarm(owner);
        self.ring_for(alarm)
    }

    /// The store says that a hold is over. Another grant than the one in care is not meant.
    fn lost(&mut self, hold: Hold) {
        let ward = self.wards.get_mut(&hold.owner);
        match ward.filter(|ward| ward.lease.token == hold.token) {
            Some(ward) => ward.lose(),
            None => {
                self.strays.truncate(STRAYS - 1);
                self.strays.push_front(hold);
            }
        }
        self.set_alarm(hold.owner);
    }

    fn set_alarm(&mut self, owner: OwnerId) -> Moment {
        let Some(ward) = self.wards.get_mut(&owner) else {
            return NEVER;
        };
        self.alarms.remove(&(ward.alarm, owner));
        ward.alarm = ward.watchdog.poll_timeout();
        self.alarms.insert((ward.alarm, owner));
        ward.alarm
    }

    /// When to wake up next. An alarm that is still to come is kept even if its lease is gone:
    /// waking once for nothing is cheaper than being woken for every lease that comes and goes.
    fn next_alarm(&mut self, now: Moment) -> Moment {
        let first = self.alarms.first().map_or(NEVER, |(alarm, _)| *alarm);
        if self.set_for <= now || first < self.set_for {
            self.set_for = first;
        }
        self.set_for
    }

    fn ring_for(&mut self, alarm: Moment) -> bool {
        let earlier = alarm < self.set_for;
        if earlier {
            self.set_for = alarm;
        }
        earlier
    }
}

async fn go_round(round: Arc<Round>, alarm: Alarm, mut news: mpsc::UnboundedReceiver<Hold>) {
    loop {
        let (renewals, next) = {
            let mut book = round.book.lock();
            let now = round.clock.now();
            let renewals = book.due(now);
            (renewals, book.next_alarm(now))
        };
        for (lease, limit) in renewals {
            tokio::spawn(renew(Arc::clone(&round), lease, limit));
        }
        tokio::select! {
            () = round.earlier.notified() => {}
            // A store without loss notifications has dropped its sender.
            Some(told) = news.recv() => {
                let mut book = round.book.lock();
                book.lost(told);
                while let Ok(told) = news.try_recv() {
                    book.lost(told);
                }
            }
            slept = alarm.sleep_until(next) => if let Err(error) = slept {
                tracing::error!(%error, "the timer failed: leases end with their TTL");
                return;
            },
        }
    }
}

/// One renewal. It is a task of its own, so one that hangs delays nobody and no deadline.
async fn renew(round: Arc<Round>, lease: Arc<Lease>, limit: Duration) {
    let sent = round.clock.now();
    let limit = limit.min(round.call_timeout);
    let outcome = match within(limit, "renew", round.store.renew(&lease.claim)).await {
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
    if round.book.lock().settle(lease.claim.owner, sent, outcome) {
        round.earlier.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claim, LossReason, Token, now};

    const HOUR: Duration = Duration::from_secs(3600);

    fn lease() -> Arc<Lease> {
        granted(None, now() + Duration::from_secs(29))
    }

    fn granted(token: Option<Token>, deadline: Moment) -> Arc<Lease> {
        let runtime = tokio::runtime::Handle::current();
        Arc::new(Lease::new(Claim::sample(), token, deadline, None, Clock::Boot, runtime))
    }

    #[tokio::test]
    async fn leases_that_come_and_go_wake_the_keeper_once() {
        let mut book = Book::default();
        let mut rings = 0;
        for _ in 0..100 {
            let watchdog = Watchdog::new(now(), Duration::from_secs(30), None);
            let lease = lease();
            let owner = lease.claim.owner;
            rings += u32::from(book.add(lease, watchdog));
            book.remove(owner);
            // The keeper looks, as it does whenever it is woken.
            book.next_alarm(now());
        }
        assert_eq!(rings, 1);
        assert!(book.alarms.is_empty() && book.wards.is_empty());
    }

    #[tokio::test]
    async fn a_lease_that_needs_attention_sooner_wakes_the_keeper() {
        let mut book = Book::default();
        let slow = Watchdog::new(now(), Duration::from_secs(30), None);
        let quick = Watchdog::new(now(), Duration::from_secs(3), None);
        assert!(book.add(lease(), slow.clone()));
        assert!(!book.add(lease(), slow));
        assert!(book.add(lease(), quick));
    }

    fn over(owner: OwnerId, token: Option<Token>) -> Hold {
        Hold { owner, token }
    }

    #[tokio::test]
    async fn a_loss_that_is_told_before_the_guard_is_made_is_not_missed() {
        let mut book = Book::default();
        let watchdog = Watchdog::new(now(), Duration::from_secs(30), None);
        let lease = lease();
        book.lost(over(lease.claim.owner, None));
        for _ in 1..STRAYS {
            book.lost(over(OwnerId::random(), None));
        }
        book.add(Arc::clone(&lease), watchdog);
        assert_eq!(lease.loss(), Some(LossReason::NotHeld));
        book.lost(over(OwnerId::random(), None));
        assert_eq!(book.strays.len(), STRAYS, "they do not pile up");
    }

    #[tokio::test]
    async fn a_lease_that_its_guard_found_lost_is_not_renewed_any_longer() {
        let mut book = Book::default();
        let lease = granted(None, now());
        let owner = lease.claim.owner;
        book.add(Arc::clone(&lease), Watchdog::new(now(), Duration::from_secs(30), None));
        assert!(!lease.is_valid(), "by the clock, before the keeper has looked");
        // The reply to a renewal arrives late.
        book.settle(owner, now(), Some(Renewal::Renewed));
        assert_eq!(book.alarms.first(), Some(&(NEVER, owner)));
    }

    #[tokio::test]
    async fn a_told_loss_hits_the_grant_it_names_alone() {
        let (mut book, token) = (Book::default(), Some(Token::new(7)));
        let watchdog = Watchdog::new(now(), Duration::from_secs(30), None);
        let [lost, other] = [token, token].map(|token| granted(token, now() + HOUR));
        for lease in [&lost, &other] {
            book.add(Arc::clone(lease), watchdog.clone());
        }
        let owner = lost.claim.owner;
        for stale in [None, Some(Token::new(6))] {
            book.lost(over(owner, stale));
        }
        book.lost(over(OwnerId::random(), token));
        assert!(lost.is_valid(), "old news are no news");
        for _ in 0..2 {
            book.lost(over(owner, token));
        }
        assert_eq!(lost.loss(), Some(LossReason::NotHeld));
        assert!(other.is_valid());
        let next = book.alarms.first().unwrap().1;
        assert_eq!(next, other.claim.owner, "nothing more is done for what is lost");
    }
}
