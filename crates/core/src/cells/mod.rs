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
//! | `election` | [`Election`], with the leader's value |
//! | `latch`, `barrier`, `parties` | [`Latch`], [`Barrier`], the leases of their parties |
//! | `memory` | the contract in one process |

mod barrier;
mod cell;
pub(crate) mod contract;
mod counter;
mod election;
mod envelope;
mod latch;
pub(crate) mod memory;
mod once;
pub(crate) mod parties;
mod rate;
mod rate_limiter;
pub(crate) mod slot;
mod value;

pub use barrier::{Barrier, BarrierWaitResult};
pub use cell::{Cell, Updated};
pub use counter::Counter;
pub use election::{Election, Leader, Leadership, Observer};
pub use latch::{Latch, LatchParty};
pub use once::{Once, OnceOutcome, OnceRun, OnceStart};
pub use rate::{Decision, Rate};
pub use rate_limiter::RateLimiter;
pub use value::CellValue;
#[cfg(feature = "json")]
pub use value::Json;

use crate::{Client, Result};

impl Client {
    /// The value with this name, independent of a lock of that name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name is not a
    /// [`LockName`](crate::LockName); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the
    /// store keeps no values.
    pub fn cell<T: CellValue>(&self, name: &str) -> Result<Cell<T>> {
        Cell::new(self, name)
    }

    /// The counter with this name, independent of a lock or a cell of that name.
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

    /// The election with this name, whose leader holds the mutex of that name.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the store gives no fencing tokens;
    /// otherwise as [`cell`](Self::cell). Where the store keeps no values, a [`mutex`](Self::mutex) elects
    /// a leader without one.
    pub fn election<T: CellValue>(&self, name: &str) -> Result<Election<T>> {
        Election::new(self, name)
    }

    /// The latch with this name, which opens when it was counted down so many times.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a count of zero; otherwise as
    /// [`cell`](Self::cell).
    pub fn latch(&self, name: &str, count: u32) -> Result<Latch> {
        Latch::new(self, name, count)
    }

    /// A party of the barrier with this name and number of parties.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for no parties or more than
    /// [`Barrier::MAX_PARTIES`]; otherwise as [`cell`](Self::cell).
    pub fn barrier(&self, name: &str, parties: u32) -> Result<Barrier> {
        Barrier::new(self, name, parties)
    }
}
