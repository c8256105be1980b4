//! tenure's one API for locks, and the contract every store fulfils.
//!
//! Code here waits, retries calls to a store, renews leases and cleans up, once for all engines. It may
//! not speak a protocol (that is a store's business) and may not decide when a lease is lost or which
//! claim is next (that is `tenure-proto`'s).
//!
//! Users start at [`Client`]; authors of an engine start at [`store`]. Most users depend on the
//! `tenure` crate, which re-exports this one and opens stores by URL.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod audit;
mod background;
pub mod blocking;
mod capabilities;
mod cells;
mod chaos;
mod claim;
mod client;
mod clock;
mod connecting;
mod duration;
mod error;
mod factory;
mod fault_budget;
mod fence;
mod finding;
mod guard;
mod hints;
mod identity;
mod janitor;
mod keeper;
mod lease;
mod listener;
mod memory;
mod metric;
mod multi;
mod name;
mod options;
mod order_check;
mod owner;
mod password;
mod primitives;
mod reentrant;
mod revoke;
mod self_test;
mod self_wait;
mod spurious_wake;
mod state;
pub mod store;
mod task;
mod url;
mod validity;
mod waits;
mod watch;

pub use audit::{AuditEvent, AuditRecord};
#[cfg(feature = "json")]
pub use cells::Json;
pub use cells::{
    Barrier, BarrierWaitResult, Cell, CellValue, Counter, Decision, Election, Latch, LatchParty,
    Leader, Leadership, Observer, Once, OnceOutcome, OnceRun, OnceStart, Rate, RateLimiter,
    Updated,
};
pub use chaos::{Chaos, Faults};
pub use client::Client;
pub use duration::parse_duration;
pub use error::{Effect, Error, ErrorKind, Result};
pub use fence::Fence;
pub use finding::{Finding, Severity};
pub use guard::{FencedGuard, Guard, ReadGuard, WriteGuard};
pub use memory::MemoryStore;
pub use multi::{MultiGuard, MultiLock};
pub use name::LockName;
pub use options::{Options, Wait};
pub use owner::OwnerId;
pub use primitives::{FencedMutex, Mutex, RwLock, Semaphore};
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use revoke::{Revocation, Revoke, RevokedHolder};
pub use state::{Holder, LockState, Waiter};
pub use tenure_proto::{LossReason, Mode, Token};
pub use validity::Validity;
pub use waits::{LongWait, LongWaits, Party};
pub use watch::{Change, ChangeKind, ChangedClaim, Intervention, Watch, WatchEvent, WatchSource};

pub(crate) use store::*;
