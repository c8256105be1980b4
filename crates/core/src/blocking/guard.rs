//! Guards for threads.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::block_on;
use crate::{
    Background, Error, Fence, LockName, LossReason, Mode, OwnerId, Result, Revocation, Token,
};

/// A lock that is held, until it is released, dropped or lost.
///
/// The client renews it in the background. It can still be lost: the process is stopped, the store is cut
/// off, an operator takes it away. Nothing can stop a thread from outside, so work under a lock asks
/// [`is_valid`](Guard::is_valid) before each step that matters, and sends the [`token`](Guard::token) along to
/// whatever it writes to, which is the only full protection.
///
/// Dropping a guard releases the lock in the background, also while the thread panics.
/// [`release`](Guard::release) waits for that and returns whether it worked.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct Guard(crate::Guard);

impl Guard {
    pub(super) const fn new(guard: crate::Guard) -> Self {
        Self(guard)
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// How the lock is held.
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// The fencing token, if the store gives one: send it along with every protected write.
    pub fn token(&self) -> Option<Token> {
        self.0.token()
    }

    /// A comparison for transactions of the same store, as [`crate::Guard::fence`].
    pub fn fence(&self) -> Option<Fence> {
        self.0.fence()
    }

    /// The id of this hold. A program that knows it can release the lock: keep it out of logs.
    pub fn owner(&self) -> OwnerId {
        self.0.owner()
    }

    /// How long the lock is good after each renewal.
    pub fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    /// How long the lock is still good if no renewal comes. Zero when it is lost.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Whether the lock is still held, by the clock.
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// Waits until half the TTL has passed without a renewal, or the lock is lost.
    pub fn danger(&self) {
        block_on(self.0.background(), self.0.danger());
    }

    /// Waits until the lock is lost, and says why.
    pub fn lost(&self) -> LossReason {
        block_on(self.0.background(), self.0.lost())
    }

    /// Waits until another process asks for the lock ([`Client::revoke`](super::Client::revoke)), as
    /// [`crate::Guard::revoked`].
    ///
    /// # Errors
    /// As [`crate::Guard::revoked`].
    pub fn revoked(&self) -> Result<Revocation> {
        block_on(self.0.background(), self.0.revoked())
    }

    /// Does `work` under the lock. `Ok` means that the lock was held until `work` had ended.
    ///
    /// Unlike [`crate::Guard::run`], it cannot stop `work` when the lock is lost: work that takes long asks
    /// [`is_valid`](Self::is_valid) from time to time.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if the lock was lost before, when `work` is not begun, or while `work`
    /// ran: then its result is dropped, for it may have overlapped with another holder's.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.0.interruption(false).map_or(Ok(()), Err)?;
        let output = work();
        self.0.interruption(true).map_or(Ok(output), Err)
    }

    /// A handle that tells other threads whether the lock is still held.
    pub fn validity(&self) -> Validity {
        Validity::new(self.0.validity(), self.0.background().clone())
    }

    /// Gives the lock back. `Ok` means that it was held until now.
    ///
    /// # Errors
    /// As [`crate::Guard::release`].
    pub fn release(self) -> Result<()> {
        let background = self.0.background().clone();
        block_on(&background, self.0.release())
    }

    pub(super) fn into_inner(self) -> crate::Guard {
        self.0
    }
}

/// Tells threads that do not have the [`Guard`] whether its lock is still held.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::MemoryStore;
/// # use tenure::blocking::Client;
/// # fn main() -> tenure::Result<()> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let guard = client.mutex("import")?.acquire()?;
/// let validity = guard.validity();
/// let rows = std::thread::spawn(move || (0..10).take_while(|_| validity.is_valid()).count());
/// assert_eq!(rows.join().unwrap(), 10);
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Validity {
    validity: crate::Validity,
    background: Background,
}

impl Validity {
    pub(super) const fn new(validity: crate::Validity, background: Background) -> Self {
        Self { validity, background }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.validity.name()
    }

    /// The fencing token, if the store gives one.
    pub fn token(&self) -> Option<Token> {
        self.validity.token()
    }

    /// Whether the lock is still held, by the clock.
    pub fn is_valid(&self) -> bool {
        self.validity.is_valid()
    }

    /// How long the lock is still good if no renewal comes. Zero when it is over.
    pub fn remaining(&self) -> Duration {
        self.validity.remaining()
    }

    /// Waits until the lock is no longer held, and says why, as [`crate::Validity::lost`].
    pub fn lost(&self) -> LossReason {
        block_on(&self.background, self.validity.lost())
    }

    /// A token that is cancelled when the lock is no longer held.
    pub fn cancellation_token(&self) -> CancellationToken {
        let _runtime = self.background.runtime().enter();
        self.validity.cancellation_token()
    }
}

impl fmt::Debug for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.validity.fmt(f)
    }
}

/// A [`Guard`] of a reader, from [`RwLock::read`](super::RwLock::read).
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct ReadGuard(Guard);

/// A [`Guard`] of a writer, from [`RwLock::write`](super::RwLock::write).
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct WriteGuard(Guard);

/// A [`Guard`] that has a fencing token, from [`Mutex::fenced`](super::Mutex::fenced).
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct FencedGuard {
    guard: Guard,
    token: Token,
}

impl FencedGuard {
    /// The fencing token: send it along with every protected write.
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Gives the lock back, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub fn release(self) -> Result<()> {
        self.guard.release()
    }
}

impl From<crate::FencedGuard> for FencedGuard {
    fn from(guard: crate::FencedGuard) -> Self {
        let token = guard.token();
        Self { guard: Guard(guard.into()), token }
    }
}

impl Deref for FencedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl From<FencedGuard> for Guard {
    fn from(guard: FencedGuard) -> Self {
        guard.guard
    }
}

/// What the guards of readers and writers have in common.
macro_rules! guard_in_a_mode {
    ($name:ident) => {
        impl $name {
            /// Gives the lock back, as [`Guard::release`].
            ///
            /// # Errors
            /// As [`Guard::release`].
            pub fn release(self) -> Result<()> {
                self.0.release()
            }
        }

        impl From<crate::$name> for $name {
            fn from(guard: crate::$name) -> Self {
                Self(Guard(guard.into()))
            }
        }

        impl Deref for $name {
            type Target = Guard;

            fn deref(&self) -> &Guard {
                &self.0
            }
        }

        impl From<$name> for Guard {
            fn from(guard: $name) -> Self {
                guard.0
            }
        }
    };
}

guard_in_a_mode!(ReadGuard);
guard_in_a_mode!(WriteGuard);

impl ReadGuard {
    /// Refused: a read hold cannot become a write hold. The guard is given back, as by
    /// [`crate::ReadGuard::upgrade`].
    ///
    /// # Errors
    /// Always, as [`crate::ReadGuard::upgrade`].
    pub fn upgrade(self) -> Result<WriteGuard, (Self, Error)> {
        match crate::ReadGuard::new(self.0.into_inner()).upgrade() {
            Ok(writer) => Ok(writer.into()),
            Err((reader, refusal)) => Err((reader.into(), refusal)),
        }
    }
}

impl WriteGuard {
    /// Turns the write hold into a read hold, as [`crate::WriteGuard::downgrade`].
    ///
    /// # Errors
    /// As [`crate::WriteGuard::downgrade`]. After every error the lock is given back in the background.
    pub fn downgrade(self) -> Result<ReadGuard> {
        let background = self.0.0.background().clone();
        let writer = crate::WriteGuard::new(self.0.into_inner());
        block_on(&background, writer.downgrade()).map(ReadGuard::from)
    }
}

/// The hold of a [`MultiLock`](super::MultiLock). Dropping it releases all locks in the background.
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard {
    guards: crate::MultiGuard,
    background: Background,
}

impl MultiGuard {
    pub(super) const fn new(guards: crate::MultiGuard, background: Background) -> Self {
        Self { guards, background }
    }

    /// The names and fencing tokens of the locks, in the order of their names.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockName, Option<Token>)> {
        self.guards.guards().iter().map(|guard| (guard.name(), guard.token()))
    }

    /// The guards of the locks, in the order of their names: for their owners and fences. What they await needs
    /// a Tokio runtime; the methods of this guard do not.
    pub fn guards(&self) -> &[crate::Guard] {
        self.guards.guards()
    }

    /// Whether all locks are still held, by the clock.
    pub fn is_valid(&self) -> bool {
        self.guards.is_valid()
    }

    /// How long all locks are still good if no renewal comes. Zero when one of them is lost.
    pub fn remaining(&self) -> Duration {
        self.guards.remaining()
    }

    /// Waits until one of the locks is lost, and says which and why.
    pub fn lost(&self) -> (LockName, LossReason) {
        block_on(&self.background, self.guards.lost())
    }

    /// Waits until another process asks for one of the locks, and says for which, as
    /// [`crate::MultiGuard::revoked`].
    ///
    /// # Errors
    /// As [`crate::MultiGuard::revoked`].
    pub fn revoked(&self) -> Result<(LockName, Revocation)> {
        block_on(&self.background, self.guards.revoked())
    }

    /// Does `work` under all locks, as [`Guard::run`] does under one.
    ///
    /// # Errors
    /// As [`Guard::run`], about the lock that was lost.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.guards.interruption(false).map_or(Ok(()), Err)?;
        let output = work();
        self.guards.interruption(true).map_or(Ok(output), Err)
    }

    /// Gives all locks back, as [`crate::MultiGuard::release`].
    ///
    /// # Errors
    /// As [`crate::MultiGuard::release`].
    pub fn release(self) -> Result<()> {
        block_on(&self.background, self.guards.release())
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guards.fmt(f)
    }
}
