//! Guards: locks that are held.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tenure_proto::Watchdog;

use crate::client::Inner;
use crate::lease::Lease;
use crate::{
    Error, Fence, Hold, LockName, LossReason, Mode, OwnerId, Released, Result, Token, Validity,
    metric,
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
}

/// How far the release of a guard has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    /// None was sent.
    Due,
    /// One was sent, and its answer is not known.
    Sent,
    Done,
}

impl Guard {
    pub(crate) fn new(inner: Arc<Inner>, lease: Arc<Lease>, watchdog: Watchdog) -> Self {
        inner.keeper.watch(Arc::clone(&lease), watchdog);
        tracing::debug!(lock = %lease.claim.name, token = ?lease.token, "acquired");
        Self { inner, lease, release: Release::Due }
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
        self.lease.remaining()
    }

    /// Whether the lock is still held, by the clock: exact also where no signal could be delivered
    /// yet, as right after the process was stopped and continued.
    pub fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }

    /// Resolves when half the TTL has passed without a renewal, or the lock is lost. A renewal may
    /// still come: danger is not loss.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn danger(&self) {
        self.lease.danger().await;
    }

    /// Resolves when the lock is lost, and says why. The store admits another holder only after
    /// that moment, so stop at once.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> LossReason {
        self.lease.lost().await
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
        self.validity().run(work).await
    }

    /// Why the lock is lost, by the clock. `None` while it is held.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.lease.loss()
    }

    /// The error of work under the lock, if the lock is lost.
    pub(crate) fn interruption(&self, finished: bool) -> Option<Error> {
        self.lease.interruption(finished)
    }

    /// A handle that tells other tasks and threads whether the lock is still held.
    pub fn validity(&self) -> Validity {
        Validity::new(Arc::clone(&self.lease))
    }

    /// Gives the lock back. `Ok` means that it was held until now.
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
        // A renewal that crosses the release must not be taken for a loss.
        self.inner.keeper.forget(self.owner());
        // Whatever works under the lock elsewhere must stop before another can hold it.
        self.lease.give_up();
        self.release = Release::Sent;
        let release = self.inner.store.release(&self.lease.claim);
        let outcome = self.inner.call("release", release).await;
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

    fn lost_before_release(&self) -> Error {
        let why = "it was no longer held: the work done under it may have overlapped with another \
                   holder's, so check what it did";
        let reason = self.lease.loss().unwrap_or(LossReason::NotHeld);
        Error::lost(reason, "release", why).about(self.name())
    }
}

/// A [`Guard`] of a reader, from [`RwLock::read`](crate::RwLock::read). Other readers may hold the lock at
/// the same time; no writer does.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct ReadGuard(Guard);

/// A [`Guard`] of a writer, from [`RwLock::write`](crate::RwLock::write). No other claim holds the lock at
/// the same time.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct WriteGuard(Guard);

/// A [`Guard`] that has a fencing token, from [`Mutex::fenced`](crate::Mutex::fenced).
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct FencedGuard {
    guard: Guard,
    token: Token,
}

impl ReadGuard {
    pub(crate) const fn new(guard: Guard) -> Self {
        Self(guard)
    }

    /// Gives the lock back, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }
}

impl WriteGuard {
    pub(crate) const fn new(guard: Guard) -> Self {
        Self(guard)
    }

    /// Gives the lock back, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }
}

impl FencedGuard {
    pub(crate) const fn new(guard: Guard, token: Token) -> Self {
        Self { guard, token }
    }

    /// The fencing token: send it along with every protected write.
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Gives the lock back, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}

impl Deref for ReadGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl Deref for WriteGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl Deref for FencedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl From<ReadGuard> for Guard {
    fn from(guard: ReadGuard) -> Self {
        guard.0
    }
}

impl From<WriteGuard> for Guard {
    fn from(guard: WriteGuard) -> Self {
        guard.0
    }
}

impl From<FencedGuard> for Guard {
    fn from(guard: FencedGuard) -> Self {
        guard.guard
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.inner.keeper.forget(self.owner());
        self.lease.give_up();
        metric::given_up(self.lease.now().since(self.lease.acquired));
        tracing::debug!(lock = %self.lease.claim.name, "given up");
        match self.release {
            Release::Due => self.inner.janitor.release_dropped(Arc::clone(&self.lease)),
            Release::Sent => self.inner.janitor.release_later(self.lease.claim.clone()),
            Release::Done => {}
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
