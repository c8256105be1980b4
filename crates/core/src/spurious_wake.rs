//! Limits how often a waiter asks because the store woke it for nothing.

use std::time::Duration;

use tenure_proto::Backoff;

use crate::{Claim, Moment, now};

/// Limits how often a waiter asks because its store woke it, and then is told to wait again.
///
/// A token bucket: each such request takes a token, and a token comes back each second. A usual waiter
/// is woken a few times, as those before it leave, and never finds the bucket empty. When it is
/// empty, each request waits first, up to a second or the poll interval, whichever is shorter. So a
/// faulty store costs at most a few requests a second for each waiter, and a delayed request comes
/// no later than a poll would.
pub(crate) struct SpuriousWakeBackoff {
    /// The time it took to earn the tokens that are left.
    earned: Duration,
    /// When `earned` was last brought up to date.
    seen: Moment,
    backoff: Backoff,
}

impl SpuriousWakeBackoff {
    /// How many requests are free at once.
    const TOKENS: u32 = 10;
    /// How long it takes to earn a token.
    const EARN: Duration = Duration::from_secs(1);
    const FULL: Duration = Self::EARN.saturating_mul(Self::TOKENS);

    /// A full bucket, for a waiter that asks every `poll` by itself.
    pub(crate) fn new(poll: Duration, now: Moment) -> Self {
        let backoff = Backoff::new(Duration::from_millis(2), poll.min(Duration::from_secs(1)));
        Self { earned: Self::FULL, seen: now, backoff }
    }

    /// Sleeps before a request that a wake-up asks for, if there have been too many.
    pub(crate) async fn pause(&mut self, claim: &Claim) {
        let now = now();
        if let Some(pause) = self.after_wake(now, claim.owner.chance(now)) {
            tokio::time::sleep(pause).await;
        }
    }

    /// How long to sleep after a wake-up. `None`: not at all.
    fn after_wake(&mut self, now: Moment, random: u64) -> Option<Duration> {
        self.earned = (self.earned + now.since(self.seen)).min(Self::FULL);
        self.seen = now;
        if self.earned == Self::FULL {
            self.backoff.reset();
        }
        match self.earned.checked_sub(Self::EARN) {
            Some(left) => {
                self.earned = left;
                None
            }
            None => Some(self.backoff.next(random)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How often a waiter asks in `length`, and how long it sleeps in all, if each wait takes
    /// `wait` and brings nothing.
    fn simulate(wait: Duration, poll: Duration, length: Duration) -> (u32, Duration) {
        let start = Moment::default() + SECOND;
        let mut backoff = SpuriousWakeBackoff::new(poll, start);
        let (mut now, mut asked, mut slept) = (start, 0, Duration::ZERO);
        while now.since(start) < length {
            let pause = backoff.after_wake(now + wait, u64::MAX).unwrap_or_default();
            (now, asked, slept) = (now + wait + pause, asked + 1, slept + pause);
        }
        (asked, slept)
    }

    #[test]
    fn wake_ups_that_bring_nothing_cost_a_few_requests_a_second_however_long_each_takes() {
        for wait in [0, 1, 3, 20, 100].map(Duration::from_millis) {
            let (asked, _) = simulate(wait, SECOND, 60 * SECOND);
            assert!(asked < 200, "{asked} requests in a minute, each wait {wait:?}");
        }
    }

    #[test]
    fn ten_wake_ups_at_once_and_one_a_second_cost_no_time() {
        let (asked, slept) = simulate(SECOND, SECOND, 3_600 * SECOND);
        assert_eq!((asked, slept), (3_600, Duration::ZERO));
        let start = Moment::default() + SECOND;
        let mut backoff = SpuriousWakeBackoff::new(SECOND, start);
        for round in 0..3 {
            let now = start + 10 * round * SECOND;
            let paused = (0..10).filter(|_| backoff.after_wake(now, 0).is_some()).count();
            assert_eq!(paused, 0, "round {round}");
            assert!(backoff.after_wake(now, 0).is_some(), "the eleventh waits");
        }
    }

    #[test]
    fn a_request_is_delayed_by_no_more_than_the_poll_interval() {
        let poll = Duration::from_millis(20);
        let mut backoff = SpuriousWakeBackoff::new(poll, Moment::default());
        let pauses = (0..100).filter_map(|_| backoff.after_wake(Moment::default(), u64::MAX));
        assert_eq!(pauses.max(), Some(poll));
    }
}
