//! Mutex, read-write lock and semaphore: three modes of one kind of claim.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::attempt::acquire;
use crate::guard::{FencedGuard, ReadGuard, WriteGuard};
use crate::task::Place;
use crate::{Client, Error, ErrorKind, Guard, LockName, LossReason, Mode, Options, Result, Wait};

/// A lock with at most one holder. Use it to keep a piece of work from running twice at a time, on any
/// number of machines.
///
/// The same name can be locked with a `Mutex`, a [`RwLock`] or a [`Semaphore`]: all of them wait in the
/// same queue. Cloning is cheap.
///
/// It excludes its holder, too: a task that acquires it twice waits for itself until the lease is lost, and
/// is warned of it in the log. Use a [`ReentrantMutex`](crate::ReentrantMutex) for that.
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

/// A [`Mutex`] on a store that gives fencing tokens, from [`Mutex::fenced`]. Use it where every protected
/// write carries the token: its guards have a [`Token`](crate::Token), not an `Option<Token>`.
#[derive(Clone, Debug)]
pub struct FencedMutex(Mutex);

/// A lock with many readers, or one writer. Use it where most of the work only reads.
///
/// Claims are served in the order in which they came: a reader that comes after a waiting writer waits
/// behind it. A writer can become a reader ([`WriteGuard::downgrade`]); a reader cannot become a writer.
/// Cloning is cheap.
#[derive(Clone, Debug)]
pub struct RwLock(Lock);

/// A lock with several holders, as many as there are permits. Use it to limit how many pieces of work run
/// at a time.
///
/// Permits are leased: if a holder dies, they come back when its TTL ends. Cloning is cheap.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, ErrorKind, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let encoders = client.semaphore("encoders", 3)?;
/// let two = encoders.acquire_many(2).await?;
/// let one = encoders.acquire().await?;
/// assert_eq!(encoders.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    lock: Lock,
    permits: u32,
}

impl Mutex {
    pub(crate) const fn new(lock: Lock) -> Self {
        Self(lock)
    }

    /// The lock's name.
    pub const fn name(&self) -> &LockName {
        &self.0.name
    }

    /// Whether both locks are on one store, as far as this process can tell.
    pub(crate) fn shares_store_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.0.client.store(), other.0.client.store())
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
    /// ([`Client::with_call_timeout`]) before the claim is queued; a fault that no retry heals, such
    /// as [`Denied`](ErrorKind::Denied), at any time; and options that make no sense. The claim is given
    /// back in every case.
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
        place: Place,
        wait: Wait,
    ) -> impl Future<Output = Result<Guard>> {
        self.0.acquire(Mode::Exclusive, wait, place)
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

impl RwLock {
    pub(crate) const fn new(lock: Lock) -> Self {
        Self(lock)
    }

    /// The lock's name.
    pub const fn name(&self) -> &LockName {
        &self.0.name
    }

    /// The same lock, held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self(self.0.with(options))
    }

    /// Waits to hold the lock together with other readers, as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn read(&self) -> impl Future<Output = Result<ReadGuard>> {
        self.read_with(Wait::Forever)
    }

    /// Takes the lock for reading if no writer holds it or waits for it.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn try_read(&self) -> impl Future<Output = Result<ReadGuard>> {
        self.read_with(Wait::NoWait)
    }

    /// Waits to hold the lock together with other readers, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn read_within(&self, limit: Duration) -> impl Future<Output = Result<ReadGuard>> {
        self.read_with(Wait::AtMost(limit))
    }

    /// Waits to hold the lock together with other readers, as long as `wait` says.
    ///
    /// # Errors
    /// As [`Mutex::acquire_with`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn read_with(&self, wait: Wait) -> impl Future<Output = Result<ReadGuard>> {
        let acquire = self.0.acquire(Mode::Shared, wait, Location::caller());
        async move { acquire.await.map(ReadGuard::new) }
    }

    /// Waits to hold the lock alone, as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn write(&self) -> impl Future<Output = Result<WriteGuard>> {
        self.write_with(Wait::Forever)
    }

    /// Takes the lock for writing if no other claim holds it or waits for it.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn try_write(&self) -> impl Future<Output = Result<WriteGuard>> {
        self.write_with(Wait::NoWait)
    }

    /// Waits to hold the lock alone, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn write_within(&self, limit: Duration) -> impl Future<Output = Result<WriteGuard>> {
        self.write_with(Wait::AtMost(limit))
    }

    /// Waits to hold the lock alone, as long as `wait` says.
    ///
    /// # Errors
    /// As [`Mutex::acquire_with`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn write_with(&self, wait: Wait) -> impl Future<Output = Result<WriteGuard>> {
        let acquire = self.0.acquire(Mode::Exclusive, wait, Location::caller());
        async move { acquire.await.map(WriteGuard::new) }
    }
}

impl Semaphore {
    pub(crate) const fn new(lock: Lock, permits: u32) -> Self {
        Self { lock, permits }
    }

    /// The semaphore's name.
    pub const fn name(&self) -> &LockName {
        &self.lock.name
    }

    /// The number of permits, as this handle was told.
    pub const fn permits(&self) -> u32 {
        self.permits
    }

    /// The same semaphore, held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { lock: self.lock.with(options), ..self }
    }

    /// Waits for one permit, as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<Guard>> {
        self.acquire_many(1)
    }

    /// Takes one permit if it is free and no other claim waits.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn try_acquire(&self) -> impl Future<Output = Result<Guard>> {
        self.try_acquire_many(1)
    }

    /// Waits for one permit, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<Guard>> {
        self.acquire_many_with(1, Wait::AtMost(limit))
    }

    /// Waits for `permits` at once, as long as it takes. Later claims wait behind this one, so a large
    /// claim is not starved by small ones.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for no permits, or more than there are; otherwise as
    /// [`Mutex::acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire_many(&self, permits: u32) -> impl Future<Output = Result<Guard>> {
        self.acquire_many_with(permits, Wait::Forever)
    }

    /// Takes `permits` at once if they are free and no other claim waits.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for no permits, or more than there are; otherwise as
    /// [`Mutex::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u32) -> impl Future<Output = Result<Guard>> {
        self.acquire_many_with(permits, Wait::NoWait)
    }

    /// Waits for `permits` at once, as long as `wait` says.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for no permits, or more than there are; otherwise as
    /// [`Mutex::acquire_with`].
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    #[track_caller]
    pub fn acquire_many_with(
        &self,
        permits: u32,
        wait: Wait,
    ) -> impl Future<Output = Result<Guard>> {
        let mode = Mode::Permits { take: permits, of: self.permits };
        self.lock.acquire(mode, wait, Location::caller())
    }
}

/// What the three have in common: a name on a store, and how to hold it.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    client: Client,
    name: LockName,
    options: Options,
}

impl Lock {
    pub(crate) fn new(client: Client, name: LockName) -> Self {
        Self { client, name, options: Options::new() }
    }

    fn with(self, options: Options) -> Self {
        Self { options, ..self }
    }

    async fn acquire(&self, mode: Mode, wait: Wait, place: Place) -> Result<Guard> {
        acquire(&self.client.inner, &self.name, mode, &self.options, wait, place).await
    }
}
