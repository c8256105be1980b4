//! A comparison that makes a write in the store itself depend on the lock.

/// What is true in the store for as long as a guard's lock is held, to be put into a transaction
/// there: a write of a holder that lost its lock then fails inside the store, whatever the holder
/// believes. From [`Guard::fence`](crate::Guard::fence).
///
/// The transaction can be made with any client of the store. The key or path names the owner of the
/// hold: a program that can read it could release the lock by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fence {
    /// etcd: compare that this key was created by this revision.
    CreateRevision {
        /// The key.
        key: String,
        /// Its create revision.
        revision: i64,
    },
    /// ZooKeeper: check that this node is there, in any version, in the `multi` that writes.
    Exists {
        /// The path of the node.
        path: String,
    },
}

impl Fence {
    /// The key and the create revision to compare, where that is the comparison.
    pub fn create_revision(&self) -> Option<(&str, i64)> {
        match self {
            Self::CreateRevision { key, revision } => Some((key, *revision)),
            Self::Exists { .. } => None,
        }
    }

    /// The path of the node to check, where that is the comparison.
    pub fn existing_path(&self) -> Option<&str> {
        match self {
            Self::Exists { path } => Some(path),
            Self::CreateRevision { .. } => None,
        }
    }
}
