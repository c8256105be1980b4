//! Locks on etcd.
//!
//! Code here may speak to etcd: it turns each call of the [`Store`](tenure_core::Store) contract
//! into transactions, and stands in line for those who wait. It may not retry but on another
//! member, or keep a lease alive that nobody asks for. It reads the wall clock only to show people
//! how old a hold is.

mod claim;
mod config;
mod connect;
mod desk;
mod evict;
mod examine;
mod fault;
mod fence;
mod hold;
mod inner;
mod inspect;
mod keys;
mod lease;
mod list;
mod members;
mod place;
mod record;
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated: cargo xtask stubs")]
#[rustfmt::skip]
mod rpc;
mod store;
mod txn;
mod watch;

pub use config::{EtcdConfig, Tls};
pub use fence::Fence;
pub use store::EtcdStore;
