//! A mutex that its holder may acquire again: a handle, or a thread.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::{Validity, block_on};
use crate::{
    Background, Fence, LockName, LossReason, Mode, Options, OwnerId, Result, Revocation, Token,
    Wait,
};

/// A mutex that can be acquired again by its holder, which is the handle and its clones, as
/// [`crate::ReentrantMutex`]. [`by_thread`](Self::by_thread) makes the thread the holder.
#[derive(Clone)]
pub struct ReentrantMutex {
    mutex: crate::ReentrantMutex,
    background: Background,
    holds: Arc<ThreadHolds>,
}

/// The holds of a client's threads, for as long as a guard of each exists.
#[derive(Default)]
pub(super) struct ThreadHolds(parking_lot::Mutex<HashMap<Key, crate::ReentrantMutex>>);

type Key = (ThreadId, LockName);

impl ReentrantMutex {
    pub(super) const fn new(
        mutex: crate::ReentrantMutex,
        background: Background,
        holds: Arc<ThreadHolds>,
    ) -> Self {
        Self { mutex, background, holds }
    }

    /// The same lock, held by threads: a thread that holds it may acquire it again, and another thread
    /// waits.
    pub fn by_thread(self) -> ThreadMutex {
        ThreadMutex(self)
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.mutex.name()
    }

    /// A new handle on the same lock, held with these options. It excludes `self` and its clones.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self { mutex: self.mutex.with(options), ..self }
    }

    /// Enters the hold of this handle, or waits for the lock as long as it takes.
    ///
    /// # Errors
    /// As [`crate::ReentrantMutex::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> Result<ReentrantGuard> {
        self.acquire_with(Wait::Forever)
    }

    /// Enters the hold of this handle, or takes the lock if it is free.
    ///
    /// # Errors
    /// As [`crate::ReentrantMutex::try_acquire`].
    #[track_caller]
    pub fn try_acquire(&self) -> Result<ReentrantGuard> {
        self.acquire_with(Wait::NoWait)
    }

    /// Enters the hold of this handle, or waits for the lock, at most for `limit`.
    ///
    /// # Errors
    /// As [`crate::ReentrantMutex::acquire_within`].
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> Result<ReentrantGuard> {
        self.acquire_with(Wait::AtMost(limit))
    }

    /// Enters the hold of this handle, or waits for the lock as long as `wait` says.
    ///
    /// # Errors
    /// As [`crate::ReentrantMutex::acquire_with`].
    #[track_caller]
    pub fn acquire_with(&self, wait: Wait) -> Result<ReentrantGuard> {
        block_on(&self.background, self.mutex.acquire_with(wait)).map(ReentrantGuard)
    }
}

/// One entry into the hold of a [`ReentrantMutex`].
#[must_use = "the lock is released as soon as its last guard is dropped"]
#[derive(Debug)]
pub struct ReentrantGuard(crate::ReentrantGuard);

/// What all entries of a hold share.
macro_rules! reads_the_hold {
    ($($inner:tt)*) => {
        /// The lock's name.
        pub fn name(&self) -> &LockName {
            self.$($inner)*.name()
        }

        /// The fencing token of the hold, if the store gives one.
        pub fn token(&self) -> Option<Token> {
            self.$($inner)*.token()
        }

        /// A comparison for transactions of the same store, as [`crate::Guard::fence`].
        pub fn fence(&self) -> Option<Fence> {
            self.$($inner)*.fence()
        }

        /// The id of the hold. A program that knows it can release the lock: keep it out of logs.
        pub fn owner(&self) -> OwnerId {
            self.$($inner)*.owner()
        }

        /// How many entries into this hold exist now, this one included.
        pub fn entries(&self) -> usize {
            self.$($inner)*.entries()
        }

        /// Whether the lock is still held, by the clock.
        pub fn is_valid(&self) -> bool {
            self.$($inner)*.is_valid()
        }

        /// How long the lock is still good if no renewal comes. Zero when it is lost.
        pub fn remaining(&self) -> Duration {
            self.$($inner)*.remaining()
        }

        /// How the lock is held: exclusively.
        pub fn mode(&self) -> Mode {
            self.$($inner)*.mode()
        }

        /// The term of a renewal, as [`crate::Guard::ttl`].
        pub fn ttl(&self) -> Duration {
            self.$($inner)*.ttl()
        }

        /// Waits until half of the term has passed without a renewal, as [`crate::Guard::danger`].
        pub fn danger(&self) {
            block_on(self.$($inner)*.background(), self.$($inner)*.danger());
        }

        /// Waits until another process asks for the lock, as [`crate::Guard::revoked`].
        ///
        /// # Errors
        /// As [`crate::Guard::revoked`].
        pub fn revoked(&self) -> Result<Revocation> {
            block_on(self.$($inner)*.background(), self.$($inner)*.revoked())
        }

        /// Waits until the lock is lost, and says why.
        pub fn lost(&self) -> LossReason {
            block_on(self.$($inner)*.background(), self.$($inner)*.lost())
        }

        /// A handle that tells other threads whether the lock is still held.
        pub fn validity(&self) -> Validity {
            Validity::new(self.$($inner)*.validity(), self.$($inner)*.background().clone())
        }

        /// Does `work` under the lock, as [`Guard::run`](super::Guard::run).
        ///
        /// # Errors
        /// As [`Guard::run`](super::Guard::run).
        pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
            self.$($inner)*.interruption(false).map_or(Ok(()), Err)?;
            let output = work();
            self.$($inner)*.interruption(true).map_or(Ok(output), Err)
        }
    };
}

impl ReentrantGuard {
    reads_the_hold!(0);

    /// Gives up this entry. The last one releases the lock. `Ok` means that the lock was held until now.
    ///
    /// # Errors
    /// As [`crate::ReentrantGuard::release`].
    pub fn release(self) -> Result<()> {
        let background = self.0.background().clone();
        block_on(&background, self.0.release())
    }
}

/// A mutex that the thread which holds it may acquire again, without a call to the store, from
/// [`ReentrantMutex::by_thread`]. Another thread waits, as another process does.
///
/// The holder is the thread, for all handles that the clones of one [`Client`](super::Client) make of the
/// name: functions need not pass a handle on. Another client is another holder, also on the same thread.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{ErrorKind, MemoryStore, Result};
/// # use tenure::blocking::Client;
/// fn pay_all(client: &Client) -> Result<()> {
///     let _guard = client.reentrant_mutex("account/7")?.by_thread().acquire()?;
///     pay_one(client) // enters the hold of its caller
/// }
///
/// fn pay_one(client: &Client) -> Result<()> {
///     let account = client.reentrant_mutex("account/7")?.by_thread();
///     let guard = account.acquire()?;
///     assert_eq!(guard.entries(), 2);
///     let other = std::thread::scope(|scope| scope.spawn(|| account.try_acquire().err()).join());
///     assert_eq!(other.unwrap().unwrap().kind(), ErrorKind::Busy);
///     guard.release()
/// }
/// # fn main() -> Result<()> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// pay_all(&client)?;
/// client.close();
/// # assert!(client.inspect("account/7")?.is_free());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ThreadMutex(ReentrantMutex);

/// One entry of a thread into its hold of a [`ThreadMutex`]. It stays on its thread.
///
/// ```compile_fail
/// fn is_send<T: Send>() {}
/// is_send::<tenure::blocking::ThreadGuard>();
/// ```
#[must_use = "the lock is released as soon as its last guard is dropped"]
pub struct ThreadGuard {
    /// `None` once it is released.
    entry: Option<ReentrantGuard>,
    holds: Arc<ThreadHolds>,
    /// Makes the guard `!Send`: an entry is counted on its thread, and another thread must not give it
    /// up.
    of_one_thread: PhantomData<*const ()>,
}

impl ThreadMutex {
    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// The same lock, held with these options. A thread that already holds the lock enters that hold,
    /// whose options stay as they are.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        Self(self.0.with(options))
    }

    /// Enters the hold of this thread, or waits for the lock as long as it takes.
    ///
    /// # Errors
    /// As [`crate::ReentrantMutex::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> Result<ThreadGuard> {
        self.acquire_with(Wait::Forever)
    }

    /// Enters the hold of this thread, or takes the lock if it is free.
    ///
    /// # Errors
    /// As [`crate::Mutex::try_acquire`] and [`crate::ReentrantMutex::acquire`].
    #[track_caller]
    pub fn try_acquire(&self) -> Result<ThreadGuard> {
        self.acquire_with(Wait::NoWait)
    }

    /// Enters the hold of this thread, or waits for the lock, at most for `limit`.
    ///
    /// # Errors
    /// As [`crate::ReentrantMutex::acquire_within`].
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> Result<ThreadGuard> {
        self.acquire_with(Wait::AtMost(limit))
    }

    /// Enters the hold of this thread, or waits for the lock as long as `wait` says.
    ///
    /// # Errors
    /// As [`crate::ReentrantMutex::acquire_with`].
    #[track_caller]
    pub fn acquire_with(&self, wait: Wait) -> Result<ThreadGuard> {
        let ReentrantMutex { mutex, background, holds } = &self.0;
        // No other thread looks up, adds or removes this key.
        let key = (thread::current().id(), self.name().clone());
        let held = holds.0.lock().get(&key).cloned();
        let handle = held.unwrap_or_else(|| mutex.other_handle());
        let entry = block_on(background, handle.acquire_with(wait)).map(ReentrantGuard)?;
        holds.0.lock().insert(key, handle);
        let of_one_thread = PhantomData;
        Ok(ThreadGuard { entry: Some(entry), holds: Arc::clone(holds), of_one_thread })
    }

    /// Whether this thread holds the lock, by the clock.
    pub fn is_held_by_this_thread(&self) -> bool {
        let key = (thread::current().id(), self.name().clone());
        let held = self.0.holds.0.lock().get(&key).cloned();
        held.is_some_and(|handle| handle.is_held())
    }
}

impl ThreadGuard {
    reads_the_hold!(entry().0);

    /// Gives up this entry. The last one releases the lock. `Ok` means that the lock was held until now.
    ///
    /// # Errors
    /// As [`crate::ReentrantGuard::release`].
    pub fn release(mut self) -> Result<()> {
        self.take().map_or(Ok(()), ReentrantGuard::release)
    }

    fn entry(&self) -> &ReentrantGuard {
        self.entry.as_ref().expect("only `release` and `drop` take it, and both end the guard")
    }

    /// Takes the entry out. With the last one, the thread's hold ends.
    fn take(&mut self) -> Option<ReentrantGuard> {
        let entry = self.entry.take()?;
        if entry.entries() == 1 {
            let key = (thread::current().id(), entry.name().clone());
            self.holds.0.lock().remove(&key);
        }
        Some(entry)
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl fmt::Debug for ReentrantMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mutex.fmt(f)
    }
}

impl fmt::Debug for ThreadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ThreadGuard").field(&self.entry).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[test]
    fn nothing_is_kept_of_threads_that_hold_no_lock() {
        let client = super::super::Client::new(Arc::new(MemoryStore::new())).unwrap();
        let mutex = client.reentrant_mutex("a").unwrap().by_thread();
        let holds = Arc::clone(&mutex.0.holds);
        let (outer, inner) = (mutex.acquire().unwrap(), mutex.acquire().unwrap());
        drop(outer);
        thread::scope(|scope| {
            scope.spawn(|| assert!(mutex.try_acquire().is_err()));
        });
        assert_eq!(holds.0.lock().len(), 1);
        inner.release().unwrap();
        assert!(holds.0.lock().is_empty());
    }
}
