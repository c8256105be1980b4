//! When to signal a command whose lock is not confirmed, so that it has ended before the lease does.

use std::time::Duration;

/// Computes when each [`Step`] is due from what is left of the lease. No step is due before half the
/// TTL has passed without a renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossSchedule {
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
}

/// A step towards the loss of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send SIGTERM.
    Term,
    /// Send SIGKILL.
    Kill,
    /// The guardian sends SIGKILL, if tenure did not.
    Backstop,
    /// The lease ends.
    Loss,
}

impl LossSchedule {
    /// How long before the end of the lease SIGKILL is sent, at most: the kernel needs time to end
    /// the processes.
    const MARGIN: Duration = Duration::from_millis(500);

    /// The time until a step is due if `left` remains of the lease.
    pub(crate) fn until(&self, step: Step, left: Duration) -> Duration {
        let margin = Self::MARGIN.min(self.ttl / 10);
        let ahead = match step {
            Step::Term => margin.saturating_add(self.grace),
            Step::Kill => margin,
            Step::Backstop => margin / 2,
            Step::Loss => Duration::ZERO,
        };
        left.saturating_sub(ahead)
    }

    /// The time until SIGKILL if the lock is taken by force after `grace`.
    pub(crate) fn within(&self, grace: Duration) -> Duration {
        self.until(Step::Kill, grace)
    }

    /// Whether the lease was renewed less than half a TTL ago.
    pub(crate) fn is_out_of_danger(&self, left: Duration) -> bool {
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
    fn sigterm_precedes_sigkill_by_the_grace_and_sigkill_precedes_the_end_of_the_lease() {
        let long = LossSchedule { ttl: ms(30_000), grace: ms(5_000) };
        assert_eq!(long.until(Step::Term, ms(15_000)), ms(9_500));
        assert_eq!(long.until(Step::Kill, ms(15_000)), ms(14_500));
        assert_eq!(long.until(Step::Backstop, ms(15_000)), ms(14_750));
        assert_eq!(long.until(Step::Loss, ms(15_000)), ms(15_000));
    }

    #[test]
    fn a_short_lease_shortens_the_grace_but_not_the_margin() {
        let short = LossSchedule { ttl: ms(2_000), grace: ms(5_000) };
        assert_eq!(short.until(Step::Term, ms(990)), ms(0), "at once");
        assert_eq!(short.until(Step::Kill, ms(990)), ms(790));
        let shortest = LossSchedule { ttl: ms(100), grace: Duration::MAX };
        assert_eq!(shortest.until(Step::Term, ms(48)), ms(0));
        assert_eq!(shortest.until(Step::Kill, ms(48)), ms(38));
    }
}
