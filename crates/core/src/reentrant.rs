//! A mutex that its holder may acquire again.

use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::timeout;

use crate::task::CallSite;
use crate::{Error, ErrorKind, Guard, LockName, LossReason, Mutex, Options, Result, Wait};

/// A [`Mutex`] that can be acquired again by its holder. Use it where a function that takes a lock calls
/// another one that takes the same lock.
///
/// The holder is the *handle*: clones of a `ReentrantMutex` share one hold, and each acquire after the first
/// returns at once, without a call to the store. Two handles from two calls of
/// [`Client::reentrant_mutex`](crate::Client::reentrant_mutex) exclude each other, even in one task. Neither
/// threads nor tasks own the hold, so that it can move between them.
///
/// The lock is released when the last guard is dropped or released. All guards of a hold share its lease and
/// its fencing token.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, MemoryStore, ReentrantMutex, Result};
/// async fn pay_all(account: &ReentrantMutex) -> Result<()> {
///     let _guard = account.acquire().await?;
///     pay_one(account).await // enters the hold of its caller
/// }
///
/// async fn pay_one(account: &ReentrantMutex) -> Result<()> {
///     let guard = account.acquire().await?;
///     // …
///     guard.release().await
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let account = client.reentrant_mutex("account/7")?;
/// pay_all(&account).await?;
/// # client.close().await;
/// # assert!(client.inspect("account/7").await?.is_free());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ReentrantMutex(Arc<Handle>);

struct Handle {
    mutex: Mutex,
    /// The present hold, as long as a guard of it exists.
    hold: parking_lot::Mutex<Weak<Guard>>,
    /// Taken while a clone asks the store, so that the others enter the hold that it gets.
    asking: tokio::sync::Mutex<()>,
}

/// One entry into the hold of a [`ReentrantMutex`]. It derefs to the [`Guard`] that all entries share.
#[must_use = "the lock is released as soon as its last guard is dropped"]
pub struct ReentrantGuard(Arc<Guard>);

impl ReentrantMutex {
    pub(crate) fn new(mutex: Mutex) -> Self {
        let (hold, asking) = (parking_lot::Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(Handle { mutex, hold, asking }))
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.0.mutex.name()
    }

    /// Whether this handle holds the lock, by the clock.
    pub(crate) fn is_held(&self) -> bool {
        self.0.hold.lock().upgrade().is_some_and(|guard| guard.is_valid())
    }

    /// Another handle on the same lock, with the same options. It excludes `self` and its clones.
    pub(crate) fn other_handle(&self) -> Self {
        Self::new(self.0.mutex.clone())
    }

    /// A new handle on the same lock, held with these options. It excludes `self` and its clones.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self::new(self.0.mutex.clone().with(options))
    }

    /// Enters the hold of this handle, or waits for the lock as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::acquire`]. [`Lost`](ErrorKind::Lost) if this handle's hold was lost and guards of it still
    /// exist: the work under them must end before the handle can be used again.
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<ReentrantGuard>> {
        self.acquire_with(Wait::Forever)
    }

    /// Enters the hold of this handle, or takes the lock if it is free.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`] and [`acquire`](Self::acquire). It is also
    /// [`Busy`](ErrorKind::Busy) while a clone of this handle waits for the lock.
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn try_acquire(&self) -> impl Future<Output = Result<ReentrantGuard>> {
        self.acquire_with(Wait::NoWait)
    }

    /// Enters the hold of this handle, or waits for the lock, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`] and [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<ReentrantGuard>> {
        self.acquire_with(Wait::AtMost(limit))
    }

    /// Enters the hold of this handle, or waits for the lock as long as `wait` says.
    ///
    /// # Errors
    /// As [`Mutex::acquire_with`] and [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire_with(&self, wait: Wait) -> impl Future<Output = Result<ReentrantGuard>> {
        self.acquire_at(Location::caller(), wait)
    }

    async fn acquire_at(&self, site: CallSite, wait: Wait) -> Result<ReentrantGuard> {
        if let Some(entered) = self.enter() {
            return entered;
        }
        let started = tokio::time::Instant::now();
        let asking = match wait {
            Wait::Forever => Some(self.0.asking.lock().await),
            Wait::AtMost(limit) => timeout(limit, self.0.asking.lock()).await.ok(),
            Wait::NoWait => self.0.asking.try_lock().ok(),
        };
        if asking.is_none() {
            return Err(self.a_clone_waits(wait));
        }
        // The clone that asked before may have got the lock.
        if let Some(entered) = self.enter() {
            return entered;
        }
        let wait = match wait {
            Wait::AtMost(limit) => Wait::AtMost(limit.saturating_sub(started.elapsed())),
            other => other,
        };
        let guard = Arc::new(self.0.mutex.acquire_at(site, wait).await?);
        *self.0.hold.lock() = Arc::downgrade(&guard);
        Ok(ReentrantGuard(guard))
    }

    /// One more guard of the present hold. `None` if there is none.
    fn enter(&self) -> Option<Result<ReentrantGuard>> {
        let guard = self.0.hold.lock().upgrade()?;
        Some(match guard.loss() {
            None => Ok(ReentrantGuard(guard)),
            Some(reason) => Err(lost(reason, guard.name(), "acquire again")),
        })
    }

    fn a_clone_waits(&self, wait: Wait) -> Error {
        let (kind, why) = match wait {
            Wait::AtMost(limit) => {
                let why =
                    format!("the lock was not free within {limit:?}: try later, or wait longer");
                (ErrorKind::TimedOut, why)
            }
            _ => (ErrorKind::Busy, "a clone of this handle waits for it: try later".into()),
        };
        Error::new(kind, "acquire", why).about(self.name())
    }
}

impl ReentrantGuard {
    /// How many guards of this hold exist now, this one included.
    pub fn entries(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Gives up this entry. The last one releases the lock. `Ok` means that the lock was held until now.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) if the lock was lost before; the last entry's, as [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        let loss = self.0.loss().map(|reason| lost(reason, self.0.name(), "release"));
        match Arc::into_inner(self.0) {
            Some(guard) => guard.release().await,
            None => loss.map_or(Ok(()), Err),
        }
    }
}

/// The error of a hold that was lost while guards of it exist.
fn lost(reason: LossReason, name: &LockName, operation: &'static str) -> Error {
    let why = "this handle's hold of it was lost: end the work under its guards and drop them";
    Error::lost(reason, operation, why).about(name)
}

impl Deref for ReentrantGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard")
            .field("guard", &self.0)
            .field("entries", &self.entries())
            .finish()
    }
}

impl fmt::Debug for ReentrantMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantMutex").field("name", self.name()).finish_non_exhaustive()
    }
}
