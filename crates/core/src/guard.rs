//! Guards: locks that are held.

mod typed;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_proto::Watchdog;
use tracing::Instrument;

pub use self::typed::{FencedGuard, ReadGuard, WriteGuard};
use crate::client::Inner;
use crate::fault_budget::FaultBudget;
use crate::lease::Lease;
use crate::task::run_under;
use crate::{
    Background, Downgraded, Error, Fence, Hold, LockName, LossReason, Mode, OwnerId, Released,
    Renewal, Result, Revocation, Token, Validity, revoke,
};

/// A lock that is held, until it is released, dropped or lost.
///
/// The guard renews its lease by itself. It can still be lost: the process is stopped, the store
/// is cut off, an operator takes it away. So work done under a guard either runs in
/// [`run`](Guard::run), which aborts it on loss; or asks [`is_valid`](Guard::is_valid) before each
/// step that matters; and sends the [`token`](Guard::token) along to whatever it writes to, which
/// is the only full protection.
///
/// Dropping a guard releases the lock in the background. [`release`](Guard::release) returns
/// whether that worked.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    inner: Arc<Inner>,
    lease: Arc<Lease>,
    release: Release,
    /// Lasts as long as the guard. `None` if no subscriber wants it.
    holding: Option<Box<tracing::Span>>,
}

/// For how many call timeouts a downgrade is tried while the store fails, if the lease lasts that long.
const DOWNGRADE_CALLS: u32 = 5;

/// How far the release of a guard has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    /// None was sent.
    Due,
    /// One was sent, and its answer is not known.
    Sent,
    Done,
    /// The background goes on holding the lock, and releases it.
    Kept,
}

impl Guard {
    pub(crate) fn new(inner: Arc<Inner>, lease: Arc<Lease>, watchdog: Watchdog) -> Self {
        inner.keeper.watch(Arc::clone(&lease), watchdog);
        let (lock, token) = (&lease.claim.name, lease.token.map(Token::get));
        let holding = tracing::debug_span!("holding", %lock, token);
        holding.in_scope(|| tracing::debug!(%lock, token, "acquired"));
        let holding = (!holding.is_disabled()).then(|| Box::new(holding));
        Self { inner, lease, release: Release::Due, holding }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.lease.claim.name
    }

    /// How the lock is held.
    pub fn mode(&self) -> Mode {
        self.lease.claim.mode
    }

    /// The fencing token, if the store gives one: send it along with every protected write.
    pub fn token(&self) -> Option<Token> {
        self.lease.acquired_by.note_use();
        self.lease.token
    }

    /// A comparison for transactions of the same store, so that a write of a holder that lost its
    /// lock fails there. etcd and ZooKeeper have it; `None` elsewhere: send the
    /// [`token`](Self::token) instead.
    pub fn fence(&self) -> Option<Fence> {
        let hold = Hold::new(self.owner(), self.token());
        self.inner.store.fence(self.name(), hold)
    }

    /// The id of this hold. A program that knows it can release the lock: keep it out of logs.
    pub fn owner(&self) -> OwnerId {
        self.lease.claim.owner
    }

    /// How long the lock is good after each renewal: the TTL that was asked for, or the default, which a
    /// store may limit.
    pub fn ttl(&self) -> Duration {
        self.lease.claim.ttl
    }

    /// How long the lock is still good if no renewal comes. Zero when it is lost.
    pub fn remaining(&self) -> Duration {
        self.lease.acquired_by.note_use();
        self.lease.remaining()
    }

    /// Whether the lock is still held, by the clock: exact also where no signal could be delivered
    /// yet, as right after the process was stopped and continued.
    pub fn is_valid(&self) -> bool {
        self.lease.acquired_by.note_use();
        self.lease.is_valid()
    }

    /// Resolves when half the TTL has passed without a renewal, or the lock is lost. A renewal may
    /// still come: danger is not loss.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn danger(&self) {
        self.lease.acquired_by.note_use();
        self.lease.danger().await;
    }

    /// Resolves when the lock is lost, and says why. The store admits another holder only after
    /// that moment, so stop at once.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> LossReason {
        self.lease.acquired_by.note_use();
        self.lease.lost().await
    }

    /// Resolves when another process asks for the lock ([`Client::revoke`](crate::Client::revoke)), with
    /// its reason and how much time is left. The lock stays held: finish or stop the work, then
    /// [`release`](Self::release).
    ///
    /// Only a guard on which this is awaited hears a request, which may have been sent before. etcd and
    /// ZooKeeper push it; on Redis and the local store it is looked for once a second. Once it has
    /// resolved, it resolves at once.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a store that keeps no values (Redlock);
    /// [`Lost`](crate::ErrorKind::Lost) if the lock is lost or released; faults of the store that no retry
    /// heals.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn revoked(&self) -> Result<Revocation> {
        revoke::revoked(&self.inner, &self.lease).await
    }

    /// Runs `work` while the lock is held, and drops it as soon as it is lost. The clock is read
    /// before every step of `work` and after the last, whether or not a signal came through: `Ok`
    /// means that the lock was held until `work` had ended.
    ///
    /// Only `work` itself is dropped. What it has spawned goes on, unless it is given a
    /// [`validity`](Guard::validity).
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before `work` had ended, also if that was noticed
    /// only afterwards: the result is dropped then, for the work may have overlapped with another
    /// holder's.
    ///
    /// # Cancel safety
    /// Dropping it drops `work`; the lock stays held by the guard.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        let holding = self.holding.as_deref().cloned().unwrap_or_else(tracing::Span::none);
        run_under(self.owner(), self.validity().run(work)).instrument(holding).await
    }

    /// Records that the lock is lost, as the store shows by other means than an answer to a renewal.
    pub(crate) fn lose(&self, reason: LossReason) {
        self.lease.lose(reason);
    }

    /// Why the lock is lost, by the clock. `None` while it is held.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.lease.loss()
    }

    /// The error of work under the lock, if the lock is lost.
    pub(crate) fn interruption(&self, finished: bool) -> Option<Error> {
        self.lease.interruption(finished)
    }

    /// The client's thread.
    pub(crate) fn background(&self) -> &Background {
        &self.inner.background
    }

    /// A handle that tells other tasks and threads whether the lock is still held.
    pub fn validity(&self) -> Validity {
        self.lease.acquired_by.note_use();
        Validity::new(Arc::clone(&self.lease))
    }

    /// Gives the lock back. `Ok` means that it was held until now. With
    /// [`Options::at_least`](crate::Options::at_least), the lock may stay taken for a while.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before, whether or not the store can be reached: the
    /// work done under it may have overlapped with another holder's. Other errors are faults of the
    /// store. After a fault the release goes on in the background, until the store confirms it or the
    /// TTL has passed.
    ///
    /// # Cancel safety
    /// A dropped release is finished in the background.
    pub async fn release(mut self) -> Result<()> {
        if !self.lease.kept_for().is_zero() {
            return self.release_later().await;
        }
        self.begin_release();
        let release = self.inner.store.release(&self.lease.claim);
        let outcome = self.inner.call("release", release).await;
        self.end_release(outcome)
    }

    /// As [`release`](Self::release) of each, in one call to the store if all are of one client and the store can
    /// do that. Returns the first error.
    pub(crate) async fn release_together(mut guards: Vec<Self>) -> Result<()> {
        let alike = |guard: &Self| {
            Arc::ptr_eq(&guard.inner, &guards[0].inner) && guard.lease.kept_for().is_zero()
        };
        let inner = match &guards[..] {
            [first, _, ..] if guards.iter().all(alike) => Arc::clone(&first.inner),
            _ => return first_error(join_all(guards.into_iter().map(Self::release)).await),
        };
        guards.iter_mut().for_each(Self::begin_release);
        let claims: Vec<_> = guards.iter().map(|guard| guard.lease.claim.clone()).collect();
        let released = inner.call("release", inner.store.release_together(&claims)).await;
        let ended = guards.into_iter().map(async |guard| {
            let outcome = match &released {
                Ok(true) => Ok(Released::Released),
                Ok(false) => inner.call("release", inner.store.release(&guard.lease.claim)).await,
                Err(error) => Err(error.clone()),
            };
            guard.end_release(outcome)
        });
        first_error(join_all(ended).await)
    }

    fn begin_release(&mut self) {
        // A renewal that crosses the release must not be taken for a loss.
        self.inner.keeper.forget(self.owner());
        // Work under the lock in other tasks must stop before another claim can hold it.
        self.lease.give_up();
        self.release = Release::Sent;
    }

    /// If the outcome is not certain, dropping the guard leaves the release to the background.
    fn end_release(mut self, outcome: Result<Released>) -> Result<()> {
        match outcome {
            Ok(Released::Released) => {
                self.release = Release::Done;
                Ok(())
            }
            Ok(Released::NotHeld) => {
                self.release = Release::Done;
                self.lease.lose(LossReason::NotHeld);
                Err(self.lost_before_release())
            }
            Err(error) if self.lease.loss() == Some(LossReason::GivenUp) => {
                Err(error.about(self.name()))
            }
            Err(error) => Err(self.lost_before_release().caused_by(error)),
        }
    }

    /// Leaves the hold to the background, if it is still there.
    async fn release_later(mut self) -> Result<()> {
        // The client may not have heard of a loss. This renewal does not count: its reply may be late.
        let renewed = self.inner.store.renew(&self.lease.claim);
        match self.inner.call("release", renewed).await {
            Ok(Renewal::Renewed) => {}
            Ok(Renewal::Lost) => {
                self.release = Release::Done;
                self.lease.lose(LossReason::NotHeld);
                return Err(self.lost_before_release());
            }
            Err(error) => return Err(error.about(self.name())),
        }
        match self.lease.loss() {
            // Dropping the guard leaves the hold to the background.
            None => Ok(()),
            Some(_) => Err(self.lost_before_release()),
        }
    }

    /// Turns the hold of a writer into that of a reader. If it fails or is dropped, the guard is dropped:
    /// the claim is released in the background, in whichever mode it is held by then.
    async fn downgrade(mut self) -> Result<Self> {
        let inner = Arc::clone(&self.inner);
        // Work that writes under the lock in other tasks must stop before a reader can hold it. The claim
        // is renewed meanwhile, for a lease that no other task knows.
        let keep_until = self.lease.keep_until;
        // If it fails, the lock is given back at once.
        let between = self.lease.successor(self.mode(), self.token());
        let between = Arc::new(between.kept_until(None));
        if !inner.keeper.replace(&between, None) {
            return Err(self.lost_before_downgrade());
        }
        std::mem::replace(&mut self.lease, between).give_up();
        let claim = self.lease.claim.clone();
        let mut faults = FaultBudget::new(inner.call_timeout * DOWNGRADE_CALLS);
        let downgraded = async {
            loop {
                let sent = inner.clock.now();
                match inner.call("downgrade", inner.store.downgrade(&claim)).await {
                    Ok(outcome) => return Ok((outcome, sent)),
                    // The reply may be lost: the call has the same effect once more.
                    Err(error) => faults.pause(error, sent, inner.clock.now(), &claim).await?,
                }
            }
        };
        let (outcome, sent) = match self.lease.run(downgraded).await {
            Ok(answer) => answer.map_err(|error: Error| error.about(&claim.name))?,
            Err(_) => return Err(self.lost_before_downgrade()),
        };
        let Downgraded::Shared(grant) = outcome else {
            self.lease.lose(LossReason::NotHeld);
            return Err(self.lost_before_downgrade());
        };
        let shared = self.lease.successor(Mode::Shared, grant.token);
        let shared = Arc::new(shared.kept_until(keep_until));
        if !inner.keeper.replace(&shared, Some(grant.since.unwrap_or(sent))) {
            return Err(self.lost_before_downgrade());
        }
        self.lease = shared;
        tracing::debug!(lock = %claim.name, token = ?self.token(), "downgraded");
        Ok(self)
    }

    fn lost_before_downgrade(&self) -> Error {
        let why = "the lock was lost while it was held for writing: the work done under it may have overlapped \
                   with another holder's, so check what it did";
        let reason = self.lease.loss().unwrap_or(LossReason::NotHeld);
        Error::lost(reason, "downgrade", why).about(self.name())
    }

    /// Leaves the hold to the background if the lock is to stay taken ([`Options::at_least`]).
    ///
    /// [`Options::at_least`]: crate::Options::at_least
    fn keep_on(&mut self) -> bool {
        if self.release != Release::Due || self.lease.kept_for().is_zero() {
            return false;
        }
        let (inner, kept) = (Arc::clone(&self.inner), Arc::new(self.lease.kept()));
        if !inner.keeper.replace(&kept, None) {
            return false;
        }
        self.lease.give_up();
        let expected = inner.janitor.expect();
        self.inner.background.runtime().spawn(async move {
            let asked = async {
                if revoke::revoked(&inner, &kept).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = until_kept(&kept) => {}
                _ = kept.lost() => {}
                () = asked => {}
            }
            inner.keeper.forget(kept.claim.owner);
            kept.give_up();
            inner.janitor.release_dropped(kept);
            drop(expected);
        });
        self.release = Release::Kept;
        true
    }

    fn lost_before_release(&self) -> Error {
        let why = "the lock was no longer held: the work done under it may have overlapped with another \
                   holder's, so check what it did";
        let reason = self.lease.loss().unwrap_or(LossReason::NotHeld);
        Error::lost(reason, "release", why).about(self.name())
    }
}

fn first_error(outcomes: Vec<Result<()>>) -> Result<()> {
    outcomes.into_iter().collect()
}

/// Resolves when the lock need not stay taken any longer.
async fn until_kept(lease: &Lease) {
    // Again, because a timer sleeps with the machine, and the lease's clock may not.
    loop {
        match lease.kept_for() {
            Duration::ZERO => return,
            time => tokio::time::sleep(time).await,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.keep_on() && self.release != Release::Kept {
            self.inner.keeper.forget(self.owner());
        }
        self.lease.give_up();
        if let Some(order) = &self.inner.order {
            order.gave_up(&self.lease);
        }
        self.lease.held.given_up(self.lease.now().since(self.lease.acquired));
        self.lease.held.end();
        tracing::debug!(lock = %self.lease.claim.name, "given up");
        match self.release {
            Release::Due => self.inner.janitor.release_dropped(Arc::clone(&self.lease)),
            Release::Sent => self.inner.janitor.release_later(self.lease.claim.clone()),
            Release::Done | Release::Kept => {}
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("mode", &self.mode())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
