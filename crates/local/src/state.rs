//! Inspect, list and evict.

use std::time::Duration;

use tenure_core::store::{Eviction, Origin, Released};
use tenure_core::{Holder, LockName, LockState, OwnerId, Token, Waiter};

use crate::audit;
use crate::fault::{Fault, Result};
use crate::line::Wake;
use crate::members::{self, Member};
use crate::ops::{now, owner_words};
use crate::records::{Entry, LOCK, Lock, Name};
use crate::store::Inner;
use crate::txn::Txn;

/// Records looked at in one go while listing.
const SWATH: u32 = 4096;

type Outcome<T> = std::result::Result<T, (Fault, bool)>;

impl Inner {
    pub(crate) fn inspect(&self, name: &LockName) -> Outcome<LockState> {
        let key = Name::new(name.as_str());
        let mut state = LockState::free(name.clone());
        self.change(|txn, _| {
            let Some(lock) = txn.find_lock(&key)? else {
                return Ok(());
            };
            let now = now();
            let host = &Origin::here().host;
            let mut census = Census::new(self);
            txn.walk(&lock, lock.first_holder, |claim| {
                if census.counts(&claim, now)? {
                    state.holders.push(self.holder(txn, &claim, host, now)?);
                }
                Ok(true)
            })?;
            txn.walk(&lock, lock.first_waiter, |claim| {
                if census.counts(&claim, now)? {
                    state.waiters.push(self.waiter(txn, &claim, host, now)?);
                }
                Ok(true)
            })
        })?;
        Ok(state)
    }

    pub(crate) fn list(&self, prefix: &str) -> Outcome<Vec<LockName>> {
        let mut names = Vec::new();
        let mut next = 1;
        loop {
            let (end, carved) = self.change(|txn, _| {
                let mut census = Census::new(self);
                let end = txn.carved().min(next + SWATH);
                for index in next..end {
                    if txn.kind(index)?.0 != LOCK {
                        continue;
                    }
                    let lock = txn.lock(index)?;
                    let name = txn.name_of(&lock)?;
                    if name.starts_with(prefix) && is_in_use(txn, &lock, &mut census)? {
                        let name = LockName::new(&name)
                            .map_err(|_| Fault::damaged("a name is not one"))?;
                        names.push(name);
                    }
                }
                Ok((end, txn.carved()))
            })?;
            if end >= carved {
                break;
            }
            next = end;
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The record of the order is written and synced first, outside the gate. If the claim goes
    /// away in between, nothing is evicted and the answer says so.
    pub(crate) fn evict(&self, eviction: &Eviction) -> Outcome<Released> {
        let Ok(owner) = eviction.owner.parse::<OwnerId>() else {
            return Ok(Released::NotHeld);
        };
        let owner = owner_words(owner);
        let name = Name::new(eviction.name.as_str());
        let found = self.search(&name, owner)?;
        let Some(found) = found else {
            return Ok(Released::NotHeld);
        };
        let pid = self.pid(&found).map_err(|fault| (fault, false))?;
        let token = found.holds.then_some(found.token);
        audit::record(&self.table.dir, &self.table.access, eviction, pid, token)
            .map_err(|fault| (fault, false))?;
        let evict = |txn: &mut Txn<'_>, wakes: &mut Vec<Wake>| {
            let Some(mut lock) = txn.find_lock(&name)? else {
                return Ok(Released::NotHeld);
            };
            match txn.claim_at(found.index, found.generation)? {
                Some(known) if known.owner == owner && known.lock == lock.index => {
                    // The fence moves past the evicted one even if nobody is next, and a waiter
                    // that was evicted learns of it.
                    txn.mint().ok_or_else(Fault::no_token)?;
                    wakes.push(Wake::of(&known));
                    self.take_out(txn, &mut lock, &known, wakes)
                }
                _ => Ok(Released::NotHeld),
            }
        };
        self.with_tokens(|| self.change(evict))
    }

    fn holder(&self, txn: &Txn<'_>, claim: &Entry, host: &str, now: u64) -> Result<Holder> {
        let mut holder = Holder::new(owner_text(claim), claim.mode);
        holder.token = Some(Token::new(claim.token));
        holder.host = Some(host.to_owned());
        holder.pid = self.pid(claim)?;
        holder.label = txn.label_of(claim)?;
        holder.age = Some(Duration::from_nanos(now.saturating_sub(claim.granted)));
        holder.expires_in = Some(Duration::from_nanos(claim.ends.saturating_sub(now)));
        Ok(holder)
    }

    fn waiter(&self, txn: &Txn<'_>, claim: &Entry, host: &str, now: u64) -> Result<Waiter> {
        let mut waiter = Waiter::new(owner_text(claim), claim.mode);
        waiter.host = Some(host.to_owned());
        waiter.pid = self.pid(claim)?;
        waiter.label = txn.label_of(claim)?;
        waiter.age = Duration::from_nanos(now.saturating_sub(claim.arrived));
        Ok(waiter)
    }

    fn pid(&self, claim: &Entry) -> Result<Option<u32>> {
        if claim.member.slot as usize >= crate::layout::MEMBERS {
            return Err(Fault::damaged("a claim of a process that cannot be"));
        }
        members::pid(&self.table.map, claim.member)
    }
}

/// Tells the living from the dead, asking the kernel once for each run of the same process.
struct Census<'a> {
    inner: &'a Inner,
    last: Option<(Member, bool)>,
}

impl<'a> Census<'a> {
    const fn new(inner: &'a Inner) -> Self {
        Self { inner, last: None }
    }

    fn counts(&mut self, claim: &Entry, now: u64) -> Result<bool> {
        if claim.ends <= now {
            return Ok(false);
        }
        match self.last {
            Some((member, lives)) if member == claim.member => Ok(lives),
            _ => {
                let lives = self.inner.table.lives(claim.member)?;
                self.last = Some((claim.member, lives));
                Ok(lives)
            }
        }
    }
}

fn is_in_use(txn: &Txn<'_>, lock: &Lock, census: &mut Census<'_>) -> Result<bool> {
    let now = now();
    let mut used = false;
    for first in [lock.first_holder, lock.first_waiter] {
        if !used {
            txn.walk(lock, first, |claim| {
                used = census.counts(&claim, now)?;
                Ok(!used)
            })?;
        }
    }
    Ok(used)
}

fn owner_text(claim: &Entry) -> String {
    format!("{:016x}{:016x}", claim.owner[0], claim.owner[1])
}
