//! Direct calls to a store, with assertions on their results.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::{
    Capabilities, Claim, ClaimOutcome, Downgraded, Eviction, Grant, QueueTicket, Released, Renewal,
    Store, WaitPolicy,
};
use tenure_core::{ErrorKind, Finding, Holder, LockName, LockState, OwnerId, Result, Token};
use tenure_testkit::{GENEROUS, eventually};

use crate::fixture::LONG;

/// Join the queue, and stay in it for longer than any case runs.
pub(crate) const LONG_WAIT: WaitPolicy = WaitPolicy::queue(LONG);

/// How many times a call is tried, counting transient errors, before the case fails.
const MAX_TRIES: u32 = 100;

/// How long to wait for a notification before claiming again.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A connection that calls the store directly and panics on errors. If the fixture injects faults,
/// it retries after transient errors instead.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    store: Arc<dyn Store>,
    injects_faults: bool,
}

impl Raw {
    pub(crate) fn new(store: Arc<dyn Store>, injects_faults: bool) -> Self {
        Self { store, injects_faults }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    pub(crate) async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> ClaimOutcome {
        self.try_claim(claim, policy).await.unwrap()
    }

    /// A claim that the store may refuse.
    pub(crate) async fn try_claim(
        &self,
        claim: &Claim,
        policy: WaitPolicy,
    ) -> Result<ClaimOutcome> {
        self.retry_transient(|| self.store.claim(claim, policy)).await
    }

    /// Makes a claim that must be granted at once.
    pub(crate) async fn hold(&self, claim: &Claim) -> Grant {
        match self.claim(claim, LONG_WAIT).await {
            ClaimOutcome::Granted(grant) => grant,
            other => panic!("{:?} should be free for {:?}: {other:?}", claim.name, claim.mode),
        }
    }

    /// Makes a claim that must be queued.
    pub(crate) async fn queue(&self, claim: &Claim, policy: WaitPolicy) -> QueueTicket {
        match self.claim(claim, policy).await {
            ClaimOutcome::Queued(ticket) => ticket,
            other => panic!("{:?} should wait for {:?}: {other:?}", claim.mode, claim.name),
        }
    }

    /// Asserts that a claim without waiting finds the lock busy.
    pub(crate) async fn assert_busy(&self, claim: &Claim) {
        assert_eq!(self.claim(claim, WaitPolicy::NoWait).await, ClaimOutcome::Busy);
    }

    /// Waits in the queue until the lock is granted.
    pub(crate) async fn acquire(&self, claim: &Claim) -> Grant {
        let step = async || match self.claim(claim, LONG_WAIT).await {
            ClaimOutcome::Granted(grant) => Some(grant),
            ClaimOutcome::Queued(ticket) => {
                let ask_again = ticket.ask_again_in.unwrap_or(LONG).min(POLL_INTERVAL);
                let wait = self.store.wait(claim, &ticket);
                let _hint = tokio::time::timeout(ask_again, wait).await;
                None
            }
            ClaimOutcome::Busy => panic!("a claim that may queue was answered with Busy"),
        };
        for _ in 0..2_000 {
            if let Some(grant) = step().await {
                return grant;
            }
        }
        panic!("{:?} was never granted", claim.name)
    }

    /// Waits for a notification without claiming again, which must suffice on a store with push.
    /// Where faults may lose the notification, returns after a while without one.
    pub(crate) async fn wait(&self, claim: &Claim, ticket: &QueueTicket) {
        let limit = if self.injects_faults { POLL_INTERVAL } else { GENEROUS };
        let notified = self.retry_transient(|| self.store.wait(claim, ticket));
        match tokio::time::timeout(limit, notified).await {
            Ok(notified) => drop(notified.unwrap()),
            Err(_) => assert!(self.injects_faults, "a store with push must wake its waiters"),
        }
    }

    pub(crate) async fn renew(&self, claim: &Claim) -> Renewal {
        self.retry_transient(|| self.store.renew(claim)).await.unwrap()
    }

    /// A downgrade that the store may refuse.
    pub(crate) async fn try_downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        self.retry_transient(|| self.store.downgrade(claim)).await
    }

    /// Downgrades a claim that must hold.
    pub(crate) async fn downgrade(&self, claim: &Claim) -> Grant {
        match self.try_downgrade(claim).await.unwrap() {
            Downgraded::Shared(grant) => grant,
            Downgraded::Lost => panic!("{:?} should hold {:?}", claim.owner, claim.name),
        }
    }

    pub(crate) async fn release(&self, claim: &Claim) -> Released {
        self.retry_transient(|| self.store.release(claim)).await.unwrap()
    }

    /// Releases a claim that must hold. Where faults may lose the reply, any answer is accepted.
    pub(crate) async fn release_held(&self, claim: &Claim) {
        let released = self.release(claim).await;
        assert!(self.injects_faults || released == Released::Released, "{released:?}");
    }

    pub(crate) async fn inspect(&self, name: &LockName) -> LockState {
        let state = self.retry_transient(|| self.store.inspect(name)).await.unwrap();
        assert_eq!(&state.name, name);
        state
    }

    pub(crate) async fn holders(&self, name: &LockName) -> Vec<Holder> {
        self.retry_transient(|| self.store.holders(name)).await.unwrap()
    }

    pub(crate) async fn list(&self, prefix: &str) -> Vec<LockName> {
        self.retry_transient(|| self.store.list(prefix)).await.unwrap()
    }

    pub(crate) async fn evict(&self, eviction: &Eviction) -> Released {
        self.retry_transient(|| self.store.evict(eviction)).await.unwrap()
    }

    pub(crate) async fn diagnose(&self) -> Vec<Finding> {
        self.retry_transient(|| self.store.diagnose()).await.unwrap()
    }

    /// Evicts an owner that must hold or wait. Where faults may lose the reply, any answer is
    /// accepted.
    pub(crate) async fn evict_owner(&self, name: &LockName, owner: OwnerId) {
        let released = self.evict(&Eviction::new(name.clone(), owner, "test")).await;
        assert!(self.injects_faults || released == Released::Released, "{released:?}");
    }

    /// Makes a claim that must fail. Returns the kind of the error.
    pub(crate) async fn refusal(&self, claim: &Claim) -> ErrorKind {
        match self.try_claim(claim, LONG_WAIT).await {
            Err(error) => error.kind(),
            Ok(outcome) => panic!("{:?} should be refused: {outcome:?}", claim.mode),
        }
    }

    /// The owners that hold a lock, and those that wait for it in queue order.
    pub(crate) async fn owners(&self, name: &LockName) -> (Vec<String>, Vec<String>) {
        let state = self.inspect(name).await;
        let holders = state.holders.into_iter().map(|holder| holder.owner);
        let waiters = state.waiters.into_iter().map(|waiter| waiter.owner);
        (holders.collect(), waiters.collect())
    }

    /// Asserts the current holders, in any order, and the current waiters, in queue order. A store that
    /// declares no waiters must show none.
    pub(crate) async fn assert_owners(
        &self,
        name: &LockName,
        expected_holders: &[&Claim],
        expected_waiters: &[&Claim],
    ) {
        let owners = |claims: &[&Claim]| -> Vec<String> {
            claims.iter().map(|claim| claim.owner.to_string()).collect()
        };
        let (mut holders, waiters) = self.owners(name).await;
        let mut expected = owners(expected_holders);
        holders.sort();
        expected.sort();
        assert_eq!(holders, expected, "holders of {name:?}");
        let shown = if self.capabilities().waiters { expected_waiters } else { &[] };
        assert_eq!(waiters, owners(shown), "waiters for {name:?}");
    }

    /// Asserts that a release has handed the lock to `holders`, and that `waiters` are still queued.
    /// On a FIFO store `holders` hold it already; on others they must get it when they claim again.
    pub(crate) async fn assert_handed_to(
        &self,
        name: &LockName,
        holders: &[&Claim],
        waiters: &[&Claim],
    ) {
        if !self.capabilities().fifo {
            for holder in holders {
                self.hold(holder).await;
            }
        }
        self.assert_owners(name, holders, waiters).await;
    }

    /// Asserts that a lock has no holder and no waiter at this moment.
    pub(crate) async fn assert_free(&self, name: &LockName) {
        let state = self.inspect(name).await;
        assert!(state.is_free(), "a holder or waiter is left: {state:?}");
    }

    /// Waits until `count` claims wait for a lock. On a store that shows no waiters there is nothing to wait
    /// for: it gives them a moment, and the case must be correct also if they come later.
    pub(crate) async fn wait_for_waiters(&self, name: &LockName, count: usize) {
        if !self.capabilities().waiters {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return;
        }
        let queued = || async { self.inspect(name).await.waiters.len() == count };
        assert!(eventually(GENEROUS, queued).await, "{name:?} never had {count} waiters");
    }

    /// The token of a grant, which must be there exactly if the store declares fencing.
    pub(crate) fn token(&self, grant: &Grant) -> Option<Token> {
        let declared = self.capabilities().fencing.gives_tokens();
        assert_eq!(grant.token.is_some(), declared, "a token exactly if declared: {grant:?}");
        grant.token
    }

    /// Calls the store, and calls it again after a transient error.
    async fn retry_transient<T, F, C>(&self, call: F) -> Result<T>
    where
        F: Fn() -> C,
        C: Future<Output = Result<T>>,
    {
        let mut tries = 1;
        loop {
            match call().await {
                Err(error) if error.is_transient() && tries < MAX_TRIES => {
                    assert!(self.injects_faults, "the store failed without cause: {error}");
                    tries += 1;
                }
                result => return result,
            }
        }
    }
}
