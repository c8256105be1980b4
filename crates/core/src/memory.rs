//! A store inside one process: for unit tests, and the reference for other stores.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tenure_proto::{ClaimState, Entry, LockQueue};
use tokio::sync::Notify;

use crate::cells::memory::MemoryCells;
use crate::hints::HintSenders;
use crate::store::{Connecting, Scheme, StoreFactory, StoreUrl, UrlOption};
use crate::{
    AuditRecord, Capabilities, Cells, ChangeHints, Claim, ClaimOutcome, Downgraded, Eviction,
    Fencing, Finding, Grant, Hold, Holder, LockName, LockState, LossListener, LossListeners, Mode,
    Moment, OwnerId, QueueTicket, Released, Renewal, Result, Store, Token, WaitPolicy, Waiter, now,
};

/// A store inside one process, which ends with it. Use it in tests of code that takes locks, with
/// [`Chaos`](crate::Chaos) around it to test what that code does when locks are lost or calls fail.
///
/// It does what other stores do: it queues claims, hands locks over, lets terms expire and counts tokens.
/// Clones share their locks.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    locks: Arc<Mutex<Locks>>,
    listeners: Arc<LossListeners>,
    hints: Arc<HintSenders>,
    cells: Arc<MemoryCells>,
}

impl MemoryStore {
    /// A store without locks.
    pub fn new() -> Self {
        Self::default()
    }

    /// All evictions so far, oldest first.
    pub fn evictions(&self) -> Vec<Eviction> {
        self.locks.lock().evictions.clone()
    }
}

/// The engine behind `memory:`. Each connection is to a store of its own.
#[derive(Debug)]
pub struct MemoryFactory;

#[async_trait]
impl StoreFactory for MemoryFactory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn schemes(&self) -> &'static [Scheme] {
        const { &[Scheme::nothing("memory", "this process alone, for tests")] }
    }

    fn options(&self) -> &'static [UrlOption] {
        &[]
    }

    async fn connect(&self, _: &StoreUrl, _: &Connecting) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(MemoryStore::new()))
    }
}

#[derive(Debug, Default)]
struct Locks {
    by_name: BTreeMap<LockName, Lock>,
    tokens: u64,
    evictions: Vec<Eviction>,
    /// As other stores keep them: lines, newest first.
    audit: HashMap<LockName, Vec<u8>>,
}

#[derive(Debug, Default)]
struct Lock {
    queue: LockQueue<OwnerId>,
    details: HashMap<OwnerId, Details>,
}

/// What the queue does not need to know about a claim.
#[derive(Debug)]
struct Details {
    claim: Claim,
    arrived: Moment,
    hold: Option<Term>,
    woken: Arc<Notify>,
}

#[derive(Clone, Copy, Debug)]
struct Term {
    token: Token,
    granted: Moment,
    /// When the present term began: at the grant, or at the last renewal.
    since: Moment,
}

impl Locks {
    fn claim(&mut self, claim: &Claim, policy: WaitPolicy, now: Moment) -> ClaimOutcome {
        let lock = self.by_name.entry(claim.name.clone()).or_default();
        if lock.queue.handle_renew(&claim.owner, now) {
            lock.restart_term(&claim.owner, now);
        } else {
            let queued = matches!(lock.queue.state(&claim.owner, now), ClaimState::Waits(_));
            let lease = match policy {
                WaitPolicy::Queue { lease, .. } => lease,
                // Long enough to be admitted in this call.
                WaitPolicy::NoWait => claim.ttl,
            };
            let entry = Entry { key: claim.owner, mode: claim.mode, ttl: claim.ttl };
            lock.queue.handle_join(entry, now, lease);
            if !queued {
                lock.details.insert(claim.owner, Details::new(claim, now));
            }
        }
        lock.admit(&mut self.tokens, now);
        let answer = lock.answer(&claim.owner, now);
        if policy == WaitPolicy::NoWait && matches!(answer, ClaimOutcome::Queued(_)) {
            self.remove(&claim.name, &claim.owner, now);
            return ClaimOutcome::Busy;
        }
        answer
    }

    fn downgrade(&mut self, claim: &Claim, now: Moment) -> Downgraded {
        let Some(lock) = self.by_name.get_mut(&claim.name) else {
            return Downgraded::Lost;
        };
        if !lock.queue.handle_downgrade(&claim.owner, now) {
            return Downgraded::Lost;
        }
        lock.restart_term(&claim.owner, now);
        if let Some(details) = lock.details.get_mut(&claim.owner) {
            details.claim.mode = Mode::Shared;
        }
        lock.admit(&mut self.tokens, now);
        match lock.answer(&claim.owner, now) {
            ClaimOutcome::Granted(grant) => Downgraded::Shared(grant),
            _ => Downgraded::Lost,
        }
    }

    fn add_record(&mut self, name: &LockName, record: &AuditRecord) {
        let records = self.audit.entry(name.clone()).or_default();
        *records = record.before(records);
    }

    /// The token that an owner holds a lock with.
    fn token(&self, name: &LockName, owner: &OwnerId) -> Option<Token> {
        let details = self.by_name.get(name)?.details.get(owner)?;
        details.hold.map(|hold| hold.token)
    }

    fn remove(&mut self, name: &LockName, owner: &OwnerId, now: Moment) -> Released {
        let Some(lock) = self.by_name.get_mut(name) else {
            return Released::NotHeld;
        };
        let held = matches!(lock.queue.state(owner, now), ClaimState::Holds(_));
        lock.queue.handle_leave(owner);
        lock.details.remove(owner);
        lock.admit(&mut self.tokens, now);
        if lock.queue.is_empty() {
            self.by_name.remove(name);
        }
        if held { Released::Released } else { Released::NotHeld }
    }
}

impl Lock {
    /// Admits the next claims of the queue as far as there is room, and wakes each of them.
    fn admit(&mut self, tokens: &mut u64, now: Moment) {
        while let Some(entry) = self.queue.poll_admitted(now) {
            *tokens += 1;
            if let Some(details) = self.details.get_mut(&entry.key) {
                let token = Token::new(*tokens);
                details.hold = Some(Term { token, granted: now, since: now });
                details.woken.notify_one();
            }
        }
        // Claims that expired were removed from the queue but not from the details.
        if self.details.len() > 2 * self.queue.len() + 16 || self.queue.is_empty() {
            let queue = &self.queue;
            self.details.retain(|owner, _| queue.contains(owner));
        }
    }

    fn restart_term(&mut self, owner: &OwnerId, now: Moment) {
        if let Some(Details { hold: Some(hold), .. }) = self.details.get_mut(owner) {
            hold.since = now;
        }
    }

    fn answer(&self, owner: &OwnerId, now: Moment) -> ClaimOutcome {
        match self.queue.state(owner, now) {
            ClaimState::Holds(_) => {
                let hold = self.details.get(owner).and_then(|details| details.hold);
                let (token, since) = hold.map(|hold| (hold.token, hold.since)).unzip();
                ClaimOutcome::Granted(Grant { token, since })
            }
            ClaimState::Waits(first_end) => ClaimOutcome::Queued(QueueTicket {
                ask_again_in: first_end.map(|end| end.since(now)),
                ..QueueTicket::default()
            }),
            ClaimState::Absent => ClaimOutcome::Queued(QueueTicket::default()),
        }
    }

    fn state(&self, name: &LockName, now: Moment) -> LockState {
        let details = |entry: &Entry<OwnerId>| self.details.get(&entry.key);
        let holders = self.queue.holders(now).filter_map(|(entry, ends)| {
            let Details { claim, hold: Some(hold), .. } = details(entry)? else { return None };
            Some(Holder {
                owner: claim.owner.to_string(),
                mode: claim.mode,
                token: Some(hold.token),
                host: Some(claim.origin.host.clone()),
                pid: Some(claim.origin.pid),
                label: claim.label.to_string(),
                age: Some(now.since(hold.granted)),
                expires_in: Some(ends.since(now)),
                entered: None,
            })
        });
        let waiters = self.queue.waiters(now).filter_map(|(entry, _)| {
            let Details { claim, arrived, .. } = details(entry)?;
            Some(Waiter {
                owner: claim.owner.to_string(),
                mode: claim.mode,
                host: Some(claim.origin.host.clone()),
                pid: Some(claim.origin.pid),
                label: claim.label.to_string(),
                age: now.since(*arrived),
            })
        });
        LockState { name: name.clone(), holders: holders.collect(), waiters: waiters.collect() }
    }
}

impl Details {
    fn new(claim: &Claim, now: Moment) -> Self {
        let woken = Arc::new(Notify::new());
        Self { claim: claim.clone(), arrived: now, hold: None, woken }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        let fault = "the process ends: its locks end with it, and a new one counts from 1";
        Capabilities::none()
            .fencing(Fencing::Until { fault })
            .fifo()
            .waiters()
            .push()
            .shared()
            .permits()
            .mixed_modes()
            .downgrade()
            .detects_death()
            .tells_losses()
            .audits()
            .ages()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        let outcome = self.locks.lock().claim(claim, policy, now());
        self.hints.changed(&claim.name);
        Ok(outcome)
    }

    async fn wait(&self, claim: &Claim, _: &QueueTicket) -> Result<ClaimOutcome> {
        let woken = self.locks.lock().by_name.get(&claim.name).and_then(|lock| {
            let details = lock.details.get(&claim.owner)?;
            Some(Arc::clone(&details.woken))
        });
        let Some(woken) = woken else {
            return Ok(ClaimOutcome::Queued(QueueTicket::default()));
        };
        // A notification that came before is kept, so no wake-up is missed.
        woken.notified().await;
        let locks = self.locks.lock();
        let lock = locks.by_name.get(&claim.name);
        Ok(lock.map_or(ClaimOutcome::Queued(QueueTicket::default()), |lock| {
            lock.answer(&claim.owner, now())
        }))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        let now = now();
        let mut locks = self.locks.lock();
        let Some(lock) = locks.by_name.get_mut(&claim.name) else {
            return Ok(Renewal::Lost);
        };
        if !lock.queue.handle_renew(&claim.owner, now) {
            return Ok(Renewal::Lost);
        }
        lock.restart_term(&claim.owner, now);
        Ok(Renewal::Renewed)
    }

    async fn downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        let downgraded = self.locks.lock().downgrade(claim, now());
        self.hints.changed(&claim.name);
        Ok(downgraded)
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let released = self.locks.lock().remove(&claim.name, &claim.owner, now());
        self.hints.changed(&claim.name);
        Ok(released)
    }

    fn changes(&self, prefix: &str) -> Option<ChangeHints> {
        Some(self.hints.add(prefix))
    }

    fn subscribe_losses(&self, listener: LossListener) {
        self.listeners.add(listener);
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let locks = self.locks.lock();
        let state = locks.by_name.get(name).map(|lock| lock.state(name, now()));
        Ok(state.unwrap_or_else(|| LockState::free(name.clone())))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let now = now();
        let locks = self.locks.lock();
        let live = |lock: &Lock| {
            lock.queue.holders(now).next().is_some() || lock.queue.waiters(now).next().is_some()
        };
        let named = locks.by_name.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        Ok(named.filter(|(_, lock)| live(lock)).map(|(name, _)| name.clone()).collect())
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        let Ok(owner) = eviction.owner.parse() else {
            return Ok(Released::NotHeld);
        };
        let mut locks = self.locks.lock();
        let token = locks.token(&eviction.name, &owner);
        locks.tokens += 1;
        let released = locks.remove(&eviction.name, &owner, now());
        if released == Released::Released {
            locks.evictions.push(eviction.clone());
            locks.add_record(&eviction.name, &eviction.clone().with_token(token).record());
            self.listeners.lost(Hold { owner, token });
        }
        drop(locks);
        if released == Released::Released {
            self.hints.changed(&eviction.name);
        }
        Ok(released)
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        let locks = self.locks.lock();
        Ok(locks.audit.get(name).map(|records| AuditRecord::all(records)).unwrap_or_default())
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        self.locks.lock().add_record(name, record);
        Ok(())
    }

    fn cells(&self) -> Result<&dyn Cells> {
        Ok(&*self.cells)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::fine("the locks are in this process: no other one sees them")])
    }
}
