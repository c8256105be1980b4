//! A lock's holders and waiters in the table, first come, first served. The rules are those of
//! `tenure_proto::LockQueue`, over linked records.
//!
//! Holders and waiters are two doubly linked lists in order of arrival. So any claim is removed in constant
//! time, and a hand-off costs the same with 10,000 waiters as with one.

use crate::fault::{Fault, Result};
use crate::layout::{BUCKETS, BUCKETS_AT, low, mix, pair};
use crate::process_slots::ProcessSlot;
use crate::records::{Entry, Lock, Name};
use crate::txn::Txn;

/// How many holders every change checks for expired and dead ones. A claim that finds no room checks the
/// rest in further changes (`batches`).
pub(crate) const HOLDERS_CHECKED: u32 = 8;
/// Claims in one batch, which take some ten microseconds.
pub(crate) const BATCH: u32 = 256;

/// A waiter to be woken after the gate is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) process: ProcessSlot,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Wake {
    pub(crate) const fn of(claim: &Entry) -> Self {
        Self { process: claim.process, index: claim.index, generation: claim.generation }
    }
}

impl Txn<'_> {
    pub(crate) fn find_lock(&self, name: &Name<'_>) -> Result<Option<Lock>> {
        let bucket = bucket_of(name.hash);
        let mut index = self.bucket(bucket)?;
        for _ in 0..self.high_water() {
            if index == 0 {
                return Ok(None);
            }
            let lock = self.lock(index)?;
            if bucket_of(lock.hash) != bucket {
                return Err(Fault::damaged("a lock is in the wrong bucket"));
            }
            if self.is_named(&lock, name)? {
                return Ok(Some(lock));
            }
            index = lock.chain;
        }
        Err(Fault::damaged("a bucket has no end"))
    }

    /// Grants a claim on a lock that is not in the table.
    pub(crate) fn create_held_lock(
        &mut self,
        name: &Name<'_>,
        mut claim: Entry,
        label: &str,
    ) -> Result<Entry> {
        let bucket = bucket_of(name.hash);
        let first = self.bucket(bucket)?;
        claim.grant(self.next_token().ok_or_else(Fault::no_token)?, claim.arrived);
        let (lock, claim) = self.build_held(name, first, claim, label)?;
        self.set_bucket(bucket, lock.index)?;
        Ok(claim)
    }

    /// Saves the lock, or frees its record if it has no holders and no waiters.
    pub(crate) fn save_or_free(&mut self, lock: &Lock) -> Result<()> {
        if lock.first_holder != 0 || lock.first_waiter != 0 {
            return self.save_lock(lock);
        }
        let bucket = bucket_of(lock.hash);
        let mut index = self.bucket(bucket)?;
        if index == lock.index {
            self.set_bucket(bucket, lock.chain)?;
            return self.free(lock.index, lock.generation);
        }
        for _ in 0..self.high_water() {
            let mut before = self.lock(index)?;
            if before.chain == lock.index {
                before.chain = lock.chain;
                self.save_lock(&before)?;
                return self.free(lock.index, lock.generation);
            }
            index = before.chain;
        }
        Err(Fault::damaged("a lock is in no bucket"))
    }

    /// Grants a new claim. The caller has checked that the lock admits it.
    pub(crate) fn add_holder(
        &mut self,
        lock: &mut Lock,
        mut claim: Entry,
        label: &str,
    ) -> Result<Entry> {
        claim.lock = lock.index;
        claim.lock_generation = lock.generation;
        let token = self.next_token().ok_or_else(Fault::no_token)?;
        claim.grant(token, claim.arrived);
        claim.before = lock.last_holder;
        let claim = self.build_claim(claim, label)?;
        self.link_holder(lock, &claim)?;
        Ok(claim)
    }

    /// Appends a new claim to the queue.
    pub(crate) fn add_waiter(
        &mut self,
        lock: &mut Lock,
        mut claim: Entry,
        label: &str,
    ) -> Result<Entry> {
        claim.lock = lock.index;
        claim.lock_generation = lock.generation;
        claim.before = lock.last_waiter;
        let claim = self.build_claim(claim, label)?;
        if lock.last_waiter == 0 {
            lock.first_waiter = claim.index;
        } else {
            self.relink(lock, lock.last_waiter, |last| last.after = claim.index)?;
        }
        lock.last_waiter = claim.index;
        lock.waiters = lock.waiters.saturating_add(1);
        Ok(claim)
    }

    /// Removes a claim. The caller saves the lock.
    pub(crate) fn remove(&mut self, lock: &mut Lock, claim: &Entry) -> Result<()> {
        self.unlink(lock, claim)?;
        self.free(claim.index, claim.generation)
    }

    /// Grants the lock to the first waiters, as far as it admits them and tokens are left. Commits after
    /// each step; the first commit includes the caller's changes. If no token is left, the first waiter is
    /// woken to repeat its claim: it can wait for a reservation, and a release cannot.
    pub(crate) fn admit(&mut self, lock: &mut Lock, now: u64, wakes: &mut Vec<Wake>) -> Result<()> {
        let mut head_changed = false;
        while lock.first_waiter != 0 {
            let mut head = self.claim_on(lock, lock.first_waiter)?;
            if head.ends <= now {
                self.remove(lock, &head)?;
                self.checkpoint(lock)?;
                head_changed = true;
                continue;
            }
            if !lock.room().admits(head.mode) {
                self.sweep(lock, now)?;
            }
            if !lock.room().admits(head.mode) {
                break;
            }
            if !self.table.is_alive(head.process)? {
                self.remove(lock, &head)?;
                self.checkpoint(lock)?;
                head_changed = true;
                continue;
            }
            let Some(token) = self.next_token() else {
                head_changed = true;
                break;
            };
            self.unlink(lock, &head)?;
            head.grant(token, now);
            head.before = lock.last_holder;
            head.after = 0;
            self.save_claim(&head)?;
            self.link_holder(lock, &head)?;
            self.checkpoint(lock)?;
            wakes.push(Wake::of(&head));
            // If there is one holder, the new first waiter watches it already: it was its predecessor.
            head_changed |= lock.holders > 1;
        }
        if head_changed && lock.first_waiter != 0 {
            let head = self.claim_on(lock, lock.first_waiter)?;
            wakes.push(Wake::of(&head));
        }
        Ok(())
    }

    /// Removes expired and dead holders among the first [`HOLDERS_CHECKED`].
    pub(crate) fn sweep(&mut self, lock: &mut Lock, now: u64) -> Result<()> {
        let mut index = lock.first_holder;
        let mut alive = None;
        for _ in 0..HOLDERS_CHECKED {
            if index == 0 {
                break;
            }
            let holder = self.claim_on(lock, index)?;
            index = holder.after;
            if holder.ends > now {
                if alive == Some(holder.process) {
                    continue;
                }
                if self.table.is_alive(holder.process)? {
                    alive = Some(holder.process);
                    continue;
                }
            }
            self.remove(lock, &holder)?;
            self.checkpoint(lock)?;
        }
        Ok(())
    }

    /// The waiter behind a claim that is about to leave the queue. It must watch another process then.
    pub(crate) fn successor(&self, lock: &Lock, claim: &Entry) -> Result<Option<Wake>> {
        if claim.holds || claim.after == 0 {
            return Ok(None);
        }
        let next = self.claim_on(lock, claim.after)?;
        Ok(Some(Wake::of(&next)))
    }

    /// Reads a claim that a link of this lock leads to.
    pub(crate) fn claim_on(&self, lock: &Lock, index: u32) -> Result<Entry> {
        let claim = self.claim(index)?;
        if claim.lock != lock.index || claim.lock_generation != lock.generation {
            return Err(Fault::damaged("a claim is on another lock's list"));
        }
        Ok(claim)
    }

    /// Calls `visit` with each claim of a list, until it returns false.
    pub(crate) fn walk(
        &self,
        lock: &Lock,
        first: u32,
        mut visit: impl FnMut(Entry) -> Result<bool>,
    ) -> Result<()> {
        let mut index = first;
        for _ in 0..self.high_water() {
            if index == 0 {
                return Ok(());
            }
            let claim = self.claim_on(lock, index)?;
            index = claim.after;
            if !visit(claim)? {
                return Ok(());
            }
        }
        Err(Fault::damaged("a list has no end"))
    }

    pub(crate) fn bucket(&self, bucket: usize) -> Result<u32> {
        let word = self.get(BUCKETS_AT + bucket)?;
        if word != bucket_word(bucket, low(word)) {
            return Err(Fault::damaged("a hash bucket has a wrong checksum"));
        }
        Ok(low(word))
    }

    fn set_bucket(&mut self, bucket: usize, index: u32) -> Result<()> {
        self.set(BUCKETS_AT + bucket, bucket_word(bucket, index))
    }

    fn checkpoint(&mut self, lock: &Lock) -> Result<()> {
        self.save_lock(lock)?;
        self.commit()
    }

    fn link_holder(&mut self, lock: &mut Lock, claim: &Entry) -> Result<()> {
        if lock.last_holder == 0 {
            lock.first_holder = claim.index;
        } else {
            self.relink(lock, lock.last_holder, |last| last.after = claim.index)?;
        }
        lock.last_holder = claim.index;
        lock.count_in(claim.mode);
        Ok(())
    }

    fn unlink(&mut self, lock: &mut Lock, claim: &Entry) -> Result<()> {
        let (first, last) = if claim.holds {
            lock.count_out(claim.mode);
            (&mut lock.first_holder, &mut lock.last_holder)
        } else {
            lock.waiters = lock.waiters.saturating_sub(1);
            (&mut lock.first_waiter, &mut lock.last_waiter)
        };
        if claim.before == 0 {
            *first = claim.after;
        }
        if claim.after == 0 {
            *last = claim.before;
        }
        if claim.before != 0 {
            self.relink(lock, claim.before, |before| before.after = claim.after)?;
        }
        if claim.after != 0 {
            self.relink(lock, claim.after, |after| after.before = claim.before)?;
        }
        Ok(())
    }

    fn relink(&mut self, lock: &Lock, index: u32, change: impl FnOnce(&mut Entry)) -> Result<()> {
        let mut claim = self.claim_on(lock, index)?;
        change(&mut claim);
        self.save_claim(&claim)
    }
}

pub(crate) const fn bucket_of(hash: u64) -> usize {
    (hash >> 50) as usize % BUCKETS
}

const fn bucket_word(bucket: usize, index: u32) -> u64 {
    if index == 0 {
        return 0;
    }
    pair(index, mix(bucket as u64, 3, index as u64) as u32)
}
