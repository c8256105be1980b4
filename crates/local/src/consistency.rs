//! A check of the whole table, for tests.

use std::collections::HashSet;

use tenure_core::{Mode, Result};

use crate::fault::{self, Fault};
use crate::layout::BUCKETS;
use crate::queue::bucket_of;
use crate::records::{CLAIM, FREE, LOCK, Lock};
use crate::store::LocalStore;
use crate::txn::Txn;

/// The number of records of each kind.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Locks held or waited for.
    pub locks: usize,
    /// Claims that hold.
    pub holders: usize,
    /// Claims that wait.
    pub waiters: usize,
    /// Records in the free list.
    pub free: usize,
}

impl LocalStore {
    /// Verifies that every record is reached exactly once and that all counts and checksums are right.
    ///
    /// # Errors
    /// [`Damaged`](tenure_core::ErrorKind::Damaged), with what is wrong.
    #[doc(hidden)]
    pub fn check(&self) -> Result<RecordCounts> {
        let checked = Txn::begin(&self.inner.table).and_then(|txn| {
            let counts = check(&txn);
            self.inner.table.map.check().and(counts)
        });
        checked.map_err(|fault| fault.during("check the table", self.dir()))
    }
}

pub(crate) fn check(txn: &Txn<'_>) -> fault::Result<RecordCounts> {
    let mut counts = RecordCounts::default();
    let mut reached = HashSet::new();
    let mut once = |index| match reached.insert(index) {
        true => Ok(()),
        false => Err(Fault::damaged("a record is reached twice")),
    };
    let mut free = txn.first_free();
    while free != 0 {
        once(free)?;
        counts.free += 1;
        (free, _) = txn.next_free(free)?;
    }
    for bucket in 0..BUCKETS {
        let mut index = txn.bucket(bucket)?;
        while index != 0 {
            once(index)?;
            let lock = txn.lock(index)?;
            if bucket_of(lock.hash) != bucket {
                return Err(Fault::damaged("a lock is in the wrong bucket"));
            }
            counts.locks += 1;
            counts.holders += list(txn, &lock, true, &mut once)?;
            counts.waiters += list(txn, &lock, false, &mut once)?;
            check_occupancy(txn, &lock)?;
            index = lock.chain;
        }
    }
    for index in 1..txn.high_water() {
        let kind = txn.kind(index)?.0;
        if !matches!(kind, FREE | LOCK | CLAIM) || !reached.contains(&index) {
            return Err(Fault::damaged("a record is on no list"));
        }
    }
    Ok(counts)
}

fn list(
    txn: &Txn<'_>,
    lock: &Lock,
    holds: bool,
    once: &mut impl FnMut(u32) -> fault::Result<()>,
) -> fault::Result<usize> {
    let (first, last, count) = if holds {
        (lock.first_holder, lock.last_holder, lock.holders)
    } else {
        (lock.first_waiter, lock.last_waiter, lock.waiters)
    };
    let mut before = 0;
    let mut seen = 0;
    txn.walk(lock, first, |claim| {
        once(claim.index)?;
        if claim.before != before || claim.holds != holds {
            return Err(Fault::damaged("a claim is on the wrong list"));
        }
        before = claim.index;
        seen += 1;
        Ok(true)
    })?;
    if before != last || seen != count as usize {
        return Err(Fault::damaged("the length of a list is wrong"));
    }
    Ok(seen)
}

fn check_occupancy(txn: &Txn<'_>, lock: &Lock) -> fault::Result<()> {
    let (mut exclusive, mut shared, mut permits) = (0, 0, 0);
    txn.walk(lock, lock.first_holder, |claim| {
        match claim.mode {
            Mode::Exclusive => exclusive += 1,
            Mode::Shared => shared += 1,
            Mode::Permits { take, .. } => permits += u64::from(take),
        }
        Ok(true)
    })?;
    if (exclusive, shared, permits) != (lock.exclusive, lock.shared, lock.permits) {
        return Err(Fault::damaged("the counts of a lock's holders are wrong"));
    }
    Ok(())
}
