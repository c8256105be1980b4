//! Locks on a quorum of independent Redis servers (Redlock).
//!
//! `tenure_proto::quorum` decides; see its documentation for the rules and why tokens rise. Code here
//! sends the messages that it orders, and decides nothing.
//!
//! # Order of messages
//!
//! - The store's own thread serves the connections, so a blocked runtime of the program loses no lock.
//!   The caller writes to them itself, and is woken once, when enough nodes have answered to decide
//!   (`replies.rs`).
//! - Each call looks at the nodes once, and uses the connections that it saw. One connection carries all
//!   requests to a node, in order. So the release of a lost round is sent at once, behind its claim, also
//!   to nodes that have not answered: it cannot overtake the claim and needs no task that outlives the
//!   call. This is why the connections are not doubled for renewals: a renewal repairs nodes that lost
//!   the claim, and a repair must not follow the release.
//! - A connection that replaces another first has the server close the old one (`CLIENT KILL`), so that
//!   nothing sent over the old one arrives later. Then releases that were not confirmed are sent again
//!   (`unconfirmed_releases.rs`), before anything else. So the same owner can claim again, round after
//!   round.
//! - A claim that holds is remembered with its token. If it asks again, it is renewed, because a new
//!   round might come to another token. A release first forgets the claim and is then sent; repairs are
//!   sent only while the claim is remembered.
//!
//! # Downgrades
//!
//! A downgrade is a renewal that also turns each node's vote into a reader's. It is safe in any mixture: a
//! vote for a writer keeps all others out, a vote for a reader keeps writers out, and the claim holds a
//! majority of votes of either kind all the time. The client has stopped writing before the first message.
//! It is done when a majority has confirmed it, so that readers can get a majority. Later renewals repeat
//! it, for nodes that missed it or were repaired by a message from before.
//!
//! # Nodes
//!
//! - A server that is reached at two addresses has one vote, at the address where it was seen first
//!   (`ServerIdentities`): an address may later lead to another server.
//! - A node without a connection is dialled in the background. A node that has not answered for longer
//!   than its timeout is left out as long as the others are enough, so an unreachable node costs neither
//!   time nor memory. The timeout is split into four sleeps, so that a pause of this process is not
//!   taken for a pause of the nodes.
//! - Trust at first sight: a server that has been up for the longest TTL is trusted. A younger one may
//!   have restarted and forgotten its locks just before this client connected. But a set of servers that
//!   was just started must work at once: if none of those that answer is older, the whole set counts as
//!   new; until then, all have their time to answer. The price: if all servers lose their data within the
//!   longest TTL, a new client can get a lock that is held. No quorum of servers without persistence can
//!   tell that from a new set.
//!
//! # Scripts and waiting
//!
//! - The scripts are those of the store on one server, except for the vote (`quorum/claim.lua`, with a
//!   floor for the counter), the renewal (`quorum/renew.lua`, which carries the token and raises the
//!   counter) and the queue (`quorum/line.lua`). A node's queue decides nothing: it says which waiter is
//!   notified that there is room. A claim that holds a node stays in its queue until it is released,
//!   because its round may be lost elsewhere.
//! - A waiter asks when most nodes have notified it, or three milliseconds after the first; after a round
//!   in which it got some votes, after a random pause that grows; otherwise when the holds in its way
//!   end, or at the poll cap.
//! - An inspection shows what a majority shows. Nodes that do not answer are assumed to show it.

mod all_nodes;
mod ballot;
mod merged_view;
mod node;
mod nodes;
mod renew;
mod replies;
mod scripts;
mod store;
mod unconfirmed_releases;
mod waiters;

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::store::Background;
use tenure_proto::quorum::Forecast;

pub use store::RedlockStore;

use crate::config::RedlockConfig;
use crate::held::HeldClaims;
use crate::keys::Keyring;

/// What all calls share.
struct Quorum {
    config: RedlockConfig,
    nodes: nodes::Nodes,
    keyring: Keyring,
    waiters: Arc<waiters::QuorumWaiters>,
    held: Arc<HeldClaims>,
    forecast: Mutex<Forecast>,
    /// The channel on which nodes notify this client that there is room.
    channel: String,
    /// Serves all connections, and what goes on between calls.
    background: Background,
}
