//! How many calls are let through: the rules, without a store.

use std::time::Duration;

use super::contract::{Rule, Taken};
use crate::{Error, ErrorKind, Result};

/// How many calls a [`RateLimiter`](crate::RateLimiter) lets through.
///
/// ```
/// use std::time::Duration;
/// use tenure::Rate;
///
/// let plain = Rate::fixed_window(100, Duration::from_secs(60));
/// let smooth = Rate::gcra(100, Duration::from_secs(60)).burst(10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Rate {
    algorithm: Algorithm,
    limit: u64,
    period: Duration,
    burst: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    FixedWindow,
    Gcra,
}

impl Rate {
    /// The most calls in a period, and the longest period in seconds.
    const MOST: u64 = 1_000_000;
    const LONGEST: u64 = 24 * 60 * 60;

    /// At most `limit` in each window of this length. Windows begin at multiples of it since the Unix
    /// epoch: so around the end of a window, up to twice as many may come close together. Simple, and
    /// what many services mean by "100 a minute".
    pub const fn fixed_window(limit: u64, window: Duration) -> Self {
        Self { algorithm: Algorithm::FixedWindow, limit, period: window, burst: limit }
    }

    /// `limit` in each period, evenly spread, by the generic cell rate algorithm: a bucket of
    /// `limit` that fills up continuously. After a pause up to [`burst`](Self::burst) may come at once,
    /// `limit` unless that is set.
    pub const fn gcra(limit: u64, period: Duration) -> Self {
        Self { algorithm: Algorithm::Gcra, limit, period, burst: limit }
    }

    /// How many may come at once, with [`gcra`](Self::gcra): the size of the bucket.
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = burst;
        self
    }

    /// The most that can ever be let through at once.
    pub(crate) const fn most(self) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow => self.limit,
            Algorithm::Gcra => self.burst,
        }
    }

    pub(crate) fn check(self) -> Result<()> {
        let fault = |why: String| Err(Error::new(ErrorKind::Invalid, "limit the rate", why));
        let most = Self::MOST;
        for (what, number) in [("limit", self.limit), ("burst", self.burst)] {
            if !(1..=most).contains(&number) {
                return fault(format!("the {what} is {number}: choose 1 to {most}"));
            }
        }
        let longest = Duration::from_secs(Self::LONGEST);
        if self.period < Duration::from_millis(1) || self.period > longest {
            return fault(format!("the period is {:?}: choose 1ms to 24h", self.period));
        }
        let year = Duration::from_secs(366 * 24 * 60 * 60);
        if self.horizon() > year {
            return fault("the burst would take more than a year to fill up: choose less".into());
        }
        Ok(())
    }

    /// The numbers that engines count with, for a request of this cost.
    pub(crate) fn rule(self, cost: u64) -> Rule {
        let period = micros(self.period);
        match self.algorithm {
            Algorithm::FixedWindow => Rule::FixedWindow { period, limit: self.limit, cost },
            Algorithm::Gcra => {
                Rule::Gcra { increment: self.spread(cost), bucket: self.spread(self.burst) }
            }
        }
    }

    /// How long a state matters, at the most.
    pub(crate) fn horizon(self) -> Duration {
        match self.algorithm {
            Algorithm::FixedWindow => self.period,
            Algorithm::Gcra => Duration::from_micros(self.spread(self.burst)),
        }
    }

    /// The decision as the caller sees it, for a request with this outcome, which left this state.
    pub(crate) fn describe(self, cost: u64, taken: Taken) -> Decision {
        let Taken { allowed, state: (first, second), now } = taken;
        let (remaining, retry_after) = match self.rule(cost) {
            Rule::FixedWindow { period, limit, .. } => {
                let used = if now / period > first { 0 } else { second };
                let next = first.saturating_add(1).saturating_mul(period);
                (limit.saturating_sub(used), next.saturating_sub(now))
            }
            Rule::Gcra { increment, bucket } => {
                let (tat, full) = (first.max(now), now.saturating_add(bucket));
                let room = u128::from(full.saturating_sub(tat));
                let count = room * u128::from(self.limit) / u128::from(micros(self.period));
                let count = u64::try_from(count).unwrap_or(u64::MAX).min(self.burst);
                (count, tat.saturating_add(increment).saturating_sub(full))
            }
        };
        let retry_after = if allowed { 0 } else { retry_after };
        Decision { allowed, remaining, retry_after: Duration::from_micros(retry_after) }
    }

    /// The time in which so many become free, in microseconds. Rounded up: never faster than the rate.
    fn spread(self, count: u64) -> u64 {
        let micros = u128::from(count) * u128::from(micros(self.period));
        u64::try_from(micros.div_ceil(u128::from(self.limit.max(1)))).unwrap_or(u64::MAX)
    }
}

/// Whether a request was let through, and what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether it was let through; for a peek, whether it would have been.
    pub allowed: bool,
    /// How many more would be let through now.
    pub remaining: u64,
    /// After what time the same request would be let through, if no other came before it. Zero if it was.
    pub retry_after: Duration,
}

impl Rule {
    /// Decides on a request at this time, by the state that the last one left.
    pub(crate) fn decide(self, (first, second): (u64, u64), now: u64) -> Taken {
        match self {
            Self::FixedWindow { period, limit, cost } => {
                // A client whose clock is behind is counted in the window that has begun already.
                let number = (now / period).max(first);
                let used = if first == number { second } else { 0 };
                let allowed = used.saturating_add(cost) <= limit;
                let state = (number, if allowed { used + cost } else { used });
                Taken { allowed, state, now }
            }
            Self::Gcra { increment, bucket } => {
                let tat = first.max(now);
                let new = tat.saturating_add(increment);
                let allowed = new <= now.saturating_add(bucket);
                Taken { allowed, state: (if allowed { new } else { tat }, 0), now }
            }
        }
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// A time that is no multiple of a second.
    const START: u64 = 1_800_000_000_300_000;

    /// Asks at these times, in microseconds after the start, and says what was let through.
    fn asked(rate: Rate, requests: &[(u64, u64)]) -> Vec<(bool, u64, u64)> {
        let mut state = (0, 0);
        let ask = |(after, cost): &(u64, u64)| {
            let taken = rate.rule(*cost).decide(state, START + after);
            state = taken.state;
            let Decision { allowed, remaining, retry_after } = rate.describe(*cost, taken);
            (allowed, remaining, micros(retry_after))
        };
        requests.iter().map(ask).collect()
    }

    #[test]
    fn a_window_lets_its_limit_through_and_begins_anew() {
        let rate = Rate::fixed_window(3, SECOND);
        let requests = [(0, 1), (1, 2), (2, 1), (699_999, 3), (700_000, 3), (700_001, 1)];
        let expected = [
            (true, 2, 0),
            (true, 0, 0),
            (false, 0, 699_998),
            (false, 0, 1),
            (true, 0, 0),
            (false, 0, 999_999),
        ];
        assert_eq!(asked(rate, &requests), expected);
    }

    #[test]
    fn a_request_that_costs_more_than_is_left_takes_nothing() {
        let rate = Rate::fixed_window(3, SECOND);
        assert_eq!(
            asked(rate, &[(0, 2), (1, 2), (2, 1)])[1..],
            [(false, 1, 699_999), (true, 0, 0)]
        );
        let rate = Rate::gcra(4, SECOND);
        assert_eq!(
            asked(rate, &[(0, 3), (0, 3), (0, 1)])[1..],
            [(false, 1, 500_000), (true, 0, 0)]
        );
    }

    #[test]
    fn a_bucket_fills_up_evenly_and_no_further_than_its_burst() {
        let rate = Rate::gcra(10, SECOND).burst(2);
        let requests =
            [(0, 1), (0, 1), (0, 1), (99_999, 1), (100_000, 1), (9_000_000, 2), (9_000_000, 1)];
        let expected = [
            (true, 1, 0),
            (true, 0, 0),
            (false, 0, 100_000),
            (false, 0, 1),
            (true, 0, 0),
            (true, 0, 0),
            (false, 0, 100_000),
        ];
        assert_eq!(asked(rate, &requests), expected);
    }

    #[test]
    fn over_any_period_a_bucket_lets_no_more_through_than_its_burst_and_its_rate() {
        let rate = Rate::gcra(7, SECOND).burst(3);
        let requests: Vec<(u64, u64)> = (0..5_000).map(|step| (step * 1_000, 1)).collect();
        let allowed = asked(rate, &requests).iter().filter(|(allowed, ..)| *allowed).count();
        assert_eq!(allowed, 3 + 7 * 5 - 1, "within five seconds");
    }

    #[test]
    fn a_clock_that_is_behind_gets_no_second_window() {
        let rate = Rate::fixed_window(1, SECOND);
        let first = rate.rule(1).decide((0, 0), START);
        let behind = rate.rule(1).decide(first.state, START - 5_000_000);
        assert!(first.allowed && !behind.allowed);
        assert_eq!(rate.describe(1, behind).retry_after, Duration::from_micros(5_700_000));
    }

    #[test]
    fn rates_that_make_no_sense_are_refused() {
        let long = Duration::from_secs(90_000);
        for bad in [
            Rate::fixed_window(0, SECOND),
            Rate::fixed_window(1, Duration::ZERO),
            Rate::gcra(1, long),
            Rate::gcra(10, SECOND).burst(0),
            Rate::gcra(1, SECOND).burst(2_000_000),
            Rate::gcra(1, Duration::from_secs(86_400)).burst(1_000_000),
        ] {
            assert_eq!(bad.check().unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
        assert!(Rate::gcra(1_000_000, SECOND).check().is_ok());
    }
}
