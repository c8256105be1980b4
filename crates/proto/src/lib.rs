//! The decisions behind tenure's locks, without IO.
//!
//! Code here may decide: when a lease must be renewed and when it is lost, which claim of a queue is
//! admitted next, how long to back off, which token comes next, when a quorum has decided. It may not do
//! anything about it: there is no socket, no file, no clock and no randomness in this crate, and no
//! dependency but an optional serde. The current moment and random numbers come in as arguments, so every
//! decision can be tested exhaustively.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod admission;
mod backoff;
mod lock_queue;
mod moment;
mod ordered_queue;
pub mod quorum;
mod token;
mod watchdog;

pub use admission::{Mode, Occupancy};
pub use backoff::Backoff;
pub use lock_queue::{ClaimState, Entry, LockQueue};
pub use moment::Moment;
pub use ordered_queue::{Order, OrderedQueue, Step, WatchFor, admitted};
pub use token::{Reserve, Token};
pub use watchdog::{Action, LossReason, Watchdog, deadline};
