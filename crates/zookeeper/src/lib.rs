//! Locks on ZooKeeper.
//!
//! [`ZooKeeperEngine`] adapts ZooKeeper to [`tenure_ordered`], which does the locking. Only `wire` may
//! speak ZooKeeper's protocol, and nothing in this crate may decide which claim holds a lock.
//!
//! | file | what |
//! |---|---|
//! | `engine`, `enter`, `evict` | each primitive call; how an entry is added; how a claim is evicted |
//! | `reads` | reads that are as recent as the leader, and watches |
//! | `session`, `sessions` | one session with its write fence; the few sessions of a client |
//! | `names`, `keys` | names of nodes, the queue they make, and the end of ZooKeeper's numbers; paths |
//! | `wire` | the protocol: messages, connection, reconnects, watches |
//! | `diagnose`, `four_letter_words` | what `tenure doctor` says |
//!
//! # Nodes
//!
//! A lock `orders` with the prefix `tenure/` is kept in these nodes:
//!
//! | node | what |
//! |---|---|
//! | `/tenure/orders` | a container, which the servers remove when it is not used any more |
//! | `/tenure/orders/_c_<owner id>-lock-0000000017` | an exclusive claim; ephemeral |
//! | `…/_c_<owner id>-__READ__0000000018` | a shared claim |
//! | `…/_c_<owner id>-permits-2-5-0000000019` | a claim for two of five permits |
//! | `/tenure/%audit/orders` | evictions and revocations, newest first, at most 100; deleted when 30 days old |
//! | `/tenure/%cell/orders`, `%counter/orders` and so on | values beside locks (module `cells`) |
//! | `/tenure/%holder-<session id>` | the loss channel of a session: its evicted entries; ephemeral |
//! | `/tenure/%fence-<session id>-<number>` | the write fence of a session; ephemeral, empty |
//!
//! The owner id has the form of a UUID. The first two are the nodes of Curator's
//! `InterProcessMutex` and `InterProcessReadWriteLock`. The claim with the lowest number holds;
//! shared and permit claims hold together as long as there is room. Names alone decide which claims
//! hold, so one listing is enough. A node's data (its TTL, since when, pid, host, label) is for display.
//! In a lock's name, what ZooKeeper does not allow is written as in URLs: `/` is `%2F`.
//!
//! Curator's semaphore is a lock, a folder of leases and a count: four calls for a free one, and no
//! queue. So permits have a form of their own, in the one queue that all kinds share.
//!
//! # A claim
//!
//! The claim's node is created in one transaction with a write to the session's fence. The transaction
//! fails if the fence was moved (`session.rs`), and the reply to the write has the number of the
//! transaction: the fencing token. A request for the state of the lock's own node goes out in the same
//! packet: if that node has no other children, the claim holds after one round trip, whichever client
//! held the lock before. Nothing is written to the lock's own node.
//!
//! `try_acquire` looks before it creates: a node that comes and goes is in the way of others. Nothing is
//! written when a waiter is admitted, except for permits: the next waiter may be admitted too, and
//! watches the entry before its own.
//!
//! # Order
//!
//! The numbers of nodes begin anew when the lock's own node was deleted and created again. So an entry's
//! order is the transaction that created the lock's node, and then its number. A listing comes with the
//! state of the lock's node, which tells how many numbers were given: so it is known which entries the
//! listing would show.
//!
//! A writer that is downgraded keeps its node, and gets a reader's node with one of its own numbers, in one
//! transaction that also writes to the writer's node. Names alone tell: a `lock-` node that is followed by a
//! `__READ__` node of the same owner, with its own or the next number, is a shared claim. If the writer's
//! node were replaced instead, as Curator does it, each deletion of a node would have to be followed by a
//! look for its successor, one more round trip in every hand-off.
//!
//! One entry can come before entries that are there already: a Curator writer that begins to read as
//! well gives its reader the writer's own number. So when a Curator writer's node is gone, the queue is
//! listed before its place counts as empty
//! ([`Change::Replaced`](tenure_ordered::Change::Replaced)).
//!
//! # Lost replies
//!
//! A server that stood still may carry out a request after the client has looked for the node in vain
//! on another connection. So before it looks, the fence is moved: its node is deleted and another one
//! created. A late transaction then fails, because it writes to the node that was deleted. A fence is
//! used only after its creation was confirmed, and its number is never used again.
//!
//! # Other clients
//!
//! Tenure waits for the claims of all these clients, but not all of them wait for tenure's. A Curator
//! writer ignores a Curator mutex, and kazoo ignores both. With [`Compat`] a claim has a node for each
//! of them: they are created in one transaction, and so have consecutive numbers. Beside kazoo the
//! lock's own node is persistent: a lock of kazoo creates it once, and fails when it is gone.
//!
//! Servers with the fix of CVE-2024-23944 (3.8.4, 3.9.2, and Debian's 3.8.0-11+deb12u2) do not report
//! changes of a node to a client that may not read it. Such an entry is followed by a watch on the
//! lock's children.
//!
//! # Sessions
//!
//! A client has few sessions, because each costs a connection: claims share one that lasts at least as
//! long as their TTL, and at most twice as long, with two seconds added. The two seconds are for a
//! server that dies: it takes with it which sessions it has heard from and not yet reported to the
//! leader. The connection keeps the session alive; a claim that was not renewed in time is removed on
//! its own. If the process dies, or is cut off, the servers end the session with all its nodes. A TTL
//! above the servers' limit is refused; one below their limit is accepted, and the death of a holder is
//! then noticed later.
//!
//! A claim's term counts from the last *write* that was answered: a server that lost the leader goes on
//! answering reads, and a leader that lost the others even `sync`, while a new leader ends their
//! sessions. So a renewal is a write to the fence, one for all claims of a session that are renewed at
//! the time, and a look at the node. For the same reason the reply of a server counts only if the server
//! knows the latest transaction that any session of the client has seen.
//!
//! # What is promised
//!
//! Mutual exclusion holds as long as ZooKeeper keeps its data and its sessions, through the loss of
//! any minority of its servers. Tokens are the transactions that created the nodes: they rise until
//! the data is wiped, or restored from an older snapshot. A holder that is cut off stops by its own
//! clock before the servers end its session: its term counts from the last write that was answered,
//! not from what a single server says, which may have lost the others. A holder that is evicted hears
//! of it at once.

mod cells;
mod config;
mod diagnose;
mod engine;
mod enter;
mod evict;
mod factory;
mod fault;
mod four_letter_words;
mod keys;
mod names;
mod reads;
mod session;
mod sessions;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use config::{Access, Compat, ZooKeeperConfig};
pub use engine::ZooKeeperEngine;
pub use factory::ZooKeeperFactory;
pub use tenure_tls::{Password, Tls};

/// Locks on ZooKeeper.
pub type ZooKeeperStore = tenure_ordered::OrderedStore<ZooKeeperEngine>;
