//! The read-write lock.

use std::panic::Location;
use std::time::Duration;

use super::Lock;
use crate::guard::{ReadGuard, WriteGuard};
use crate::{LockName, Mode, Options, Result, Wait};

/// A lock with many readers, or one writer. Use it where most of the work only reads.
///
/// Claims are served in the order in which they came: a reader that comes after a waiting writer waits
/// behind it. A writer can become a reader ([`WriteGuard::downgrade`]); a reader cannot become a writer.
/// Cloning is cheap.
#[derive(Clone, Debug)]
pub struct RwLock(Lock);

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
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn read(&self) -> impl Future<Output = Result<ReadGuard>> {
        self.read_with(Wait::Forever)
    }

    /// Takes the lock for reading if no writer holds it or waits for it.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn try_read(&self) -> impl Future<Output = Result<ReadGuard>> {
        self.read_with(Wait::NoWait)
    }

    /// Waits to hold the lock together with other readers, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`](crate::Mutex::acquire_within).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn read_within(&self, limit: Duration) -> impl Future<Output = Result<ReadGuard>> {
        self.read_with(Wait::AtMost(limit))
    }

    /// Waits to hold the lock together with other readers, as long as `wait` says.
    ///
    /// # Errors
    /// As [`Mutex::acquire_with`](crate::Mutex::acquire_with).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn read_with(&self, wait: Wait) -> impl Future<Output = Result<ReadGuard>> {
        let acquire = self.0.acquire(Mode::Shared, wait, Location::caller());
        async move { acquire.await.map(ReadGuard::new) }
    }

    /// Waits to hold the lock alone, as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn write(&self) -> impl Future<Output = Result<WriteGuard>> {
        self.write_with(Wait::Forever)
    }

    /// Takes the lock for writing if no other claim holds it or waits for it.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn try_write(&self) -> impl Future<Output = Result<WriteGuard>> {
        self.write_with(Wait::NoWait)
    }

    /// Waits to hold the lock alone, at most for `limit`.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`](crate::Mutex::acquire_within).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn write_within(&self, limit: Duration) -> impl Future<Output = Result<WriteGuard>> {
        self.write_with(Wait::AtMost(limit))
    }

    /// Waits to hold the lock alone, as long as `wait` says.
    ///
    /// # Errors
    /// As [`Mutex::acquire_with`](crate::Mutex::acquire_with).
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`](crate::Mutex::acquire).
    #[track_caller]
    pub fn write_with(&self, wait: Wait) -> impl Future<Output = Result<WriteGuard>> {
        let acquire = self.0.acquire(Mode::Exclusive, wait, Location::caller());
        async move { acquire.await.map(WriteGuard::new) }
    }
}
