//! Work on all claims of a lock, of which there may be ten thousand: some at a time, with the gate
//! left in between, so that no other process waits for long.

use std::collections::HashSet;

use tenure_core::Mode;
use tenure_proto::Occupancy;

use crate::fault::Result;
use crate::line::{STRETCH, Wake};
use crate::members::Member;
use crate::ops::{Outcome, now};
use crate::records::{Entry, Lock, Name};
use crate::store::Inner;
use crate::txn::Txn;

/// One of a lock's two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Holders,
    Waiters,
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Holders were removed.
    pub(crate) removed: bool,
    /// When the first of the remaining terms ends, if all were looked at.
    pub(crate) first_end: Option<u64>,
}

impl Inner {
    /// Removes all holders whose term has ended or whose process has died, and admits the next in
    /// line. Stops at a holder that alone leaves no room for a claim of this mode.
    pub(crate) fn sweep_all(&self, name: &Name<'_>, mode: Mode) -> Outcome<Swept> {
        let mut swept = Swept::default();
        let mut first_end = u64::MAX;
        let mut alive = HashSet::new();
        let complete = self.each_stretch(name, List::Holders, |stretch| {
            let now = now();
            let mut ended = Vec::new();
            for holder in stretch {
                if holder.ends <= now || !self.lives(&mut alive, holder.member)? {
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

    /// The processes that hold the lock, up to so many.
    pub(crate) fn holding_members(&self, name: &Name<'_>, most: usize) -> Outcome<Vec<Member>> {
        let mut members = HashSet::new();
        self.each_stretch(name, List::Holders, |stretch| {
            members.extend(stretch.iter().map(|holder| holder.member));
            Ok(members.len() < most)
        })?;
        Ok(members.into_iter().take(most).collect())
    }

    /// Looks for an owner's claim, wherever it was made.
    pub(crate) fn search(&self, name: &Name<'_>, owner: [u64; 2]) -> Outcome<Option<Entry>> {
        let mut found = None;
        // A claim that is admitted meanwhile moves from the first of these to the second.
        for list in [List::Waiters, List::Holders] {
            self.each_stretch(name, list, |stretch| {
                found = found.or(stretch.iter().find(|claim| claim.owner == owner).copied());
                Ok(found.is_none())
            })?;
        }
        Ok(found)
    }

    /// Calls `visit`, outside the gate, with all claims of a list, some at a time, until it answers
    /// false; true if it never did. Claims that come or go meanwhile may be visited or not.
    fn each_stretch(
        &self,
        name: &Name<'_>,
        list: List,
        mut visit: impl FnMut(&[Entry]) -> Outcome<bool>,
    ) -> Outcome<bool> {
        let mut last = Vec::new();
        // If all of a stretch are gone when the next one is looked for, it starts again from the
        // beginning of the list: not for ever, where claims come and go.
        let mut left: Option<u64> = None;
        loop {
            let (stretch, count) = self.change(|txn, _| txn.stretch(name, list, &last))?;
            if !visit(&stretch)? {
                return Ok(false);
            }
            if stretch.len() < STRETCH as usize {
                return Ok(true);
            }
            let before = left.unwrap_or(3 * u64::from(count) + u64::from(STRETCH));
            let Some(now) = before.checked_sub(stretch.len() as u64) else {
                return Ok(false);
            };
            left = Some(now);
            last = stretch;
        }
    }

    fn lives(&self, alive: &mut HashSet<Member>, member: Member) -> Outcome<bool> {
        if alive.contains(&member) {
            return Ok(true);
        }
        let lives = self.table.lives(member).map_err(|fault| (fault, false))?;
        if lives {
            alive.insert(member);
        }
        Ok(lives)
    }

    /// Removes holders that were seen to have ended: neither the dead nor a term that is over come
    /// back.
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
                    self.take_out(txn, &mut lock, &claim, wakes)?;
                    txn.commit()?;
                }
            }
            Ok(())
        })
    }
}

impl Txn<'_> {
    /// The claims of a list behind the last one of `last` that is still there, and how many there
    /// are in all.
    fn stretch(&self, name: &Name<'_>, list: List, last: &[Entry]) -> Result<(Vec<Entry>, u32)> {
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
        let mut stretch = Vec::new();
        self.walk(&lock, first, |claim| {
            stretch.push(claim);
            Ok(stretch.len() < STRETCH as usize)
        })?;
        Ok((stretch, count))
    }

    /// A claim that was read before, as it is now, if it is still there.
    fn still_on(&self, lock: &Lock, claim: &Entry) -> Result<Option<Entry>> {
        let known = self.claim_at(claim.index, claim.generation)?;
        Ok(known.filter(|known| {
            (known.owner, known.lock, known.lock_generation)
                == (claim.owner, lock.index, lock.generation)
        }))
    }
}

/// Whether one holder is enough to keep a claim out.
fn blocks(holder: Mode, claim: Mode) -> bool {
    let mut room = Occupancy::default();
    room.enter(holder);
    !room.admits(claim)
}
