//! When a command must be told to end, so that it is gone before its lock can go to another.

use std::time::Duration;

/// The steps on the way to a loss, by what is left of the lease. None of them comes before half the
/// TTL has passed without a renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
}

/// What is done on the way to a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// SIGTERM.
    Term,
    /// SIGKILL.
    Kill,
    /// Nothing: the lease ends.
    Loss,
}

impl Schedule {
    /// The longest time that is left for the system to end what was killed.
    const MARGIN: Duration = Duration::from_millis(500);

    /// How long to wait with a step when `left` is left of the lease.
    pub(crate) fn until(&self, step: Step, left: Duration) -> Duration {
        let margin = Self::MARGIN.min(self.ttl / 10);
        let ahead = match step {
            Step::Term => margin.saturating_add(self.grace),
            Step::Kill => margin,
            Step::Loss => Duration::ZERO,
        };
        left.saturating_sub(ahead)
    }

    /// Whether the lease has been renewed less than half a TTL ago.
    pub(crate) fn is_sound(&self, left: Duration) -> bool {
        left > self.ttl / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn sigterm_is_a_grace_before_sigkill_and_sigkill_before_the_end_of_the_lease() {
        let long = Schedule { ttl: ms(30_000), grace: ms(5_000) };
        assert_eq!(long.until(Step::Term, ms(15_000)), ms(9_500));
        assert_eq!(long.until(Step::Kill, ms(15_000)), ms(14_500));
        assert_eq!(long.until(Step::Loss, ms(15_000)), ms(15_000));
    }

    #[test]
    fn a_short_lease_shortens_the_grace_and_not_the_margin() {
        let short = Schedule { ttl: ms(2_000), grace: ms(5_000) };
        assert_eq!(short.until(Step::Term, ms(990)), ms(0), "as soon as there is danger");
        assert_eq!(short.until(Step::Kill, ms(990)), ms(790));
        let shortest = Schedule { ttl: ms(100), grace: Duration::MAX };
        assert_eq!(shortest.until(Step::Term, ms(48)), ms(0));
        assert_eq!(shortest.until(Step::Kill, ms(48)), ms(38));
    }
}
