//! Mutex, read-write lock, semaphore and multi-lock for threads.

use std::time::Duration;

use super::{FencedGuard, Guard, MultiGuard, ReadGuard, WriteGuard, block_on};
use crate::primitives::release_after;
use crate::{Background, LockName, Options, Result, Wait};

/// A lock with at most one holder, as [`crate::Mutex`].
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tenure::{ErrorKind, MemoryStore};
/// # use tenure::blocking::Client;
/// # fn main() -> tenure::Result<()> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let mutex = client.mutex("payouts")?;
/// let guard = mutex.acquire()?; // or try_acquire, acquire_within
/// let late = mutex.acquire_within(Duration::from_millis(20));
/// assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
/// let sum = guard.run(|| 2 + 2)?; // an error if the lock was lost meanwhile
/// # assert_eq!(sum, 4);
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    lock: crate::Mutex,
    background: Background,
}

impl Mutex {
    pub(super) const fn new(lock: crate::Mutex, background: Background) -> Self {
        Self { lock, background }
    }

    /// The lock's name.
    pub const fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// The same lock, held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { lock: self.lock.with(options), ..self }
    }

    /// The same lock, only for a store that gives fencing tokens.
    ///
    /// # Errors
    /// As [`crate::Mutex::fenced`].
    pub fn fenced(self) -> Result<FencedMutex> {
        Ok(FencedMutex { lock: self.lock.fenced()?, background: self.background })
    }

    /// Waits for the lock, as long as it takes.
    ///
    /// # Errors
    /// As [`crate::Mutex::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> Result<Guard> {
        self.acquire_with(Wait::Forever)
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// As [`crate::Mutex::try_acquire`].
    #[track_caller]
    pub fn try_acquire(&self) -> Result<Guard> {
        self.acquire_with(Wait::NoWait)
    }

    /// Waits for the lock, at most for `limit`.
    ///
    /// # Errors
    /// As [`crate::Mutex::acquire_within`].
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.acquire_with(Wait::AtMost(limit))
    }

    /// Waits for the lock as long as `wait` says.
    ///
    /// # Errors
    /// As [`crate::Mutex::acquire_with`].
    #[track_caller]
    pub fn acquire_with(&self, wait: Wait) -> Result<Guard> {
        block_on(&self.background, self.lock.acquire_with(wait)).map(Guard::new)
    }

    /// Waits for the lock, does `work` under it, and releases it. If `work` panics, the lock is released in
    /// the background.
    ///
    /// # Errors
    /// As [`crate::Mutex::run`]. Unlike there, work that has begun runs to its end: see [`Guard::run`].
    #[track_caller]
    pub fn run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.acquire()?;
        let output = guard.run(|| work(&guard))?;
        block_on(&self.background, release_after(guard.into_inner(), output))
    }
}

/// A [`Mutex`] on a store that gives fencing tokens, from [`Mutex::fenced`].
#[derive(Clone, Debug)]
pub struct FencedMutex {
    lock: crate::FencedMutex,
    background: Background,
}

impl FencedMutex {
    /// The lock's name.
    pub const fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// The same lock, held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { lock: self.lock.with(options), ..self }
    }

    /// Waits for the lock, as long as it takes.
    ///
    /// # Errors
    /// As [`crate::FencedMutex::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> Result<FencedGuard> {
        self.acquire_with(Wait::Forever)
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// As [`crate::FencedMutex::try_acquire`].
    #[track_caller]
    pub fn try_acquire(&self) -> Result<FencedGuard> {
        self.acquire_with(Wait::NoWait)
    }

    /// Waits for the lock, at most for `limit`.
    ///
    /// # Errors
    /// As [`crate::FencedMutex::acquire_within`].
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> Result<FencedGuard> {
        self.acquire_with(Wait::AtMost(limit))
    }

    /// Waits for the lock as long as `wait` says.
    ///
    /// # Errors
    /// As [`crate::FencedMutex::acquire_with`].
    #[track_caller]
    pub fn acquire_with(&self, wait: Wait) -> Result<FencedGuard> {
        block_on(&self.background, self.lock.acquire_with(wait)).map(FencedGuard::from)
    }

    /// Waits for the lock, does `work` under it, and releases it, as [`Mutex::run`].
    ///
    /// # Errors
    /// As [`Mutex::run`].
    #[track_caller]
    pub fn run<T>(&self, work: impl FnOnce(&FencedGuard) -> T) -> Result<T> {
        let guard = self.acquire()?;
        let output = guard.run(|| work(&guard))?;
        block_on(&self.background, release_after(Guard::from(guard).into_inner(), output))
    }
}

/// A lock with many readers, or one writer, as [`crate::RwLock`].
#[derive(Clone, Debug)]
pub struct RwLock {
    lock: crate::RwLock,
    background: Background,
}

impl RwLock {
    pub(super) const fn new(lock: crate::RwLock, background: Background) -> Self {
        Self { lock, background }
    }

    /// The lock's name.
    pub const fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// The same lock, held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { lock: self.lock.with(options), ..self }
    }

    /// Waits to hold the lock together with other readers, as long as it takes.
    ///
    /// # Errors
    /// As [`crate::RwLock::read`].
    #[track_caller]
    pub fn read(&self) -> Result<ReadGuard> {
        self.read_with(Wait::Forever)
    }

    /// Takes the lock for reading if no writer holds it or waits for it.
    ///
    /// # Errors
    /// As [`crate::RwLock::try_read`].
    #[track_caller]
    pub fn try_read(&self) -> Result<ReadGuard> {
        self.read_with(Wait::NoWait)
    }

    /// Waits to hold the lock together with other readers, at most for `limit`.
    ///
    /// # Errors
    /// As [`crate::RwLock::read_within`].
    #[track_caller]
    pub fn read_within(&self, limit: Duration) -> Result<ReadGuard> {
        self.read_with(Wait::AtMost(limit))
    }

    /// Waits to hold the lock together with other readers, as long as `wait` says.
    ///
    /// # Errors
    /// As [`crate::RwLock::read_with`].
    #[track_caller]
    pub fn read_with(&self, wait: Wait) -> Result<ReadGuard> {
        block_on(&self.background, self.lock.read_with(wait)).map(ReadGuard::from)
    }

    /// Waits to hold the lock alone, as long as it takes.
    ///
    /// # Errors
    /// As [`crate::RwLock::write`].
    #[track_caller]
    pub fn write(&self) -> Result<WriteGuard> {
        self.write_with(Wait::Forever)
    }

    /// Takes the lock for writing if no other claim holds it or waits for it.
    ///
    /// # Errors
    /// As [`crate::RwLock::try_write`].
    #[track_caller]
    pub fn try_write(&self) -> Result<WriteGuard> {
        self.write_with(Wait::NoWait)
    }

    /// Waits to hold the lock alone, at most for `limit`.
    ///
    /// # Errors
    /// As [`crate::RwLock::write_within`].
    #[track_caller]
    pub fn write_within(&self, limit: Duration) -> Result<WriteGuard> {
        self.write_with(Wait::AtMost(limit))
    }

    /// Waits to hold the lock alone, as long as `wait` says.
    ///
    /// # Errors
    /// As [`crate::RwLock::write_with`].
    #[track_caller]
    pub fn write_with(&self, wait: Wait) -> Result<WriteGuard> {
        block_on(&self.background, self.lock.write_with(wait)).map(WriteGuard::from)
    }
}

/// A lock with several holders, as many as there are permits, as [`crate::Semaphore`].
#[derive(Clone, Debug)]
pub struct Semaphore {
    lock: crate::Semaphore,
    background: Background,
}

impl Semaphore {
    pub(super) const fn new(lock: crate::Semaphore, background: Background) -> Self {
        Self { lock, background }
    }

    /// The semaphore's name.
    pub const fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// The number of permits that this handle was made with.
    pub const fn permits(&self) -> u32 {
        self.lock.permits()
    }

    /// The same semaphore, held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { lock: self.lock.with(options), ..self }
    }

    /// Waits for one permit, as long as it takes.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> Result<Guard> {
        self.acquire_many_with(1, Wait::Forever)
    }

    /// Takes one permit if it is free and no other claim waits.
    ///
    /// # Errors
    /// As [`crate::Semaphore::try_acquire`].
    #[track_caller]
    pub fn try_acquire(&self) -> Result<Guard> {
        self.acquire_many_with(1, Wait::NoWait)
    }

    /// Waits for one permit, at most for `limit`.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire_within`].
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.acquire_many_with(1, Wait::AtMost(limit))
    }

    /// Waits for `permits` at once, as long as it takes.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire_many`].
    #[track_caller]
    pub fn acquire_many(&self, permits: u32) -> Result<Guard> {
        self.acquire_many_with(permits, Wait::Forever)
    }

    /// Takes `permits` at once if they are free and no other claim waits.
    ///
    /// # Errors
    /// As [`crate::Semaphore::try_acquire_many`].
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u32) -> Result<Guard> {
        self.acquire_many_with(permits, Wait::NoWait)
    }

    /// Waits for `permits` at once, as long as `wait` says.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire_many_with`].
    #[track_caller]
    pub fn acquire_many_with(&self, permits: u32, wait: Wait) -> Result<Guard> {
        let acquired = self.lock.acquire_many_with(permits, wait);
        block_on(&self.background, acquired).map(Guard::new)
    }
}

/// Several locks that are held together or not at all, as [`crate::MultiLock`].
#[derive(Clone, Debug)]
pub struct MultiLock {
    locks: crate::MultiLock,
    background: Background,
}

impl MultiLock {
    pub(super) const fn new(locks: crate::MultiLock, background: Background) -> Self {
        Self { locks, background }
    }

    /// Joins locks that may be on different stores, as [`crate::MultiLock::of`].
    ///
    /// # Errors
    /// As [`crate::MultiLock::of`].
    pub fn of(locks: impl IntoIterator<Item = Mutex>) -> Result<Self> {
        let locks: Vec<Mutex> = locks.into_iter().collect();
        let background = locks.first().map(|lock| lock.background.clone());
        let joined = crate::MultiLock::of(locks.into_iter().map(|lock| lock.lock))?;
        match background {
            Some(background) => Ok(Self::new(joined, background)),
            None => Err(crate::MultiLock::no_lock()),
        }
    }

    /// The locks' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.locks.names()
    }

    /// The same locks, all held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { locks: self.locks.with(options), ..self }
    }

    /// Waits until all locks are held, as long as it takes.
    ///
    /// # Errors
    /// As [`crate::MultiLock::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> Result<MultiGuard> {
        self.acquire_with(Wait::Forever)
    }

    /// Takes all locks if all are free.
    ///
    /// # Errors
    /// As [`crate::MultiLock::try_acquire`].
    #[track_caller]
    pub fn try_acquire(&self) -> Result<MultiGuard> {
        self.acquire_with(Wait::NoWait)
    }

    /// Waits until all locks are held, at most for `limit` in all.
    ///
    /// # Errors
    /// As [`crate::MultiLock::acquire_within`].
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> Result<MultiGuard> {
        self.acquire_with(Wait::AtMost(limit))
    }

    /// Waits until all locks are held, as long as `wait` says.
    ///
    /// # Errors
    /// As [`crate::MultiLock::acquire_with`].
    #[track_caller]
    pub fn acquire_with(&self, wait: Wait) -> Result<MultiGuard> {
        let guards = block_on(&self.background, self.locks.acquire_with(wait))?;
        Ok(MultiGuard::new(guards, self.background.clone()))
    }
}
