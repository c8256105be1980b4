//! Locks of one process: the reference for other stores, and what unit tests run on.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tenure_proto::{Entry, Line, Standing};
use tokio::sync::Notify;

use crate::cells::memory::MemoryCells;
use crate::store::{Connecting, Scheme, StoreFactory, StoreUrl, UrlOption};
use crate::{
    Capabilities, Cells, Claim, ClaimOutcome, Eviction, Fencing, Finding, Grant, Hold, Holder,
    LockName, LockState, LossListener, LossListeners, Moment, OwnerId, QueueTicket, Released,
    Renewal, Result, Store, Token, WaitPolicy, Waiter, now,
};

/// A store inside one process, gone with it. Clones share their locks.
///
/// It does everything the others do: queues, hands over, expires, counts tokens. Use it in tests
/// of code that takes locks, and [`Chaos`](crate::Chaos) around it to test how that code takes
/// trouble.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    locks: Arc<Mutex<Locks>>,
    listeners: Arc<LossListeners>,
    cells: Arc<MemoryCells>,
}

impl MemoryStore {
    /// A store without locks.
    pub fn new() -> Self {
        Self::default()
    }

    /// The evictions there have been, oldest first.
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
}

#[derive(Debug, Default)]
struct Lock {
    line: Line<OwnerId>,
    members: HashMap<OwnerId, Member>,
}

/// What the line does not need to know about a holder or waiter.
#[derive(Debug)]
struct Member {
    claim: Claim,
    arrived: Moment,
    hold: Option<Term>,
    news: Arc<Notify>,
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
        if lock.line.handle_renew(&claim.owner, now) {
            lock.restart_term(&claim.owner, now);
        } else {
            let queued = matches!(lock.line.standing(&claim.owner, now), Standing::Waits(_));
            let lease = match policy {
                WaitPolicy::Queue { lease, .. } => lease,
                // Just long enough to be admitted in this very call.
                WaitPolicy::NoWait => claim.ttl,
            };
            let entry = Entry { key: claim.owner, mode: claim.mode, ttl: claim.ttl };
            lock.line.handle_join(entry, now, lease);
            if !queued {
                lock.members.insert(claim.owner, Member::new(claim, now));
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

    /// The token that an owner holds a lock with.
    fn token(&self, name: &LockName, owner: &OwnerId) -> Option<Token> {
        let member = self.by_name.get(name)?.members.get(owner)?;
        member.hold.map(|hold| hold.token)
    }

    fn remove(&mut self, name: &LockName, owner: &OwnerId, now: Moment) -> Released {
        let Some(lock) = self.by_name.get_mut(name) else {
            return Released::NotHeld;
        };
        let held = matches!(lock.line.standing(owner, now), Standing::Holds(_));
        lock.line.handle_leave(owner);
        lock.members.remove(owner);
        lock.admit(&mut self.tokens, now);
        if lock.line.is_empty() {
            self.by_name.remove(name);
        }
        if held { Released::Released } else { Released::NotHeld }
    }
}

impl Lock {
    /// Hands the lock to whoever is next, and wakes each one who got it.
    fn admit(&mut self, tokens: &mut u64, now: Moment) {
        while let Some(entry) = self.line.poll_admitted(now) {
            *tokens += 1;
            if let Some(member) = self.members.get_mut(&entry.key) {
                let token = Token::new(*tokens);
                member.hold = Some(Term { token, granted: now, since: now });
                member.news.notify_one();
            }
        }
        // Members that ended left the line on their own.
        if self.members.len() > 2 * self.line.len() + 16 || self.line.is_empty() {
            let line = &self.line;
            self.members.retain(|owner, _| line.contains(owner));
        }
    }

    fn restart_term(&mut self, owner: &OwnerId, now: Moment) {
        if let Some(Member { hold: Some(hold), .. }) = self.members.get_mut(owner) {
            hold.since = now;
        }
    }

    fn answer(&self, owner: &OwnerId, now: Moment) -> ClaimOutcome {
        match self.line.standing(owner, now) {
            Standing::Holds(_) => {
                let hold = self.members.get(owner).and_then(|member| member.hold);
                let (token, since) = hold.map(|hold| (hold.token, hold.since)).unzip();
                ClaimOutcome::Granted(Grant { token, since })
            }
            Standing::Waits(obstacle) => ClaimOutcome::Queued(QueueTicket {
                ask_again_in: obstacle.map(|end| end.since(now)),
                ..QueueTicket::default()
            }),
            Standing::Absent => ClaimOutcome::Queued(QueueTicket::default()),
        }
    }

    fn state(&self, name: &LockName, now: Moment) -> LockState {
        let member = |entry: &Entry<OwnerId>| self.members.get(&entry.key);
        let holders = self.line.holders(now).filter_map(|(entry, ends)| {
            let Member { claim, hold: Some(hold), .. } = member(entry)? else { return None };
            Some(Holder {
                owner: claim.owner.to_string(),
                mode: claim.mode,
                token: Some(hold.token),
                host: Some(claim.origin.host.clone()),
                pid: Some(claim.origin.pid),
                label: claim.label.to_string(),
                age: Some(now.since(hold.granted)),
                expires_in: Some(ends.since(now)),
            })
        });
        let waiters = self.line.waiters(now).filter_map(|(entry, _)| {
            let Member { claim, arrived, .. } = member(entry)?;
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

impl Member {
    fn new(claim: &Claim, now: Moment) -> Self {
        let news = Arc::new(Notify::new());
        Self { claim: claim.clone(), arrived: now, hold: None, news }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        let fault = "the process ends: its locks end with it, and a new one counts from 1";
        Capabilities::none()
            .fencing(Fencing::Until { fault })
            .fifo()
            .push()
            .shared()
            .permits()
            .detects_death()
            .tells_losses()
            .ages()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        Ok(self.locks.lock().claim(claim, policy, now()))
    }

    async fn wait(&self, claim: &Claim, _: &QueueTicket) -> Result<ClaimOutcome> {
        let news = self.locks.lock().by_name.get(&claim.name).and_then(|lock| {
            let member = lock.members.get(&claim.owner)?;
            Some(Arc::clone(&member.news))
        });
        let Some(news) = news else {
            return Ok(ClaimOutcome::Queued(QueueTicket::default()));
        };
        // A permit is kept by the notifier, so news that came before this line is not missed.
        news.notified().await;
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
        if !lock.line.handle_renew(&claim.owner, now) {
            return Ok(Renewal::Lost);
        }
        lock.restart_term(&claim.owner, now);
        Ok(Renewal::Renewed)
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        Ok(self.locks.lock().remove(&claim.name, &claim.owner, now()))
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
            lock.line.holders(now).next().is_some() || lock.line.waiters(now).next().is_some()
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
            self.listeners.lost(Hold { owner, token });
        }
        Ok(released)
    }

    fn cells(&self) -> Result<&dyn Cells> {
        Ok(&*self.cells)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::fine("the locks are in this process: no other one sees them")])
    }
}
