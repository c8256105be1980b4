//! Guards that tell by their type how a lock is held.

use std::ops::Deref;

use super::Guard;
use crate::{Error, ErrorKind, Result, Token};

/// A [`Guard`] of a reader, from [`RwLock::read`](crate::RwLock::read). Other readers may hold the lock at
/// the same time; no writer does.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct ReadGuard(Guard);

impl ReadGuard {
    pub(crate) const fn new(guard: Guard) -> Self {
        Self(guard)
    }

    /// Refused: a read hold cannot become a write hold. The guard is given back.
    ///
    /// Two readers that both asked for this would wait for each other for ever: each of them keeps its read
    /// hold, and a writer waits until all readers have left. So acquire the lock for writing if the work may
    /// come to write; or release the read hold, acquire the lock for writing, and read again what may have
    /// changed in between. The way back is open: [`WriteGuard::downgrade`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure::{Client, ErrorKind, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let client = Client::new(Arc::new(MemoryStore::new()))?;
    /// let rates = client.rw_lock("rates")?;
    /// let reader = rates.read().await?;
    /// let (reader, refusal) = reader.upgrade().unwrap_err();
    /// assert_eq!(refusal.kind(), ErrorKind::Unsupported);
    ///
    /// reader.release().await?;
    /// let writer = rates.write().await?;
    /// // … read again: another writer may have been here in between …
    /// # writer.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Always: this guard, which still holds the lock, and an [`Unsupported`](crate::ErrorKind::Unsupported)
    /// that says what to do instead.
    pub fn upgrade(self) -> Result<WriteGuard, (Self, Error)> {
        let why = "two readers that become writers would wait for each other for ever: release the read \
                   hold, acquire the lock for writing, and read again what may have changed in between";
        let refusal = Error::new(ErrorKind::Unsupported, "upgrade", why).about(self.name());
        Err((self, refusal))
    }

    /// Gives the lock back, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }
}

impl Deref for ReadGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl From<ReadGuard> for Guard {
    fn from(guard: ReadGuard) -> Self {
        guard.0
    }
}

/// A [`Guard`] of a writer, from [`RwLock::write`](crate::RwLock::write). No other claim holds the lock at
/// the same time.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct WriteGuard(Guard);

impl WriteGuard {
    pub(crate) const fn new(guard: Guard) -> Self {
        Self(guard)
    }

    /// Turns the write hold into a read hold. No other writer holds the lock in between, so what this holder
    /// wrote is what it reads; the readers that wait directly behind it get the lock, too.
    ///
    /// Wait for all writes before you call it: with the call the write hold is over, and every
    /// [`Validity`](crate::Validity) that was made of this guard says so. The token of the read hold is that of the write
    /// hold, or a higher one. A [`max_hold`](crate::Options::max_hold) counts from the beginning of the
    /// write hold.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure::{Client, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let client = Client::new(Arc::new(MemoryStore::new()))?;
    /// let rates = client.rw_lock("rates")?;
    /// let writer = rates.write().await?;
    /// // … write the new rates …
    /// let reader = writer.downgrade().await?;
    /// // … read them back: no other writer was here in between …
    /// let other = rates.try_read().await?;
    /// # other.release().await?;
    /// # reader.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// After every error the lock is given back in the background.
    /// [`Unsupported`](ErrorKind::Unsupported) if the store cannot do it
    /// ([`Capabilities::downgrade`](crate::store::Capabilities::downgrade));
    /// [`Lost`](ErrorKind::Lost) if the lock was lost before; and faults of the store that last for five
    /// call timeouts ([`Client::with_call_timeout`](crate::Client::with_call_timeout)). A call whose reply
    /// was lost is repeated, which does no harm.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background, in whichever mode it is held by then.
    pub async fn downgrade(self) -> Result<ReadGuard> {
        self.0.downgrade().await.map(ReadGuard)
    }

    /// Gives the lock back, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }
}

impl Deref for WriteGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl From<WriteGuard> for Guard {
    fn from(guard: WriteGuard) -> Self {
        guard.0
    }
}

/// A [`Guard`] that has a fencing token, from [`Mutex::fenced`](crate::Mutex::fenced).
#[must_use = "the lock is released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct FencedGuard {
    guard: Guard,
    token: Token,
}

impl FencedGuard {
    pub(crate) const fn new(guard: Guard, token: Token) -> Self {
        Self { guard, token }
    }

    /// The fencing token: send it along with every protected write.
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Gives the lock back, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
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
