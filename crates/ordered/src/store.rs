//! The store: each call of the contract, in terms of the engine's primitives.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{
    Background, Capabilities, Cells, Claim, ClaimOutcome, Downgraded, Eviction, Grant, Hold,
    LossListener, QueueTicket, Released, Renewal, Store, WaitPolicy, now, require_runtime,
};
use tenure_core::{
    AuditRecord, Effect, Error, ErrorKind, Fence, Finding, Holder, LockName, LockState, Mode,
    Result,
};
use tenure_proto::{Order, admitted};

use crate::claims::{State, Tracked};
use crate::engine::{Engine, Entered, Listing, Session};
use crate::follower::CHECK;
use crate::record::Record;
use crate::shared::Shared;

/// How often a claim starts over because what it read had changed by the time it acted on it.
const ROUNDS: usize = 6;

const ACQUIRE: &str = "acquire";

/// Locks on an engine that keeps ordered entries.
pub struct OrderedStore<E: Engine> {
    pub(crate) shared: Arc<Shared<E>>,
}

impl<E: Engine> OrderedStore<E> {
    /// Connects to the engine.
    ///
    /// # Errors
    /// [`Unreachable`](ErrorKind::Unreachable) or [`QuorumLost`](ErrorKind::QuorumLost) if no server
    /// answers in time, [`Denied`](ErrorKind::Denied) for credentials or certificates that are
    /// refused, and [`Invalid`](ErrorKind::Invalid) for a configuration that makes no sense.
    pub async fn connect(config: E::Config) -> Result<Self> {
        Self::connect_checking(config, CHECK).await
    }

    /// Connects. The watched entries of a queue are looked at every `check`.
    pub(crate) async fn connect_checking(config: E::Config, check: Duration) -> Result<Self> {
        require_runtime("open the store")?;
        let background = Background::start("tenure-ordered")?;
        let engine = E::connect(config, &background).await?;
        let shared = Shared::new(engine, background, check);
        shared.spawn(Arc::clone(&shared).expire_claims());
        Ok(Self { shared })
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.shared.engine
    }
}

#[async_trait]
impl<E: Engine> Store for OrderedStore<E> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
            .fencing(self.shared.engine.fencing())
            .fifo()
            .waiters()
            .push()
            .shared()
            .permits()
            .mixed_modes()
            .downgrade()
            .tells_losses()
            .audits()
            .cross_process()
            .ages()
    }

    fn longest_ttl(&self) -> Option<Duration> {
        self.shared.engine.longest_ttl()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        let (shared, asked) = (Arc::clone(&self.shared), claim.clone());
        let call = async move { shared.claim(&asked, policy).await };
        self.shared.calls.queue(claim.owner, call).await.map_err(|error| error.about(&claim.name))
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        self.shared.wait(claim, ticket).await.map_err(|error| error.about(&claim.name))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        self.shared.renew(claim).await.map_err(|error| error.about(&claim.name))
    }

    async fn downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        let (shared, writer) = (Arc::clone(&self.shared), claim.clone());
        let call = async move { shared.downgrade(&writer).await };
        self.shared.calls.queue(claim.owner, call).await.map_err(|error| error.about(&claim.name))
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let (shared, given_up) = (Arc::clone(&self.shared), claim.clone());
        let call = async move { shared.release(&given_up).await };
        self.shared.calls.queue(claim.owner, call).await.map_err(|error| error.about(&claim.name))
    }

    async fn close_idle(&self) {
        self.shared.stop_attending_to_unused().await;
        self.shared.engine.end_unused_sessions().await;
    }

    fn fence(&self, name: &LockName, hold: Hold) -> Option<Fence> {
        let (tracked, _) = self.shared.claims.find(hold.owner)?;
        let State::Holds(entry, token) = tracked.state else { return None };
        (Some(token) == hold.token).then(|| self.shared.engine.fence(name, &entry))?
    }

    fn subscribe_losses(&self, listener: LossListener) {
        self.shared.listeners.add(listener);
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.shared.inspect(name).await
    }

    async fn holders(&self, name: &LockName) -> Result<Vec<Holder>> {
        self.shared.holders(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.shared.engine.names(prefix).await
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.shared.evict(eviction).await
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        Ok(AuditRecord::all(&self.shared.engine.audit(name).await?))
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        for _ in 0..ROUNDS {
            if self.shared.engine.add_audit_record(name, record).await? {
                return Ok(());
            }
        }
        let why = "the records changed each time they were read: try again";
        Err(Error::new(ErrorKind::Unreachable, "write a record of", why).about(name))
    }

    fn cells(&self) -> Result<&dyn Cells> {
        self.shared.engine.cells()
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.shared.engine.diagnose(self).await
    }
}

impl<E: Engine> Drop for OrderedStore<E> {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl<E: Engine> fmt::Debug for OrderedStore<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.engine.fmt(f)
    }
}

impl<E: Engine> Shared<E> {
    async fn claim(self: &Arc<Self>, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        if !claim.mode.is_sound() {
            let why = "take at least one permit, and no more than there are";
            return Err(Error::new(ErrorKind::Invalid, ACQUIRE, why));
        }
        for _ in 0..ROUNDS {
            let answer = match self.claims.find(claim.owner) {
                Some((tracked, overdue)) => {
                    let resumed = self.resume(tracked, overdue, policy).await;
                    resumed.map_err(Error::with_unknown_effect)?
                }
                None => self.arrive(claim, policy).await?,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        let why = "the lock or its session changed each time it was read: try again";
        Err(Error::new(ErrorKind::Unreachable, ACQUIRE, why).with_unknown_effect())
    }

    /// Goes on with a claim that was made before. `None`: the claim has no entry any more.
    async fn resume(
        self: &Arc<Self>,
        tracked: Tracked<E>,
        overdue: bool,
        policy: WaitPolicy,
    ) -> Result<Option<ClaimOutcome>> {
        if tracked.session.is_over() {
            self.left(&tracked);
            return Ok(None);
        }
        if overdue {
            self.remove_entries(&tracked).await?;
            self.left(&tracked);
            return Ok(None);
        }
        let owner = tracked.claim.owner;
        match (&tracked.state, policy) {
            (State::Holds(..), _) => self.confirm(&tracked).await,
            (State::Waits(..), WaitPolicy::Queue { lease, .. }) => {
                Ok(self.claims.wait(owner, lease, None).then(queued))
            }
            (State::Waits(entry, token), WaitPolicy::NoWait) => {
                let listing = self.engine.list(&tracked.claim.name).await?;
                let entered =
                    Entered { entry: entry.clone(), token: *token, listing: Some(listing) };
                self.settle(&tracked, entered, policy).await
            }
            (State::Unsure, _) => {
                let Some((entry, token)) = self.find(&tracked).await? else {
                    self.left(&tracked);
                    return Ok(None);
                };
                self.settle(&tracked, Entered { entry, token, listing: None }, policy).await
            }
        }
    }

    /// A hold that is asked for again: the same token, and its term starts anew.
    async fn confirm(self: &Arc<Self>, tracked: &Tracked<E>) -> Result<Option<ClaimOutcome>> {
        let State::Holds(_, token) = tracked.state else { return Ok(None) };
        let sent = now();
        let grant = Grant::new(Some(token), Some(sent));
        Ok(self.is_held(tracked).await?.then_some(ClaimOutcome::Granted(grant)))
    }

    /// Whether a hold's entry is there; then its term starts anew.
    async fn is_held(self: &Arc<Self>, tracked: &Tracked<E>) -> Result<bool> {
        let Tracked { claim, session, state, unrecorded, .. } = tracked;
        let State::Holds(entry, _) = state else { return Ok(false) };
        // Before the request is sent: the entry must not expire while the reply is on its way.
        if !self.claims.update(claim.owner, now() + claim.ttl, |_| {}) {
            return Ok(false);
        }
        let record = unrecorded.map(|since| Record::write(claim, true, now().since(since)));
        let recorded = record.is_some();
        let held = self.engine.renew(session, &claim.name, entry, record).await?;
        if !held {
            self.left(tracked);
        } else if recorded {
            self.claims.update(claim.owner, now(), |tracked| tracked.unrecorded = None);
        }
        Ok(held)
    }

    /// Adds an entry at the end of the queue. `None`: what was seen has changed.
    async fn arrive(
        self: &Arc<Self>,
        claim: &Claim,
        policy: WaitPolicy,
    ) -> Result<Option<ClaimOutcome>> {
        let session = self.engine.session(claim.ttl).await?;
        if policy == WaitPolicy::NoWait && self.is_busy(claim).await? {
            return Ok(Some(ClaimOutcome::Busy));
        }
        let ends = now() + life(claim, policy);
        let tracked = self.claims.insert(Tracked::new(claim, &session), ends);
        self.attend(&session);
        let entered = self.enter(&session, claim).await;
        let unsent = entered.as_ref().is_err_and(|error| error.effect() == Effect::None);
        if !unsent && !self.claims.is_live(&tracked) {
            // The claim expired meanwhile, and its entry may have been looked for too early.
            self.claims.insert_overdue(tracked);
            return entered.map(|_| None);
        }
        match entered {
            Ok(entered) => {
                let settled = self.settle(&tracked, entered, policy).await;
                settled.map_err(Error::with_unknown_effect)
            }
            Err(error) if unsent => {
                self.left(&tracked);
                if session.is_over() { Ok(None) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a claim that must not wait would have to. It is then refused before it is added to the
    /// queue, where it would delay other claims.
    async fn is_busy(&self, claim: &Claim) -> Result<bool> {
        if claim.mode == Mode::Exclusive
            && let Some(free) = self.engine.is_free(&claim.name).await?
        {
            return Ok(!free);
        }
        let listing = self.engine.list(&claim.name).await?;
        let modes = listing.entries.iter().map(|entry| entry.mode).chain([claim.mode]);
        Ok(admitted(modes) <= listing.entries.len())
    }

    /// Decides about a claim whose entry is in the queue: it holds if it is admitted; else it waits, or
    /// is removed if its policy is not to wait.
    async fn settle(
        self: &Arc<Self>,
        tracked: &Tracked<E>,
        entered: Entered<E::Key>,
        policy: WaitPolicy,
    ) -> Result<Option<ClaimOutcome>> {
        let Entered { entry, token, mut listing } = entered;
        let Claim { name, owner, .. } = &tracked.claim;
        if listing.is_none() && policy == WaitPolicy::NoWait {
            listing = Some(self.engine.list(name).await?);
        }
        if listing.as_ref().is_some_and(|listing| is_admitted(listing, entry.order)) {
            let holds = self.claims.hold(*owner, entry, token);
            let grant = holds.then(|| self.claims.grant(*owner)).flatten();
            return Ok(grant.map(ClaimOutcome::Granted));
        }
        let WaitPolicy::Queue { lease, .. } = policy else {
            self.engine.remove(name, &entry).await?;
            self.left(&Tracked { state: State::Waits(entry, token), ..tracked.clone() });
            return Ok(Some(ClaimOutcome::Busy));
        };
        if !self.claims.wait(*owner, lease, Some((entry.clone(), token))) {
            return Ok(None);
        }
        self.join_queue(&tracked.claim, &entry, listing);
        Ok(Some(queued()))
    }

    async fn wait(self: &Arc<Self>, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        let Some(changed) = self.claims.changed(claim.owner) else {
            return Ok(ClaimOutcome::Queued(*ticket));
        };
        let _kept = self.claims.keep(claim.owner);
        loop {
            let mut notified = std::pin::pin!(changed.notified());
            notified.as_mut().enable();
            match self.claims.find(claim.owner) {
                Some((Tracked { state: State::Waits(..), fault: Some(error), .. }, _)) => {
                    return Err(error);
                }
                Some((Tracked { state: State::Waits(..), .. }, false)) => notified.await,
                Some((Tracked { state: State::Holds(..), .. }, false)) => {
                    let grant = self.claims.grant(claim.owner);
                    return Ok(grant.map_or(ClaimOutcome::Queued(*ticket), ClaimOutcome::Granted));
                }
                _ => return Ok(ClaimOutcome::Queued(*ticket)),
            }
        }
    }

    async fn renew(self: &Arc<Self>, claim: &Claim) -> Result<Renewal> {
        let Some((mut tracked, false)) = self.claims.find(claim.owner) else {
            return Ok(Renewal::Lost);
        };
        if let State::Waits(entry, _) = &tracked.state {
            // The claim may have been admitted without a notification yet.
            let listing = self.engine.list(&claim.name).await?;
            if is_admitted(&listing, entry.order) {
                self.admit(claim.owner, entry.order);
            }
            match self.claims.find(claim.owner) {
                Some((found, false)) => tracked = found,
                _ => return Ok(Renewal::Lost),
            }
        }
        let held = !tracked.session.is_over() && self.is_held(&tracked).await?;
        Ok(if held { Renewal::Renewed } else { Renewal::Lost })
    }

    /// Makes the entry of a writer that of a reader, in its place.
    async fn downgrade(self: &Arc<Self>, claim: &Claim) -> Result<Downgraded> {
        let Some((tracked, false)) = self.claims.find(claim.owner) else {
            return Ok(Downgraded::Lost);
        };
        let (State::Holds(entry, token), false) = (&tracked.state, tracked.session.is_over())
        else {
            return Ok(Downgraded::Lost);
        };
        if let Mode::Permits { .. } = entry.mode {
            return Ok(Downgraded::Lost);
        }
        let reader = self.engine.as_reader(entry);
        // Noted before the request is sent: whatever the outcome, all that it may add is removed with the
        // entry.
        let known = self.claims.update(claim.owner, now() + claim.ttl, |tracked| {
            tracked.state = State::Holds(reader.clone(), *token);
        });
        if !known {
            return Ok(Downgraded::Lost);
        }
        let age = tracked.held_since.map(|since| now().since(since)).unwrap_or_default();
        let record = Record::write(claim, true, age);
        let there = self.engine.downgrade(&tracked.session, &claim.name, &reader, record).await?;
        if !there {
            self.left(&tracked);
            return Ok(Downgraded::Lost);
        }
        self.claims.update(claim.owner, now(), |tracked| tracked.unrecorded = None);
        if let Some(followed) = self.followed(&claim.name) {
            followed.downgrade(self, &reader);
        }
        Ok(self.claims.grant(claim.owner).map_or(Downgraded::Lost, Downgraded::Shared))
    }

    async fn release(self: &Arc<Self>, claim: &Claim) -> Result<Released> {
        let Some((tracked, _)) = self.claims.find(claim.owner) else {
            return self.release_untracked(claim).await;
        };
        let mut held = matches!(tracked.state, State::Holds(..));
        if let State::Waits(entry, _) = &tracked.state
            && self.followed(&claim.name).is_some_and(|followed| followed.is_first(entry.order))
        {
            // The claim may have been admitted without a notification yet.
            held = is_admitted(&self.engine.list(&claim.name).await?, entry.order);
        }
        let removed = self.remove_entries(&tracked).await;
        if removed.is_err() && tracked.session.is_over() {
            self.left(&tracked);
            return Ok(Released::NotHeld);
        }
        let removed = removed?;
        self.left(&tracked);
        Ok(if removed && held { Released::Released } else { Released::NotHeld })
    }

    /// Releases a claim that this client does not track: one of another process, or one that has expired.
    async fn release_untracked(&self, claim: &Claim) -> Result<Released> {
        let listing = self.engine.list(&claim.name).await?;
        let (mut held, mut removed) = (false, false);
        for entry in listing.entries.iter().filter(|entry| entry.owner == Some(claim.owner)) {
            held |= is_admitted(&listing, entry.order);
            removed |= self.engine.remove(&claim.name, entry).await?;
        }
        Ok(if removed && held { Released::Released } else { Released::NotHeld })
    }
}

/// How long a claim's entry stays if it is not asked for again.
fn life(claim: &Claim, policy: WaitPolicy) -> Duration {
    match policy {
        WaitPolicy::NoWait => claim.ttl,
        WaitPolicy::Queue { lease, .. } => lease.max(claim.ttl),
    }
}

fn queued() -> ClaimOutcome {
    ClaimOutcome::Queued(QueueTicket::new(None).tended())
}

/// Whether the entry of this order is there, and holds the lock.
pub(crate) fn is_admitted<K>(listing: &Listing<K>, order: Order) -> bool {
    let inside = admitted(listing.entries.iter().map(|entry| entry.mode));
    listing.entries[..inside].iter().any(|entry| entry.order == order)
}
