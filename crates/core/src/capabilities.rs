//! What a store can promise.

use crate::Clock;

/// What a store can promise. The conformance suite asserts each promise in both directions: a store must
/// refuse what it says it cannot do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The strength of its fencing tokens.
    pub fencing: Fencing,
    /// Waiters are served in the order they came.
    pub fifo: bool,
    /// Waiters are kept in the store: [`Store::inspect`](crate::store::Store::inspect) shows them.
    pub waiters: bool,
    /// A waiter is woken by the store; without it, waiting is polling at the poll cap.
    pub push: bool,
    /// [`Mode::Shared`](crate::Mode::Shared) is supported.
    pub shared: bool,
    /// [`Mode::Permits`](crate::Mode::Permits) is supported.
    pub permits: bool,
    /// Permits and the other modes may have one name: then they keep each other out, and wait in one queue.
    /// Without it, the store refuses one of them while the other has the name.
    pub mixed_modes: bool,
    /// A writer can become a reader without releasing the lock
    /// ([`WriteGuard::downgrade`](crate::WriteGuard::downgrade)).
    pub downgrade: bool,
    /// The death of a holder's process frees its locks at once, not only when the lease ends.
    pub detects_death: bool,
    /// The store reports an eviction to the holder at once. Without this, the holder learns of it at its next
    /// renewal.
    pub tells_losses: bool,
    /// Records of evictions and revocations can be read and written
    /// ([`Store::audit`](crate::store::Store::audit)).
    pub audits: bool,
    /// Other processes can use the same store.
    pub cross_process: bool,
    /// [`Holder::age`](crate::Holder::age) is known for tenure's own holders.
    pub ages: bool,
    /// The clock that terms run on: with [`Clock::Monotonic`], holds survive a suspend.
    pub clock: Clock,
}

impl Capabilities {
    /// A store that promises nothing but exclusive locks that end with their terms.
    ///
    /// Each promise is made by name, so that an engine never makes one that was added after it was
    /// written:
    ///
    /// ```
    /// use tenure::store::Capabilities;
    ///
    /// let promises = Capabilities::none().shared().cross_process();
    /// assert!(promises.shared && !promises.fifo);
    /// ```
    pub const fn none() -> Self {
        Self {
            fencing: Fencing::None,
            fifo: false,
            waiters: false,
            push: false,
            shared: false,
            permits: false,
            mixed_modes: false,
            downgrade: false,
            detects_death: false,
            tells_losses: false,
            audits: false,
            cross_process: false,
            ages: false,
            clock: Clock::Boot,
        }
    }

    /// Promises tokens of this strength.
    #[must_use]
    pub fn fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }

    /// Promises that terms run on this clock.
    #[must_use]
    pub const fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}

macro_rules! promises {
    ($($name:ident)*) => {
        impl Capabilities {
            $(
                #[doc = concat!("Promises [`", stringify!($name), "`](#structfield.", stringify!($name), ").")]
                #[must_use]
                pub const fn $name(mut self) -> Self {
                    self.$name = true;
                    self
                }
            )*
        }
    };
}

promises!(fifo waiters push shared permits mixed_modes downgrade detects_death tells_losses audits cross_process ages);

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
