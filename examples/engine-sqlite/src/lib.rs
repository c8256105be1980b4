//! Locks in an SQLite file, for the processes of one Linux machine: an engine for tenure in a crate of
//! its own, to learn from. `docs/writing-an-engine.md` walks through it.
//!
//! | file | what |
//! |---|---|
//! | `factory` | the URL `sqlite:/path/of.db`, its options, and how to connect |
//! | `store` | the [`Store`](tenure_core::store::Store) contract: each call is one job for the worker |
//! | `queue` | what a claim, a renewal and a release do to the tables, in one transaction each |
//! | `worker` | the thread that owns the connection and does jobs in the order of their calls |
//! | `fault` | what SQLite's errors mean for a lock |
//!
//! # How it works
//!
//! A lock is a queue of rows in the table `claims`, in the order of their arrival. The first rows hold the
//! lock, as many as [`admitted`](tenure_core::store::admitted) says, and a row that holds has a token.
//! Every change is one transaction that first removes the rows whose time has passed, then does its work,
//! and then gives tokens to the rows that have become holders. So a release hands the lock to the next
//! waiter, and the death of a process frees its locks when their terms end. A waiter finds out by looking
//! at its row again and again: SQLite does not notify a process of another's changes.
//!
//! # What it does not promise
//!
//! See [`SqliteStore::capabilities`](tenure_core::store::Store::capabilities): no push, no notice of a
//! death or an eviction before a term ends, nothing through a restart of the machine but tokens. The
//! file must be on a local disk: SQLite's own locks do not work on many network file systems, and this
//! engine does not look.

mod factory;
mod fault;
mod queue;
mod store;
mod worker;

pub use factory::SqliteFactory;
pub use store::SqliteStore;
