//! Where a user starts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::janitor::Janitor;
use crate::keeper::Keeper;
use crate::{
    Background, Cell, CellValue, Claim, Clock, Counter, Error, ErrorKind, LockName, LockState,
    Mode, Mutex, Options, Origin, OwnerId, Result, RwLock, Semaphore, Store,
};

/// A user's handle on a store: names locks, keeps held ones alive, and cleans up after dropped
/// ones. Cheap to clone; clones share everything.
///
/// ```
/// use std::sync::Arc;
/// use tenure_core::{Client, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure_core::Error> {
/// let client = Client::new(Arc::new(MemoryStore::new()))?;
/// let guard = client.mutex("orders/42")?.acquire().await?;
/// // … the work, with guard.token() sent along to whatever it writes to …
/// guard.release().await?;
/// client.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// What a client's locks and guards share.
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) call_timeout: Duration,
    pub(crate) keeper: Keeper,
    pub(crate) janitor: Janitor,
    /// The clock that the store's terms run on.
    pub(crate) clock: Clock,
    origin: Arc<Origin>,
    pub(crate) background: Background,
}

impl Client {
    /// A client of this store.
    ///
    /// It starts a thread that renews held locks and releases dropped ones, whatever the program's
    /// own runtimes do meanwhile. The thread ends with the last clone of the client and its guards.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] where the system has no thread, timer or file descriptor left.
    pub fn new(store: Arc<dyn Store>) -> Result<Self> {
        Self::build(store, Duration::from_secs(2))
    }

    /// A client of the same store that gives up on a single call to it after `limit`, instead of
    /// two seconds. More than a day counts as a day.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a limit of zero; otherwise as [`new`](Self::new).
    pub fn with_call_timeout(self, limit: Duration) -> Result<Self> {
        const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
        if limit.is_zero() {
            let why = "a call needs some time: choose a limit above zero";
            return Err(Error::new(ErrorKind::Invalid, "make a client", why));
        }
        Self::build(Arc::clone(&self.inner.store), limit.min(LONGEST))
    }

    /// The store underneath.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// The mutex with this name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is not a [`LockName`].
    pub fn mutex(&self, name: &str) -> Result<Mutex> {
        Ok(Mutex::new(self.clone(), LockName::new(name)?))
    }

    /// The read-write lock with this name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is not a [`LockName`].
    pub fn rw_lock(&self, name: &str) -> Result<RwLock> {
        Ok(RwLock::new(self.clone(), LockName::new(name)?))
    }

    /// The semaphore with this name and so many permits. All who use it should name the same
    /// number; where they differ, each is admitted by its own.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is not a [`LockName`].
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        Ok(Semaphore::new(self.clone(), LockName::new(name)?, permits))
    }

    /// The value with this name, which has nothing to do with a lock of that name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is not a [`LockName`]; [`ErrorKind::Unsupported`] if the store
    /// keeps no values.
    pub fn cell<T: CellValue>(&self, name: &str) -> Result<Cell<T>> {
        Cell::new(self, name)
    }

    /// The counter with this name, which has nothing to do with a lock or a cell of that name.
    ///
    /// # Errors
    /// As [`cell`](Self::cell).
    pub fn counter(&self, name: &str) -> Result<Counter> {
        Counter::new(self, name)
    }

    /// Who holds a lock and who waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name, and faults of the store.
    pub async fn inspect(&self, name: &str) -> Result<LockState> {
        let name = LockName::new(name)?;
        let seen = self.inner.call("inspect", self.inner.store.inspect(&name)).await;
        seen.map_err(|error| error.of_a_look().about(&name))
    }

    /// The locks that are held or waited for and begin with `prefix`, sorted.
    ///
    /// A store reads them page by page, so this may take as long as thirty single calls.
    ///
    /// # Errors
    /// Faults of the store.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let limit = self.inner.call_timeout * 30;
        let listed = within(limit, "list locks", self.inner.store.list(prefix)).await;
        listed.map_err(Error::of_a_look)
    }

    /// Waits until every release that was left to the background is done, or its TTL has passed;
    /// then has the store give back what it kept for this client. Call it before the process ends,
    /// or what was dropped last is freed only by its TTL. Locks that are still held stay held, and
    /// the client can be used again.
    ///
    /// # Cancel safety
    /// Dropping it stops the waiting, not the releases.
    pub async fn close(&self) {
        self.inner.janitor.flush().await;
        let closed = self.inner.store.close_idle();
        if tokio::time::timeout(self.inner.call_timeout, closed).await.is_err() {
            tracing::debug!("the store did not shut down its sessions in time");
        }
    }

    fn build(store: Arc<dyn Store>, call_timeout: Duration) -> Result<Self> {
        crate::owner::settle_in();
        let background = Background::start("tenure-keeper")?;
        let keeper = Keeper::start(Arc::clone(&store), call_timeout, &background)?;
        let janitor = Janitor::start(Arc::clone(&store), call_timeout, &background);
        let origin = Origin::here();
        let clock = store.capabilities().clock;
        let inner = Inner { store, call_timeout, keeper, janitor, clock, origin, background };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("store", &self.inner.store).finish_non_exhaustive()
    }
}

impl Inner {
    /// A fresh claim: its owner exists before the first byte leaves.
    pub(crate) fn mint(&self, name: &LockName, mode: Mode, options: &Options) -> Claim {
        Claim {
            name: name.clone(),
            owner: OwnerId::random(),
            mode,
            ttl: options.ttl_within(self.store.longest_ttl()),
            origin: Arc::clone(&self.origin),
            label: Arc::clone(&options.label),
        }
    }

    /// One call to the store, with a deadline of ours.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        within(self.call_timeout, operation, call).await
    }
}

pub(crate) async fn within<T>(
    limit: Duration,
    operation: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let why = format!(
            "the store did not answer within {limit:?}: check that it runs and can be reached"
        );
        Err(Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect())
    })
}
