//! A comparison that makes a write in the same etcd depend on the lock.

use std::fmt;

use tenure_core::Guard;

use crate::keys::Keyring;

/// What must be true in etcd while a guard's lock is held, to be put into a transaction: a write
/// of a holder that lost its lock then fails inside etcd, whatever the holder believes.
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
    /// The fence of a guard of an etcd store with this prefix (`tenure/` by default). `None` for a
    /// guard without a token, which no etcd store gives.
    pub fn of(prefix: &str, guard: &Guard) -> Option<Self> {
        let line = Keyring::new(prefix).line(guard.name());
        let key = String::from_utf8(line.key(&guard.owner().to_string())).ok()?;
        let create_revision = i64::try_from(guard.token()?.get()).ok()?;
        Some(Self { key, create_revision })
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
