//! What this process knows about its own claims: where they are, and who waits for news of them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A claim's record: its number and generation.
pub(crate) type Seat = (u32, u32);

/// The seats of a process's owners.
pub(crate) type Kept = HashMap<[u64; 2], Seat, BuildHasherDefault<OwnerHasher>>;

#[derive(Debug, Default)]
pub(crate) struct Seats {
    owners: Mutex<Kept>,
    /// So that the free path, which keeps nothing here, does not lock.
    kept: AtomicUsize,
    waiting: Mutex<HashMap<u32, Arc<Notify>>>,
}

impl Seats {
    /// Remembers where an owner's claim is.
    pub(crate) fn keep(&self, owner: [u64; 2], seat: Seat) {
        let mut owners = self.owners.lock();
        owners.insert(owner, seat);
        self.kept.store(owners.len(), Ordering::Release);
    }

    pub(crate) fn find(&self, owner: [u64; 2]) -> Option<Seat> {
        if self.kept.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.owners.lock().get(&owner).copied()
    }

    pub(crate) fn forget(&self, owner: [u64; 2]) {
        if self.kept.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut owners = self.owners.lock();
        owners.remove(&owner);
        self.kept.store(owners.len(), Ordering::Release);
    }

    #[cfg(test)]
    pub(crate) fn save(&self) -> Kept {
        self.owners.lock().clone()
    }

    #[cfg(test)]
    pub(crate) fn restore(&self, kept: &Kept) {
        self.kept.store(kept.len(), Ordering::Release);
        self.owners.lock().clone_from(kept);
    }

    /// Waits for news of a record from now on, until the answer is dropped.
    pub(crate) fn subscribe(self: &Arc<Self>, index: u32) -> Subscription {
        let notify = self.waiting.lock().entry(index).or_default().clone();
        Subscription { seats: self.clone(), index, notify }
    }

    /// There is news of this record.
    pub(crate) fn notify(&self, index: u32) {
        // Under the lock, so that a subscription that ends counts exactly who else there is.
        if let Some(notify) = self.waiting.lock().get(&index) {
            notify.notify_one();
        }
    }

    /// There may be news of any record.
    pub(crate) fn notify_all(&self) {
        for notify in self.waiting.lock().values() {
            notify.notify_one();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Subscription {
    seats: Arc<Seats>,
    index: u32,
    notify: Arc<Notify>,
}

impl Subscription {
    /// News that came since the subscription, or since the last time, is not lost.
    pub(crate) async fn news(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut waiting = self.seats.waiting.lock();
        // Another subscription to the same record keeps it: the map, it and we make three.
        if Arc::strong_count(&self.notify) <= 2 {
            waiting.remove(&self.index);
        } else {
            drop(waiting);
            self.notify.notify_one();
        }
    }
}

/// Owner ids are random already.
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
