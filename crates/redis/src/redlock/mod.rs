//! Locks on a quorum of independent Redis servers (Redlock).
//!
//! `tenure_proto::quorum` decides; code here only brings its messages. Each call takes one look at
//! the nodes and goes over the connections it saw: a connection outlives no restart of its server,
//! and what is sent down it arrives in order. So a release cannot overtake its claim, and needs no
//! task that outlives the call.

mod ballot;
mod config;
mod debts;
mod desk;
mod diagnose;
mod everywhere;
mod node;
mod nodes;
mod picture;
mod renew;
mod replies;
mod runs;
mod scripts;
mod store;

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::store::Background;
use tenure_proto::quorum::Forecast;

pub use config::RedlockConfig;
pub use store::RedlockStore;

use crate::held::Held;
use crate::keys::Keyring;

/// What all calls share.
struct Quorum {
    config: RedlockConfig,
    nodes: nodes::Nodes,
    keyring: Keyring,
    desk: Arc<desk::Desk>,
    held: Arc<Held>,
    forecast: Mutex<Forecast>,
    /// Where this client hears that there is room.
    channel: String,
    /// Serves all connections, and what goes on between calls.
    background: Background,
}
