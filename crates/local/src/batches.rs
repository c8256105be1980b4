//! Work on all claims of a lock, of which there may be ten thousand. They are visited in batches, and the
//! gate is left in between, so that no other process waits for long.

use std::collections::HashSet;

use tenure_core::Mode;
use tenure_proto::Occupancy;

use crate::claims::{Outcome, now};
use crate::fault::Result;
use crate::process_slots::ProcessSlot;
use crate::queue::{BATCH, Wake};
use crate::records::{Entry, Lock, Name};
use crate::store::Inner;
use crate::txn::Txn;

/// One of a lock's two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Holders,
    Waiters,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Holders were removed.
    pub(crate) removed: bool,
    /// When the first of the remaining terms ends, if all holders were checked.
    pub(crate) first_end: Option<u64>,
}

impl Inner {
    /// Removes all holders that have expired or whose process has died, and admits the next waiters. Stops
    /// at a holder that alone keeps out a claim of this mode.
    pub(crate) fn sweep_all(&self, name: &Name<'_>, mode: Mode) -> Outcome<Swept> {
        let mut swept = Swept::default();
        let mut first_end = u64::MAX;
        let mut alive = HashSet::new();
        let complete = self.each_batch(name, List::Holders, |batch| {
            let now = now();
            let mut ended = Vec::new();
            for holder in batch {
                if holder.ends <= now || !self.is_alive(&mut alive, holder.process)? {
                    ended.push(*holder);
                } else if blocks(holder.mode, mode) {
                    self.remove_all(name, &ended, &mut swept)?;
                    return Ok(false);
                } else {
                    first_end = first_end.min(holder.ends);
                }
            }
            self.remove_all(name, &ended, &mut swept)?;
            Ok(true)
        })?;
        swept.first_end = (complete && first_end < u64::MAX).then_some(first_end);
        Ok(swept)
    }

    /// The processes that hold the lock, at most `most` of them.
    pub(crate) fn holding_processes(
        &self,
        name: &Name<'_>,
        most: usize,
    ) -> Outcome<Vec<ProcessSlot>> {
        let mut members = HashSet::new();
        self.each_batch(name, List::Holders, |batch| {
            members.extend(batch.iter().map(|holder| holder.process));
            Ok(members.len() < most)
        })?;
        Ok(members.into_iter().take(most).collect())
    }

    /// Finds an owner's claim, of any process.
    pub(crate) fn search(&self, name: &Name<'_>, owner: [u64; 2]) -> Outcome<Option<Entry>> {
        let mut found = None;
        // In this order, because a claim that is admitted meanwhile moves from waiters to holders.
        for list in [List::Waiters, List::Holders] {
            self.each_batch(name, list, |batch| {
                found = found.or(batch.iter().find(|claim| claim.owner == owner).copied());
                Ok(found.is_none())
            })?;
        }
        Ok(found)
    }

    /// Calls `visit`, outside the gate, with all claims of a list, in batches, until it returns false.
    /// Returns true if it never did. Claims that are added or removed meanwhile may be left out.
    fn each_batch(
        &self,
        name: &Name<'_>,
        list: List,
        mut visit: impl FnMut(&[Entry]) -> Outcome<bool>,
    ) -> Outcome<bool> {
        let mut last = Vec::new();
        // If all claims of a batch are gone when the next one is read, reading starts again at the
        // beginning of the list. The budget bounds that.
        let mut budget: Option<u64> = None;
        loop {
            let (batch, count) = self.change(|txn, _| txn.batch(name, list, &last))?;
            if !visit(&batch)? {
                return Ok(false);
            }
            if batch.len() < BATCH as usize {
                return Ok(true);
            }
            let before = budget.unwrap_or(3 * u64::from(count) + u64::from(BATCH));
            let Some(now) = before.checked_sub(batch.len() as u64) else {
                return Ok(false);
            };
            budget = Some(now);
            last = batch;
        }
    }

    fn is_alive(&self, alive: &mut HashSet<ProcessSlot>, process: ProcessSlot) -> Outcome<bool> {
        if alive.contains(&process) {
            return Ok(true);
        }
        let is_alive = self.table.is_alive(process).map_err(|fault| (fault, false))?;
        if is_alive {
            alive.insert(process);
        }
        Ok(is_alive)
    }

    /// Removes holders that were seen expired or dead. Neither changes back, so they are not checked again.
    fn remove_all(&self, name: &Name<'_>, ended: &[Entry], swept: &mut Swept) -> Outcome<()> {
        if ended.is_empty() {
            return Ok(());
        }
        swept.removed = true;
        self.change(|txn, wakes: &mut Vec<Wake>| {
            for claim in ended {
                let Some(mut lock) = txn.find_lock(name)? else {
                    break;
                };
                if let Some(claim) = txn.still_on(&lock, claim)?.filter(|claim| claim.holds) {
                    self.remove_and_admit(txn, &mut lock, &claim, wakes)?;
                    txn.commit()?;
                }
            }
            Ok(())
        })
    }
}

impl Txn<'_> {
    /// The next batch of a list: the claims behind the last one of `last` that is still there. Also returns
    /// the length of the list.
    fn batch(&self, name: &Name<'_>, list: List, last: &[Entry]) -> Result<(Vec<Entry>, u32)> {
        let Some(lock) = self.find_lock(name)? else {
            return Ok((Vec::new(), 0));
        };
        let (mut first, count) = match list {
            List::Holders => (lock.first_holder, lock.holders),
            List::Waiters => (lock.first_waiter, lock.waiters),
        };
        for claim in last.iter().rev() {
            if let Some(known) = self.still_on(&lock, claim)?
                && known.holds == (list == List::Holders)
            {
                first = known.after;
                break;
            }
        }
        let mut batch = Vec::new();
        self.walk(&lock, first, |claim| {
            batch.push(claim);
            Ok(batch.len() < BATCH as usize)
        })?;
        Ok((batch, count))
    }

    /// Reads a claim again, if it is still there.
    fn still_on(&self, lock: &Lock, claim: &Entry) -> Result<Option<Entry>> {
        let known = self.claim_at(claim.index, claim.generation)?;
        Ok(known.filter(|known| {
            (known.owner, known.lock, known.lock_generation)
                == (claim.owner, lock.index, lock.generation)
        }))
    }
}

/// Whether this holder alone keeps a claim out.
fn blocks(holder: Mode, claim: Mode) -> bool {
    let mut room = Occupancy::default();
    room.enter(holder);
    !room.admits(claim)
}
