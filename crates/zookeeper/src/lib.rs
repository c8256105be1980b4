//! Locks on ZooKeeper.
//!
//! [`ZooKeeperEngine`] adapts ZooKeeper to [`tenure_ordered`], which does the locking: it knows the
//! names of nodes, the requests for each primitive call, and sessions. `wire` is the connection. No
//! other file may speak ZooKeeper's protocol, and nothing here decides which claim holds a lock.
//!
//! # What is in ZooKeeper
//!
//! A lock `orders` with the prefix `tenure/` lives in these nodes:
//!
//! | node | what |
//! |---|---|
//! | `/tenure/orders` | a container, which the servers remove when it is not used any more |
//! | `/tenure/orders/_c_<owner id>-lock-0000000017` | a claim that holds, or wants to hold, alone; ephemeral |
//! | `…/_c_<owner id>-__READ__0000000018` | a claim that shares |
//! | `…/_c_<owner id>-permits-2-5-0000000019` | a claim that takes two of five permits |
//! | `/tenure/%audit/orders` | evictions, newest first, at most 100 |
//! | `/tenure/%holder-<session id>` | the loss channel: what was taken from a session by force; ephemeral |
//! | `/tenure/%fence-<session id>-<number>` | the write fence of a session; ephemeral, empty |
//!
//! The owner id has the form of a UUID. The first two are the nodes of Curator's
//! `InterProcessMutex` and `InterProcessReadWriteLock`. The claim with the lowest number holds;
//! shared and permit claims hold together as long as there is room. All that is decided is decided
//! by names, so one listing is enough. What a node says (its TTL, since when, pid, host, label) is
//! for people. In a lock's name, what ZooKeeper does not allow is written as in URLs: `/` is `%2F`.
//!
//! Curator's semaphore is a lock, a folder of leases and a count: four calls for a free one, and no
//! queue. So permits have a form of their own, in the one queue that all kinds share.
//!
//! # A claim
//!
//! Its node is created in one transaction with a write to the session's fence, which fails if the
//! fence was moved (`session.rs`), and whose reply tells the number of the transaction: the fencing
//! token. Behind it, in the same packet, the lock's own node is asked for its state: if it has no
//! other children the claim holds, after one round trip. Nothing is written to the lock's own node.
//!
//! The numbers of nodes begin anew when the lock's own node was deleted and made anew. So an entry's
//! order is the transaction that created the lock's node, and then its number.
//!
//! # Neighbours
//!
//! Tenure waits for all of these; but not all see tenure. A Curator writer does not see a Curator
//! mutex, and kazoo sees neither. With [`Neighbours`] a claim has a node for each of them: they are
//! created in one transaction, and so have consecutive numbers. Beside kazoo the lock's own node is
//! persistent: a lock of kazoo creates it once, and fails when it is gone.
//!
//! # Sessions
//!
//! A client has few sessions: claims share one that lasts at least as long as their TTL, and at most
//! twice as long, with two seconds added. The connection keeps it alive. A claim that was not renewed
//! in time is removed by itself; if the process dies, or is cut off, the servers end the session with
//! all its nodes. A waiter's entry ends with its session, too: one that dies in the queue is in the
//! way until then. A TTL that the servers' limits do not allow is refused; one below them is
//! accepted, and the death of a holder is then noticed later.
//!
//! # What is promised
//!
//! Mutual exclusion holds as long as ZooKeeper keeps its data and its sessions, through the loss of
//! any minority of its servers. Tokens are the transactions that created the nodes: they rise until
//! the data is wiped, or restored from an older snapshot. A holder that is cut off stops by its own
//! clock before the servers end its session: its term counts from the last write that was answered,
//! not from what a single server says, which may have lost the others. A holder that is evicted is
//! told at once.

mod cells;
mod config;
mod diagnose;
mod engine;
mod enter;
mod factory;
mod fault;
mod four_letter_words;
mod keys;
mod limits;
mod names;
mod session;
mod sessions;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use config::{Access, Neighbours, ZooKeeperConfig};
pub use engine::ZooKeeperEngine;
pub use factory::ZooKeeperFactory;
pub use tenure_tls::{Password, Tls};

/// Locks on ZooKeeper.
pub type ZooKeeperStore = tenure_ordered::OrderedStore<ZooKeeperEngine>;
