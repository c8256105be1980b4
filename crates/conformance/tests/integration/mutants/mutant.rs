//! A store with one deliberate fault.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{
    Capabilities, Cells, Claim, ClaimOutcome, Downgraded, Eviction, Fencing, Grant, LossListener,
    QueueTicket, Released, Renewal, Store, WaitPolicy,
};
use tenure_core::{
    AuditRecord, Error, ErrorKind, Finding, Holder, LockName, LockState, MemoryStore, Mode,
    OwnerId, Result, Token,
};

/// The fault of a [`Mutant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    AlwaysGrants,
    RepeatsTokens,
    NewTokenPerCall,
    ReleaseIgnoresOwner,
    LastInFirstOut,
    NewcomersOvertake,
    WakesWithoutGranting,
    NeverWakes,
    NeverExpires,
    ExpiresEarly,
    RenewalHasNoEffect,
    DeadWaitersStay,
    UndeclaredTokens,
    UndeclaredModes,
    DeclaresCrossProcess,
    ReleaseKeepsWaiters,
    IgnoresReleases,
    QueuesNoWaitClaims,
    ClaimingAgainLosesPosition,
    EvictionIgnoresOwner,
    IgnoresEvictions,
    TrimsNames,
    UnsortedList,
    ShowsWrongLabel,
    InspectAlwaysFails,
    HidesHolders,
    WaitLeavesQueue,
    GrantsRepeatedClaims,
    AgeIsAlwaysZero,
    ShowsReleasedHolds,
    ReleasesExpiredHolds,
    ReleaseComparesMode,
    GrantsInvalidPermits,
    FindingWithoutRemedy,
    DoesNotReportLosses,
    CloseReleasesHolds,
    DowngradeReleases,
    DowngradeHasNoEffect,
    DowngradesAnyClaim,
    UndeclaredDowngrades,
    ForgetsEvictions,
}

/// The memory store with one fault.
#[derive(Debug)]
pub(crate) struct Mutant {
    store: MemoryStore,
    mutation: Mutation,
    calls: AtomicU64,
    claims: Mutex<HashMap<OwnerId, Claim>>,
    shown: Mutex<HashMap<LockName, LockState>>,
}

/// Longer than any case runs.
const FOREVER: Duration = Duration::from_secs(3_600);

impl Mutant {
    pub(crate) fn new(mutation: Mutation) -> Self {
        let (claims, shown) = (Mutex::default(), Mutex::default());
        Self { store: MemoryStore::new(), mutation, calls: AtomicU64::new(0), claims, shown }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    /// The claim as the mutant passes it on to the memory store.
    fn mutate_claim(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        match self.mutation {
            Mutation::NeverExpires => claim.ttl = FOREVER,
            Mutation::ExpiresEarly => claim.ttl /= 3,
            Mutation::TrimsNames => claim.name = self.name(&claim.name),
            Mutation::ShowsWrongLabel => claim.label = "wrong label".into(),
            _ => {}
        }
        claim
    }

    fn name(&self, name: &LockName) -> LockName {
        let trimmed = name.as_str().trim_end_matches('/');
        if self.is(Mutation::TrimsNames) && !trimmed.is_empty() {
            return trimmed.parse().unwrap();
        }
        name.clone()
    }

    /// The outcome with the token of the mutation, if it has one.
    fn mutate_token(&self, outcome: ClaimOutcome) -> ClaimOutcome {
        let number = match self.mutation {
            Mutation::RepeatsTokens => 7,
            Mutation::NewTokenPerCall => 1 + self.calls.fetch_add(1, Ordering::Relaxed),
            _ => return outcome,
        };
        match outcome {
            ClaimOutcome::Granted(grant) => {
                ClaimOutcome::Granted(Grant::new(Some(Token::new(number)), grant.since))
            }
            other => other,
        }
    }

    /// A grant that the memory store did not make.
    fn forged_grant(&self) -> ClaimOutcome {
        let token = u64::MAX / 2 + self.calls.fetch_add(1, Ordering::Relaxed);
        ClaimOutcome::Granted(Grant::new(Some(Token::new(token)), None))
    }

    /// The last claim of this owner.
    fn claim_of(&self, owner: &str) -> Option<Claim> {
        let owner: OwnerId = owner.parse().unwrap();
        self.claims.lock().unwrap().get(&owner).cloned()
    }

    async fn holder(&self, name: &LockName) -> Option<Claim> {
        let state = self.store.inspect(name).await.unwrap();
        state.holders.first().and_then(|holder| self.claim_of(&holder.owner))
    }

    async fn waiters(&self, name: &LockName) -> Vec<Claim> {
        let state = self.store.inspect(name).await.unwrap();
        state.waiters.iter().filter_map(|waiter| self.claim_of(&waiter.owner)).collect()
    }

    /// Removes all waiters but the last from the queue, and returns them.
    async fn remove_all_waiters_but_the_last(&self, name: &LockName) -> Vec<Claim> {
        let mut waiters = self.waiters(name).await;
        waiters.pop();
        for waiter in &waiters {
            self.store.release(waiter).await.unwrap();
        }
        waiters
    }

    /// Removes all waiters from the queue, and returns them.
    async fn remove_waiters(&self, name: &LockName) -> Vec<Claim> {
        let waiters = self.waiters(name).await;
        for waiter in &waiters {
            self.store.release(waiter).await.unwrap();
        }
        waiters
    }

    async fn queue_again(&self, waiters: &[Claim]) {
        for waiter in waiters {
            self.store.claim(waiter, WaitPolicy::queue(FOREVER)).await.unwrap();
        }
    }
}

#[async_trait]
impl Store for Mutant {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.store.capabilities();
        match self.mutation {
            Mutation::UndeclaredTokens => capabilities.fencing = Fencing::None,
            Mutation::UndeclaredModes => {
                (capabilities.shared, capabilities.permits) = (false, false);
            }
            Mutation::DeclaresCrossProcess => capabilities.cross_process = true,
            Mutation::UndeclaredDowngrades => capabilities.downgrade = false,
            _ => {}
        }
        capabilities
    }

    fn cells(&self) -> Result<&dyn Cells> {
        self.store.cells()
    }

    fn longest_ttl(&self) -> Option<Duration> {
        self.store.longest_ttl()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        let claim = &self.mutate_claim(claim);
        let asked_before = self.claims.lock().unwrap().insert(claim.owner, claim.clone()).is_some();
        let policy = match (self.mutation, policy) {
            (Mutation::DeadWaitersStay, WaitPolicy::Queue { .. }) => WaitPolicy::queue(FOREVER),
            (Mutation::QueuesNoWaitClaims, WaitPolicy::NoWait) => WaitPolicy::queue(FOREVER),
            _ => policy,
        };
        match self.mutation {
            Mutation::ClaimingAgainLosesPosition
                if self.holder(&claim.name).await.is_some_and(|h| h.owner != claim.owner) =>
            {
                self.store.release(claim).await?;
            }
            Mutation::NewcomersOvertake => {
                let waiters = self.remove_waiters(&claim.name).await;
                let outcome = self.store.claim(claim, policy).await;
                let others = waiters.into_iter().filter(|waiter| waiter.owner != claim.owner);
                self.queue_again(&others.collect::<Vec<_>>()).await;
                return outcome;
            }
            _ => {}
        }
        let outcome = self.store.claim(claim, policy).await?;
        match (self.mutation, outcome) {
            (Mutation::AlwaysGrants, ClaimOutcome::Queued(_) | ClaimOutcome::Busy) => {
                self.store.release(claim).await?;
                Ok(self.forged_grant())
            }
            (Mutation::GrantsRepeatedClaims, ClaimOutcome::Queued(_)) if asked_before => {
                Ok(self.forged_grant())
            }
            (Mutation::GrantsInvalidPermits, _) if !claim.mode.is_sound() => {
                Ok(self.forged_grant())
            }
            (Mutation::QueuesNoWaitClaims, ClaimOutcome::Queued(_)) => Ok(ClaimOutcome::Busy),
            (_, outcome) => Ok(self.mutate_token(outcome)),
        }
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        if self.is(Mutation::NeverWakes) {
            std::future::pending::<()>().await;
        }
        if self.is(Mutation::GrantsRepeatedClaims) {
            return Ok(ClaimOutcome::Queued(*ticket));
        }
        if self.is(Mutation::WaitLeavesQueue) {
            self.store.release(claim).await?;
        }
        Ok(self.mutate_token(self.store.wait(claim, ticket).await?))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        if self.is(Mutation::RenewalHasNoEffect) {
            return Ok(Renewal::Renewed);
        }
        self.store.renew(&self.mutate_claim(claim)).await
    }

    async fn downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        let grant = |outcome| match outcome {
            ClaimOutcome::Granted(grant) => Downgraded::Shared(grant),
            _ => Downgraded::Lost,
        };
        match self.mutation {
            Mutation::DowngradeReleases => {
                let mut reader = claim.clone();
                reader.mode = Mode::Shared;
                self.store.release(claim).await?;
                self.store.claim(&reader, WaitPolicy::queue(FOREVER)).await.map(grant)
            }
            Mutation::DowngradeHasNoEffect => {
                self.store.claim(claim, WaitPolicy::NoWait).await.map(grant)
            }
            Mutation::DowngradesAnyClaim => match self.store.downgrade(claim).await? {
                Downgraded::Lost => Ok(grant(self.forged_grant())),
                downgraded => Ok(downgraded),
            },
            _ => self.store.downgrade(claim).await,
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let claim = self.mutate_claim(claim);
        let holder = self.holder(&claim.name).await;
        match (self.mutation, holder) {
            (Mutation::IgnoresReleases, _) => Ok(Released::Released),
            (Mutation::ReleasesExpiredHolds, _) => {
                self.store.release(&claim).await?;
                Ok(Released::Released)
            }
            (Mutation::ReleaseComparesMode, Some(holder)) if holder.mode != claim.mode => {
                Ok(Released::NotHeld)
            }
            (Mutation::ReleaseIgnoresOwner, Some(holder)) => self.store.release(&holder).await,
            (Mutation::ReleaseKeepsWaiters, Some(holder)) if holder.owner != claim.owner => {
                Ok(Released::NotHeld)
            }
            (Mutation::LastInFirstOut, Some(holder)) if holder.owner == claim.owner => {
                let waiters = self.remove_all_waiters_but_the_last(&claim.name).await;
                let released = self.store.release(&claim).await;
                self.queue_again(&waiters).await;
                released
            }
            (Mutation::WakesWithoutGranting, Some(holder)) if holder.owner == claim.owner => {
                self.remove_waiters(&claim.name).await;
                self.store.release(&claim).await
            }
            _ => self.store.release(&claim).await,
        }
    }

    async fn close_idle(&self) {
        if self.is(Mutation::CloseReleasesHolds) {
            let claims: Vec<Claim> = self.claims.lock().unwrap().values().cloned().collect();
            for claim in claims {
                self.store.release(&claim).await.unwrap();
            }
        }
    }

    fn subscribe_losses(&self, listener: LossListener) {
        if !self.is(Mutation::DoesNotReportLosses) {
            self.store.subscribe_losses(listener);
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        if self.is(Mutation::InspectAlwaysFails) {
            return Err(Error::new(ErrorKind::Unreachable, "inspect", "this mutant always fails"));
        }
        let mut state = self.store.inspect(&self.name(name)).await?;
        state.name = name.clone();
        let repeated = self.is(Mutation::RepeatsTokens).then(|| Token::new(7));
        for holder in &mut state.holders {
            holder.token = repeated.or(holder.token);
            if self.is(Mutation::AgeIsAlwaysZero) {
                holder.age = Some(Duration::ZERO);
            }
        }
        let mut shown = self.shown.lock().unwrap();
        match shown.get(name) {
            Some(before) if self.is(Mutation::ShowsReleasedHolds) && state.is_free() => {
                return Ok(before.clone());
            }
            _ => shown.insert(name.clone(), state.clone()),
        };
        Ok(state)
    }

    async fn holders(&self, name: &LockName) -> Result<Vec<Holder>> {
        let holders = self.inspect(name).await?.holders;
        Ok(if self.is(Mutation::HidesHolders) { Vec::new() } else { holders })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let mut names = self.store.list(prefix).await?;
        if self.is(Mutation::UnsortedList) {
            names.reverse();
        }
        Ok(names)
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        match self.mutation {
            Mutation::EvictionIgnoresOwner => {
                let holder = self.holder(&eviction.name).await;
                let owner =
                    holder.map_or(eviction.owner.clone(), |holder| holder.owner.to_string());
                let mut wrong = eviction.clone();
                wrong.owner = owner;
                self.store.evict(&wrong).await
            }
            Mutation::IgnoresEvictions => Ok(Released::Released),
            _ => self.store.evict(eviction).await,
        }
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        let mut records = self.store.audit(name).await?;
        if self.is(Mutation::ForgetsEvictions) {
            records.pop();
        }
        Ok(records)
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        self.store.add_audit_record(name, record).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        match self.mutation {
            Mutation::FindingWithoutRemedy => Ok(vec![Finding::advice("something is wrong", "")]),
            _ => self.store.diagnose().await,
        }
    }
}
