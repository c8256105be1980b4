//! What a store can promise.

use crate::Clock;

/// What a store can promise. Asserted in both directions by the conformance suite: a store that
/// says it cannot do a thing must refuse it, not pretend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The strength of its fencing tokens.
    pub fencing: Fencing,
    /// Waiters are served in the order they came.
    pub fifo: bool,
    /// A waiter is woken by the store; without it, waiting is polling at the poll cap.
    pub push: bool,
    /// [`Mode::Shared`](crate::Mode::Shared) is supported.
    pub shared: bool,
    /// [`Mode::Permits`](crate::Mode::Permits) is supported.
    pub permits: bool,
    /// The death of a holder's process frees its locks at once, not only when the lease ends.
    pub detects_death: bool,
    /// A holder is told at once that its lock was taken by force; without it, at its next renewal.
    pub tells_losses: bool,
    /// Other processes can use the same store.
    pub cross_process: bool,
    /// [`Holder::age`](crate::Holder::age) is known for tenure's own holders.
    pub ages: bool,
    /// The clock that terms run on: with [`Clock::Monotonic`], holds survive a suspend.
    pub clock: Clock,
}

impl Capabilities {
    /// A store that does everything, with fencing of this strength.
    pub const fn full(fencing: Fencing) -> Self {
        Self {
            fencing,
            fifo: true,
            push: true,
            shared: true,
            permits: true,
            detects_death: true,
            tells_losses: true,
            cross_process: true,
            ages: true,
            clock: Clock::Boot,
        }
    }
}

/// How far a store's fencing tokens can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fencing {
    /// No tokens: grants carry none.
    None,
    /// Tokens strictly increase per lock name, until the fault described here happens.
    Until {
        /// The fault that ends the promise, in a sentence a user can act on.
        fault: &'static str,
    },
}

impl Fencing {
    /// Whether grants carry tokens.
    pub const fn gives_tokens(&self) -> bool {
        !matches!(self, Self::None)
    }
}
