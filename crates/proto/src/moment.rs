//! A point on a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time, in nanoseconds since the machine was started, by one of its clocks.
///
/// Only differences mean anything, and only between moments of the same machine and boot.
/// All arithmetic saturates: a moment never wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The moment so many nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let early = Moment::from_nanos(5);
        assert_eq!(early - Duration::from_secs(1), Moment::from_nanos(0));
        assert_eq!(early + Duration::MAX, Moment::from_nanos(u64::MAX));
        assert_eq!(early.since(Moment::from_nanos(9)), Duration::ZERO);
        assert_eq!(Moment::from_nanos(9).since(early), Duration::from_nanos(4));
    }
}
