//! When to renew a lease, when to warn, and when it is lost.

use std::fmt;
use std::time::Duration;

use crate::Moment;

/// The end of a term that began at `since`, as its holder must see it: one per cent and two
/// milliseconds early, so that the holder stops before the store lets another in, even if the two
/// clocks run at slightly different speeds.
pub fn deadline(since: Moment, ttl: Duration) -> Moment {
    since + ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}

/// What the keeper of a lease must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a renewal, and report how it went.
    Renew,
    /// Warn the holder that half the term has passed without a renewal.
    Danger,
    /// Tell the holder that the lease is lost. Nothing follows.
    Lost(LossReason),
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum LossReason {
    /// The term ended before a renewal was confirmed.
    Expired,
    /// The store says that the claim does not hold the lock.
    NotHeld,
    /// The holder's own limit on how long it may hold was reached.
    MaxHold,
    /// The holder gave the lock back itself.
    GivenUp,
}

impl fmt::Display for LossReason {
    /// A clause about the lock: "its lease ended before a renewal was confirmed".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Expired => "its lease ended before a renewal was confirmed",
            Self::NotHeld => "the store gave it to another holder or let it expire",
            Self::MaxHold => "it was held for as long as its max-hold allows",
            Self::GivenUp => "its guard was released or dropped",
        })
    }
}

/// Watches one lease: renew at a third of the term, warn at half, lost at the deadline.
///
/// The deadline does not wait for any reply: a renewal that hangs is a renewal that did not come.
///
/// ```
/// use std::time::Duration;
/// use tenure_proto::{Action, LossReason, Moment, Watchdog};
///
/// let start = Moment::from_nanos(0);
/// let mut watchdog = Watchdog::new(start, Duration::from_secs(30), None);
/// assert_eq!(watchdog.poll_timeout(), start + Duration::from_secs(10));
/// assert_eq!(watchdog.poll_action(start + Duration::from_secs(10)), Some(Action::Renew));
/// // No reply ever comes …
/// assert_eq!(watchdog.poll_action(start + Duration::from_secs(15)), Some(Action::Danger));
/// assert_eq!(
///     watchdog.poll_action(start + Duration::from_secs(30)),
///     Some(Action::Lost(LossReason::Expired))
/// );
/// ```
#[derive(Clone, Debug)]
pub struct Watchdog {
    ttl: Duration,
    since: Moment,
    hold_until: Option<Moment>,
    renewal: Renewal,
    warned: bool,
    lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    Due(Moment),
    UnderWay,
}

impl Renewal {
    /// The renewal of a term that began at `since`: at a third, or earlier by less than a 256th of that.
    ///
    /// Terms of the same length fall due together at multiples of that step, so that the renewals of many
    /// leases share wake-ups, packets and system calls.
    fn due(since: Moment, ttl: Duration) -> Self {
        let third = ttl / 3;
        let step = u64::try_from(third.as_nanos() / 256).unwrap_or(u64::MAX).max(1);
        let at = (since + third).as_nanos();
        Self::Due(Moment::from_nanos(at - at % step))
    }
}

impl Watchdog {
    /// Watches a term of `ttl` that began at `since`, held at most until `hold_until`.
    pub fn new(since: Moment, ttl: Duration, hold_until: Option<Moment>) -> Self {
        let renewal = Renewal::due(since, ttl);
        Self { ttl, since, hold_until, renewal, warned: false, lost: false }
    }

    /// The moment from which the lease is not valid any more.
    pub fn deadline(&self) -> Moment {
        let end = deadline(self.since, self.ttl);
        self.hold_until.map_or(end, |cap| cap.min(end))
    }

    /// Whether the holder has been warned and no renewal has come since.
    pub const fn is_in_danger(&self) -> bool {
        self.warned
    }

    /// When [`poll_action`](Self::poll_action) is next worth a call. After the loss: never.
    pub fn poll_timeout(&self) -> Moment {
        if self.lost {
            return Moment::from_nanos(u64::MAX);
        }
        let mut next = self.deadline();
        if let Renewal::Due(at) = self.renewal {
            next = next.min(at);
        }
        if !self.warned {
            next = next.min(self.danger_at());
        }
        next
    }

    /// What is to be done at `now`. Call again until it answers `None`.
    pub fn poll_action(&mut self, now: Moment) -> Option<Action> {
        if self.lost {
            return None;
        }
        if now >= self.deadline() {
            let capped = self.hold_until.is_some_and(|cap| now >= cap);
            let reason = if capped { LossReason::MaxHold } else { LossReason::Expired };
            return Some(self.lose(reason));
        }
        if !self.warned && now >= self.danger_at() {
            self.warned = true;
            return Some(Action::Danger);
        }
        if let Renewal::Due(at) = self.renewal
            && now >= at
        {
            self.renewal = Renewal::UnderWay;
            return Some(Action::Renew);
        }
        None
    }

    /// A renewal that was sent at `sent` has been confirmed: the term began anew then.
    /// A confirmation that comes after the loss changes nothing.
    pub fn handle_renewed(&mut self, sent: Moment) {
        if self.lost {
            return;
        }
        if sent >= self.since {
            (self.since, self.warned) = (sent, false);
        }
        self.renewal = Renewal::due(self.since, self.ttl);
    }

    /// A renewal failed, or its reply is overdue: try again after `pause`.
    pub fn handle_failed(&mut self, now: Moment, pause: Duration) {
        self.renewal = Renewal::Due(now + pause);
    }

    /// The store says that the claim does not hold the lock.
    pub fn handle_not_held(&mut self) -> Option<Action> {
        (!self.lost).then(|| self.lose(LossReason::NotHeld))
    }

    /// How long a single renewal may take before it counts as failed: so short that several fit
    /// between the renewal at a third and the deadline.
    pub fn renewal_timeout(&self) -> Duration {
        self.ttl / 6
    }

    fn danger_at(&self) -> Moment {
        self.since + self.ttl / 2
    }

    const fn lose(&mut self, reason: LossReason) -> Action {
        self.lost = true;
        Action::Lost(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TTL: Duration = Duration::from_secs(30);

    fn at(seconds: f64) -> Moment {
        Moment::from_nanos(0) + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_deadline_is_one_per_cent_and_two_milliseconds_early() {
        assert_eq!(deadline(at(0.0), TTL), at(29.698));
        assert_eq!(deadline(at(5.0), Duration::from_millis(1)), at(5.0), "never before the start");
    }

    #[test]
    fn a_renewal_counts_from_when_it_was_sent_not_from_its_reply() {
        let mut watchdog = Watchdog::new(at(0.0), TTL, None);
        assert_eq!(watchdog.poll_action(at(10.0)), Some(Action::Renew));
        watchdog.handle_renewed(at(10.0));
        assert_eq!(watchdog.deadline(), deadline(at(10.0), TTL));
        assert_eq!(watchdog.poll_timeout(), at(20.0));
    }

    #[test]
    fn the_renewals_of_leases_that_began_one_after_the_other_fall_due_together() {
        let due = |start: f64| Watchdog::new(at(start), TTL, None).poll_timeout();
        let moments: std::collections::BTreeSet<_> = (0..1000).map(|n| due(n.into())).collect();
        assert_eq!(moments.len(), 1000, "a second apart, each has its own");
        let moments: std::collections::BTreeSet<_> =
            (0..1000).map(|n| due(1.0 + f64::from(n) / 1e3)).collect();
        assert!(moments.len() <= 27, "{} moments in a second", moments.len());
        for start in [0.0, 0.1, 1.234_567, 1e6] {
            let early = (at(start) + TTL / 3).since(due(start));
            assert!(early < TTL / 3 / 256, "{early:?} before a third of the term");
        }
    }

    #[test]
    fn a_late_reply_to_an_early_renewal_never_shortens_the_term() {
        let mut watchdog = Watchdog::new(at(0.0), TTL, None);
        watchdog.handle_renewed(at(12.0));
        watchdog.handle_renewed(at(10.0));
        assert_eq!(watchdog.deadline(), deadline(at(12.0), TTL));
    }

    #[test]
    fn danger_is_over_when_a_renewal_comes_and_can_come_again() {
        let mut watchdog = Watchdog::new(at(0.0), TTL, None);
        assert_eq!(watchdog.poll_action(at(10.0)), Some(Action::Renew));
        assert_eq!(watchdog.poll_action(at(15.0)), Some(Action::Danger));
        assert!(watchdog.is_in_danger());
        watchdog.handle_renewed(at(14.0));
        assert!(!watchdog.is_in_danger());
        assert_eq!(watchdog.poll_action(at(24.0)), Some(Action::Renew));
        assert_eq!(watchdog.poll_action(at(29.0)), Some(Action::Danger));
    }

    #[test]
    fn max_hold_ends_a_lease_that_is_renewed_all_the_time() {
        let mut watchdog = Watchdog::new(at(0.0), TTL, Some(at(45.0)));
        for sent in [10.0, 20.0, 30.0, 40.0] {
            assert_eq!(watchdog.poll_action(at(sent)), Some(Action::Renew));
            watchdog.handle_renewed(at(sent));
        }
        assert_eq!(watchdog.poll_timeout(), at(45.0));
        assert_eq!(watchdog.poll_action(at(45.0)), Some(Action::Lost(LossReason::MaxHold)));
    }

    #[test]
    fn the_loss_is_reported_once_and_is_final() {
        let mut watchdog = Watchdog::new(at(0.0), TTL, None);
        assert_eq!(watchdog.handle_not_held(), Some(Action::Lost(LossReason::NotHeld)));
        watchdog.handle_renewed(at(1.0));
        assert_eq!(watchdog.handle_not_held(), None);
        assert_eq!(watchdog.poll_action(at(100.0)), None);
    }

    /// Every event sequence up to six steps of a third, a half and a whole term, with replies that
    /// come, fail or hang: the holder is always told of the loss no later than the deadline, after a
    /// warning, and never while it is renewed in time.
    #[test]
    fn every_short_history_warns_before_it_loses_and_loses_on_time() {
        let steps = [1.0, 5.0, 10.0, 16.0, 31.0];
        for history in 0..(steps.len() * 3usize).pow(4) {
            let mut code = history;
            let (mut now, mut confirmed) = (0.0, 0.0);
            let mut watchdog = Watchdog::new(at(0.0), TTL, None);
            let mut warned = false;
            for _ in 0..4 {
                let (step, reply) = (steps[code % 5], code / 5 % 3);
                code /= 15;
                now += step;
                while let Some(action) = watchdog.poll_action(at(now)) {
                    match action {
                        Action::Renew if reply == 0 => {
                            watchdog.handle_renewed(at(now));
                            (confirmed, warned) = (now, false);
                        }
                        Action::Renew if reply == 1 => {
                            watchdog.handle_failed(at(now), Duration::from_secs(1));
                        }
                        Action::Renew => {}
                        Action::Danger => warned = true,
                        Action::Lost(_) => assert!(at(now) >= deadline(at(confirmed), TTL)),
                    }
                }
                if at(now) >= deadline(at(confirmed), TTL) {
                    assert_eq!(watchdog.poll_timeout(), Moment::from_nanos(u64::MAX));
                } else {
                    assert_eq!(warned, now - confirmed >= 15.0);
                    assert!(watchdog.poll_timeout() > at(now));
                }
            }
        }
    }

    proptest! {
        /// A keeper that sleeps exactly until `poll_timeout` never misses the deadline.
        #[test]
        fn sleeping_until_the_timeout_is_enough(
            ttl_ms in 100u64..100_000, replies in prop::collection::vec((0u8..3, 0u64..500), 1..40),
        ) {
            let ttl = Duration::from_millis(ttl_ms);
            let mut watchdog = Watchdog::new(at(0.0), ttl, None);
            let mut replies = replies.into_iter();
            let mut lost_at = None;
            for _ in 0..500 {
                let now = watchdog.poll_timeout();
                if now == Moment::from_nanos(u64::MAX) { break; }
                while let Some(action) = watchdog.poll_action(now) {
                    match (action, replies.next()) {
                        (Action::Renew, Some((0, _))) => watchdog.handle_renewed(now),
                        (Action::Renew, Some((1, pause))) => {
                            watchdog.handle_failed(now, Duration::from_millis(pause + 1));
                        }
                        (Action::Lost(_), _) => lost_at = Some(now),
                        _ => {}
                    }
                }
            }
            prop_assert!(lost_at.is_some());
            prop_assert_eq!(lost_at, Some(watchdog.deadline()));
        }
    }
}
