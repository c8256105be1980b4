//! Locks on etcd.
//!
//! Code here may speak to etcd: it turns each call of the [`Store`](tenure_core::Store) contract
//! into transactions, stands in line for those who wait, and listens for the losses of those who
//! hold. It may not retry a call but on another member, or keep a lease alive that nobody asks for. It reads the wall clock only to show people
//! how old a hold is.
//!
//! # What is in etcd
//!
//! A lock `orders` with the prefix `tenure/` lives in these keys:
//!
//! | key | what |
//! |---|---|
//! | `tenure/orders/<owner id>` | one who holds or waits, on a lease: mode, TTL, since when, pid, host and label, as text |
//! | `tenure/%audit/orders` | evictions, newest first, at most 100 |
//! | `tenure/%lease/<lease id>` | one for each lease that locks are held on: gone with it; whose locks on it were taken by force |
//!
//! In a lock's name `%` and `/` become `%25` and `%2F`, so that no lock's keys are among another's.
//! `etcdctl lock tenure/orders` writes `tenure/orders/<lease id>`, without a value. Whoever was
//! created first holds; shared and permit holders hold together as long as there is room. What tenure
//! did not write counts as one that wants to hold alone.
//!
//! # Leases
//!
//! The keys of one client with the same TTL, rounded up to seconds, share a lease. It is kept alive
//! when one of them is claimed or renewed. A key that was not renewed in time is deleted when that
//! happens; without any renewal the lease ends, with all its keys. Places in line hang on a lease that
//! lasts as long as their patience.
//!
//! # What is promised
//!
//! Mutual exclusion holds as long as etcd keeps its data and its leases, through the loss of any
//! minority of its members. Tokens are create revisions: they rise until etcd is restored from an older
//! snapshot without raising its revision. A holder that is cut off stops by its own clock before etcd
//! ends its lease. One that was evicted, or whose lease was revoked by hand, hears of it at once; one
//! whose key was deleted by hand, at its next renewal.
//!
//! The release of a shared or permit claim that was admitted, but never heard of it, says
//! [`NotHeld`](tenure_core::Released::NotHeld).

mod config;
mod diagnose;
mod dial;
mod endpoints;
mod engine;
mod fault;
mod fence;
mod keys;
mod lease;
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated: cargo xtask stubs")]
#[rustfmt::skip]
mod rpc;
mod txn;
mod watch;

pub use config::EtcdConfig;
pub use engine::{EntryKey, EtcdEngine, EtcdStore};
pub use fence::etcdctl;
pub use lease::Lease;
pub use tenure_tls::Tls;
