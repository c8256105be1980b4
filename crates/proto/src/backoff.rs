//! How long to wait before trying again.

use std::time::Duration;

/// Delays that double from `first` up to `most`, each with full jitter in its upper half.
///
/// Randomness is the caller's: the same numbers give the same delays.
///
/// ```
/// use std::time::Duration;
/// use tenure_proto::Backoff;
///
/// let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(40));
/// assert_eq!(backoff.next(u64::MAX), Duration::from_millis(10));
/// assert_eq!(backoff.next(0), Duration::from_millis(10));
/// assert_eq!(backoff.next(u64::MAX), Duration::from_millis(40));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    tries: u32,
}

impl Backoff {
    /// Delays from `first` to `most`.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, tries: 0 }
    }

    /// The next delay, between half and all of the current step; `random` is a uniform number.
    pub fn next(&mut self, random: u64) -> Duration {
        let step = self.first.saturating_mul(1 << self.tries.min(20)).min(self.most);
        self.tries = self.tries.saturating_add(1);
        let half = step / 2;
        let share = (random >> 32) as f64 / f64::from(u32::MAX);
        half + half.mul_f64(share)
    }

    /// Starts over, after a success.
    pub const fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_delay_stays_within_half_and_all_of_its_step(
            first in 1u64..10_000, most in 1u64..1_000_000, randoms in prop::collection::vec(any::<u64>(), 1..80),
        ) {
            let (first, most) = (Duration::from_micros(first), Duration::from_micros(most));
            let mut backoff = Backoff::new(first, most);
            let mut step = first.min(most);
            for random in randoms {
                let delay = backoff.next(random);
                prop_assert!(delay <= step + Duration::from_nanos(1) && delay >= step / 2);
                step = (step * 2).min(most);
            }
            backoff.reset();
            prop_assert!(backoff.next(u64::MAX) <= first);
        }
    }
}
