//! Locks on ZooKeeper.
//!
//! Code here may speak to ZooKeeper: it turns each call of the [`Store`](tenure_core::Store)
//! contract into calls on nodes, and stands in line for those who wait. It may not retry, but where
//! a node it needs was not there. It reads the wall clock only to show people how old a hold is.
//!
//! # What is in ZooKeeper
//!
//! A lock `orders` with the prefix `tenure/` lives in these nodes:
//!
//! | node | what |
//! |---|---|
//! | `/tenure/orders` | a container, which the servers remove when it is not used any more |
//! | `/tenure/orders/_c_<owner id>-lock-0000000017` | one who holds, or wants to hold, alone; ephemeral |
//! | `…/_c_<owner id>-__READ__0000000018` | one who shares |
//! | `…/_c_<owner id>-permits-2-5-0000000019` | one who takes two of five permits |
//! | `/tenure/%audit/orders` | evictions, newest first, at most 100 |
//! | `/tenure/%holder-<session id>` | what was taken from a session by force; ephemeral |
//!
//! The owner id has the form of a UUID. The first two are the nodes of Curator's
//! `InterProcessMutex` and `InterProcessReadWriteLock`, with its protection: whoever lost the reply
//! to a creation finds the node again by its name. Whoever has the lowest number holds; shared and
//! permit holders hold together as long as there is room. All that is decided is decided by names,
//! so one listing is enough. What a node says (its TTL, since when, pid, host, label) is for
//! people. In a lock's name what ZooKeeper does not allow is written as in URLs: `/` is `%2F`.
//!
//! Curator's semaphore is a lock, a folder of leases and a count: four calls for a free one, and
//! nobody stands in line. So permits have a form of their own, in the one line that all kinds
//! share.
//!
//! # Neighbours
//!
//! Ours wait for all of these; but not all see ours. A Curator writer does not see a Curator mutex,
//! and kazoo sees neither. With [`Neighbours`] a claim has a node for each of them: they are
//! created in one transaction, and so have numbers in a row, with nobody in between. Beside kazoo
//! the lock's own node is persistent: a lock of kazoo's makes it once, and fails when it is gone.
//!
//! # Sessions
//!
//! The claims of one client with the same TTL, rounded up to seconds, share a session, which lasts
//! two seconds longer than the TTL. The client library keeps it alive. A claim that was not renewed
//! in time is removed from it; if the process dies, or is cut off, the servers end the session,
//! with all its nodes. A waiter's place ends with its session, too: one that dies in line is in the
//! way for up to its TTL. A TTL that the servers' limits do not allow is refused; one below them is
//! taken, and a dead holder is then noticed later.
//!
//! # What is promised
//!
//! Mutual exclusion holds as long as ZooKeeper keeps its data and its sessions, through the loss of
//! any minority of its servers. Tokens are the transactions that created the nodes: they rise until
//! the data is wiped, or restored from an older snapshot. A holder that is cut off stops by its own
//! clock before the servers end its session: its term counts from the last write that
//! was answered, not from what a single server says, which may have lost the others. One that is
//! evicted hears of it at once.
//!
//! One that waited for less than a second is shown as if it had held since it came.

mod canary;
mod claim;
mod config;
mod connect;
mod create;
mod evict;
mod examine;
mod fault;
mod hold;
mod inner;
#[cfg(test)]
mod inside;
mod inspect;
mod keys;
mod known;
mod line;
mod list;
mod numbers;
mod orphans;
mod place;
mod record;
mod session;
#[cfg(test)]
mod session_tests;
mod store;
mod tenants;
mod wire;
mod words;

pub use config::{Access, Neighbours, ZooKeeperConfig};
pub use store::ZooKeeperStore;
pub use tenure_tls::Tls;
