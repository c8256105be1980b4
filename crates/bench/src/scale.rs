//! How much a run measures.

use std::time::Duration;

/// A full run, or a quick one that shows whether the figures are about right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) is_quick: bool,
}

impl Scale {
    /// The number of rounds, where a full run has `full`.
    pub(crate) fn rounds(self, full: usize) -> usize {
        if self.is_quick { full.min(3) } else { full }
    }

    /// The number of operations, waiters or locks, where a full run has `full`.
    pub(crate) fn count(self, full: usize) -> usize {
        if self.is_quick { full.div_ceil(8) } else { full }
    }

    /// For how long something is observed, where a full run takes `full`.
    pub(crate) fn time(self, full: Duration) -> Duration {
        if self.is_quick { full / 8 } else { full }
    }
}
