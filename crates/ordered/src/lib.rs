//! A lock store over any engine that keeps, for each lock, a queue of ordered entries which end
//! with a session: etcd (keys on a lease, ordered by create revision) and ZooKeeper (ephemeral
//! sequential nodes).
//!
//! [`Engine`] is what such an engine must be able to do; [`OrderedStore`] makes a
//! [`Store`](tenure_core::store::Store) of it. What is here may not know which engine it is.
//!
//! | file | what |
//! |---|---|
//! | `store` | the calls of the contract: claim, wait, renew, release |
//! | `claims` | the registry of this client's claims, and when each expires |
//! | `line` | one lock's queue as the waiters of this process see it, and the task that follows it |
//! | `shared` | the tasks between calls: sessions, losses, expiry |
//! | `calls` | one call at a time for each claim |
//! | `inspect` | inspection and eviction |
//!
//! # The queue
//!
//! Each claim has one entry, which the engine puts at the end of the queue. Which entries hold the
//! lock follows from their order and modes alone ([`admitted`](tenure_proto::admitted)), so nothing
//! is written when a lock is handed over. For all waiters of one process together, one task lists
//! the queue and watches the few entries that keep the first of them out
//! ([`OrderedQueue`](tenure_proto::OrderedQueue)): an arrival is one write, and an idle waiter costs
//! nothing.
//!
//! # Sessions
//!
//! A claim's entry hangs on a session that it shares with others, whether it waits or holds. If the
//! process dies or is cut off, the engine ends the session and removes the entries. A claim that is
//! not renewed, or not asked for again, is removed by itself.
//!
//! # Lost replies
//!
//! The writes that add entries carry the session's write fence. If such a write got no answer, the
//! fence is moved and the queue is listed: the entry is there, or it will never be.

mod calls;
mod claims;
mod engine;
#[cfg(test)]
mod fake;
mod inspect;
mod line;
mod losses;
mod record;
mod shared;
mod store;
#[cfg(test)]
mod tests;

pub use engine::{Change, Details, Engine, Entered, Entry, Listing, Session, Watching};
pub use losses::{losses, with_loss};
pub use record::Record;
pub use store::OrderedStore;
