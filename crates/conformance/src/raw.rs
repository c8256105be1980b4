//! Raw calls to a store that outlast transient faults.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::{
    Capabilities, Claim, ClaimOutcome, Eviction, Grant, QueueTicket, Released, Renewal, Store,
    WaitPolicy,
};
use tenure_core::{ErrorKind, Finding, LockName, LockState, OwnerId, Result, Token};
use tenure_testkit::{GENEROUS, eventually};

use crate::fixture::LONG;

/// WaitPolicy that no case exhausts.
pub(crate) const PATIENT: WaitPolicy = WaitPolicy::queue(LONG);

/// How often a call is repeated after transient faults before the case gives up on the store.
const TRIES: u32 = 100;

/// How long to wait for news before asking.
const SILENCE: Duration = Duration::from_millis(500);

/// A connection whose calls are repeated after transient faults, and panic on all others.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    store: Arc<dyn Store>,
    faithful: bool,
}

impl Raw {
    pub(crate) fn new(store: Arc<dyn Store>, faithful: bool) -> Self {
        Self { store, faithful }
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
        self.persist(|| self.store.claim(claim, policy)).await
    }

    /// Claims a lock that must be free for it.
    pub(crate) async fn hold(&self, claim: &Claim) -> Grant {
        match self.claim(claim, PATIENT).await {
            ClaimOutcome::Granted(grant) => grant,
            other => panic!("{:?} should be free for {:?}: {other:?}", claim.name, claim.mode),
        }
    }

    /// Claims a lock that must not be free for it, and stays in line.
    pub(crate) async fn queue(&self, claim: &Claim, policy: WaitPolicy) -> QueueTicket {
        match self.claim(claim, policy).await {
            ClaimOutcome::Queued(place) => place,
            other => panic!("{:?} should wait for {:?}: {other:?}", claim.mode, claim.name),
        }
    }

    /// Asserts that a claim that does not want to wait is turned away.
    pub(crate) async fn assert_busy(&self, claim: &Claim) {
        assert_eq!(self.claim(claim, WaitPolicy::NoWait).await, ClaimOutcome::Busy);
    }

    /// Waits in line until the lock is granted.
    pub(crate) async fn acquire(&self, claim: &Claim) -> Grant {
        let step = async || match self.claim(claim, PATIENT).await {
            ClaimOutcome::Granted(grant) => Some(grant),
            ClaimOutcome::Queued(place) => {
                let ask_again = place.ask_again_in.unwrap_or(LONG).min(SILENCE);
                let wait = self.store.wait(claim, &place);
                let _hint = tokio::time::timeout(ask_again, wait).await;
                None
            }
            ClaimOutcome::Busy => panic!("a patient claim was told that the lock is busy"),
        };
        for _ in 0..2_000 {
            if let Some(grant) = step().await {
                return grant;
            }
        }
        panic!("{:?} was never granted", claim.name)
    }

    /// Waits for news without asking again, as is enough on a store with push. Where messages may
    /// be lost, silence is news too.
    pub(crate) async fn wait(&self, claim: &Claim, place: &QueueTicket) {
        let limit = if self.faithful { GENEROUS } else { SILENCE };
        let news = self.persist(|| self.store.wait(claim, place));
        match tokio::time::timeout(limit, news).await {
            Ok(news) => drop(news.unwrap()),
            Err(_) => assert!(!self.faithful, "a store with push wakes its waiters"),
        }
    }

    pub(crate) async fn renew(&self, claim: &Claim) -> Renewal {
        self.persist(|| self.store.renew(claim)).await.unwrap()
    }

    pub(crate) async fn release(&self, claim: &Claim) -> Released {
        self.persist(|| self.store.release(claim)).await.unwrap()
    }

    /// Releases a claim that must hold. A reply lost on the way makes the answer unknowable.
    pub(crate) async fn give_up(&self, claim: &Claim) {
        let released = self.release(claim).await;
        assert!(!self.faithful || released == Released::Released, "{released:?}");
    }

    pub(crate) async fn inspect(&self, name: &LockName) -> LockState {
        let state = self.persist(|| self.store.inspect(name)).await.unwrap();
        assert_eq!(&state.name, name);
        state
    }

    pub(crate) async fn list(&self, prefix: &str) -> Vec<LockName> {
        self.persist(|| self.store.list(prefix)).await.unwrap()
    }

    pub(crate) async fn evict(&self, eviction: &Eviction) -> Released {
        self.persist(|| self.store.evict(eviction)).await.unwrap()
    }

    pub(crate) async fn diagnose(&self) -> Vec<Finding> {
        self.persist(|| self.store.diagnose()).await.unwrap()
    }

    /// Evicts an owner that must be there.
    pub(crate) async fn throw_out(&self, name: &LockName, owner: OwnerId) {
        let released = self.evict(&Eviction::new(name.clone(), owner, "test")).await;
        assert!(!self.faithful || released == Released::Released, "{released:?}");
    }

    /// How a claim that must be refused was refused.
    pub(crate) async fn refusal(&self, claim: &Claim) -> ErrorKind {
        match self.try_claim(claim, PATIENT).await {
            Err(error) => error.kind(),
            Ok(answer) => panic!("{:?} should be refused: {answer:?}", claim.mode),
        }
    }

    /// The owners that hold a lock, and those that wait for it in their order.
    pub(crate) async fn owners(&self, name: &LockName) -> (Vec<String>, Vec<String>) {
        let state = self.inspect(name).await;
        let holders = state.holders.into_iter().map(|holder| holder.owner);
        let waiters = state.waiters.into_iter().map(|waiter| waiter.owner);
        (holders.collect(), waiters.collect())
    }

    /// Asserts who holds and who waits, in order, at this moment.
    pub(crate) async fn assert_owners(&self, name: &LockName, holds: &[&Claim], waits: &[&Claim]) {
        let spell = |claims: &[&Claim]| -> Vec<String> {
            claims.iter().map(|claim| claim.owner.to_string()).collect()
        };
        let (mut holders, waiters) = self.owners(name).await;
        let mut expected = spell(holds);
        holders.sort();
        expected.sort();
        assert_eq!(holders, expected, "holders of {name:?}");
        assert_eq!(waiters, spell(waits), "waiters for {name:?}");
    }

    /// Asserts that the first in line hold, and who waits behind them. Where waiters are served in
    /// order they do at this moment; elsewhere, the lock is theirs as soon as they ask.
    pub(crate) async fn assert_handed_to(
        &self,
        name: &LockName,
        heirs: &[&Claim],
        waits: &[&Claim],
    ) {
        if !self.capabilities().fifo {
            for heir in heirs {
                self.hold(heir).await;
            }
        }
        self.assert_owners(name, heirs, waits).await;
    }

    /// Asserts that nothing is left of a lock, at this moment.
    pub(crate) async fn assert_free(&self, name: &LockName) {
        let state = self.inspect(name).await;
        assert!(state.is_free(), "something is left behind: {state:?}");
    }

    /// Waits until so many wait for a lock.
    pub(crate) async fn until_waiting(&self, name: &LockName, count: usize) {
        let queued = || async { self.inspect(name).await.waiters.len() == count };
        assert!(eventually(GENEROUS, queued).await, "{count} never wait for {name:?}");
    }

    /// The token a grant carries, held against what the store promises.
    pub(crate) fn token(&self, grant: &Grant) -> Option<Token> {
        let promised = self.capabilities().fencing.gives_tokens();
        assert_eq!(grant.token.is_some(), promised, "tokens as promised: {grant:?}");
        grant.token
    }

    async fn persist<T, F, C>(&self, call: F) -> Result<T>
    where
        F: Fn() -> C,
        C: Future<Output = Result<T>>,
    {
        let mut tries = 1;
        loop {
            match call().await {
                Err(fault) if fault.is_transient() && tries < TRIES => {
                    assert!(!self.faithful, "a faithful store failed: {fault}");
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }
}
