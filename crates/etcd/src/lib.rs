//! Locks on etcd.
//!
//! This crate is an adapter: it turns the primitive calls that
//! [`OrderedStore`](tenure_ordered::OrderedStore) needs into transactions, reads and watches
//! ([`EtcdEngine`]). Nothing here may decide which claim holds a lock, or retry beyond asking the next
//! server, and that only where carrying a call out twice does no harm.
//!
//! | file | what |
//! |---|---|
//! | `engine`, `entry`, `evict` | each primitive call; entries as keys, and queues as listings of keys; eviction |
//! | `lease` | leases, which are the sessions: granted, confirmed, ended; the write fence |
//! | `endpoints` | the servers: which one is asked, logins, members that join |
//! | `dial` | connections, with or without TLS |
//! | `srv` | servers that DNS names |
//! | `watch` | all watches of a client, on one stream |
//! | `txn`, `keys`, `fault` | transactions, names of keys, errors |
//! | `diagnose` | what `tenure doctor` says |
//!
//! # Keys
//!
//! A lock `orders` with the prefix `tenure/` is kept in these keys:
//!
//! | key | what |
//! |---|---|
//! | `tenure/orders/<owner id>` | an exclusive claim; its value (TTL, since when, pid, host, label) is for display |
//! | `tenure/orders/<owner id>-reads` | marks the exclusive claim of this owner as shared: it was downgraded. No entry itself |
//! | `tenure/orders/<owner id>-shared` | a shared claim |
//! | `tenure/orders/<owner id>-permits-2-5` | a claim for two of five permits |
//! | `tenure/%audit/orders` | evictions and revocations, newest first, at most 100; on a lease of 30 days |
//! | `tenure/%cell/orders`, `%counter/orders` and so on | values beside locks (module `cells`) |
//! | `tenure/%lease/<lease id>` | the loss channel of a lease: names the entries that were evicted from it |
//! | `tenure/%fence/<lease id>` | the write fence of a lease |
//!
//! In a lock's name `%` and `/` become `%25` and `%2F`, so that no lock's keys are among another's.
//! `etcdctl lock tenure/orders` writes `tenure/orders/<lease id>`. The entries of a lock are ordered
//! by their create revisions. A key that tenure did not write counts as an exclusive claim.
//!
//! # Downgrades
//!
//! `etcdctl` and Go clients order the keys by their create revisions too, and know no readers. So the
//! writer's key stays, and keeps its place and its token for them as well; the mark is a second key on the
//! same lease, put in one transaction that compares the key's create revision. The deletion of a key that
//! may have a mark deletes the mark in the same transaction. A mark counts only if it is newer than
//! its key: one that was left, because its key was deleted by hand, marks no later key of the same owner.
//!
//! # Leases
//!
//! The claims of one client with the same TTL, rounded up to seconds, share a lease, whether they
//! hold or wait. If the process dies, etcd ends the lease and removes the entries.
//!
//! A keep-alive is sent only after a read or a transaction: a leader that stood still and was replaced
//! answers keep-alives, which then count for nothing (seen with 3.4.23: terms four seconds too long),
//! but it cannot serve a read.
//!
//! # The write fence
//!
//! Servers carry out requests side by side, and late. A transaction that adds an entry compares the
//! revision that last wrote the lease's fence. If its answer was lost, the fence is written again:
//! from then on the transaction fails wherever it still is, and a read tells whether it took effect
//! before.
//!
//! # Watches
//!
//! A watch from an earlier revision is served by a loop in the server that runs ten times a second;
//! one from now on is served at once. So an entry is watched from now on, and then looked at. A server
//! that lags behind may still report events from before that look. A claim that enters again has the
//! same key as before, so an event counts only if it is later than the entry's create revision.
//!
//! # Arrivals
//!
//! The transaction that adds an entry also reads at most 16 keys of the queue, so a short queue is known
//! after one round trip. A client that has waiters in the queue already reads none.
//!
//! # Servers
//!
//! Calls go to one server until it is silent or gone, then to the next. One login serves all calls that
//! need it. Voting members that the cluster has besides the named ones are found; a learner that is named
//! is passed over. SRV records are read again when all servers have failed. A reply from another cluster
//! than the first one's is an error: an address may later lead elsewhere.
//!
//! # What is promised
//!
//! Mutual exclusion holds as long as etcd keeps its data and its leases, through the loss of any
//! minority of its servers. Tokens are create revisions: they rise until etcd is restored from an
//! older snapshot without raising its revision. A holder that is cut off stops by its own clock before
//! etcd ends its lease. A holder that is evicted, or whose lease is revoked by hand, hears of it at
//! once; one whose key is deleted by hand, at its next renewal.

mod cells;
mod config;
mod diagnose;
mod dial;
mod endpoints;
mod engine;
mod entry;
mod evict;
mod factory;
mod fault;
mod keys;
mod lease;
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated: cargo xtask stubs")]
#[rustfmt::skip]
mod rpc;
mod srv;
mod txn;
mod watch;

pub use config::EtcdConfig;
pub use engine::{EtcdEngine, EtcdStore};
pub use entry::EntryKey;
pub use factory::EtcdFactory;
pub use lease::Lease;
pub use srv::Srv;
pub use tenure_tls::{Password, Tls};
pub use txn::etcdctl;
