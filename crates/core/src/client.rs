//! The client: a handle on a store.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::identity::StoreIdentity;
use crate::janitor::Janitor;
use crate::keeper::Keeper;
use crate::order_check::OrderCheck;
use crate::primitives::Lock;
use crate::store::CALL_TIMEOUT;
use crate::waits::Recorder;
use crate::{
    Background, Claim, Clock, Error, ErrorKind, Eviction, Finding, LockName, LockState, Mode,
    Moment, MultiLock, Mutex, Options, Origin, OwnerId, ReentrantMutex, Released, Result, RwLock,
    Semaphore, Store, StoreUrl, Watch, metric, require_runtime,
};

/// The name of a client's thread.
pub(crate) const THREAD: &str = "tenure-keeper";
/// How many call timeouts a list of all locks may take: stores read it page by page.
const LIST_CALLS: u32 = 30;
/// The longest call timeout that can be set.
const LONGEST_CALL: Duration = Duration::from_secs(24 * 60 * 60);
/// How many call timeouts a diagnosis may take.
const DIAGNOSE_CALLS: u32 = 10;

/// A user's handle on a store: names locks, keeps held ones alive, and cleans up after dropped
/// ones. Cheap to clone; clones share everything.
///
/// ```
/// use std::sync::Arc;
/// use tenure::{Client, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
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
    /// When the store answered a claim last, in nanoseconds of `clock`.
    pub(crate) last_answer: AtomicU64,
    /// Which store it is, to compare it with those of other clients.
    pub(crate) identity: StoreIdentity,
    /// Which locks are taken while others are held, if that is checked.
    pub(crate) order: Option<&'static OrderCheck>,
    /// Which locks have a label of their own in the metrics.
    pub(crate) labels: metric::Labels,
    /// The long waits of its claims, if they are recorded.
    pub(crate) long_waits: Option<Recorder>,
    origin: Arc<Origin>,
    pub(crate) background: Background,
}

/// What a client is made with, besides its store.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    call_timeout: Duration,
    checks_order: bool,
    /// How long a wait is that is recorded.
    pub(crate) long_wait: Option<Duration>,
    labels: metric::Labels,
    /// Which store it is, if a URL says so.
    identity: Option<StoreIdentity>,
}

impl Client {
    /// A client of this store.
    ///
    /// It starts a thread that renews held locks and releases dropped ones, whatever the program's
    /// own runtimes do meanwhile. The thread ends with the last clone of the client and its guards.
    ///
    /// It can be called outside a Tokio runtime. The calls of the client, and of its locks and guards, are
    /// made inside one; outside, they fail with [`ErrorKind::Invalid`].
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] where the system has no thread, timer or file descriptor left.
    pub fn new(store: Arc<dyn Store>) -> Result<Self> {
        Self::on(Background::start(THREAD)?, store, Settings::new())
    }

    /// A client of the store behind this URL, with its `timeout=`. Clients of one URL know that their locks are
    /// the same ones, also if each has a connection of its own.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn at(url: &StoreUrl, store: Arc<dyn Store>) -> Result<Self> {
        Self::on(Background::start(THREAD)?, store, Settings::at(url))
    }

    /// A client of the same store that gives up on a single call to it after `limit`, instead of
    /// two seconds. More than a day counts as a day.
    ///
    /// An engine gives up on a silent server by its own configuration, after nine tenths of `timeout=`
    /// ([`step_limit`](crate::store::step_limit)). To wait longer for a slow server, raise that; a URL with
    /// `timeout=` sets both.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a limit of zero; otherwise as [`new`](Self::new).
    pub fn with_call_timeout(self, limit: Duration) -> Result<Self> {
        if limit.is_zero() {
            let why = "a call needs some time: choose a limit above zero";
            return Err(Error::new(ErrorKind::Invalid, "make a client", why));
        }
        let mut settings = self.inner.settings();
        settings.call_timeout = limit.min(LONGEST_CALL);
        self.with(settings)
    }

    /// A client of the same store that warns of locks which are taken in conflicting orders: `a` and then
    /// `b` by one task, `b` and then `a` by another. Two such tasks can wait for each other until a lease
    /// is lost. Use it while you develop and test. All clients of the process that check are compared with each
    /// other, also those of different stores.
    ///
    /// Each pair is reported once, as a warning of the `tracing` crate that names both orders and the
    /// places in the program. It is a hint: the two tasks may never run at the same time, and futures that
    /// are joined in one task count as one. A [`try_acquire`](Mutex::try_acquire) waits for nothing, so it
    /// counts only as held. The locks of one [`MultiLock`] have no order among
    /// themselves. Cycles of three and more locks are not found. The memory that it takes is
    /// bounded: of more than 4,096 pairs the oldest are forgotten.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure::{Client, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// let client = Client::new(Arc::new(MemoryStore::new()))?;
    /// let client = if cfg!(debug_assertions) { client.with_order_check()? } else { client };
    /// # client.mutex("a")?.acquire().await?.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_order_check(self) -> Result<Self> {
        let mut settings = self.inner.settings();
        settings.checks_order = true;
        self.with(settings)
    }

    /// A client of the same store whose metrics have a label `lock` with these values, at most 200 of them: a
    /// name of a lock, or a prefix of names that ends with `*`. The first that fits counts. All other locks have
    /// the label `other`, because names are unbounded.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use tenure::{Client, MemoryStore};
    ///
    /// let client = Client::new(Arc::new(MemoryStore::new()))?;
    /// let client = client.with_lock_labels(["deploy", "orders/*"])?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for more than 200; otherwise as [`new`](Self::new).
    #[cfg(feature = "metrics")]
    pub fn with_lock_labels<'a>(self, rules: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut settings = self.inner.settings();
        settings.labels = metric::Labels::new(rules);
        if settings.labels.count() > metric::Labels::MOST {
            let why = "at most 200 locks and prefixes can have a label: name prefixes";
            return Err(Error::new(ErrorKind::Invalid, "make a client", why));
        }
        self.with(settings)
    }

    /// How long one call to the store may take.
    pub fn call_timeout(&self) -> Duration {
        self.inner.call_timeout
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
        Ok(Mutex::new(self.lock(name)?))
    }

    /// A new handle on the mutex with this name, which its holder may acquire again. Clones of the handle
    /// are the same holder.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is not a [`LockName`].
    pub fn reentrant_mutex(&self, name: &str) -> Result<ReentrantMutex> {
        Ok(ReentrantMutex::new(self.mutex(name)?))
    }

    /// The mutexes with these names, to be held together.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a name is not a [`LockName`] or is given twice, or if there is none.
    pub fn multi_lock<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<MultiLock> {
        let locks: Result<Vec<Mutex>> = names.into_iter().map(|name| self.mutex(name)).collect();
        MultiLock::of(locks?)
    }

    /// The read-write lock with this name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is not a [`LockName`].
    pub fn rw_lock(&self, name: &str) -> Result<RwLock> {
        Ok(RwLock::new(self.lock(name)?))
    }

    /// The semaphore with this name and number of permits. All its users should name the same number; where
    /// they differ, each claim is admitted by its own.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is not a [`LockName`].
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        Ok(Semaphore::new(self.lock(name)?, permits))
    }

    /// The holders and waiters of one lock, as the store shows them now.
    ///
    /// The lock may have changed when this returns: it is for people and monitoring, not for deciding
    /// whether to do protected work.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name, and faults of the store.
    ///
    /// # Cancel safety
    /// Safe to drop: it changes nothing.
    pub async fn inspect(&self, name: &str) -> Result<LockState> {
        let name = LockName::new(name)?;
        let state = self.inner.call("inspect", self.inner.store.inspect(&name)).await;
        state.map_err(|error| error.without_effect().about(&name))
    }

    /// The names of all locks that are held or waited for and begin with `prefix`, sorted.
    ///
    /// A store reads them page by page, so this may take as long as thirty single calls.
    ///
    /// # Errors
    /// Faults of the store.
    ///
    /// # Cancel safety
    /// Safe to drop: it changes nothing.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let limit = self.inner.call_timeout * LIST_CALLS;
        let names = within(limit, "list locks", self.inner.store.list(prefix)).await;
        names.map_err(Error::without_effect)
    }

    /// The holders and waiters of all locks that begin with `prefix`: a [`list`](Self::list), and then one
    /// [`inspect`](Self::inspect) for each lock, several at a time. Locks that have become free in between are
    /// left out, and so are those that cannot be read although the store answers, such as damaged ones: these are
    /// logged as warnings of the `tracing` crate.
    ///
    /// # Errors
    /// Faults of the store.
    ///
    /// # Cancel safety
    /// Safe to drop: it changes nothing.
    pub async fn inspect_all(&self, prefix: &str) -> Result<Vec<LockState>> {
        let mut states = self.inspect_each(self.list(prefix).await?, &mut BTreeSet::new()).await?;
        states.retain(|state| !state.is_free());
        Ok(states)
    }

    /// Watches all locks that begin with `prefix`: a snapshot, and then each change. Use it for monitoring;
    /// to wait for a lock, acquire it.
    ///
    /// The store is sampled once a second ([`Watch::every`] chooses another interval), so short holds may
    /// go unseen. The cost of a sample is bounded, however many locks there are. Nothing is asked before the
    /// first [`Watch::next`].
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch::new(self.clone(), prefix)
    }

    /// Gives up the claim with this owner id, whether it holds the lock or waits for it. Use it to undo a
    /// claim of which only the id is left, such as one of a process that wrote down
    /// [`Guard::owner`](crate::Guard::owner) and died. Returns whether the claim held the lock.
    ///
    /// The id proves the right to release: nothing is recorded, and the next waiter gets the lock. To take a
    /// lock from its holder by force, use [`evict`](Self::evict).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name, and faults of the store.
    ///
    /// # Cancel safety
    /// After a drop the claim may or may not be given up. The call can be repeated.
    pub async fn release(&self, name: &str, owner: OwnerId) -> Result<bool> {
        let name = LockName::new(name)?;
        // Of a claim that is released, only the name and the owner matter.
        let claim = Claim::new(name, Mode::Exclusive, Options::DEFAULT_TTL).with_owner(owner);
        let released = self.inner.call("release", self.inner.store.release(&claim)).await;
        let released = released.map_err(|error| error.about(&claim.name))?;
        Ok(released == Released::Released)
    }

    /// Takes a lock from a holder, or a waiter out of the queue, by force. Use it for a holder that hangs
    /// and cannot be stopped. Returns whether the claim held the lock.
    ///
    /// `owner` is what [`inspect`](Self::inspect) shows as [`Holder::owner`](crate::Holder::owner). If
    /// another claim holds the lock by now, nothing happens. The store keeps a record of the eviction with
    /// the `reason`, advances the lock's fencing token, and tells the holder of the loss. The holder's work may
    /// go on for a moment all the same: only a resource that checks fencing tokens is safe from it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name, and faults of the store.
    ///
    /// # Cancel safety
    /// After a drop the claim may or may not be evicted. The call can be repeated.
    pub async fn evict(&self, name: &str, owner: &str, reason: &str) -> Result<bool> {
        let name = LockName::new(name)?;
        let eviction = Eviction::new(name, owner, reason);
        let evicted = self.inner.call("evict", self.inner.store.evict(&eviction)).await;
        let evicted = evicted.map_err(|error| error.about(&eviction.name))?;
        Ok(evicted == Released::Released)
    }

    /// Checks whether the store is fit to lock on: what is unsafe, what could be better, and what is as it
    /// should be. Use it in a health check of a deployment, not before each lock. It may take and release a
    /// lock of its own; other locks are left alone.
    ///
    /// It makes several calls, so it may take as long as ten single ones.
    ///
    /// # Errors
    /// Faults that keep the store from being checked at all. A check that is not allowed is a finding.
    ///
    /// # Cancel safety
    /// Safe to drop: the lock that it takes ends by itself.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        let limit = self.inner.call_timeout * DIAGNOSE_CALLS;
        within(limit, "diagnose the store", self.inner.store.diagnose()).await
    }

    /// Waits until every release that was left to the background is done, or its TTL has passed; writes the
    /// [long waits](Self::with_long_waits) that have ended; then has the store give back what it kept for this
    /// client. Call it before the process ends, or what was dropped last is freed only by its TTL. Locks that
    /// are still held stay held, and the client can be used again.
    ///
    /// # Cancel safety
    /// Dropping it stops the waiting, not the releases.
    pub async fn close(&self) {
        self.inner.janitor.flush().await;
        if let Some(recorder) = &self.inner.long_waits {
            recorder.write(&self.inner).await;
        }
        let closed = async {
            self.inner.store.close_idle().await;
            Ok(())
        };
        if let Err(error) = self.inner.call("give back idle sessions", closed).await {
            tracing::debug!(%error, "sessions are left to their timeouts");
        }
    }

    fn lock(&self, name: &str) -> Result<Lock> {
        Ok(Lock::new(self.clone(), LockName::new(name)?))
    }

    /// A client of the same store, on the same thread.
    pub(crate) fn with(&self, settings: Settings) -> Result<Self> {
        Self::on(self.inner.background.clone(), Arc::clone(&self.inner.store), settings)
    }

    /// A client whose renewals and releases run on this thread.
    pub(crate) fn on(
        background: Background,
        store: Arc<dyn Store>,
        settings: Settings,
    ) -> Result<Self> {
        let Settings { call_timeout, checks_order, long_wait, labels, identity } = settings;
        crate::owner::settle_in();
        labels.begin();
        let keeper = Keeper::start(Arc::clone(&store), call_timeout, &background)?;
        let janitor = Janitor::start(Arc::clone(&store), call_timeout, &background);
        let origin = Origin::here();
        let clock = store.capabilities().clock;
        let last_answer = AtomicU64::default();
        let order = checks_order.then(OrderCheck::of_process);
        let identity = identity.unwrap_or_else(|| StoreIdentity::of(&store));
        let inner = Inner {
            store,
            call_timeout,
            keeper,
            janitor,
            clock,
            last_answer,
            identity,
            order,
            labels,
            long_waits: long_wait.map(Recorder::new),
            origin,
            background,
        };
        let inner = Arc::new(inner);
        if let Some(recorder) = inner.long_waits.clone() {
            inner.background.runtime().spawn(recorder.serve(Arc::downgrade(&inner)));
        }
        Ok(Self { inner })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("store", &self.inner.store).finish_non_exhaustive()
    }
}

impl Settings {
    pub(crate) fn new() -> Self {
        Self { call_timeout: CALL_TIMEOUT, ..Self::default() }
    }

    /// What a store's URL says.
    pub(crate) fn at(url: &StoreUrl) -> Self {
        let call_timeout = url.timeout().map_or(CALL_TIMEOUT, |limit| limit.min(LONGEST_CALL));
        Self { call_timeout, identity: StoreIdentity::of_url(url), ..Self::default() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(recorder) = &self.long_waits {
            recorder.end();
        }
    }
}

impl Inner {
    pub(crate) fn settings(&self) -> Settings {
        let (call_timeout, checks_order) = (self.call_timeout, self.order.is_some());
        let long_wait = self.long_waits.as_ref().map(Recorder::threshold);
        let (labels, identity) = (self.labels.clone(), Some(self.identity.clone()));
        Settings { call_timeout, checks_order, long_wait, labels, identity }
    }

    /// A fresh claim: its owner exists before the first byte leaves.
    pub(crate) fn mint(&self, name: &LockName, mode: Mode, options: &Options) -> Claim {
        let ttl = options.ttl_within(self.store.longest_ttl());
        // Not `Claim::new`, which asks the system for the process id.
        Claim {
            name: name.clone(),
            owner: OwnerId::random(),
            mode,
            ttl,
            origin: Arc::clone(&self.origin),
            label: Arc::clone(&options.label),
        }
    }

    /// Notes that the store has just answered a claim.
    pub(crate) fn answered(&self) {
        self.last_answer.fetch_max(self.clock.now().as_nanos(), Ordering::Relaxed);
    }

    /// When the store answered a claim of this client last.
    pub(crate) fn last_answer(&self) -> Moment {
        Moment::from_nanos(self.last_answer.load(Ordering::Relaxed))
    }

    /// One call to the store, bounded by the client's call timeout.
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
    require_runtime(operation)?;
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(unanswered(limit, operation)))
}

/// The error of a call that the client's clock has ended.
pub(crate) fn unanswered(limit: Duration, operation: &'static str) -> Error {
    let why =
        format!("the store did not answer within {limit:?}: check that it runs and can be reached");
    Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect()
}
