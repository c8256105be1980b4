//! Claim, renew and release.

use std::time::Duration;

use tenure_core::store::{
    Claim, ClaimOutcome, Grant, Moment, QueueTicket, Released, Renewal, WaitPolicy,
};
use tenure_core::{ErrorKind, OwnerId, Token};

use crate::fault::{Fault, Result};
use crate::line::{GLANCE, Wake};
use crate::records::{Entry, Lock, Name};
use crate::store::Inner;
use crate::txn::Txn;

/// How many holders are searched for an owner. Claims of ours that were granted behind more than
/// this many are remembered; the others only ever move forward.
const SEARCHED: u32 = 4;

/// With an error: whether part of the work is already committed.
pub(crate) type Outcome<T> = std::result::Result<T, (Fault, bool)>;

impl Inner {
    pub(crate) fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Outcome<ClaimOutcome> {
        if !claim.mode.is_sound() {
            let why = "a claim takes at least one permit, and at most as many as there are";
            return Err((Fault::new(ErrorKind::Invalid, why), false));
        }
        let name = Name::new(claim.name.as_str());
        let asked = self.ask(claim, &name, policy)?;
        if !asked.unseen {
            return Ok(asked.answer);
        }
        let is_queued = matches!(asked.answer, ClaimOutcome::Queued(_));
        let swept = self.sweep_all(&name, claim.mode).map_err(|(fault, _)| (fault, is_queued))?;
        if swept.removed {
            return Ok(self.ask(claim, &name, policy)?.answer);
        }
        Ok(match asked.answer {
            ClaimOutcome::Queued(mut place) => {
                let until = |end: u64| Duration::from_nanos(end.saturating_sub(now()));
                place.ask_again_in = swept.first_end.map(until).or(place.ask_again_in);
                ClaimOutcome::Queued(place)
            }
            other => other,
        })
    }

    fn ask(&self, claim: &Claim, name: &Name<'_>, policy: WaitPolicy) -> Outcome<Asked> {
        self.with_tokens(|| self.ask_once(claim, name, policy))
    }

    /// One change: admits the claim, queues it, or leaves it.
    fn ask_once(&self, claim: &Claim, name: &Name<'_>, policy: WaitPolicy) -> Outcome<Asked> {
        let owner = owner_words(claim.owner);
        self.change(|txn, wakes| {
            let now = now();
            self.table.glance(now)?;
            let newcomer = || Entry::new(owner, self.table.me(), claim.mode, nanos(claim.ttl), now);
            let Some(mut lock) = txn.find_lock(name)? else {
                let holder = txn.open_lock(name, newcomer(), &claim.label)?;
                return Ok(Asked::of(granted(&holder)));
            };
            if let Some(known) = self.find_own(txn, &lock, owner)? {
                if known.ends > now {
                    return self.claim_again(txn, lock, known, claim, policy, wakes);
                }
                // What has ended is gone: the claim is a new one.
                wakes.extend(txn.successor(&lock, &known)?);
                txn.remove(&mut lock, &known)?;
            }
            txn.admit(&mut lock, now, wakes)?;
            if lock.first_waiter == 0 && !lock.room().admits(claim.mode) {
                txn.sweep(&mut lock, now)?;
            }
            if lock.first_waiter == 0 && lock.room().admits(claim.mode) {
                let holder = txn.add_holder(&mut lock, newcomer(), &claim.label)?;
                txn.save_lock(&lock)?;
                if lock.holders > SEARCHED {
                    self.seats.keep(owner, (holder.index, holder.generation));
                }
                return Ok(Asked::of(granted(&holder)));
            }
            let WaitPolicy::Queue { lease, .. } = policy else {
                txn.settle(&lock)?;
                return Ok(Asked::busy(&lock));
            };
            let mut waiter = newcomer();
            waiter.ends = now.saturating_add(nanos(lease));
            let waiter = txn.add_waiter(&mut lock, waiter, &claim.label)?;
            txn.save_lock(&lock)?;
            self.seats.keep(owner, (waiter.index, waiter.generation));
            Asked::queued(txn, &lock, &waiter, now)
        })
    }

    /// The claim is in the table and has not ended.
    fn claim_again(
        &self,
        txn: &mut Txn<'_>,
        mut lock: Lock,
        mut known: Entry,
        claim: &Claim,
        policy: WaitPolicy,
        wakes: &mut Vec<Wake>,
    ) -> Result<Asked> {
        let now = now();
        self.table.still_shared(match known.holds {
            true => ErrorKind::Lost,
            false => ErrorKind::Damaged,
        })?;
        if known.holds {
            known.ttl = nanos(claim.ttl);
            known.ends = now.saturating_add(known.ttl);
            txn.save_claim(&known)?;
            return Ok(Asked::of(granted(&known)));
        }
        if let WaitPolicy::Queue { lease, .. } = policy {
            known.ends = now.saturating_add(nanos(lease));
            txn.save_claim(&known)?;
        }
        txn.admit(&mut lock, now, wakes)?;
        let mut known = txn.claim_on(&lock, known.index)?;
        if !known.holds && known.before != 0 {
            self.clear_before(txn, &mut lock, &mut known, now, wakes)?;
        }
        if known.holds {
            wakes.retain(|wake| wake.index != known.index);
            return Ok(Asked::of(granted(&known)));
        }
        if known.before == 0 && txn.lacks_token() {
            return Err(Fault::no_token());
        }
        if policy == WaitPolicy::NoWait {
            wakes.extend(txn.successor(&lock, &known)?);
            txn.remove(&mut lock, &known)?;
            txn.admit(&mut lock, now, wakes)?;
            txn.settle(&lock)?;
            self.seats.forget(known.owner);
            return Ok(Asked::busy(&lock));
        }
        txn.save_lock(&lock)?;
        Asked::queued(txn, &lock, &known, now)
    }

    /// Takes out those right before us in line who are dead.
    fn clear_before(
        &self,
        txn: &mut Txn<'_>,
        lock: &mut Lock,
        known: &mut Entry,
        now: u64,
        wakes: &mut Vec<Wake>,
    ) -> Result<()> {
        let mut cleared = false;
        for _ in 0..GLANCE {
            if known.before == 0 {
                break;
            }
            let before = txn.claim_on(lock, known.before)?;
            if before.ends > now && self.table.lives(before.member)? {
                break;
            }
            txn.remove(lock, &before)?;
            txn.save_lock(lock)?;
            txn.commit()?;
            *known = txn.claim_on(lock, known.index)?;
            cleared = true;
        }
        if cleared && known.before == 0 {
            txn.admit(lock, now, wakes)?;
            *known = txn.claim_on(lock, known.index)?;
        }
        Ok(())
    }

    pub(crate) fn renew(&self, claim: &Claim) -> Outcome<Renewal> {
        let name = Name::new(claim.name.as_str());
        let owner = owner_words(claim.owner);
        self.table.still_shared(ErrorKind::Lost).map_err(|fault| (fault, false))?;
        let renewal = self.on_claim(&name, owner, Renewal::Lost, |txn, _, known, _| {
            let now = now();
            if !known.holds || known.ends <= now {
                return Ok(Renewal::Lost);
            }
            known.ttl = nanos(claim.ttl);
            known.ends = now.saturating_add(known.ttl);
            txn.save_claim(known)?;
            Ok(Renewal::Renewed)
        });
        if let Ok(Renewal::Lost) = renewal {
            self.seats.forget(owner);
        }
        renewal
    }

    pub(crate) fn release(&self, claim: &Claim) -> Outcome<Released> {
        let name = Name::new(claim.name.as_str());
        let owner = owner_words(claim.owner);
        let released = self.on_claim(&name, owner, Released::NotHeld, |txn, lock, known, wakes| {
            self.take_out(txn, lock, known, wakes)
        });
        self.seats.forget(owner);
        released
    }

    /// Removes a claim and lets in whoever is next.
    pub(crate) fn take_out(
        &self,
        txn: &mut Txn<'_>,
        lock: &mut Lock,
        known: &Entry,
        wakes: &mut Vec<Wake>,
    ) -> Result<Released> {
        let successor = txn.successor(lock, known)?;
        txn.remove(lock, known)?;
        let first = wakes.len();
        let now = now();
        txn.admit(lock, now, wakes)?;
        // Whoever was let in is told that already.
        if let Some(next) = successor
            && !wakes[first..].contains(&next)
        {
            wakes.push(next);
        }
        txn.settle(lock)?;
        Ok(if known.holds && known.ends > now { Released::Released } else { Released::NotHeld })
    }

    /// A claim that was made here.
    fn find_own(&self, txn: &Txn<'_>, lock: &Lock, owner: [u64; 2]) -> Result<Option<Entry>> {
        if let Some((index, generation)) = self.seats.find(owner) {
            let known = txn.claim_at(index, generation)?;
            if let Some(known) = known
                && known.owner == owner
                && known.lock == lock.index
                && known.lock_generation == lock.generation
            {
                return Ok(Some(known));
            }
            self.seats.forget(owner);
        }
        let mut found = None;
        let mut searched = 0;
        txn.walk(lock, lock.first_holder, |holder| {
            if holder.owner == owner {
                found = Some(holder);
            }
            searched += 1;
            Ok(found.is_none() && searched < SEARCHED)
        })?;
        Ok(found)
    }

    /// Does `work` on a claim, wherever it was made; `missing` is the answer if there is none.
    pub(crate) fn on_claim<T: Copy>(
        &self,
        name: &Name<'_>,
        owner: [u64; 2],
        missing: T,
        work: impl Fn(&mut Txn<'_>, &mut Lock, &mut Entry, &mut Vec<Wake>) -> Result<T>,
    ) -> Outcome<T> {
        for has_searched in [false, true] {
            let done = self.change(|txn, wakes| {
                let Some(mut lock) = txn.find_lock(name)? else {
                    return Ok(Some(missing));
                };
                match self.find_own(txn, &lock, owner)? {
                    Some(mut known) => work(txn, &mut lock, &mut known, wakes).map(Some),
                    None => Ok((has_searched || is_searched(&lock)).then_some(missing)),
                }
            })?;
            if let Some(done) = done {
                return Ok(done);
            }
            match self.search(name, owner)? {
                Some(found) => self.seats.keep(owner, (found.index, found.generation)),
                None => break,
            }
        }
        Ok(missing)
    }
}

/// An answer, and whether holders were not looked at that may be in its way although they have
/// ended.
#[derive(Debug)]
struct Asked {
    answer: ClaimOutcome,
    unseen: bool,
}

impl Asked {
    const fn of(answer: ClaimOutcome) -> Self {
        Self { answer, unseen: false }
    }

    const fn busy(lock: &Lock) -> Self {
        let unseen = lock.first_waiter == 0 && lock.holders > GLANCE;
        Self { answer: ClaimOutcome::Busy, unseen }
    }

    fn queued(txn: &Txn<'_>, lock: &Lock, waiter: &Entry, now: u64) -> Result<Self> {
        let unseen = lock.first_waiter == waiter.index && lock.holders > GLANCE;
        Ok(Self { answer: queued(txn, lock, waiter, now)?, unseen })
    }
}

/// Whether [`Inner::find_own`] looks at all claims of a lock.
const fn is_searched(lock: &Lock) -> bool {
    lock.holders <= SEARCHED && lock.first_waiter == 0
}

impl Txn<'_> {
    /// The claim in this record, if it is still that one.
    pub(crate) fn claim_at(&self, index: u32, generation: u32) -> Result<Option<Entry>> {
        if index == 0 || index >= self.carved() {
            return Ok(None);
        }
        let is = self.kind(index)?;
        if is != (crate::records::CLAIM, generation) {
            return Ok(None);
        }
        self.claim(index).map(Some)
    }
}

pub(crate) fn granted(holder: &Entry) -> ClaimOutcome {
    let since = Moment::from_nanos(holder.ends.saturating_sub(holder.ttl));
    ClaimOutcome::Granted(Grant::new(Some(Token::new(holder.token)), Some(since)))
}

/// The place of a waiter; for the head of the line, when the first of the holders' terms ends, as
/// far as they are looked at.
pub(crate) fn queued(txn: &Txn<'_>, lock: &Lock, waiter: &Entry, now: u64) -> Result<ClaimOutcome> {
    let mut first_end: Option<u64> = None;
    let mut seen = 0;
    if lock.first_waiter == waiter.index {
        txn.walk(lock, lock.first_holder, |holder| {
            first_end = Some(first_end.map_or(holder.ends, |end| end.min(holder.ends)));
            seen += 1;
            Ok(seen < GLANCE)
        })?;
    }
    let ask_again_in = first_end.map(|end| Duration::from_nanos(end.saturating_sub(now)));
    let mark = crate::layout::pair(waiter.index, waiter.generation);
    Ok(ClaimOutcome::Queued(QueueTicket::new(ask_again_in).with_mark(mark)))
}

pub(crate) fn owner_words(owner: OwnerId) -> [u64; 2] {
    let id = u128::from_be_bytes(*owner.as_bytes());
    [(id >> 64) as u64, id as u64]
}

pub(crate) fn now() -> u64 {
    crate::clock::CLOCK.now().as_nanos()
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
