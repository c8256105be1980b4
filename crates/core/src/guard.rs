//! What a user holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_proto::Watchdog;

use crate::client::Inner;
use crate::lease::Lease;
use crate::{
    Error, ErrorKind, Fence, Hold, LockName, LossReason, Mode, OwnerId, Released, Result, Token,
    metric, now,
};

/// A lock that is held, until it is released, dropped or lost.
///
/// The guard renews its lease by itself. It can still be lost: the process is stopped, the store
/// is cut off, an operator takes it away. So work done under a guard either runs in
/// [`run`](Guard::run), which aborts it on loss; or asks [`is_valid`](Guard::is_valid) before each
/// step that matters; and sends the [`token`](Guard::token) along to whatever it writes to, which
/// is the only full protection.
///
/// Dropping a guard releases the lock in the background. [`release`](Guard::release) tells how it
/// went.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    inner: Arc<Inner>,
    lease: Arc<Lease>,
    held: bool,
}

impl Guard {
    pub(crate) fn new(inner: Arc<Inner>, lease: Arc<Lease>, watchdog: Watchdog) -> Self {
        inner.keeper.watch(Arc::clone(&lease), watchdog);
        tracing::debug!(lock = %lease.claim.name, token = ?lease.token, "acquired");
        Self { inner, lease, held: true }
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
        let hold = Hold { owner: self.owner(), token: self.token() };
        self.inner.store.fence(self.name(), hold)
    }

    /// The id of this hold. Whoever knows it can release the lock: keep it out of logs.
    pub fn owner(&self) -> OwnerId {
        self.lease.claim.owner
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
    /// still come: danger is not loss. A store that hands a lock over on a shorter first term warns at
    /// half of that, until it is renewed.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn danger(&self) {
        self.lease.danger().await;
    }

    /// Resolves when the lock is lost, and says why. Other holders are let in only after that
    /// moment, so stop at once.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> LossReason {
        self.lease.lost().await
    }

    /// Runs `work` while the lock is held, and drops it as soon as it is lost. The deadline is
    /// checked before every step of `work`, whether or not a signal came through.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock was lost before `work` ended.
    ///
    /// # Cancel safety
    /// Dropping it drops `work`; the lock stays held by the guard.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        self.lease.run(work).await.map_err(|reason| {
            let why = match reason {
                LossReason::MaxHold => "it was held for as long as its max-hold allows",
                LossReason::NotHeld => "the store gave it to another or let it end",
                _ => "its lease ended before a renewal was confirmed",
            };
            let why = format!("{why}: the work was stopped where it was");
            Error::new(ErrorKind::Lost, "go on under the lock", why).about(self.name())
        })
    }

    /// Gives the lock back, and tells whether it was still held: [`Released::NotHeld`] means that
    /// the work may have overlapped with another holder's.
    ///
    /// # Errors
    /// Faults of the store. The release then goes on in the background, until the store confirms
    /// it or the TTL has passed.
    ///
    /// # Cancel safety
    /// A dropped release is finished in the background.
    pub async fn release(mut self) -> Result<Released> {
        // A renewal that crosses the release must not be taken for a loss.
        self.inner.keeper.forget(self.owner());
        let release = self.inner.store.release(&self.lease.claim);
        let outcome = self.inner.call("release", release).await;
        match outcome {
            Ok(released) => {
                self.held = false;
                Ok(released)
            }
            Err(error) => Err(error.about(self.name())),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.inner.keeper.forget(self.owner());
        metric::given_up(now().since(self.lease.acquired));
        tracing::debug!(lock = %self.lease.claim.name, "given up");
        if self.held {
            self.inner.janitor.release_later(self.lease.claim.clone());
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
