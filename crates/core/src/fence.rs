//! A comparison that makes a write in the store itself depend on the lock.

use std::fmt;

/// What must be true in etcd while a guard's lock is held, to be put into a transaction: a write
/// of a holder that lost its lock then fails inside etcd, whatever the holder believes. From
/// [`Guard::fence`](crate::Guard::fence).
///
/// It is the comparison "the key [`key`](Self::key) has the create revision
/// [`create_revision`](Self::create_revision)", for whichever etcd client makes the transaction.
/// Its [`Display`](fmt::Display) is the comparison as `etcdctl txn` reads it.
///
/// The key names the owner of the hold: whoever can read it could release the lock by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    key: String,
    create_revision: i64,
}

impl Fence {
    /// The key has this create revision as long as the lock is held.
    pub const fn new(key: String, create_revision: i64) -> Self {
        Self { key, create_revision }
    }

    /// The key to compare.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The create revision it must have.
    pub const fn create_revision(&self) -> i64 {
        self.create_revision
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "create({:?}) = \"{}\"", self.key, self.create_revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_shown_as_etcdctl_reads_it() {
        let fence = Fence::new("tenure/a \"b\"/1".into(), 7);
        assert_eq!(fence.to_string(), r#"create("tenure/a \"b\"/1") = "7""#);
    }
}
