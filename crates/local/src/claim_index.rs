//! This process's own claims: which records they are in, and the tasks that wait for a change of one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A claim's record: its index and generation.
pub(crate) type RecordRef = (u32, u32);

/// The records of a process's claims, by owner.
pub(crate) type OwnerRecords = HashMap<[u64; 2], RecordRef, BuildHasherDefault<OwnerHasher>>;

#[derive(Debug, Default)]
pub(crate) struct ClaimIndex {
    owners: Mutex<OwnerRecords>,
    /// The number of `owners`, so that an uncontended claim, which needs no entry here, takes no lock.
    count: AtomicUsize,
    /// The tasks that wait for a change of a record, by its index.
    waiting: Mutex<HashMap<u32, Arc<Notify>>>,
}

impl ClaimIndex {
    /// Remembers the record of an owner's claim.
    pub(crate) fn insert(&self, owner: [u64; 2], record: RecordRef) {
        let mut owners = self.owners.lock();
        owners.insert(owner, record);
        self.count.store(owners.len(), Ordering::Release);
    }

    pub(crate) fn get(&self, owner: [u64; 2]) -> Option<RecordRef> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.owners.lock().get(&owner).copied()
    }

    pub(crate) fn remove(&self, owner: [u64; 2]) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut owners = self.owners.lock();
        owners.remove(&owner);
        self.count.store(owners.len(), Ordering::Release);
    }

    #[cfg(test)]
    pub(crate) fn save(&self) -> OwnerRecords {
        self.owners.lock().clone()
    }

    #[cfg(test)]
    pub(crate) fn restore(&self, kept: &OwnerRecords) {
        self.count.store(kept.len(), Ordering::Release);
        self.owners.lock().clone_from(kept);
    }

    /// Subscribes to changes of a record from now on, until the subscription is dropped.
    pub(crate) fn subscribe(self: &Arc<Self>, index: u32) -> Subscription {
        let notify = self.waiting.lock().entry(index).or_default().clone();
        Subscription { claim_index: self.clone(), index, notify }
    }

    /// Notifies a task that waits for a change of this record.
    pub(crate) fn notify(&self, index: u32) {
        // Under the lock, so that a subscription that is dropped meanwhile counts the others correctly.
        if let Some(notify) = self.waiting.lock().get(&index) {
            notify.notify_one();
        }
    }

    /// Notifies the waiting tasks of all records.
    pub(crate) fn notify_all(&self) {
        for notify in self.waiting.lock().values() {
            notify.notify_one();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Subscription {
    claim_index: Arc<ClaimIndex>,
    index: u32,
    notify: Arc<Notify>,
}

impl Subscription {
    /// Waits for a notification. One that came since the subscription, or since the last call, counts.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut waiting = self.claim_index.waiting.lock();
        // A third reference, besides the map's and ours, is another subscription to the same record. It
        // may need the notification that this one has received.
        if Arc::strong_count(&self.notify) <= 2 {
            waiting.remove(&self.index);
        } else {
            drop(waiting);
            self.notify.notify_one();
        }
    }
}

/// Owner ids are random, so they need no further hashing.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnerHasher(u64);

impl Hasher for OwnerHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut eight = [0; 8];
            eight[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_ne_bytes(eight));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 ^= word;
    }

    fn write_usize(&mut self, _length: usize) {}
}
