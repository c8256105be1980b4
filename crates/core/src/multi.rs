//! Several locks as one.

use std::fmt;
use std::future::poll_fn;
use std::panic::Location;
use std::pin::pin;
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::time::Instant;

use crate::client::unanswered;
use crate::task::CallSite;
use crate::{
    Error, ErrorKind, Guard, LockName, LossReason, Mutex, Options, Result, Revocation, Wait,
};

/// What options are refused for that keep a lock taken.
const KEPT: &str = "several locks at once";

/// Several locks that are held together or not at all. Use it for work that touches several things, such
/// as a transfer between two accounts.
///
/// A wait cannot deadlock: all `MultiLock`s wait for their locks one after the other in the order of their
/// names, and of the URLs of their stores, and hold no later one meanwhile. Locks that are all free are taken
/// at once, with one call if the engine supports it (Redis without Cluster), otherwise with concurrent calls.
/// The locks may be on different stores ([`MultiLock::of`]).
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::{Client, MemoryStore, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let transfer = client.multi_lock(["account/7", "account/3"])?;
/// let guard = transfer.acquire().await?;
/// guard
///     .run(async {
///         // Dropped as soon as one of the locks is lost. Each lock has a token of its own.
///     })
///     .await?;
/// guard.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    /// In the order of their names.
    locks: Vec<Mutex>,
}

/// The hold of a [`MultiLock`]: a [`Guard`] for each lock. Dropping it releases all of them in the
/// background.
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiLock {
    /// Joins locks that may be on different stores, each with its own options.
    ///
    /// Two clients that were [connected by a URL](crate::Client::at) are known to have one store if their URLs name
    /// the same servers, in the same words: `localhost` and `127.0.0.1` are two. Of clients made in another way,
    /// only those of one store object are. Locks of one name on stores without a URL are waited for in the
    /// order in which they are given: give them in the same order everywhere.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there is no lock, or one is named twice on one store.
    pub fn of(locks: impl IntoIterator<Item = Mutex>) -> Result<Self> {
        let invalid = |why| Error::new(ErrorKind::Invalid, "join locks", why);
        let locks = locks.into_iter().map(|lock| lock.without_keeping(KEPT));
        let mut locks: Vec<Mutex> = locks.collect();
        if locks.is_empty() {
            return Err(Self::no_lock());
        }
        // Stable: locks without a place in the order stay as they were given.
        locks.sort_by(|one, other| {
            let key = |lock: &Mutex| {
                (lock.name().clone(), lock.store_identity().order().map(str::to_owned))
            };
            key(one).cmp(&key(other))
        });
        let same_name = |one: &Mutex, other: &Mutex| one.name() == other.name();
        for group in locks.chunk_by(same_name) {
            for (index, lock) in group.iter().enumerate() {
                if group[..index]
                    .iter()
                    .any(|earlier| earlier.store_identity() == lock.store_identity())
                {
                    let why = "a lock that is named twice would wait for itself: name it once";
                    return Err(invalid(why).about(lock.name()));
                }
            }
        }
        Ok(Self { locks })
    }

    pub(crate) fn no_lock() -> Error {
        Error::new(ErrorKind::Invalid, "join locks", "no lock is named: name at least one")
    }

    /// The locks' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.locks.iter().map(Mutex::name)
    }

    /// The same locks, all held with these options.
    #[must_use]
    pub fn with(self, options: Options) -> Self {
        let options = options.without_keeping(KEPT);
        let with = |lock: Mutex| lock.with(options.clone());
        Self { locks: self.locks.into_iter().map(with).collect() }
    }

    /// Waits until all locks are held, as long as it takes. Locks that are held already are renewed
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Mutex::acquire`], about the lock that failed; [`Lost`](ErrorKind::Lost) if one was lost while
    /// another was waited for. All locks are given back in every case.
    ///
    /// # Cancel safety
    /// Dropping the future gives up all claims.
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<MultiGuard>> {
        self.acquire_with(Wait::Forever)
    }

    /// Takes all locks if all are free.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`], about the first lock that failed; the others are given back.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[track_caller]
    pub fn try_acquire(&self) -> impl Future<Output = Result<MultiGuard>> {
        self.acquire_with(Wait::NoWait)
    }

    /// Waits until all locks are held, at most for `limit` in all.
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`] and [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[track_caller]
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<MultiGuard>> {
        self.acquire_with(Wait::AtMost(limit))
    }

    /// Waits until all locks are held, as long as `wait` says.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire) and
    /// [`acquire_within`](Self::acquire_within), as `wait` says.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[track_caller]
    pub fn acquire_with(&self, wait: Wait) -> impl Future<Output = Result<MultiGuard>> {
        self.acquire_at(Location::caller(), wait)
    }

    async fn acquire_at(&self, site: CallSite, wait: Wait) -> Result<MultiGuard> {
        let started = Instant::now();
        let left = || match wait {
            Wait::AtMost(limit) => Some(limit.saturating_sub(started.elapsed())),
            _ => None,
        };
        if wait != Wait::NoWait {
            self.locks.iter().for_each(|lock| lock.note_order(site));
        }
        let mut taken = match Mutex::acquire_together(&self.locks, left(), site).await {
            Some(Ok(guards)) => return Self::held(guards).await,
            Some(Err(error)) => vec![Err(error)],
            None => self.take_free(left(), site).await,
        };
        let first_missing = taken.iter().position(Result::is_err);
        let Some(first_missing) = first_missing else {
            return Self::held(taken.into_iter().flatten().collect()).await;
        };
        // To wait for one lock while a later one is held could deadlock with another process.
        let later = taken.split_off(first_missing + 1);
        give_back(later.into_iter().flatten().collect()).await;
        let missed = taken.pop().and_then(Result::err);
        let mut guards: Vec<Guard> = taken.into_iter().flatten().collect();
        let ends = |error: &Error| {
            let may_wait = error.is_transient() && left() != Some(Duration::ZERO);
            wait == Wait::NoWait || error.kind() != ErrorKind::Busy && !may_wait
        };
        if let Some(error) = missed
            && ends(&error)
        {
            give_back(guards).await;
            return Err(error);
        }
        for lock in &self.locks[first_missing..] {
            let wait = left().map_or(wait, Wait::AtMost);
            match lock.acquire_at(site, wait).await {
                Ok(guard) => guards.push(guard),
                Err(error) => {
                    give_back(guards).await;
                    return Err(error);
                }
            }
        }
        Self::held(guards).await
    }

    /// Tries all locks at once, for no longer than `limit`.
    async fn take_free(&self, limit: Option<Duration>, site: CallSite) -> Vec<Result<Guard>> {
        let tries = join_all(self.locks.iter().map(|lock| lock.acquire_at(site, Wait::NoWait)));
        let Some(limit) = limit else { return tries.await };
        // What was taken by then is released in the background.
        tokio::time::timeout(limit, tries)
            .await
            .unwrap_or_else(|_| vec![Err(unanswered(limit, "acquire").about(self.locks[0].name()))])
    }

    /// Checks that none of them was lost while the others were waited for.
    async fn held(guards: Vec<Guard>) -> Result<MultiGuard> {
        let lost = guards.iter().find_map(|guard| Some((guard.loss()?, guard.name().clone())));
        let Some((reason, name)) = lost else {
            return Ok(MultiGuard { guards });
        };
        give_back(guards).await;
        let why = "the lock was lost while another lock was waited for: try again";
        Err(Error::lost(reason, "hold", why).about(&name))
    }
}

impl MultiGuard {
    /// The guards of the locks, in the order of their names: for their names, tokens and fences.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Whether all locks are still held, by the clock.
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(Guard::is_valid)
    }

    /// How long all locks are still good if no renewal comes. Zero when one of them is lost.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Resolves when one of the locks is lost, and says which and why.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> (LockName, LossReason) {
        let losses = self.guards.iter().map(|guard| Box::pin(guard.lost()));
        let (reason, index, _) = select_all(losses).await;
        (self.guards[index].name().clone(), reason)
    }

    /// Resolves when another process asks for one of the locks, and says for which, as
    /// [`Guard::revoked`] does.
    ///
    /// # Errors
    /// As [`Guard::revoked`], about the first lock that fails.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn revoked(&self) -> Result<(LockName, Revocation)> {
        let requests = self.guards.iter().map(|guard| Box::pin(guard.revoked()));
        let (request, index, _) = select_all(requests).await;
        Ok((self.guards[index].name().clone(), request?))
    }

    /// Runs `work` while all locks are held, and drops it as soon as one of them is lost, as
    /// [`Guard::run`] does.
    ///
    /// # Errors
    /// As [`Guard::run`], about the lock that was lost.
    ///
    /// # Cancel safety
    /// As [`Guard::run`].
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        let (mut work, mut lost) = (pin!(work), pin!(self.lost()));
        poll_fn(|context| {
            // Polled for its wake-up; the clock is read in any case.
            let _ = lost.as_mut().poll(context);
            if let Some(error) = self.interruption(false) {
                return Poll::Ready(Err(error));
            }
            let output = ready!(work.as_mut().poll(context));
            Poll::Ready(self.interruption(true).map_or(Ok(output), Err))
        })
        .await
    }

    /// The error of work under the locks, if one of them is lost.
    pub(crate) fn interruption(&self, finished: bool) -> Option<Error> {
        self.guards.iter().find_map(|guard| guard.interruption(finished))
    }

    /// Gives all locks back. `Ok` means that all of them were held until now.
    ///
    /// # Errors
    /// As [`Guard::release`], about the first lock whose release failed. The others are released all the
    /// same.
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        Guard::release_together(self.guards).await
    }
}

/// Releases the locks of an attempt that did not get all of them. Failures are left to the background.
async fn give_back(guards: Vec<Guard>) {
    let _ = Guard::release_together(guards).await;
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
