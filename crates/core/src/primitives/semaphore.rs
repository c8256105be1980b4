//! The semaphore.

use std::panic::Location;
use std::time::Duration;

use super::Lock;
use crate::{Guard, LockName, Mode, Options, Result, Wait};

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

impl Semaphore {
    pub(crate) const fn new(lock: Lock, permits: u32) -> Self {
        Self { lock, permits }
    }

    /// The semaphore's name.
    pub const fn name(&self) -> &LockName {
        &self.lock.name
    }

    /// The number of permits that this handle was made with.
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
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<Guard>> {
        self.acquire_many(1)
    }

    /// Takes one permit if it is free and no other claim waits.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn try_acquire(&self) -> impl Future<Output = Result<Guard>> {
        self.try_acquire_many(1)
    }

    /// Waits for one permit, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`](crate::Mutex::acquire_within).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<Guard>> {
        self.acquire_many_with(1, Wait::AtMost(limit))
    }

    /// Waits for `permits` at once, as long as it takes. Later claims wait behind this one, so a large
    /// claim is not starved by small ones.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for no permits, or more than there are; otherwise as
    /// [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn acquire_many(&self, permits: u32) -> impl Future<Output = Result<Guard>> {
        self.acquire_many_with(permits, Wait::Forever)
    }

    /// Takes `permits` at once if they are free and no other claim waits.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for no permits, or more than there are; otherwise as
    /// [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u32) -> impl Future<Output = Result<Guard>> {
        self.acquire_many_with(permits, Wait::NoWait)
    }

    /// Waits for `permits` at once, as long as `wait` says.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for no permits, or more than there are; otherwise as
    /// [`Mutex::acquire_with`](crate::Mutex::acquire_with).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
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
