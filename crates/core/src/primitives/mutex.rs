//! The mutex, and the one whose guards have a token.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::Lock;
use crate::guard::FencedGuard;
use crate::identity::StoreIdentity;
use crate::task::CallSite;
use crate::{Error, ErrorKind, Guard, LockName, LossReason, Mode, Options, Result, Wait};

/// A lock with at most one holder. Use it to keep a piece of work from running twice at a time, on any
/// number of machines.
///
/// The same name can be locked with a `Mutex`, a [`RwLock`](crate::RwLock) or a
/// [`Semaphore`](crate::Semaphore): all of them wait in the same queue. Cloning is cheap.
///
/// A task that holds the lock and acquires it again waits for itself. Where this is certain, because the work
/// that acquires the lock runs under it ([`run`](Self::run), [`Guard::run`]), the second call fails as
/// [`Invalid`](ErrorKind::Invalid) and names both places. Otherwise the guard may be in another task that
/// releases it: the log warns after a second, and the call waits on. Use a [`ReentrantMutex`](crate::ReentrantMutex) for that.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tenure::{Client, ErrorKind, MemoryStore, Options};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let mutex = client.mutex("payouts")?.with(Options::new().ttl(Duration::from_secs(10)));
/// let guard = mutex.acquire().await?;
/// assert_eq!(mutex.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
///
/// let sum = guard.run(async { 2 + 2 }).await?;
/// # assert_eq!(sum, 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex(Lock);

impl Mutex {
    pub(crate) const fn new(lock: Lock) -> Self {
        Self(lock)
    }

    /// The lock's name.
    pub const fn name(&self) -> &LockName {
        &self.0.name
    }

    /// Which store the lock is on.
    pub(crate) fn store_identity(&self) -> &StoreIdentity {
        &self.0.client.inner.identity
    }

    /// The same lock, with options that may not keep it taken after a release.
    pub(crate) fn without_keeping(self, what: &'static str) -> Self {
        Self(self.0.without_keeping(what))
    }

    /// Notes that the task begins to wait for the lock, if orders are checked.
    pub(crate) fn note_order(&self, site: CallSite) {
        let inner = &self.0.client.inner;
        if let Some(order) = inner.order {
            order.waits(&inner.identity, &self.0.name, site);
        }
    }

    /// Takes all of these locks in one call, if they are of one client and its store can do that. `None`: nothing
    /// was taken, and each is to be acquired by itself. The call may take no longer than `limit`.
    pub(crate) async fn acquire_together(
        locks: &[Self],
        limit: Option<Duration>,
        site: CallSite,
    ) -> Option<Result<Vec<Guard>>> {
        let [first, _, ..] = locks else { return None };
        let inner = &first.0.client.inner;
        if !locks.iter().all(|lock| Arc::ptr_eq(&lock.0.client.inner, inner)) {
            return None;
        }
        let locks: Vec<_> = locks.iter().map(|lock| (&lock.0.name, &lock.0.options)).collect();
        crate::attempt::acquire_together(inner, &locks, limit, site).await
    }

    /// The same lock, held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self(self.0.with(options))
    }

    /// The same lock, only for a store that gives fencing tokens.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure::{Client, MemoryStore, Token};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let client = Client::new(Arc::new(MemoryStore::new()))?;
    /// let payouts = client.mutex("payouts")?.fenced()?;
    /// let guard = payouts.acquire().await?;
    /// let token: Token = guard.token(); // always there: send it along with every write
    /// # guard.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the store gives no tokens.
    pub fn fenced(self) -> Result<FencedMutex> {
        if self.0.client.store().capabilities().fencing.gives_tokens() {
            return Ok(FencedMutex(self));
        }
        let why = "the store gives no fencing tokens: use another store, or the setting of this one that \
                   turns them on";
        Err(Error::new(ErrorKind::Unsupported, "fence", why).about(self.name()))
    }

    /// Waits for the lock, as long as it takes.
    ///
    /// Once the claim is queued, it waits through an outage of the store of any length, with a
    /// warning in the log after five seconds and then every minute.
    ///
    /// # Errors
    /// A fault of the store that lasts for five call timeouts
    /// ([`Client::with_call_timeout`](crate::Client::with_call_timeout)) before the claim is queued; a fault
    /// that no retry heals, such as [`Denied`](ErrorKind::Denied), at any time; and options that make no sense.
    /// The claim is given back in every case.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the claim, also one that was granted just then. The claim loses its
    /// position in the queue.
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<Guard>> {
        self.acquire_with(Wait::Forever)
    }

    /// Takes the lock if it is free. A call to the store that fails is not retried, so an outage costs
    /// one call timeout.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) if it is not free, every fault of the store, and options that make no
    /// sense.
    ///
    /// # Cancel safety
    /// As [`acquire`](Mutex::acquire).
    #[track_caller]
    pub fn try_acquire(&self) -> impl Future<Output = Result<Guard>> {
        self.acquire_with(Wait::NoWait)
    }

    /// Waits for the lock, at most for `limit`.
    ///
    /// # Errors
    /// [`TimedOut`](ErrorKind::TimedOut) if it was not free by then, or the store's error if
    /// the store was failing at that time; otherwise as [`acquire`](Mutex::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Mutex::acquire).
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<Guard>> {
        self.acquire_with(Wait::AtMost(limit))
    }

    /// Waits for the lock as long as `wait` says: for a program that is told at run time whether to wait.
    ///
    /// # Errors
    /// As [`acquire`](Mutex::acquire), [`try_acquire`](Mutex::try_acquire) and
    /// [`acquire_within`](Mutex::acquire_within), as `wait` says.
    ///
    /// # Cancel safety
    /// As [`acquire`](Mutex::acquire).
    #[track_caller]
    pub fn acquire_with(&self, wait: Wait) -> impl Future<Output = Result<Guard>> {
        self.acquire_at(Location::caller(), wait)
    }

    /// As [`acquire_with`](Self::acquire_with), called at this place of the program.
    pub(crate) fn acquire_at(
        &self,
        site: CallSite,
        wait: Wait,
    ) -> impl Future<Output = Result<Guard>> {
        self.0.acquire(Mode::Exclusive, wait, site)
    }

    /// Waits for the lock, does `work` under it, and releases it. Use it for work that needs the lock from
    /// its beginning to its end.
    ///
    /// The work is dropped as soon as the lock is lost ([`Guard::run`]). `Ok` means that it ran to its end
    /// and that the lock was held until then.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure::{Client, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let client = Client::new(Arc::new(MemoryStore::new()))?;
    /// let paid = client
    ///     .mutex("payouts")?
    ///     .run(async |guard| {
    ///         // … the work, with guard.token() sent along with every write …
    ///         # assert!(guard.token().is_some());
    ///         3
    ///     })
    ///     .await?;
    /// assert_eq!(paid, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`acquire`](Mutex::acquire): then the work was not begun. [`Lost`](ErrorKind::Lost) if the
    /// lock was lost before the work ended, or if the release shows that it had been taken away: then the
    /// result is dropped, because the work may have overlapped with another holder's.
    ///
    /// Any other failure of the release, such as a store that cannot be reached, is no error, because the
    /// lock was held while the work ran. It is logged, and the release goes on in the background until the
    /// store confirms it or the TTL has passed.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    #[track_caller]
    pub fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> impl Future<Output = Result<T>> {
        let acquire = self.acquire();
        async move {
            let guard = acquire.await?;
            let output = guard.run(work(&guard)).await?;
            release_after(guard, output).await
        }
    }
}

/// A [`Mutex`] on a store that gives fencing tokens, from [`Mutex::fenced`]. Use it where every protected
/// write carries the token: its guards have a [`Token`](crate::Token), not an `Option<Token>`.
#[derive(Clone, Debug)]
pub struct FencedMutex(Mutex);

impl FencedMutex {
    /// The lock's name.
    pub const fn name(&self) -> &LockName {
        self.0.name()
    }

    /// The same lock, held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self(self.0.with(options))
    }

    /// Waits for the lock, as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<FencedGuard>> {
        self.acquire_with(Wait::Forever)
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn try_acquire(&self) -> impl Future<Output = Result<FencedGuard>> {
        self.acquire_with(Wait::NoWait)
    }

    /// Waits for the lock, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<FencedGuard>> {
        self.acquire_with(Wait::AtMost(limit))
    }

    /// Waits for the lock as long as `wait` says.
    ///
    /// # Errors
    /// As [`Mutex::acquire_with`]; [`Internal`](ErrorKind::Internal) if the store grants the lock without
    /// the token that it promises.
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire_with(&self, wait: Wait) -> impl Future<Output = Result<FencedGuard>> {
        let acquire = self.0.acquire_with(wait);
        async move {
            let guard = acquire.await?;
            match guard.token() {
                Some(token) => Ok(FencedGuard::new(guard, token)),
                None => {
                    let why =
                        "the store granted the lock without the token that it promises: report it";
                    Err(Error::new(ErrorKind::Internal, "acquire", why).about(self.name()))
                }
            }
        }
    }

    /// Waits for the lock, does `work` under it, and releases it.
    ///
    /// # Errors
    /// As [`Mutex::run`].
    ///
    /// # Cancel safety
    /// As [`Mutex::run`].
    #[track_caller]
    pub fn run<T>(
        &self,
        work: impl AsyncFnOnce(&FencedGuard) -> T,
    ) -> impl Future<Output = Result<T>> {
        let acquire = self.acquire();
        async move {
            let guard = acquire.await?;
            let output = guard.run(work(&guard)).await?;
            release_after(guard.into(), output).await
        }
    }
}

/// Releases the guard of work that ended under the lock. Only a lock that had been taken away before is an
/// error: every other failure comes after the work.
pub(crate) async fn release_after<T>(guard: Guard, output: T) -> Result<T> {
    let name = guard.name().clone();
    match guard.release().await {
        Err(error) if error.loss_reason() != Some(LossReason::NotHeld) => {
            tracing::warn!(lock = %name, %error, "the work is done, but its release was not confirmed");
            Ok(output)
        }
        released => released.map(|()| output),
    }
}
