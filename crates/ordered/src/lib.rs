//! A lock store over any engine that keeps, for each lock, a queue of ordered entries which end
//! with a session: etcd (keys on a lease, ordered by create revision) and ZooKeeper (ephemeral
//! sequential nodes). A third engine of this kind (Consul, Kubernetes leases, PostgreSQL) needs one
//! more adapter.
//!
//! [`Engine`] lists the primitive calls that an adapter implements; [`OrderedStore`] makes a
//! [`Store`](tenure_core::store::Store) of them. Nothing in this crate may depend on a particular
//! engine, speak a protocol, or decide which entries hold a lock: that is a pure function in
//! `tenure-proto`.
//!
//! | file | what |
//! |---|---|
//! | `store` | the calls of the contract: claim, wait, renew, release |
//! | `claims` | the registry of this client's claims, and when each expires |
//! | `follower` | one lock's queue as the waiters of this process see it, and the task that follows it |
//! | `shared` | the tasks between calls: sessions, losses, expiry |
//! | `calls` | one call at a time for each claim |
//! | `inspect` | inspection and eviction |
//!
//! # The queue
//!
//! Each claim has one entry, which the engine puts at the end of the queue. Which entries hold the
//! lock follows from their order and modes alone ([`admitted`](tenure_proto::admitted)), the same for
//! all modes. An entry that is admitted stays admitted, because later entries come behind it. So
//! nothing is written when a lock is handed over.
//!
//! For all waiters of one process together, one task lists the queue and watches the few entries that
//! keep the first waiter out, and the first two waiters' own entries
//! ([`OrderedQueue`](tenure_proto::OrderedQueue)). So an arrival is one write, whatever the length of
//! the queue; an idle waiter costs nothing; and a hand-off inside a process needs no event. If more
//! than 32 holders of permits are in the first waiter's way, the queue is watched as a whole.
//!
//! A listing says up to which order it is complete ([`Listing::covers`]). What was listed once stays a
//! superset of what is there, so an old view can keep a claim out, but never admits one.
//!
//! A watch that ends is set again after a pause with jitter, which grows with the number of locks that
//! the process waits for. The entry keeps its place. A notification that is lost without an error costs
//! at most half a minute: the watched entries are looked at every 30 seconds, and the queue is listed
//! every 30 seconds for each 100 entries in it, up to ten minutes. Only a waiter for a permit behind
//! another waiter depends on the listing.
//!
//! # Downgrades
//!
//! A writer becomes a reader in its place: the engine marks its entry as shared ([`Engine::downgrade`]).
//! To remove the entry and add another would lose the place to the waiters behind it, and watchers would
//! take the removal for a release, unless each hand-off cost one more request.
//!
//! It is safe because a mark only excludes less. Before it, the entry excludes all other claims; after
//! it, only those that a reader excludes. An entry that was admitted stays admitted, and a view from
//! before the mark admits no more than one from after it. The mark and the entry are on one session, are
//! removed together, and a mark is written only while its entry is there: so none is left, in whichever
//! order requests arrive. A waiting reader watches the writer before it for a write as well, and lists
//! the queue then.
//!
//! The registry knows the marked entry before the request is sent. So a release removes both, whether or not
//! the reply came; a repeated downgrade changes nothing.
//!
//! # Sessions
//!
//! A claim's entry belongs to a session, which other claims share, whether the claim waits or holds. If
//! the process dies or is cut off, the engine ends the session and removes the entries: a waiter that
//! dies is in the way for its TTL, as with the servers' own clients. The session is confirmed in the
//! background for its waiters, so that a waiter that is admitted has most of its term. A claim that is
//! not renewed, or not asked for again, is removed on its own (`claims`).
//!
//! Each session has a *loss channel*: one entry of its own, which is watched. An eviction writes into it
//! which entry was removed. So every holder hears of its loss at once, with one watch per session.
//!
//! # Lost replies
//!
//! A write that adds an entry carries the session's *write fence*. If its reply is lost, the fence is
//! moved before the entry is looked for: the entry is there, or it will never be. So no sweep of
//! forgotten entries is needed. A release compares the entry's identity, so a late one removes nothing
//! newer. Calls on one claim are made one after the other (`calls`), also those whose callers have gone
//! away, so a release does not overtake the claim that it undoes.
//!
//! # Limits
//!
//! One client adds at most 80 entries at once: more would wait in the engine, and time out there. The
//! tasks of 16 callers send their own requests, tasks of the store send the others, so that callers
//! which are not polled do not delay others.

mod calls;
mod claims;
mod engine;
#[cfg(test)]
mod fake;
mod follower;
mod inspect;
mod names;
mod record;
mod shared;
mod store;
#[cfg(test)]
mod tests;

pub use engine::{Change, Details, Engine, Entered, Entry, Listing, Session, Watching};
pub use names::{decode_name, encode_name};
pub use record::{Record, losses, with_loss};
pub use store::OrderedStore;
