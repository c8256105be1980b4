//! A comparison that makes a write in the store itself depend on the lock.

/// What must be true in the store while a guard's lock is held, to be put into a transaction there: a
/// write of a holder that lost its lock then fails inside the store, whatever the holder believes.
/// From [`Guard::fence`](crate::Guard::fence).
///
/// It is the comparison "the key [`key`](Self::key) is there, and was created in
/// [`revision`](Self::revision)", for whichever client makes the transaction. Each store that has one
/// says how to write it down.
///
/// The key names the owner of the hold: whoever can read it could release the lock by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    key: String,
    revision: i64,
}

impl Fence {
    /// The key is there, and was created in this revision, as long as the lock is held.
    pub const fn new(key: String, revision: i64) -> Self {
        Self { key, revision }
    }

    /// The key to compare: a key of etcd, the path of a node of ZooKeeper.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The revision it must have been created in: etcd's create revision, ZooKeeper's `czxid`.
    pub const fn revision(&self) -> i64 {
        self.revision
    }
}
