//! Those who wait, and which nodes have told them that there is room.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::OwnerId;
use tenure_proto::Backoff;
use tenure_proto::quorum::{majority, pauses};
use tokio::sync::Notify;

use super::node::chance;
use crate::wire::Hearer;

pub(super) struct Desk {
    nodes: usize,
    waiters: Mutex<HashMap<OwnerId, Waiter>>,
}

#[derive(Default)]
struct Waiter {
    /// A bit for each node that has told of room since the last round.
    heard: u32,
    bell: Arc<Notify>,
    /// Pauses between rounds in which rivals split the votes.
    pauses: Option<Backoff>,
}

/// A release reaches the nodes one by one: a waiter that hears of it first asks once most of them
/// have told it, or this long after the first.
const GRACE: Duration = Duration::from_millis(3);

impl Desk {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes, waiters: Mutex::default() }
    }

    /// A claim is about to ask, and may have to wait: what it has heard before is old.
    pub(super) fn enter(&self, owner: OwnerId) {
        self.waiters.lock().entry(owner).or_default().heard = 0;
    }

    pub(super) fn expects(&self, owner: OwnerId) -> bool {
        self.waiters.lock().contains_key(&owner)
    }

    pub(super) fn forget(&self, owner: OwnerId) {
        self.waiters.lock().remove(&owner);
    }

    /// How long a claim should wait after a round of this length in which rivals split the votes.
    pub(super) fn pause(&self, owner: OwnerId, round: Duration) -> Duration {
        let mut waiters = self.waiters.lock();
        let waiter = waiters.entry(owner).or_default();
        waiter.pauses.get_or_insert_with(|| pauses(round)).next(chance())
    }

    /// The votes were not split: the pauses start over.
    pub(super) fn calm(&self, owner: OwnerId) {
        if let Some(waiter) = self.waiters.lock().get_mut(&owner) {
            waiter.pauses = None;
        }
    }

    /// Returns when it makes sense to ask again. For ever, if nobody tells.
    pub(super) async fn told(&self, owner: OwnerId) {
        while self.heard(owner) == 0 {
            let Some(bell) = self.bell(owner) else { return };
            bell.notified().await;
        }
        let most = async {
            while self.heard(owner) < majority(self.nodes) {
                let Some(bell) = self.bell(owner) else { return };
                bell.notified().await;
            }
        };
        let _rest = tokio::time::timeout(GRACE, most).await;
    }

    fn bell(&self, owner: OwnerId) -> Option<Arc<Notify>> {
        self.waiters.lock().get(&owner).map(|waiter| Arc::clone(&waiter.bell))
    }

    fn heard(&self, owner: OwnerId) -> usize {
        // One that is not waited for any more need not wait.
        let waiters = self.waiters.lock();
        waiters.get(&owner).map_or(self.nodes, |waiter| waiter.heard.count_ones() as usize)
    }
}

/// Hears what one node tells.
pub(super) struct Ear {
    pub(super) desk: Arc<Desk>,
    pub(super) node: usize,
}

impl Hearer for Ear {
    fn hear(&self, message: &[u8]) {
        let owner = std::str::from_utf8(message).ok().and_then(|text| text.parse().ok());
        let Some(owner): Option<OwnerId> = owner else { return };
        if let Some(waiter) = self.desk.waiters.lock().get_mut(&owner) {
            waiter.heard |= 1 << self.node;
            // One wait at a time listens; a bell rung in between is kept.
            waiter.bell.notify_one();
        }
    }

    /// The others tell, too; and what nobody told is found by asking.
    fn miss(&self) {}
}
