//! One lock's holders and line, in the table: first come, first served, handed from one to the
//! next. The same rules as `tenure_proto::LockQueue`, over linked records.
//!
//! Holders and waiters are two doubly linked lists, both in order of arrival, so that anybody
//! leaves in constant time and a hand-off costs the same with 10,000 waiters as with one.

use crate::fault::{Fault, Result};
use crate::layout::{BUCKETS, BUCKETS_AT, low, mix, pair};
use crate::members::Member;
use crate::records::{Entry, Lock, Name};
use crate::txn::Txn;

/// Holders looked at in passing for one that has ended or died. A claim that finds no room looks
/// at the rest of them in changes of their own (`stretch.rs`).
pub(crate) const GLANCE: u32 = 8;
/// Claims looked at in one change where all of them must be: some ten microseconds.
pub(crate) const STRETCH: u32 = 256;

/// A waiter with news, to be told once the gate is behind us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) member: Member,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Wake {
    pub(crate) const fn of(claim: &Entry) -> Self {
        Self { member: claim.member, index: claim.index, generation: claim.generation }
    }
}

impl Txn<'_> {
    pub(crate) fn find_lock(&self, name: &Name<'_>) -> Result<Option<Lock>> {
        let bucket = bucket_of(name.hash);
        let mut index = self.bucket(bucket)?;
        for _ in 0..self.carved() {
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

    /// Grants a claim on a lock that nobody has.
    pub(crate) fn open_lock(
        &mut self,
        name: &Name<'_>,
        mut claim: Entry,
        label: &str,
    ) -> Result<Entry> {
        let bucket = bucket_of(name.hash);
        let first = self.bucket(bucket)?;
        claim.grant(self.mint().ok_or_else(Fault::no_token)?, claim.arrived);
        let (lock, claim) = self.build_held(name, first, claim, label)?;
        self.set_bucket(bucket, lock.index)?;
        Ok(claim)
    }

    /// Saves the lock, or gives its record back if nobody holds it and nobody waits.
    pub(crate) fn settle(&mut self, lock: &Lock) -> Result<()> {
        if lock.first_holder != 0 || lock.first_waiter != 0 {
            return self.save_lock(lock);
        }
        let bucket = bucket_of(lock.hash);
        let mut index = self.bucket(bucket)?;
        if index == lock.index {
            self.set_bucket(bucket, lock.chain)?;
            return self.free(lock.index, lock.generation);
        }
        for _ in 0..self.carved() {
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

    /// Grants a new claim, which was asked for room before.
    pub(crate) fn add_holder(
        &mut self,
        lock: &mut Lock,
        mut claim: Entry,
        label: &str,
    ) -> Result<Entry> {
        claim.lock = lock.index;
        claim.lock_generation = lock.generation;
        let token = self.mint().ok_or_else(Fault::no_token)?;
        claim.grant(token, claim.arrived);
        claim.before = lock.last_holder;
        let claim = self.build_claim(claim, label)?;
        self.link_holder(lock, &claim)?;
        Ok(claim)
    }

    /// Puts a new claim at the end of the line.
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

    /// Takes a claim out. The lock is saved by the caller.
    pub(crate) fn remove(&mut self, lock: &mut Lock, claim: &Entry) -> Result<()> {
        self.unlink(lock, claim)?;
        self.free(claim.index, claim.generation)
    }

    /// Lets in those at the head of the line, as far as there is room and there are tokens. Commits
    /// after each step, the first of them together with what the caller changed before. A head for
    /// which there is no token is told to ask: it can wait for one, and a release cannot.
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
            if !self.table.lives(head.member)? {
                self.remove(lock, &head)?;
                self.checkpoint(lock)?;
                head_changed = true;
                continue;
            }
            let Some(token) = self.mint() else {
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
            // With one holder, the new head watches it already: it was its predecessor.
            head_changed |= lock.holders > 1;
        }
        if head_changed && lock.first_waiter != 0 {
            let head = self.claim_on(lock, lock.first_waiter)?;
            wakes.push(Wake::of(&head));
        }
        Ok(())
    }

    /// Takes out holders whose term has ended or whose process has died, among the first few.
    pub(crate) fn sweep(&mut self, lock: &mut Lock, now: u64) -> Result<()> {
        let mut index = lock.first_holder;
        let mut alive = None;
        for _ in 0..GLANCE {
            if index == 0 {
                break;
            }
            let holder = self.claim_on(lock, index)?;
            index = holder.after;
            if holder.ends > now {
                if alive == Some(holder.member) {
                    continue;
                }
                if self.table.lives(holder.member)? {
                    alive = Some(holder.member);
                    continue;
                }
            }
            self.remove(lock, &holder)?;
            self.checkpoint(lock)?;
        }
        Ok(())
    }

    /// The waiter behind a claim that is about to leave the line: it must look for another
    /// process to watch.
    pub(crate) fn successor(&self, lock: &Lock, claim: &Entry) -> Result<Option<Wake>> {
        if claim.holds || claim.after == 0 {
            return Ok(None);
        }
        let next = self.claim_on(lock, claim.after)?;
        Ok(Some(Wake::of(&next)))
    }

    /// A claim reached over a link of this lock.
    pub(crate) fn claim_on(&self, lock: &Lock, index: u32) -> Result<Entry> {
        let claim = self.claim(index)?;
        if claim.lock != lock.index || claim.lock_generation != lock.generation {
            return Err(Fault::damaged("a claim is on another lock's list"));
        }
        Ok(claim)
    }

    /// Calls `visit` with each claim of a list, until it answers false.
    pub(crate) fn walk(
        &self,
        lock: &Lock,
        first: u32,
        mut visit: impl FnMut(Entry) -> Result<bool>,
    ) -> Result<()> {
        let mut index = first;
        for _ in 0..self.carved() {
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
            return Err(Fault::damaged("a bucket does not add up"));
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
