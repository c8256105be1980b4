//! An entry of a queue as a key in etcd, and the queue that a listing of keys shows.

use std::collections::HashMap;

use tenure_core::{Mode, Token};
use tenure_ordered::{Entry, Listing};

use crate::keys::{Queue, mark_of, marked_by};
use crate::rpc::{KeyValue, RequestOp};
use crate::txn::delete;

/// A key in etcd.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryKey {
    pub(crate) key: Vec<u8>,
    /// The revision that created it: no other key ever has the same.
    pub(crate) revision: i64,
    pub(crate) lease: i64,
}

impl EntryKey {
    /// Whether its name says how the lock is held: that of an exclusive claim ends with the owner.
    fn has_mode(&self) -> bool {
        let name = self.key.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        name.contains(&b'-')
    }
}

pub(crate) fn listing(queue: &Queue, keys: &[KeyValue], revision: i64) -> Listing<EntryKey> {
    let (marks, keys): (Vec<_>, Vec<_>) = keys.iter().partition(|kv| queue.is_mark(&kv.key));
    let mut entries: Vec<_> = keys.into_iter().map(|kv| entry(queue, kv)).collect();
    let marks: HashMap<&[u8], i64> =
        marks.iter().filter_map(|kv| Some((marked_by(&kv.key)?, kv.create_revision))).collect();
    for entry in &mut entries {
        let mark = marks.get(&*entry.key.key);
        // A mark that is older than its key was left by an earlier key, which was deleted by hand.
        if mark.is_some_and(|created| *created > entry.key.revision) {
            entry.mode = Mode::Shared;
        }
    }
    entries.sort_by_key(|entry| entry.order);
    Listing { entries, covers: revision.into() }
}

pub(crate) fn entry(queue: &Queue, kv: &KeyValue) -> Entry<EntryKey> {
    let (mode, owner) = queue.read(&kv.key);
    let (order, revision) = (kv.create_revision.into(), kv.create_revision);
    Entry { order, mode, owner, key: EntryKey { key: kv.key.clone(), revision, lease: kv.lease } }
}

/// Deletes the key of an entry, and the mark that it may have.
pub(crate) fn delete_entry(entry: &Entry<EntryKey>) -> Vec<RequestOp> {
    let key = &entry.key.key;
    let mark = may_be_marked(entry).then(|| delete(&mark_of(key)));
    std::iter::once(delete(key)).chain(mark).collect()
}

/// Whether an entry is an exclusive one of tenure, by its key: it may have been downgraded.
pub(crate) fn may_be_marked(entry: &Entry<EntryKey>) -> bool {
    entry.owner.is_some() && !entry.key.has_mode()
}

/// The revision that created an entry: revisions number the transactions of all of etcd.
pub(crate) fn token(revision: i64) -> Token {
    Token::new(u64::try_from(revision).unwrap_or_default())
}
