//! Inspection, listing and eviction.

use std::time::Duration;

use tenure_core::store::{Eviction, Origin, Released};
use tenure_core::{AuditRecord, Holder, LockName, LockState, OwnerId, Token, Waiter};

use crate::audit;
use crate::claims::{Outcome, now, owner_words};
use crate::fault::{Fault, Result};
use crate::process_slots::{self, ProcessSlot};
use crate::queue::Wake;
use crate::records::{Entry, LOCK, Lock, Name};
use crate::store::Inner;
use crate::txn::Txn;

/// Records that one change reads while listing.
const RECORDS_PER_CHANGE: u32 = 4096;

impl Inner {
    /// The lock with its holders, and with its waiters if they are wanted.
    pub(crate) fn inspect(&self, name: &LockName, queue: bool) -> Outcome<LockState> {
        let key = Name::new(name.as_str());
        let mut state = LockState::free(name.clone());
        self.change(|txn, _| {
            let Some(lock) = txn.find_lock(&key)? else {
                return Ok(());
            };
            let now = now();
            let host = &Origin::here().host;
            let mut liveness = Liveness::new(self);
            txn.walk(&lock, lock.first_holder, |claim| {
                if liveness.counts(&claim, now)? {
                    state.holders.push(self.holder(txn, &claim, host, now)?);
                }
                Ok(true)
            })?;
            if !queue {
                return Ok(());
            }
            txn.walk(&lock, lock.first_waiter, |claim| {
                if liveness.counts(&claim, now)? {
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
            let (end, high_water) = self.change(|txn, _| {
                let mut liveness = Liveness::new(self);
                let end = txn.high_water().min(next + RECORDS_PER_CHANGE);
                for index in next..end {
                    if txn.kind(index)?.0 != LOCK {
                        continue;
                    }
                    let lock = txn.lock(index)?;
                    let name = txn.name_of(&lock)?;
                    if name.starts_with(prefix) && is_in_use(txn, &lock, &mut liveness)? {
                        let name = LockName::new(&name)
                            .map_err(|_| Fault::damaged("a lock name is not valid"))?;
                        names.push(name);
                    }
                }
                Ok((end, txn.high_water()))
            })?;
            if end >= high_water {
                break;
            }
            next = end;
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    pub(crate) fn audit(&self, name: &LockName) -> Outcome<Vec<AuditRecord>> {
        let records = audit::records(&self.table.dir, &self.table.access, name);
        records.map_err(|fault| (fault, false))
    }

    pub(crate) fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Outcome<()> {
        let added = audit::record(&self.table.dir, &self.table.access, name, record);
        added.map_err(|fault| (fault, false))
    }

    /// Removes a claim by an operator's order. The order is written to the audit log and synced first,
    /// outside the gate. If the claim is gone by then, the result says that nothing was evicted.
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
        let token = found.holds.then_some(Token::new(found.token));
        let record = eviction.clone().with_token(token).record();
        self.add_audit_record(&eviction.name, &record)?;
        let evict = |txn: &mut Txn<'_>, wakes: &mut Vec<Wake>| {
            let Some(mut lock) = txn.find_lock(&name)? else {
                return Ok(Released::NotHeld);
            };
            match txn.claim_at(found.index, found.generation)? {
                Some(known) if known.owner == owner && known.lock == lock.index => {
                    // Using up a token fences off the evicted holder even if there is no next one. The
                    // wake-up tells an evicted waiter.
                    txn.next_token().ok_or_else(Fault::no_token)?;
                    wakes.push(Wake::of(&known));
                    self.remove_and_admit(txn, &mut lock, &known, wakes)
                }
                _ => Ok(Released::NotHeld),
            }
        };
        self.reserver.with_tokens(|| self.change(evict))
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
        if claim.process.slot as usize >= crate::layout::SLOTS {
            return Err(Fault::damaged("a claim has an impossible process slot"));
        }
        process_slots::pid(&self.table.map, claim.process)
    }
}

/// Decides whether claims count. Asks the kernel once for consecutive claims of the same process.
struct Liveness<'a> {
    inner: &'a Inner,
    last: Option<(ProcessSlot, bool)>,
}

impl<'a> Liveness<'a> {
    const fn new(inner: &'a Inner) -> Self {
        Self { inner, last: None }
    }

    fn counts(&mut self, claim: &Entry, now: u64) -> Result<bool> {
        if claim.ends <= now {
            return Ok(false);
        }
        match self.last {
            Some((process, is_alive)) if process == claim.process => Ok(is_alive),
            _ => {
                let is_alive = self.inner.table.is_alive(claim.process)?;
                self.last = Some((claim.process, is_alive));
                Ok(is_alive)
            }
        }
    }
}

fn is_in_use(txn: &Txn<'_>, lock: &Lock, liveness: &mut Liveness<'_>) -> Result<bool> {
    let now = now();
    let mut used = false;
    for first in [lock.first_holder, lock.first_waiter] {
        if !used {
            txn.walk(lock, first, |claim| {
                used = liveness.counts(&claim, now)?;
                Ok(!used)
            })?;
        }
    }
    Ok(used)
}

fn owner_text(claim: &Entry) -> String {
    format!("{:016x}{:016x}", claim.owner[0], claim.owner[1])
}
