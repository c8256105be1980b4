//! The operations on a claim: claim, wait, renew and release.

use std::time::Duration;

use tenure_core::store::{
    Claim, ClaimOutcome, Downgraded, Grant, Moment, QueueTicket, Released, Renewal, WaitPolicy,
};
use tenure_core::{ErrorKind, Mode, OwnerId, Token};

use crate::fault::{Fault, Result};
use crate::layout::{high, low, pair};
use crate::process_slots::ProcessSlot;
use crate::queue::{HOLDERS_CHECKED, Wake};
use crate::records::{CLAIM, Entry, Lock, Name};
use crate::store::Inner;
use crate::txn::Txn;

/// How many holders are searched for an owner. The claim index has the claims of this process that were
/// granted behind more holders than this. The others only ever move forward in the list.
const SEARCHED: u32 = 4;

/// The most holders' processes that the first waiter watches. It notices the death of others by polling.
const WATCHED: usize = 64;

/// An error comes with whether part of the work is already committed.
pub(crate) type Outcome<T> = std::result::Result<T, (Fault, bool)>;

impl Inner {
    pub(crate) fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Outcome<ClaimOutcome> {
        if !claim.mode.is_sound() {
            let why = "a claim takes at least one permit, and at most as many as there are";
            return Err((Fault::new(ErrorKind::Invalid, why), false));
        }
        let name = Name::new(claim.name.as_str());
        let attempt = self.attempt(claim, &name, policy)?;
        if !attempt.skipped_holders {
            return Ok(attempt.outcome);
        }
        let is_queued = matches!(attempt.outcome, ClaimOutcome::Queued(_));
        let swept = self.sweep_all(&name, claim.mode).map_err(|(fault, _)| (fault, is_queued))?;
        if swept.removed {
            return Ok(self.attempt(claim, &name, policy)?.outcome);
        }
        Ok(match attempt.outcome {
            ClaimOutcome::Queued(mut ticket) => {
                let until = |end: u64| Duration::from_nanos(end.saturating_sub(now()));
                ticket.ask_again_in = swept.first_end.map(until).or(ticket.ask_again_in);
                ClaimOutcome::Queued(ticket)
            }
            other => other,
        })
    }

    fn attempt(&self, claim: &Claim, name: &Name<'_>, policy: WaitPolicy) -> Outcome<Attempt> {
        self.reserver.with_tokens(|| self.attempt_once(claim, name, policy))
    }

    /// Grants the claim, queues it, or refuses it, in one change.
    fn attempt_once(&self, claim: &Claim, name: &Name<'_>, policy: WaitPolicy) -> Outcome<Attempt> {
        let owner = owner_words(claim.owner);
        self.change(|txn, wakes| {
            let now = now();
            self.table.verify_shared_recently(now)?;
            let newcomer = || Entry::new(owner, self.table.me(), claim.mode, nanos(claim.ttl), now);
            let Some(mut lock) = txn.find_lock(name)? else {
                let holder = txn.create_held_lock(name, newcomer(), &claim.label)?;
                return Ok(Attempt::complete(granted(&holder)));
            };
            if let Some(known) = self.find_own(txn, &lock, owner)? {
                if known.ends > now {
                    return self.claim_again(txn, lock, known, claim, policy, wakes);
                }
                // An expired claim counts as gone, so this one is new.
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
                    self.claim_index.insert(owner, (holder.index, holder.generation));
                }
                return Ok(Attempt::complete(granted(&holder)));
            }
            let WaitPolicy::Queue { lease, .. } = policy else {
                txn.save_or_free(&lock)?;
                return Ok(Attempt::busy(&lock));
            };
            let mut waiter = newcomer();
            waiter.ends = now.saturating_add(nanos(lease));
            let waiter = txn.add_waiter(&mut lock, waiter, &claim.label)?;
            txn.save_lock(&lock)?;
            self.claim_index.insert(owner, (waiter.index, waiter.generation));
            Attempt::queued(txn, &lock, &waiter, now)
        })
    }

    /// Repeats a claim that is in the table and has not expired.
    fn claim_again(
        &self,
        txn: &mut Txn<'_>,
        mut lock: Lock,
        mut known: Entry,
        claim: &Claim,
        policy: WaitPolicy,
        wakes: &mut Vec<Wake>,
    ) -> Result<Attempt> {
        let now = now();
        self.table.verify_shared(match known.holds {
            true => ErrorKind::Lost,
            false => ErrorKind::Damaged,
        })?;
        if known.holds {
            known.ttl = nanos(claim.ttl);
            known.ends = now.saturating_add(known.ttl);
            txn.save_claim(&known)?;
            return Ok(Attempt::complete(granted(&known)));
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
            return Ok(Attempt::complete(granted(&known)));
        }
        if known.before == 0 && txn.lacks_token() {
            return Err(Fault::no_token());
        }
        if policy == WaitPolicy::NoWait {
            wakes.extend(txn.successor(&lock, &known)?);
            txn.remove(&mut lock, &known)?;
            txn.admit(&mut lock, now, wakes)?;
            txn.save_or_free(&lock)?;
            self.claim_index.remove(known.owner);
            return Ok(Attempt::busy(&lock));
        }
        txn.save_lock(&lock)?;
        Attempt::queued(txn, &lock, &known, now)
    }

    /// Removes expired and dead waiters right before this claim.
    fn clear_before(
        &self,
        txn: &mut Txn<'_>,
        lock: &mut Lock,
        known: &mut Entry,
        now: u64,
        wakes: &mut Vec<Wake>,
    ) -> Result<()> {
        let mut cleared = false;
        for _ in 0..HOLDERS_CHECKED {
            if known.before == 0 {
                break;
            }
            let before = txn.claim_on(lock, known.before)?;
            if before.ends > now && self.table.is_alive(before.process)? {
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

    /// Checks a queued claim once.
    pub(crate) fn wait_step(&self, claim: &Claim, ticket: &QueueTicket) -> Outcome<WaitStep> {
        let owner = owner_words(claim.owner);
        let mut is_first = false;
        let mut step = self.change(|txn, _| {
            let now = now();
            let known = txn.claim_at(low(ticket.mark), high(ticket.mark))?;
            let Some(known) = known.filter(|known| known.owner == owner && known.ends > now) else {
                return Ok(WaitStep::Return(ClaimOutcome::Queued(QueueTicket::default())));
            };
            if known.holds {
                return Ok(WaitStep::Return(granted(&known)));
            }
            let lock = txn.lock(known.lock)?;
            let mut watched = Vec::new();
            if known.before == 0 {
                if lock.room().admits(known.mode) {
                    // No token was left for it. Repeating the claim waits for one.
                    let mut ticket = *ticket;
                    ticket.ask_again_in = Some(Duration::ZERO);
                    return Ok(WaitStep::Return(ClaimOutcome::Queued(ticket)));
                }
                if ticket.ask_again_in.is_none() {
                    // The claim has become the first waiter, and needs the time of its next attempt.
                    return queued(txn, &lock, &known, now).map(WaitStep::Return);
                }
                is_first = true;
            } else {
                watched.push(txn.claim_on(&lock, known.before)?.process);
            }
            Ok(WaitStep::Watch(watched))
        })?;
        if let WaitStep::Watch(watched) = &mut step {
            if is_first {
                *watched = self.holding_processes(&Name::new(claim.name.as_str()), WATCHED)?;
            }
            watched.retain(|process| *process != self.table.me());
        }
        Ok(step)
    }

    pub(crate) fn renew(&self, claim: &Claim) -> Outcome<Renewal> {
        let name = Name::new(claim.name.as_str());
        let owner = owner_words(claim.owner);
        self.table.verify_shared(ErrorKind::Lost).map_err(|fault| (fault, false))?;
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
            self.claim_index.remove(owner);
        }
        renewal
    }

    /// Turns the hold of a writer into that of a reader, and admits the readers that wait next.
    pub(crate) fn downgrade(&self, claim: &Claim) -> Outcome<Downgraded> {
        let name = Name::new(claim.name.as_str());
        let owner = owner_words(claim.owner);
        self.table.verify_shared(ErrorKind::Lost).map_err(|fault| (fault, false))?;
        let downgraded = self.on_claim(&name, owner, None, |txn, lock, known, wakes| {
            let now = now();
            let permits = matches!(known.mode, Mode::Permits { .. });
            if !known.holds || known.ends <= now || permits {
                return Ok(None);
            }
            lock.count_out(known.mode);
            known.mode = Mode::Shared;
            lock.count_in(known.mode);
            known.ttl = nanos(claim.ttl);
            known.ends = now.saturating_add(known.ttl);
            txn.save_claim(known)?;
            txn.admit(lock, now, wakes)?;
            txn.save_lock(lock)?;
            Ok(Some(*known))
        })?;
        Ok(downgraded.map_or(Downgraded::Lost, |reader| Downgraded::Shared(grant(&reader))))
    }

    pub(crate) fn release(&self, claim: &Claim) -> Outcome<Released> {
        let name = Name::new(claim.name.as_str());
        let owner = owner_words(claim.owner);
        let released = self.on_claim(&name, owner, Released::NotHeld, |txn, lock, known, wakes| {
            self.remove_and_admit(txn, lock, known, wakes)
        });
        self.claim_index.remove(owner);
        released
    }

    /// Removes a claim and admits the next waiters.
    pub(crate) fn remove_and_admit(
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
        // An admitted waiter is woken already.
        if let Some(next) = successor
            && !wakes[first..].contains(&next)
        {
            wakes.push(next);
        }
        txn.save_or_free(lock)?;
        Ok(if known.holds && known.ends > now { Released::Released } else { Released::NotHeld })
    }

    /// Finds a claim that this process made.
    fn find_own(&self, txn: &Txn<'_>, lock: &Lock, owner: [u64; 2]) -> Result<Option<Entry>> {
        if let Some((index, generation)) = self.claim_index.get(owner) {
            let known = txn.claim_at(index, generation)?;
            if let Some(known) = known
                && known.owner == owner
                && known.lock == lock.index
                && known.lock_generation == lock.generation
            {
                return Ok(Some(known));
            }
            self.claim_index.remove(owner);
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

    /// Does `work` on a claim of any process. Returns `missing` if there is no such claim.
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
                Some(found) => self.claim_index.insert(owner, (found.index, found.generation)),
                None => break,
            }
        }
        Ok(missing)
    }
}

/// What a waiter does next.
#[derive(Debug)]
pub(crate) enum WaitStep {
    /// The wait is over.
    Return(ClaimOutcome),
    /// Sleep until it is woken. The death of one of these processes wakes it, too.
    Watch(Vec<ProcessSlot>),
}

/// The outcome of one change, and whether it left out holders that may have expired.
#[derive(Debug)]
struct Attempt {
    outcome: ClaimOutcome,
    /// A sweep of all holders may change the outcome.
    skipped_holders: bool,
}

impl Attempt {
    const fn complete(outcome: ClaimOutcome) -> Self {
        Self { outcome, skipped_holders: false }
    }

    const fn busy(lock: &Lock) -> Self {
        let skipped_holders = lock.first_waiter == 0 && lock.holders > HOLDERS_CHECKED;
        Self { outcome: ClaimOutcome::Busy, skipped_holders }
    }

    fn queued(txn: &Txn<'_>, lock: &Lock, waiter: &Entry, now: u64) -> Result<Self> {
        let skipped_holders = lock.first_waiter == waiter.index && lock.holders > HOLDERS_CHECKED;
        Ok(Self { outcome: queued(txn, lock, waiter, now)?, skipped_holders })
    }
}

/// Whether [`Inner::find_own`] sees all claims of a lock.
const fn is_searched(lock: &Lock) -> bool {
    lock.holders <= SEARCHED && lock.first_waiter == 0
}

impl Txn<'_> {
    /// The claim in this record, if the record still has this generation.
    pub(crate) fn claim_at(&self, index: u32, generation: u32) -> Result<Option<Entry>> {
        if index == 0 || index >= self.high_water() {
            return Ok(None);
        }
        if self.kind(index)? != (CLAIM, generation) {
            return Ok(None);
        }
        self.claim(index).map(Some)
    }
}

pub(crate) fn granted(holder: &Entry) -> ClaimOutcome {
    ClaimOutcome::Granted(grant(holder))
}

fn grant(holder: &Entry) -> Grant {
    let since = Moment::from_nanos(holder.ends.saturating_sub(holder.ttl));
    Grant::new(Some(Token::new(holder.token)), Some(since))
}

/// A waiter's ticket. The first waiter's says when the first of the holders' terms ends, among those that
/// are checked.
pub(crate) fn queued(txn: &Txn<'_>, lock: &Lock, waiter: &Entry, now: u64) -> Result<ClaimOutcome> {
    let mut first_end: Option<u64> = None;
    let mut seen = 0;
    if lock.first_waiter == waiter.index {
        txn.walk(lock, lock.first_holder, |holder| {
            first_end = Some(first_end.map_or(holder.ends, |end| end.min(holder.ends)));
            seen += 1;
            Ok(seen < HOLDERS_CHECKED)
        })?;
    }
    let ask_again_in = first_end.map(|end| Duration::from_nanos(end.saturating_sub(now)));
    let mark = pair(waiter.index, waiter.generation);
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
