//! Locks for the processes of one Linux machine, with no server.
//!
//! Code here may map files, take turns at a table with other processes and wake them. It may not
//! decide who is admitted (that is `tenure-proto`'s), nor retry or keep a lease alive (that is
//! `tenure-core`'s). `unsafe` is allowed in `mapping`, `ofd` and `readiness` only.

#[cfg(not(target_os = "linux"))]
compile_error!("tenure-local works on Linux only: use another store (Redis, etcd, ZooKeeper)");

mod audit;
mod check;
mod death;
mod fault;
mod files;
mod gate;
#[cfg(test)]
mod killed;
mod layout;
mod line;
mod mapping;
mod members;
mod ofd;
mod ops;
mod readiness;
mod records;
mod seats;
mod state;
mod store;
mod table;
mod tokens;
mod txn;
mod wait;
mod wake;

#[doc(hidden)]
pub use check::Census;
pub use store::LocalStore;
#[doc(hidden)]
pub use table::Setup;
