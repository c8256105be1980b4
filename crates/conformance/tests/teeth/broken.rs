//! Stores that are broken on purpose, each in one way.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{
    Capabilities, Claim, ClaimOutcome, Eviction, Fencing, Grant, LossListener, QueueTicket,
    Released, Renewal, Store, WaitPolicy,
};
use tenure_core::{
    Error, ErrorKind, Finding, LockName, LockState, MemoryStore, OwnerId, Result, Token,
};

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    GrantsAlways,
    TokensRepeat,
    TokenPerCall,
    ReleasesForAnybody,
    LastComeFirstServed,
    LetsOvertake,
    WakesOnly,
    NeverWakes,
    NeverExpires,
    ExpiresEarly,
    RenewsInWords,
    WaitersStay,
    HidesFencing,
    HidesModes,
    PromisesProcesses,
    KeepsWaiters,
    ForgetsReleases,
    QueuesTheImpatient,
    LosesPlaces,
    EvictsAnybody,
    EvictsNobody,
    MixesNames,
    ListsAnyhow,
    ShowsAnybody,
    AlwaysFails,
    ForgetsWhoWaits,
    GrantsWhoWaits,
    ForgetsAges,
    ShowsTheGone,
    ReleasesTheExpired,
    ReleasesByMode,
    AdmitsTheUnsound,
    FindsFaultInSilence,
    TellsNobody,
    TidiesTooMuch,
}

/// The memory store with one fault.
#[derive(Debug)]
pub(crate) struct Broken {
    store: MemoryStore,
    fault: Fault,
    calls: AtomicU64,
    claims: Mutex<HashMap<OwnerId, Claim>>,
    shown: Mutex<HashMap<LockName, LockState>>,
}

const AGES: Duration = Duration::from_secs(3_600);

impl Broken {
    pub(crate) fn new(fault: Fault) -> Self {
        let (claims, shown) = (Mutex::default(), Mutex::default());
        Self { store: MemoryStore::new(), fault, calls: AtomicU64::new(0), claims, shown }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// The claim as the faulty store understands it.
    fn distort(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        match self.fault {
            Fault::NeverExpires => claim.ttl = AGES,
            Fault::ExpiresEarly => claim.ttl /= 3,
            Fault::MixesNames => claim.name = self.name(&claim.name),
            Fault::ShowsAnybody => claim.label = "somebody".into(),
            _ => {}
        }
        claim
    }

    fn name(&self, name: &LockName) -> LockName {
        let trimmed = name.as_str().trim_end_matches('/');
        if self.is(Fault::MixesNames) && !trimmed.is_empty() {
            return trimmed.parse().unwrap();
        }
        name.clone()
    }

    /// The token as the faulty store gives it.
    fn counterfeit(&self, answer: ClaimOutcome) -> ClaimOutcome {
        let number = match self.fault {
            Fault::TokensRepeat => 7,
            Fault::TokenPerCall => 1 + self.calls.fetch_add(1, Ordering::Relaxed),
            _ => return answer,
        };
        match answer {
            ClaimOutcome::Granted(grant) => {
                ClaimOutcome::Granted(Grant::new(Some(Token::new(number)), grant.since))
            }
            other => other,
        }
    }

    /// A grant out of nothing.
    fn forged(&self) -> ClaimOutcome {
        let token = u64::MAX / 2 + self.calls.fetch_add(1, Ordering::Relaxed);
        ClaimOutcome::Granted(Grant::new(Some(Token::new(token)), None))
    }

    /// Anybody's claim that is shown as a holder, or waits, under this name.
    fn known(&self, owner: &str) -> Option<Claim> {
        let owner: OwnerId = owner.parse().unwrap();
        self.claims.lock().unwrap().get(&owner).cloned()
    }

    async fn holder(&self, name: &LockName) -> Option<Claim> {
        let state = self.store.inspect(name).await.unwrap();
        state.holders.first().and_then(|holder| self.known(&holder.owner))
    }

    async fn waiters(&self, name: &LockName) -> Vec<Claim> {
        let state = self.store.inspect(name).await.unwrap();
        state.waiters.iter().filter_map(|waiter| self.known(&waiter.owner)).collect()
    }

    /// Sends those who wait to the end of the line, the last one excepted.
    async fn turn_the_line(&self, name: &LockName) -> Vec<Claim> {
        let mut waiters = self.waiters(name).await;
        waiters.pop();
        for waiter in &waiters {
            self.store.release(waiter).await.unwrap();
        }
        waiters
    }

    /// Takes the waiters out, so that the next claim meets only the holders.
    async fn empty_the_line(&self, name: &LockName) -> Vec<Claim> {
        let waiters = self.waiters(name).await;
        for waiter in &waiters {
            self.store.release(waiter).await.unwrap();
        }
        waiters
    }

    async fn line_up(&self, waiters: &[Claim]) {
        for waiter in waiters {
            self.store.claim(waiter, WaitPolicy::queue(AGES)).await.unwrap();
        }
    }
}

#[async_trait]
impl Store for Broken {
    fn capabilities(&self) -> Capabilities {
        let mut promises = self.store.capabilities();
        match self.fault {
            Fault::HidesFencing => promises.fencing = Fencing::None,
            Fault::HidesModes => (promises.shared, promises.permits) = (false, false),
            Fault::PromisesProcesses => promises.cross_process = true,
            _ => {}
        }
        promises
    }

    fn longest_ttl(&self) -> Option<Duration> {
        self.store.longest_ttl()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        let claim = &self.distort(claim);
        let asked_before = self.claims.lock().unwrap().insert(claim.owner, claim.clone()).is_some();
        let policy = match (self.fault, policy) {
            (Fault::WaitersStay, WaitPolicy::Queue { .. }) => WaitPolicy::queue(AGES),
            (Fault::QueuesTheImpatient, WaitPolicy::NoWait) => WaitPolicy::queue(AGES),
            _ => policy,
        };
        match self.fault {
            Fault::LosesPlaces
                if self.holder(&claim.name).await.is_some_and(|h| h.owner != claim.owner) =>
            {
                self.store.release(claim).await?;
            }
            Fault::LetsOvertake => {
                let waiters = self.empty_the_line(&claim.name).await;
                let answer = self.store.claim(claim, policy).await;
                let others = waiters.into_iter().filter(|waiter| waiter.owner != claim.owner);
                self.line_up(&others.collect::<Vec<_>>()).await;
                return answer;
            }
            _ => {}
        }
        let answer = self.store.claim(claim, policy).await?;
        match (self.fault, answer) {
            (Fault::GrantsAlways, ClaimOutcome::Queued(_) | ClaimOutcome::Busy) => {
                self.store.release(claim).await?;
                Ok(self.forged())
            }
            (Fault::GrantsWhoWaits, ClaimOutcome::Queued(_)) if asked_before => Ok(self.forged()),
            (Fault::AdmitsTheUnsound, _) if !claim.mode.is_sound() => Ok(self.forged()),
            (Fault::QueuesTheImpatient, ClaimOutcome::Queued(_)) => Ok(ClaimOutcome::Busy),
            (_, answer) => Ok(self.counterfeit(answer)),
        }
    }

    async fn wait(&self, claim: &Claim, place: &QueueTicket) -> Result<ClaimOutcome> {
        if self.is(Fault::NeverWakes) {
            std::future::pending::<()>().await;
        }
        if self.is(Fault::GrantsWhoWaits) {
            return Ok(ClaimOutcome::Queued(*place));
        }
        if self.is(Fault::ForgetsWhoWaits) {
            self.store.release(claim).await?;
        }
        Ok(self.counterfeit(self.store.wait(claim, place).await?))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        if self.is(Fault::RenewsInWords) {
            return Ok(Renewal::Renewed);
        }
        self.store.renew(&self.distort(claim)).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let claim = self.distort(claim);
        let holder = self.holder(&claim.name).await;
        match (self.fault, holder) {
            (Fault::ForgetsReleases, _) => Ok(Released::Released),
            (Fault::ReleasesTheExpired, _) => {
                self.store.release(&claim).await?;
                Ok(Released::Released)
            }
            (Fault::ReleasesByMode, Some(holder)) if holder.mode != claim.mode => {
                Ok(Released::NotHeld)
            }
            (Fault::ReleasesForAnybody, Some(holder)) => self.store.release(&holder).await,
            (Fault::KeepsWaiters, Some(holder)) if holder.owner != claim.owner => {
                Ok(Released::NotHeld)
            }
            (Fault::LastComeFirstServed, Some(holder)) if holder.owner == claim.owner => {
                let waiters = self.turn_the_line(&claim.name).await;
                let released = self.store.release(&claim).await;
                self.line_up(&waiters).await;
                released
            }
            (Fault::WakesOnly, Some(holder)) if holder.owner == claim.owner => {
                self.empty_the_line(&claim.name).await;
                self.store.release(&claim).await
            }
            _ => self.store.release(&claim).await,
        }
    }

    async fn close_idle(&self) {
        if self.is(Fault::TidiesTooMuch) {
            let claims: Vec<Claim> = self.claims.lock().unwrap().values().cloned().collect();
            for claim in claims {
                self.store.release(&claim).await.unwrap();
            }
        }
    }

    fn subscribe_losses(&self, listener: LossListener) {
        if !self.is(Fault::TellsNobody) {
            self.store.subscribe_losses(listener);
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        if self.is(Fault::AlwaysFails) {
            return Err(Error::new(ErrorKind::Unreachable, "inspect", "it is broken"));
        }
        let mut state = self.store.inspect(&self.name(name)).await?;
        state.name = name.clone();
        let repeated = self.is(Fault::TokensRepeat).then(|| Token::new(7));
        for holder in &mut state.holders {
            holder.token = repeated.or(holder.token);
            if self.is(Fault::ForgetsAges) {
                holder.age = Some(Duration::ZERO);
            }
        }
        let mut shown = self.shown.lock().unwrap();
        match shown.get(name) {
            Some(before) if self.is(Fault::ShowsTheGone) && state.is_free() => {
                return Ok(before.clone());
            }
            _ => shown.insert(name.clone(), state.clone()),
        };
        Ok(state)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let mut names = self.store.list(prefix).await?;
        if self.is(Fault::ListsAnyhow) {
            names.reverse();
        }
        Ok(names)
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        match self.fault {
            Fault::EvictsAnybody => {
                let holder = self.holder(&eviction.name).await;
                let owner =
                    holder.map_or(eviction.owner.clone(), |holder| holder.owner.to_string());
                let mut wrong = eviction.clone();
                wrong.owner = owner;
                self.store.evict(&wrong).await
            }
            Fault::EvictsNobody => Ok(Released::Released),
            _ => self.store.evict(eviction).await,
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        match self.fault {
            Fault::FindsFaultInSilence => Ok(vec![Finding::advice("something is wrong", "")]),
            _ => self.store.diagnose().await,
        }
    }
}
