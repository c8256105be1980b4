//! Whether a lock is still held, for tasks that do not have its guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::lease::Lease;
use crate::{LockName, LossReason, Result, Token};

/// Tells whether a lock is still held. It is `'static` and cheap to clone, so that every task that
/// works under a lock can have one; it does not keep the lock held.
///
/// [`Guard::run`](crate::Guard::run) drops the future that it was given when the lock is lost, but
/// not the tasks, threads or processes that the future started. Give each of them a `Validity`:
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let guard = client.mutex("import")?.acquire().await?;
///
/// // A task: it is dropped on loss, as the guard's own work is.
/// let validity = guard.validity();
/// let rows = tokio::spawn(async move { validity.run(async { 40 + 2 }).await });
///
/// // A thread: it asks before each step that matters.
/// let validity = guard.validity();
/// let blocking = std::thread::spawn(move || (0..10).take_while(|_| validity.is_valid()).count());
///
/// // A library that takes a `CancellationToken`.
/// let token = guard.validity().cancellation_token();
/// # assert!(!token.is_cancelled());
/// # assert_eq!(rows.await.unwrap()?, 42);
/// # assert_eq!(blocking.join().unwrap(), 10);
/// # guard.release().await?;
/// # assert!(token.is_cancelled());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Validity(Arc<Lease>);

impl Validity {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        Self(lease)
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.0.claim.name
    }

    /// The fencing token, if the store gives one: send it along with every protected write.
    pub fn token(&self) -> Option<Token> {
        self.0.token
    }

    /// Whether the lock is still held, by the clock.
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// How long the lock is still good if no renewal comes. Zero when it is over.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Resolves when the lock is no longer held, and says why: a loss, or
    /// [`LossReason::GivenUp`] when the guard was released or dropped.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> LossReason {
        self.0.lost().await
    }

    /// Runs `work` while the lock is held, and drops it as soon as it is not.
    ///
    /// # Errors
    /// As [`Guard::run`](crate::Guard::run).
    ///
    /// # Cancel safety
    /// Dropping it drops `work`.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        self.0.run(work).await.map_err(|interrupted| self.0.error(interrupted))
    }

    /// A token that is cancelled when the lock is no longer held: lost, released or dropped.
    /// Cancelling it does nothing to the lock.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.0.cancellation_token()
    }
}

impl fmt::Debug for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Validity")
            .field("name", self.name())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
