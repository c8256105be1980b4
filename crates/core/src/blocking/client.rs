//! The client for threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::reentrant::ThreadHolds;
use super::{
    Barrier, Cell, Counter, Election, Latch, MultiLock, Mutex, Once, RateLimiter, ReentrantMutex,
    Revoke, RwLock, Semaphore, block_on,
};
use crate::client::Settings;
use crate::store::Store;
use crate::{
    AuditRecord, Background, CellValue, Finding, LockName, LockState, LongWaits, OwnerId, Rate,
    Result, StoreUrl,
};

/// A [`Client`](crate::Client) whose calls block. Cheap to clone; clones share everything.
///
/// `tenure::blocking::connect` makes one from a URL.
#[derive(Clone)]
pub struct Client {
    client: crate::Client,
    holds: Arc<ThreadHolds>,
}

impl Client {
    /// A client of this store. As [`crate::Client::new`], it starts one thread.
    ///
    /// # Errors
    /// As [`crate::Client::new`].
    pub fn new(store: Arc<dyn Store>) -> Result<Self> {
        crate::Client::new(store).map(Self::from)
    }

    /// A client of the store that `opening` connects to. The client's thread serves its connections.
    ///
    /// # Errors
    /// Those of `opening`; otherwise as [`new`](Self::new).
    pub fn open(opening: impl Future<Output = Result<Arc<dyn Store>>>) -> Result<Self> {
        Self::open_with(Settings::new(), opening)
    }

    /// As [`open`](Self::open), for the store behind a URL: see [`crate::Client::at`].
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_at(
        url: &StoreUrl,
        opening: impl Future<Output = Result<Arc<dyn Store>>>,
    ) -> Result<Self> {
        Self::open_with(Settings::at(url), opening)
    }

    fn open_with(
        settings: Settings,
        opening: impl Future<Output = Result<Arc<dyn Store>>>,
    ) -> Result<Self> {
        let background = Background::start(crate::client::THREAD)?;
        let store = block_on(&background, opening)?;
        crate::Client::on(background, store, settings).map(Self::from)
    }

    /// As [`crate::Client::with_call_timeout`].
    ///
    /// # Errors
    /// As [`crate::Client::with_call_timeout`].
    pub fn with_call_timeout(self, limit: Duration) -> Result<Self> {
        self.client.with_call_timeout(limit).map(Self::from)
    }

    /// As [`crate::Client::with_lock_labels`].
    ///
    /// # Errors
    /// As [`crate::Client::with_lock_labels`].
    #[cfg(feature = "metrics")]
    pub fn with_lock_labels<'a>(self, rules: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        self.client.with_lock_labels(rules).map(Self::from)
    }

    /// As [`crate::Client::with_long_waits`].
    ///
    /// # Errors
    /// As [`crate::Client::with_long_waits`].
    pub fn with_long_waits(self, threshold: Duration) -> Result<Self> {
        self.client.with_long_waits(threshold).map(Self::from)
    }

    /// As [`crate::Client::with_order_check`].
    ///
    /// # Errors
    /// As [`crate::Client::with_order_check`].
    pub fn with_order_check(self) -> Result<Self> {
        self.client.with_order_check().map(Self::from)
    }

    /// How long one call to the store may take.
    pub fn call_timeout(&self) -> Duration {
        self.client.call_timeout()
    }

    /// The store underneath.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.client.store()
    }

    /// The mutex with this name.
    ///
    /// # Errors
    /// As [`crate::Client::mutex`].
    pub fn mutex(&self, name: &str) -> Result<Mutex> {
        Ok(Mutex::new(self.client.mutex(name)?, self.background()))
    }

    /// A new handle on the mutex with this name, which its holder may acquire again: the clones of the
    /// handle, or with [`ReentrantMutex::by_thread`] the thread.
    ///
    /// # Errors
    /// As [`crate::Client::reentrant_mutex`].
    pub fn reentrant_mutex(&self, name: &str) -> Result<ReentrantMutex> {
        let mutex = self.client.reentrant_mutex(name)?;
        Ok(ReentrantMutex::new(mutex, self.background(), Arc::clone(&self.holds)))
    }

    /// The mutexes with these names, to be held together.
    ///
    /// # Errors
    /// As [`crate::Client::multi_lock`].
    pub fn multi_lock<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<MultiLock> {
        Ok(MultiLock::new(self.client.multi_lock(names)?, self.background()))
    }

    /// The read-write lock with this name.
    ///
    /// # Errors
    /// As [`crate::Client::rw_lock`].
    pub fn rw_lock(&self, name: &str) -> Result<RwLock> {
        Ok(RwLock::new(self.client.rw_lock(name)?, self.background()))
    }

    /// The semaphore with this name and number of permits.
    ///
    /// # Errors
    /// As [`crate::Client::semaphore`].
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        Ok(Semaphore::new(self.client.semaphore(name, permits)?, self.background()))
    }

    /// The value with this name.
    ///
    /// # Errors
    /// As [`crate::Client::cell`].
    pub fn cell<T: CellValue>(&self, name: &str) -> Result<Cell<T>> {
        Ok(Cell::new(self.client.cell(name)?, self.background()))
    }

    /// The counter with this name.
    ///
    /// # Errors
    /// As [`crate::Client::counter`].
    pub fn counter(&self, name: &str) -> Result<Counter> {
        Ok(Counter::new(self.client.counter(name)?, self.background()))
    }

    /// The rate limiter with this name.
    ///
    /// # Errors
    /// As [`crate::Client::rate_limiter`].
    pub fn rate_limiter(&self, name: &str, rate: Rate) -> Result<RateLimiter> {
        Ok(RateLimiter::new(self.client.rate_limiter(name, rate)?, self.background()))
    }

    /// Work that is done once for this key.
    ///
    /// # Errors
    /// As [`crate::Client::once`].
    pub fn once<T: CellValue>(&self, key: &str) -> Result<Once<T>> {
        Ok(Once::new(self.client.once(key)?, self.background()))
    }

    /// The election with this name, whose leader holds the mutex of that name.
    ///
    /// # Errors
    /// As [`crate::Client::election`].
    pub fn election<T: CellValue>(&self, name: &str) -> Result<Election<T>> {
        Ok(Election::new(self.client.election(name)?, self.background()))
    }

    /// The latch with this name, which opens when it was counted down so many times.
    ///
    /// # Errors
    /// As [`crate::Client::latch`].
    pub fn latch(&self, name: &str, count: u32) -> Result<Latch> {
        Ok(Latch::new(self.client.latch(name, count)?, self.background()))
    }

    /// A party of the barrier with this name and number of parties.
    ///
    /// # Errors
    /// As [`crate::Client::barrier`].
    pub fn barrier(&self, name: &str, parties: u32) -> Result<Barrier> {
        Ok(Barrier::new(self.client.barrier(name, parties)?, self.background()))
    }

    /// A request to the present holders of a lock to let go, as [`crate::Client::revoke`]. Nothing is sent
    /// before [`Revoke::send`].
    pub fn revoke(&self, name: &str, reason: &str) -> Revoke {
        Revoke::new(self.client.revoke(name, reason), self.background())
    }

    /// As [`crate::Client::audit`].
    ///
    /// # Errors
    /// As [`crate::Client::audit`].
    pub fn audit(&self, name: &str) -> Result<Vec<AuditRecord>> {
        self.block_on(self.client.audit(name))
    }

    /// As [`crate::Client::inspect`].
    ///
    /// # Errors
    /// As [`crate::Client::inspect`].
    pub fn inspect(&self, name: &str) -> Result<LockState> {
        self.block_on(self.client.inspect(name))
    }

    /// As [`crate::Client::list`].
    ///
    /// # Errors
    /// As [`crate::Client::list`].
    pub fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.block_on(self.client.list(prefix))
    }

    /// As [`crate::Client::inspect_all`].
    ///
    /// # Errors
    /// As [`crate::Client::inspect_all`].
    pub fn inspect_all(&self, prefix: &str) -> Result<Vec<LockState>> {
        self.block_on(self.client.inspect_all(prefix))
    }

    /// As [`crate::Client::long_waits`].
    ///
    /// # Errors
    /// As [`crate::Client::long_waits`].
    pub fn long_waits(&self, prefix: &str, since: Duration) -> Result<LongWaits> {
        self.block_on(self.client.long_waits(prefix, since))
    }

    /// Watches all locks that begin with `prefix`, as [`crate::Client::watch`].
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch { watch: self.client.watch(prefix), background: self.background() }
    }

    /// As [`crate::Client::release`].
    ///
    /// # Errors
    /// As [`crate::Client::release`].
    pub fn release(&self, name: &str, owner: OwnerId) -> Result<bool> {
        self.block_on(self.client.release(name, owner))
    }

    /// As [`crate::Client::evict`].
    ///
    /// # Errors
    /// As [`crate::Client::evict`].
    pub fn evict(&self, name: &str, owner: &str, reason: &str) -> Result<bool> {
        self.block_on(self.client.evict(name, owner, reason))
    }

    /// As [`crate::Client::diagnose`].
    ///
    /// # Errors
    /// As [`crate::Client::diagnose`].
    pub fn diagnose(&self) -> Result<Vec<Finding>> {
        self.block_on(self.client.diagnose())
    }

    /// Waits until what was dropped is released, as [`crate::Client::close`]. Call it before the process
    /// ends.
    pub fn close(&self) {
        self.block_on(self.client.close());
    }

    fn background(&self) -> Background {
        self.client.inner.background.clone()
    }

    fn block_on<F: Future>(&self, work: F) -> F::Output {
        block_on(&self.client.inner.background, work)
    }
}

/// The same client for threads, beside the async one.
///
/// Connections that were made in a runtime of the program are served by it, and calls that need them fail
/// while its threads are all blocked. So do not call a client made this way on the only thread of that
/// runtime; one from `tenure::blocking::connect` has no such limit.
impl From<crate::Client> for Client {
    fn from(client: crate::Client) -> Self {
        Self { client, holds: Arc::default() }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}

/// The changes of locks, from [`Client::watch`]: an iterator that does not end. Each item is what
/// [`crate::Watch::next`] returns.
#[derive(Debug)]
pub struct Watch {
    watch: crate::Watch,
    background: Background,
}

impl Watch {
    /// As [`crate::Watch::every`].
    #[must_use]
    pub fn every(self, interval: Duration) -> Self {
        Self { watch: self.watch.every(interval), ..self }
    }

    /// As [`crate::Watch::focus`].
    pub fn focus(&mut self, locks: impl IntoIterator<Item = LockName>) {
        self.watch.focus(locks);
    }

    /// As [`crate::Watch::locks`].
    pub fn locks(&self) -> impl Iterator<Item = (&LockState, Duration)> {
        self.watch.locks()
    }

    /// As [`crate::Watch::next_batch`].
    ///
    /// # Errors
    /// As [`crate::Watch::next_batch`].
    pub fn next_batch(&mut self) -> Result<Vec<crate::WatchEvent>> {
        block_on(&self.background, self.watch.next_batch())
    }
}

impl Iterator for Watch {
    type Item = Result<crate::WatchEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(block_on(&self.background, self.watch.next()))
    }
}
