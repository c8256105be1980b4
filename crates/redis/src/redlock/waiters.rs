//! The waiters of a quorum, and which nodes have notified them that there is room.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::OwnerId;
use tenure_proto::Backoff;
use tenure_proto::quorum::{majority, pauses};
use tokio::sync::Notify;

use super::node::random;
use crate::wire::MessageListener;

pub(super) struct QuorumWaiters {
    nodes: usize,
    waiters: Mutex<HashMap<OwnerId, Waiter>>,
}

#[derive(Default)]
struct Waiter {
    /// A bit for each node that has notified the waiter since its last round.
    heard: u32,
    wakeup: Arc<Notify>,
    /// Pauses between rounds in which rivals split the votes.
    pauses: Option<Backoff>,
}

/// A release reaches the nodes one by one: a waiter asks once most nodes have notified it, or this long
/// after the first.
const GRACE: Duration = Duration::from_millis(3);

impl QuorumWaiters {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes, waiters: Mutex::default() }
    }

    /// A claim is about to ask, and may have to wait: earlier notifications no longer count.
    pub(super) fn enter(&self, owner: OwnerId) {
        self.waiters.lock().entry(owner).or_default().heard = 0;
    }

    pub(super) fn is_registered(&self, owner: OwnerId) -> bool {
        self.waiters.lock().contains_key(&owner)
    }

    pub(super) fn forget(&self, owner: OwnerId) {
        self.waiters.lock().remove(&owner);
    }

    /// How long a claim should pause after a round of this length in which rivals split the votes.
    pub(super) fn pause(&self, owner: OwnerId, round: Duration) -> Duration {
        let mut waiters = self.waiters.lock();
        let waiter = waiters.entry(owner).or_default();
        waiter.pauses.get_or_insert_with(|| pauses(round)).next(random())
    }

    /// The votes were not split: the pauses start over.
    pub(super) fn reset_pauses(&self, owner: OwnerId) {
        if let Some(waiter) = self.waiters.lock().get_mut(&owner) {
            waiter.pauses = None;
        }
    }

    /// Returns when the claim should ask again; never, if no node notifies it.
    pub(super) async fn notified_of_room(&self, owner: OwnerId) {
        while self.heard(owner) == 0 {
            let Some(wakeup) = self.wakeup(owner) else { return };
            wakeup.notified().await;
        }
        let most = async {
            while self.heard(owner) < majority(self.nodes) {
                let Some(wakeup) = self.wakeup(owner) else { return };
                wakeup.notified().await;
            }
        };
        let _rest = tokio::time::timeout(GRACE, most).await;
    }

    fn wakeup(&self, owner: OwnerId) -> Option<Arc<Notify>> {
        self.waiters.lock().get(&owner).map(|waiter| Arc::clone(&waiter.wakeup))
    }

    fn heard(&self, owner: OwnerId) -> usize {
        // A claim that is not registered need not wait.
        let waiters = self.waiters.lock();
        waiters.get(&owner).map_or(self.nodes, |waiter| waiter.heard.count_ones() as usize)
    }
}

/// Receives the messages of one node.
pub(super) struct NodeListener {
    pub(super) waiters: Arc<QuorumWaiters>,
    pub(super) node: usize,
}

impl MessageListener for NodeListener {
    fn on_message(&self, _channel: &[u8], message: &[u8]) {
        let owner = std::str::from_utf8(message).ok().and_then(|text| text.parse().ok());
        let Some(owner): Option<OwnerId> = owner else { return };
        if let Some(waiter) = self.waiters.waiters.lock().get_mut(&owner) {
            waiter.heard |= 1 << self.node;
            // Only one call waits for it; a notification in between is kept.
            waiter.wakeup.notify_one();
        }
    }

    /// The other nodes notify the waiter, too; and it asks at its poll in any case.
    fn on_gap(&self) {}
}
