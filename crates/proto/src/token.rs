//! Fencing tokens and how to mint them.

use std::fmt;

/// A fencing token: a number that strictly increases with every grant of a lock.
///
/// Send it along with every write the lock protects, and let the resource refuse a write whose
/// token is below the highest it has seen: then a holder that lost its lock without noticing can
/// do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Token(u64);

impl Token {
    /// The token with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The token after `last` on a store that may lose its memory but keeps its clock:
    /// one more than the last, and never below the clock in milliseconds times 1024.
    ///
    /// Fits 51 bits until the year 2039 or so, hence is exact in a double.
    pub const fn after(last: Option<Self>, clock_ms: u64) -> Self {
        let floor = clock_ms.saturating_mul(1024);
        match last {
            Some(Self(last)) if last >= floor => Self(last.saturating_add(1)),
            _ => Self(floor),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tokens reserved in blocks, so that one durable write pays for many of them.
///
/// The ceiling is made durable *before* a token below it is handed out. After a crash the next
/// token is the durable ceiling, which is above every token ever handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    next: u64,
    ceiling: u64,
}

impl Reserve {
    /// Continues after `next - 1` under a durable ceiling. With both equal, as after a crash, nothing is
    /// reserved: the first [`take`](Self::take) fails until a block has been reserved.
    pub const fn resume(next: u64, ceiling: u64) -> Self {
        // A `next` beyond the ceiling was never durable: trust the ceiling alone.
        let next = if next > ceiling { ceiling } else { next };
        Self { next, ceiling }
    }

    /// The number the next token will have.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// The durable bound: every token handed out is below it.
    pub const fn ceiling(&self) -> u64 {
        self.ceiling
    }

    /// The next token, or `None` if a block must be reserved first.
    pub const fn take(&mut self) -> Option<Token> {
        if self.next >= self.ceiling {
            return None;
        }
        let token = Token(self.next);
        self.next += 1;
        Some(token)
    }

    /// The ceiling to make durable before calling [`raise`](Self::raise) with it.
    /// `None` when the numbers are used up.
    pub const fn raised(&self, block: u64) -> Option<u64> {
        self.ceiling.checked_add(block)
    }

    /// Takes note that `ceiling` is durable now. A lower one than before is ignored.
    pub const fn raise(&mut self, ceiling: u64) {
        if ceiling > self.ceiling {
            self.ceiling = ceiling;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_clock_lifts_a_token_and_never_lowers_it() {
        assert_eq!(Token::after(None, 2), Token(2048));
        assert_eq!(Token::after(Some(Token(2047)), 2), Token(2048));
        assert_eq!(Token::after(Some(Token(2048)), 2), Token(2049));
        assert_eq!(Token::after(Some(Token(9000)), 2), Token(9001));
    }

    proptest! {
        #[test]
        fn tokens_strictly_increase_whatever_the_clock_does(clocks in prop::collection::vec(0u64..1 << 41, 1..50)) {
            let mut last = None;
            for clock in clocks {
                let next = Token::after(last, clock);
                prop_assert!(last < Some(next));
                last = Some(next);
            }
        }

        /// A crash forgets everything but the durable ceiling, at any point.
        #[test]
        fn reserved_tokens_strictly_increase_across_crashes(
            steps in prop::collection::vec((any::<bool>(), 1u64..5), 1..200),
        ) {
            let mut durable = 1;
            let mut reserve = Reserve::resume(durable, durable);
            let mut last = None;
            for (crash, block) in steps {
                if crash {
                    reserve = Reserve::resume(durable, durable);
                }
                let token = reserve.take().or_else(|| {
                    durable = reserve.raised(block)?;
                    reserve.raise(durable);
                    reserve.take()
                });
                prop_assert!(last < token);
                last = token;
            }
        }
    }

    #[test]
    fn a_next_beyond_the_ceiling_is_not_trusted() {
        let mut reserve = Reserve::resume(50, 40);
        assert_eq!(reserve.take(), None);
        reserve.raise(41);
        assert_eq!(reserve.take(), Some(Token(40)));
    }

    #[test]
    fn the_last_number_is_an_end_not_a_wrap() {
        assert_eq!(Reserve::resume(u64::MAX, u64::MAX).raised(1), None);
    }
}
