//! Mutex, read-write lock and semaphore: three ways to ask for the same thing.

use std::time::Duration;

use crate::attempt::{Limit, acquire};
use crate::{Client, Guard, LockName, Mode, Options, Result};

/// A lock that one holds alone.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tenure_core::{Client, ErrorKind, MemoryStore, Options};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure_core::Error> {
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

/// A lock that many readers hold together, or one writer alone. First come, first served: a reader
/// that comes after a waiting writer waits behind it.
#[derive(Clone, Debug)]
pub struct RwLock(Lock);

/// A lock that several hold together, as long as there are permits left. Permits are leased: those
/// of a holder that vanishes come back when its TTL ends.
#[derive(Clone, Debug)]
pub struct Semaphore {
    lock: Lock,
    take: u32,
    of: u32,
}

impl Mutex {
    pub(crate) fn new(client: Client, name: LockName) -> Self {
        Self(Lock { client, name, options: Options::new() })
    }

    /// The same lock, held by these options.
    #[must_use]
    pub fn with(mut self, options: Options) -> Self {
        self.0.options = options;
        self
    }

    /// Waits for the lock, however long it takes.
    ///
    /// Once the claim is in line, it waits through an outage of the store of any length, with a
    /// warning in the log after five seconds and then every minute.
    ///
    /// # Errors
    /// A fault of the store that lasts for five call timeouts
    /// ([`Client::with_call_timeout`]) before the claim is in line; a fault that no retry heals, such
    /// as [`Denied`](crate::ErrorKind::Denied), at any time; and bad options. The claim is given back
    /// in every case.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the claim, also one that was granted just then.
    pub async fn acquire(&self) -> Result<Guard> {
        self.0.ask(Mode::Exclusive, Limit::Forever).await
    }

    /// Takes the lock if it is free. A call to the store that fails is not retried, so an outage costs
    /// one call timeout.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) if it is not, every fault of the store, and bad options.
    ///
    /// # Cancel safety
    /// As [`acquire`](Mutex::acquire).
    pub async fn try_acquire(&self) -> Result<Guard> {
        self.0.ask(Mode::Exclusive, Limit::Try).await
    }

    /// Waits for the lock, at most for `limit`.
    ///
    /// # Errors
    /// [`TimedOut`](crate::ErrorKind::TimedOut) if it was not free by then, or the store's error if
    /// the store was failing at that time; otherwise as [`acquire`](Mutex::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Mutex::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.0.ask(Mode::Exclusive, Limit::Within(limit)).await
    }
}

impl RwLock {
    pub(crate) fn new(client: Client, name: LockName) -> Self {
        Self(Lock { client, name, options: Options::new() })
    }

    /// The same lock, held by these options.
    #[must_use]
    pub fn with(mut self, options: Options) -> Self {
        self.0.options = options;
        self
    }

    /// Waits to hold the lock together with other readers. Errors and cancel safety are those of
    /// [`Mutex::acquire`], here and below.
    ///
    /// # Errors
    /// As [`Mutex::acquire`].
    pub async fn read(&self) -> Result<Guard> {
        self.0.ask(Mode::Shared, Limit::Forever).await
    }

    /// Reads if no writer holds or waits.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    pub async fn try_read(&self) -> Result<Guard> {
        self.0.ask(Mode::Shared, Limit::Try).await
    }

    /// Waits to read, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`].
    pub async fn read_within(&self, limit: Duration) -> Result<Guard> {
        self.0.ask(Mode::Shared, Limit::Within(limit)).await
    }

    /// Waits to hold the lock alone.
    ///
    /// # Errors
    /// As [`Mutex::acquire`].
    pub async fn write(&self) -> Result<Guard> {
        self.0.ask(Mode::Exclusive, Limit::Forever).await
    }

    /// Writes if nobody holds or waits.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    pub async fn try_write(&self) -> Result<Guard> {
        self.0.ask(Mode::Exclusive, Limit::Try).await
    }

    /// Waits to write, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`].
    pub async fn write_within(&self, limit: Duration) -> Result<Guard> {
        self.0.ask(Mode::Exclusive, Limit::Within(limit)).await
    }
}

impl Semaphore {
    pub(crate) fn new(client: Client, name: LockName, of: u32) -> Self {
        Self { lock: Lock { client, name, options: Options::new() }, take: 1, of }
    }

    /// The same semaphore, held by these options.
    #[must_use]
    pub fn with(mut self, options: Options) -> Self {
        self.lock.options = options;
        self
    }

    /// The same semaphore, taking `permits` at once instead of one.
    #[must_use]
    pub fn taking(mut self, permits: u32) -> Self {
        self.take = permits;
        self
    }

    /// Waits for the permits. Errors and cancel safety are those of [`Mutex::acquire`], here and
    /// below; taking none or more than there are is [`Invalid`](crate::ErrorKind::Invalid).
    ///
    /// # Errors
    /// As [`Mutex::acquire`].
    pub async fn acquire(&self) -> Result<Guard> {
        self.lock.ask(self.mode(), Limit::Forever).await
    }

    /// Takes the permits if they are free and nobody waits.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    pub async fn try_acquire(&self) -> Result<Guard> {
        self.lock.ask(self.mode(), Limit::Try).await
    }

    /// Waits for the permits, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.lock.ask(self.mode(), Limit::Within(limit)).await
    }

    const fn mode(&self) -> Mode {
        Mode::Permits { take: self.take, of: self.of }
    }
}

/// What all three are: a name on a store, and how to hold it.
#[derive(Clone, Debug)]
struct Lock {
    client: Client,
    name: LockName,
    options: Options,
}

impl Lock {
    async fn ask(&self, mode: Mode, limit: Limit) -> Result<Guard> {
        acquire(&self.client.inner, &self.name, mode, &self.options, limit).await
    }
}
