//! The local waiters: which claims wait, and what the server has said about each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Moment, now};
use tenure_core::{LockName, OwnerId, Token};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::wire::MessageListener;

/// The claims of this client that wait, and the grants that were pushed to them.
#[derive(Default)]
pub(crate) struct WaiterRegistry(pub(super) Mutex<Registered>);

#[derive(Default)]
pub(super) struct Registered {
    pub(super) claims: HashMap<OwnerId, Waiter>,
    pub(super) queues: HashMap<LockName, LocalQueue>,
    /// How often there was a gap in the messages. After a gap, another server may answer.
    pub(super) misses: u64,
}

/// A claim that is in the queue, or is about to be.
pub(super) struct Waiter {
    pub(super) slot: u16,
    pub(super) lease: Duration,
    pub(super) poll: Duration,
    /// Whether it may be in the queue.
    pub(super) in_queue: bool,
    /// The clock of the server that queued it; another server may serve the lock by now.
    pub(super) anchor: Option<Anchor>,
    pub(super) ask_again_in: Option<Duration>,
    pub(super) pushed: Option<PushedGrant>,
    /// Refresh as soon as this claim is waited for: messages were missed, or there is more to do in the
    /// queue than one call does.
    pub(super) refresh_at_once: bool,
    pub(super) wakeup: Arc<Notify>,
}

impl Waiter {
    pub(super) fn new(slot: u16, lease: Duration, poll: Duration) -> Self {
        Self {
            slot,
            lease,
            poll,
            in_queue: false,
            anchor: None,
            ask_again_in: None,
            pushed: None,
            refresh_at_once: false,
            wakeup: Arc::new(Notify::new()),
        }
    }

    /// Whether a grant is from before the server last said that the claim waits: then it is over.
    pub(super) fn is_over(&self, pushed: &PushedGrant) -> bool {
        self.anchor.is_some_and(|anchor| pushed.server_ms < anchor.server_us / 1000)
    }

    /// The server has said that the claim waits, and what its clock shows.
    pub(super) fn set_anchor(&mut self, anchor: Option<Anchor>) {
        self.anchor = anchor;
        if self.pushed.is_some_and(|pushed| self.is_over(&pushed)) {
            self.pushed = None;
        }
    }
}

/// The moment before a call was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(super) local: Moment,
    pub(super) misses: u64,
}

/// The local waiters of one lock.
pub(super) struct LocalQueue {
    pub(super) owners: HashSet<OwnerId>,
    pub(super) due: Instant,
    /// Notified when the refresh is due earlier than before.
    pub(super) wakeup: Arc<Notify>,
    pub(super) refresher: RefreshTask,
}

/// The task that refreshes the local waiters of a lock.
pub(super) struct RefreshTask {
    pub(super) task: AbortHandle,
    pub(super) runtime: tokio::runtime::Id,
}

/// A grant as it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PushedGrant {
    pub(crate) token: Option<Token>,
    pub(crate) server_ms: u64,
}

/// What is known of the server's clock: at `local` or later, it showed `server_us`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    pub(crate) local: Moment,
    pub(crate) server_us: u64,
}

impl Anchor {
    /// A local moment that is not after the server's `ms`. The clocks may drift apart by one per cent, as
    /// everywhere.
    pub(crate) fn date(&self, ms: u64) -> Moment {
        let us = ms.saturating_mul(1000);
        let ahead = Duration::from_micros(us.saturating_sub(self.server_us));
        let behind = Duration::from_micros(self.server_us.saturating_sub(us));
        self.local + (ahead - ahead / 100) - (behind + behind / 100)
    }
}

impl Registered {
    /// Unless messages were missed since: then another server may answer by now, with another clock.
    pub(super) fn anchor(&self, sent: Sent, server_us: u64) -> Option<Anchor> {
        (self.misses == sent.misses).then_some(Anchor { local: sent.local, server_us })
    }
}

impl WaiterRegistry {
    pub(super) fn sending(&self) -> Sent {
        let misses = self.0.lock().misses;
        Sent { local: now(), misses }
    }

    /// The server has said that all `owners` still wait, except those that are `gone`.
    pub(super) fn refreshed(
        &self,
        owners: &[OwnerId],
        gone: &[OwnerId],
        sent: Sent,
        server_us: u64,
    ) {
        let gone: HashSet<&OwnerId> = gone.iter().collect();
        let registered = &mut *self.0.lock();
        let Some(anchor) = registered.anchor(sent, server_us) else { return };
        for owner in owners.iter().filter(|owner| !gone.contains(owner)) {
            // A claim that asked meanwhile has a newer anchor.
            if let Some(waiter) = registered.claims.get_mut(owner)
                && waiter.anchor.is_none_or(|older| older.local < anchor.local)
            {
                waiter.set_anchor(Some(anchor));
            }
        }
    }

    /// The local waiters of this lock, with the longest lease and the shortest poll among them.
    pub(super) fn present(&self, name: &LockName) -> (Vec<OwnerId>, Duration, Duration) {
        let registered = self.0.lock();
        let owners = registered.queues.get(name).into_iter().flat_map(|line| &line.owners);
        let (mut present, mut lease, mut poll) = (Vec::new(), Duration::ZERO, Duration::MAX);
        for owner in owners {
            if let Some(waiter) = registered.claims.get(owner) {
                present.push(*owner);
                (lease, poll) = (lease.max(waiter.lease), poll.min(waiter.poll));
            }
        }
        (present, lease, poll.min(Duration::from_secs(3600)))
    }

    pub(super) fn postpone(&self, name: &LockName, by: Duration) {
        if let Some(line) = self.0.lock().queues.get_mut(name) {
            line.due = Instant::now() + by;
        }
    }

    pub(super) fn bring_forward(&self, name: &LockName, within: Duration) {
        if let Some(line) = self.0.lock().queues.get_mut(name) {
            line.due = line.due.min(Instant::now() + within);
        }
    }

    pub(super) fn wake<'a>(&self, owners: impl Iterator<Item = &'a OwnerId>) {
        let registered = self.0.lock();
        for waiter in owners.filter_map(|owner| registered.claims.get(owner)) {
            waiter.wakeup.notify_one();
        }
    }
}

impl MessageListener for WaiterRegistry {
    fn on_message(&self, _channel: &[u8], message: &[u8]) {
        let Some((owner, pushed)) = std::str::from_utf8(message).ok().and_then(parse) else {
            tracing::debug!("a message in the inbox cannot be parsed");
            return;
        };
        let registered = &mut *self.0.lock();
        // A claim that was given up meanwhile is released by its client.
        let Some(waiter) = registered.claims.get_mut(&owner) else { return };
        match pushed {
            Some(pushed) => {
                // Otherwise it is over, or the server's clock was set back: asking tells which.
                if !waiter.is_over(&pushed) {
                    waiter.pushed = Some(pushed);
                }
                waiter.wakeup.notify_one();
            }
            None => {
                let line = registered.queues.values_mut().find(|line| line.owners.contains(&owner));
                match line {
                    Some(line) => {
                        line.due = Instant::now();
                        line.wakeup.notify_one();
                    }
                    // The claim is not in `wait` yet.
                    None => waiter.refresh_at_once = true,
                }
            }
        }
    }

    fn on_gap(&self) {
        let registered = &mut *self.0.lock();
        registered.misses += 1;
        for line in registered.queues.values_mut() {
            line.due = Instant::now();
            line.wakeup.notify_one();
        }
        for waiter in registered.claims.values_mut() {
            // The next grant may be dated by another server's clock.
            waiter.anchor = None;
            // A claim whose reply was just read is not among the local waiters yet.
            waiter.refresh_at_once = true;
        }
    }
}

/// `<owner> <token or -> <server ms>` is a grant; `<owner> more` says that there is more to do in the queue
/// than one call does, and that this client should go on.
fn parse(payload: &str) -> Option<(OwnerId, Option<PushedGrant>)> {
    let mut words = payload.split(' ');
    let owner = words.next()?.parse().ok()?;
    let token = match words.next()? {
        "more" => return Some((owner, None)),
        token => token.parse().ok().map(Token::new),
    };
    let server_ms = words.next()?.parse().ok()?;
    Some((owner, Some(PushedGrant { token, server_ms })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pushed_grant_is_never_dated_after_it_was_made() {
        let anchor = Anchor { local: Moment::from_nanos(5_000_000_000), server_us: 1_000_400 };
        // 1,003 ms on the server's clock: 2.6 ms after the anchor, which was not before `local`.
        let dated = anchor.date(1003);
        assert_eq!(dated, anchor.local + Duration::from_micros(2574));
        // A grant in the millisecond of the anchor may have been before it.
        assert_eq!(anchor.date(1000), anchor.local - Duration::from_micros(404));
    }

    #[test]
    fn a_pushed_grant_is_dated_with_an_allowance_for_clocks_that_drift_apart() {
        let local = Moment::from_nanos(7_200_000_000_000);
        let anchor = Anchor { local, server_us: 1_000_000_000 };
        // An hour on a server's clock that runs fast by one per cent is 59 minutes and 24 seconds.
        let hour = Duration::from_secs(3600);
        assert!(anchor.date(1_000_000 + hour.as_millis() as u64) <= local + hour * 99 / 100);
    }

    #[test]
    fn a_reply_from_before_messages_were_missed_dates_nothing() {
        let waiters = WaiterRegistry::default();
        let sent = waiters.sending();
        assert!(waiters.0.lock().anchor(sent, 1).is_some());
        waiters.on_gap();
        assert!(waiters.0.lock().anchor(sent, 1).is_none());
        let sent = waiters.sending();
        assert!(waiters.0.lock().anchor(sent, 1).is_some());
    }

    #[test]
    fn a_claim_that_missed_messages_before_its_wait_is_refreshed_at_once() {
        let (waiters, owner) = (WaiterRegistry::default(), OwnerId::random());
        let minute = Duration::from_secs(60);
        waiters.0.lock().claims.insert(owner, Waiter::new(0, minute, minute));
        waiters.on_gap();
        assert!(waiters.0.lock().claims[&owner].refresh_at_once);
    }

    #[test]
    fn messages_are_read_and_nonsense_is_not() {
        let owner = OwnerId::random();
        let (heard, pushed) = parse(&format!("{owner} 17 99")).unwrap();
        assert_eq!(
            (heard, pushed),
            (owner, Some(PushedGrant { token: Some(Token::new(17)), server_ms: 99 }))
        );
        let (_, pushed) = parse(&format!("{owner} - 99")).unwrap();
        assert_eq!(pushed, Some(PushedGrant { token: None, server_ms: 99 }));
        assert_eq!(parse(&format!("{owner} more")).unwrap(), (owner, None));
        for nonsense in ["", "a b c", "0", &format!("{owner} 1")] {
            assert!(parse(nonsense).is_none(), "{nonsense}");
        }
    }
}
