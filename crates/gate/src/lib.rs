//! Fencing gates: the check that a resource makes before it accepts a write.
//!
//! A lock alone cannot stop a holder that was paused, lost its lease without noticing, and goes on writing.
//! The resource can: each hold of a lock has a [`Token`], a number that rises with every hold, and the
//! resource refuses a write whose token is lower than the highest one it has seen. That check, made in the
//! same atomic step as the write, is a gate.
//!
//! | resource | gate |
//! |---|---|
//! | a file | [`FileGate`] |
//! | a service behind HTTP | the module `http`, a tower layer for the `Fencing-Token` header (feature `http`) |
//! | PostgreSQL | the module `postgres`, a guard row in the same transaction (feature `postgres`) |
//! | Redis | [`redis`], scripts to be run with any client |
//! | etcd, ZooKeeper | [`Guard::fence`](tenure_core::Guard::fence): a comparison for their own transactions |
//!
//! Code here may compare tokens and refuse writes. It may not acquire locks: a gate must work when the store
//! of the locks cannot be reached.
//!
//! Tokens of one lock are compared with each other, never with those of another lock. So a resource that
//! several locks protect needs one gate for each.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod file;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod redis;
mod register;

pub use file::FileGate;
pub use register::{FileRegister, MemoryRegister, Register};

use tenure_core::{LockName, Token};

/// Why a gate did not let a write through. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError<E = std::io::Error> {
    /// The resource has seen a newer token: the lock has had another holder since. Stop the work.
    #[error(
        "token {token} of lock {lock:?} is out of date: the resource has seen {newest}, so another \
             holder has had the lock since; stop the work that used this token"
    )]
    Stale {
        /// The lock.
        lock: LockName,
        /// The token of the write.
        token: Token,
        /// The newest token that the resource has seen.
        newest: Token,
    },
    /// The resource cannot tell: its record of tokens cannot be read or written.
    #[error("the token of lock {lock:?} cannot be checked: {source}")]
    Resource {
        /// The lock.
        lock: LockName,
        /// What failed.
        source: E,
    },
}

impl<E> GateError<E> {
    /// Whether the write was refused because its token is out of date.
    pub const fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }
}
