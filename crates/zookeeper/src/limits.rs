//! ZooKeeper's numbers end: it counts the children that a node ever had with 31 bits.
//!
//! After the last number the order of a queue would break for other clients. So when a lock has used
//! half of the numbers, its node is deleted at a moment when the lock is not used, and numbers begin
//! anew. If there is no such moment, the lock is refused near the end of the numbers.

use tenure_core::{Error, ErrorKind};

/// From which numbers on something is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// After the removal of an entry with a number above this, the lock's node is deleted if it has
    /// no other children.
    pub(crate) renew: i32,
    /// An entry with a number above this is refused.
    pub(crate) last: i32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { renew: i32::MAX / 2, last: i32::MAX - 1_000_000 }
    }
}

impl Limits {
    /// Whether this number is too near the end, or past it.
    pub(crate) const fn are_passed(self, number: i32) -> bool {
        number > self.last || number < 0
    }
}

pub(crate) fn used_up(operation: &'static str, lock: &str) -> Error {
    let why = format!(
        "ZooKeeper's numbers below {lock} are nearly used up: when no claim holds or waits, delete \
         that node, and they begin anew"
    );
    Error::new(ErrorKind::Full, operation, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_ran_over_are_past_the_limit() {
        let limits = Limits::default();
        assert!(!limits.are_passed(17));
        assert!(limits.are_passed(i32::MAX) && limits.are_passed(i32::MIN));
    }
}
