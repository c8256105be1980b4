//! Small values beside locks.
//!
//! `contract` is what an engine implements: read, compare and swap, wait for a change. Everything else
//! is built on these three, once, for all engines. Code here may retry and back off; it may not know
//! which engine it uses.
//!
//! | file | what |
//! |---|---|
//! | `contract` | [`Cells`](crate::store::Cells), for engine authors |
//! | `envelope` | what is stored around a value: which swaps wrote it last |
//! | `slot` | one cell of a client: reads and swaps that outlast lost replies |
//! | `cell` | [`Cell`] and [`CellValue`] |
//! | `counter` | [`Counter`] |
//! | `rate`, `rate_limiter` | [`Rate`], the rules of rate limits; [`RateLimiter`] |
//! | `once` | [`Once`] |
//! | `memory` | the contract in one process |
//! | `chaos` | the contract with faults |

mod cell;
mod chaos;
pub(crate) mod contract;
mod counter;
mod envelope;
pub(crate) mod memory;
mod once;
mod rate;
mod rate_limiter;
mod slot;
mod value;

pub use cell::{Cell, Updated};
pub use counter::Counter;
pub use once::{Once, OnceOutcome};
pub use rate::{Decision, Rate};
pub use rate_limiter::RateLimiter;
pub use value::CellValue;
#[cfg(feature = "json")]
pub use value::Json;

use crate::{Client, Result};

impl Client {
    /// The value with this name, which has nothing to do with a lock of that name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name is not a
    /// [`LockName`](crate::LockName); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the
    /// store keeps no values.
    pub fn cell<T: CellValue>(&self, name: &str) -> Result<Cell<T>> {
        Cell::new(self, name)
    }

    /// The counter with this name, which has nothing to do with a lock or a cell of that name.
    ///
    /// # Errors
    /// As [`cell`](Self::cell).
    pub fn counter(&self, name: &str) -> Result<Counter> {
        Counter::new(self, name)
    }

    /// The rate limiter with this name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a rate that makes no sense; otherwise as
    /// [`cell`](Self::cell).
    pub fn rate_limiter(&self, name: &str, rate: Rate) -> Result<RateLimiter> {
        RateLimiter::new(self, name, rate)
    }

    /// Work that is done once for this key, under the lock `once:` and the key: so the key may have
    /// 195 bytes.
    ///
    /// # Errors
    /// As [`cell`](Self::cell).
    pub fn once<T: CellValue>(&self, key: &str) -> Result<Once<T>> {
        Once::new(self, key)
    }
}
