//! What an engine must be able to do: the primitive calls that a queue of ordered entries needs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tenure_core::store::{Background, Cells, Claim, Eviction, Fencing, Moment, Store};
use tenure_core::{
    AuditRecord, Error, ErrorKind, Fence, Finding, LockName, Mode, OwnerId, Result, Token,
};
use tenure_proto::Order;

/// An engine that keeps, for each lock, a queue of entries: each has a place in a total order that
/// the engine assigns, and each is removed by the engine when the session that made it ends.
///
/// Every call makes at most a bounded number of requests and never waits for the lock. An engine
/// may ask another server when one does not answer, but it does not retry beyond that. A call that
/// fails says by [`Error::effect`](tenure_core::Error::effect) whether it may have been carried out.
/// Any future may be dropped at any await; work that several callers share is run on `Background`.
#[async_trait]
pub trait Engine: fmt::Debug + Sized + Send + Sync + 'static {
    /// Where the engine is and how to reach it.
    type Config: Send;
    /// One session.
    type Session: Session;
    /// How the engine names one entry: whatever it takes to watch and to delete it.
    type Key: Clone + fmt::Debug + PartialEq + Send + Sync + 'static;

    /// Connects. What must go on between calls runs on `background`.
    ///
    /// # Errors
    /// If no server can be reached in time, refuses the credentials, or the configuration is wrong.
    async fn connect(config: Self::Config, background: &Background) -> Result<Self>;

    /// What can make a fencing token go backwards.
    fn fencing(&self) -> Fencing;

    /// The longest TTL that the servers allow, if they limit it.
    fn longest_ttl(&self) -> Option<Duration> {
        None
    }

    /// A session for claims of this TTL, shared by those that it fits: the engine ends it no earlier
    /// than `ttl` after [`Session::confirmed`], and that is at most a quarter of `ttl` ago.
    ///
    /// # Errors
    /// [`Invalid`](tenure_core::ErrorKind::Invalid) for a TTL that the servers do not allow.
    async fn session(&self, ttl: Duration) -> Result<Arc<Self::Session>>;

    /// Has the engine confirm that the session lives, by a request that is sent after `began` and
    /// that a majority of the servers takes part in. One request serves all concurrent callers.
    /// False: the session is over.
    ///
    /// # Errors
    /// If no answer came.
    async fn confirm(&self, session: &Arc<Self::Session>, began: Moment) -> Result<bool>;

    /// Adds an entry for the claim at the end of its lock's queue. The write carries the session's
    /// write fence, see [`fence_writes`](Self::fence_writes).
    ///
    /// With `look`, the answer shows the queue if that is cheap, in particular if it is otherwise
    /// empty. `record` is the entry's data.
    ///
    /// # Errors
    /// If the effect is unknown, the entry may appear until `fence_writes` has been called.
    async fn enter(
        &self,
        session: &Arc<Self::Session>,
        claim: &Claim,
        record: Vec<u8>,
        look: bool,
    ) -> Result<Entered<Self::Key>>;

    /// Makes sure that no request of an [`enter`](Self::enter) of this session that was sent before
    /// `began` takes effect after this has returned. (An `enter` that is still running may send its
    /// request again, with the new fence.) A later listing then shows whether it did. One request serves
    /// all concurrent callers. False: the session is over, and with it what it wrote.
    ///
    /// # Errors
    /// If no answer came.
    async fn fence_writes(&self, session: &Arc<Self::Session>, began: Moment) -> Result<bool>;

    /// The entry of this claim, with its token, if it is in its lock's queue and belongs to the
    /// session. Linearizable.
    ///
    /// # Errors
    /// If no answer came.
    async fn find(
        &self,
        session: &Arc<Self::Session>,
        claim: &Claim,
    ) -> Result<Option<(Entry<Self::Key>, Token)>>;

    /// Whether a lock's queue is empty, or `None` if to find out costs as much as to list it.
    /// Linearizable.
    ///
    /// # Errors
    /// If no answer came.
    async fn is_free(&self, name: &LockName) -> Result<Option<bool>>;

    /// All entries of a lock's queue in their order. Linearizable: it shows every entry that was
    /// added, and not removed, before this was called.
    ///
    /// # Errors
    /// If no answer came.
    async fn list(&self, name: &LockName) -> Result<Listing<Self::Key>>;

    /// The first entries of a lock's queue in their order, and whether there are more: about `limit` of them, at
    /// least those that hold the lock, as far as they are among the first `limit`. An engine whose servers
    /// cannot sort lists all. Linearizable.
    ///
    /// # Errors
    /// If no answer came.
    async fn first(&self, name: &LockName, limit: usize) -> Result<(Vec<Entry<Self::Key>>, bool)> {
        let _ = limit;
        Ok((self.list(name).await?.entries, false))
    }

    /// Watches a queue as a whole, and lists it. The listing shows the queue at some moment after the
    /// watch was in place, and the future resolves after the first removal since then. It may resolve
    /// for other changes too.
    ///
    /// The future fails if the watch ended without a change; dropping it ends the watch.
    ///
    /// # Errors
    /// If no answer came.
    async fn watch_queue(
        &self,
        name: &LockName,
    ) -> Result<(Listing<Self::Key>, BoxFuture<'static, Result<()>>)>;

    /// Watches one entry. `None`: it is not there. Else the entry was there at some moment after the
    /// watch was in place, and the future resolves with its first change after that.
    ///
    /// The future fails if the watch ended without a change; dropping it ends the watch.
    ///
    /// # Errors
    /// If no answer came.
    async fn watch(
        &self,
        name: &LockName,
        entry: &Entry<Self::Key>,
        kind: Watching,
    ) -> Result<Option<BoxFuture<'static, Result<Change>>>>;

    /// Removes an entry. False: it was not there. Sent twice or late, it hits no other entry.
    ///
    /// # Errors
    /// If no answer came.
    async fn remove(&self, name: &LockName, entry: &Entry<Self::Key>) -> Result<bool>;

    /// Whether an entry is there and belongs to the session, and the session is
    /// [confirmed](Self::confirm) by a request that was sent after this was called. With `record`,
    /// the entry's data is replaced.
    ///
    /// # Errors
    /// If no answer came.
    async fn renew(
        &self,
        session: &Arc<Self::Session>,
        name: &LockName,
        entry: &Entry<Self::Key>,
        record: Option<Vec<u8>>,
    ) -> Result<bool>;

    /// What an exclusive entry that tenure made is called once [`downgrade`](Self::downgrade) has taken
    /// effect: the same entry, in the same place, with whatever makes it a shared one. One that is shared
    /// already stays as it is.
    fn as_reader(&self, entry: &Entry<Self::Key>) -> Entry<Self::Key>;

    /// Makes an exclusive entry of the session a shared one where it is in the order, and replaces its
    /// data, so that watches on it for [`Watching::Change`] fire. In one step: no listing shows the queue
    /// without the entry. `entry` is that of [`as_reader`](Self::as_reader). False: it is not there.
    ///
    /// Sent twice, it changes nothing more; sent late, after the entry was removed, it does nothing.
    ///
    /// # Errors
    /// If no answer came.
    async fn downgrade(
        &self,
        session: &Arc<Self::Session>,
        name: &LockName,
        entry: &Entry<Self::Key>,
        record: Vec<u8>,
    ) -> Result<bool>;

    /// Replaces an entry's data, so that watches on it for [`Watching::Change`] fire.
    ///
    /// # Errors
    /// If no answer came.
    async fn write(&self, name: &LockName, entry: &Entry<Self::Key>, record: Vec<u8>)
    -> Result<()>;

    /// Opens the session's loss channel: a marker that lives as long as the session, and into which
    /// [`evict`](Self::evict) writes the losses of the session's entries
    /// ([`with_loss`](crate::with_loss)). Makes the marker if there is none, and returns its content and
    /// a future that resolves with the next change. `None`: the session is over.
    ///
    /// # Errors
    /// If no answer came.
    async fn open_loss_channel(
        &self,
        session: &Arc<Self::Session>,
    ) -> Result<Option<(Vec<u8>, BoxFuture<'static, Result<Change>>)>>;

    /// Removes an entry of any client and writes its loss into its session's loss channel, if it
    /// has one; and, if the entry `held`, adds the eviction to the lock's record
    /// ([`Eviction::record`]). All or nothing. False: something changed meanwhile, look again.
    ///
    /// # Errors
    /// If no answer came.
    async fn evict(
        &self,
        eviction: &Eviction,
        entry: &Entry<Self::Key>,
        held: bool,
    ) -> Result<bool>;

    /// A lock's records of what was done to its holders, as
    /// [`AuditRecord::before`](tenure_core::AuditRecord::before) makes them. Empty if there are none.
    ///
    /// # Errors
    /// If no answer came.
    async fn audit(&self, name: &LockName) -> Result<Vec<u8>>;

    /// Adds a record to those of a lock. False: they changed meanwhile, try again.
    ///
    /// # Errors
    /// If no answer came.
    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<bool>;

    /// What the engine knows of these entries, for display; `None` for one that is gone. The first
    /// `holders` of them hold: [`Details::time_left`] is needed for these alone.
    ///
    /// # Errors
    /// If no answer came.
    async fn details(
        &self,
        name: &LockName,
        entries: &[Entry<Self::Key>],
        holders: usize,
    ) -> Result<Vec<Option<Details>>>;

    /// The names of all locks that have entries and begin with `prefix`, sorted.
    ///
    /// # Errors
    /// If no answer came.
    async fn names(&self, prefix: &str) -> Result<Vec<LockName>>;

    /// What to call the owner of an entry that tenure did not write.
    fn foreign_owner(&self, name: &LockName, key: &Self::Key) -> String;

    /// A condition that holds in the engine as long as this entry is there.
    fn fence(&self, name: &LockName, entry: &Entry<Self::Key>) -> Option<Fence>;

    /// See [`Store::diagnose`]. `store` is the store that uses this engine; a check takes a lock on it.
    ///
    /// # Errors
    /// If the engine could not be examined at all.
    async fn diagnose(&self, store: &dyn Store) -> Result<Vec<Finding>>;

    /// See [`Store::cells`].
    ///
    /// # Errors
    /// [`Unsupported`](tenure_core::ErrorKind::Unsupported), with the reason, if the engine keeps none.
    fn cells(&self) -> Result<&dyn Cells> {
        let why = "this engine keeps locks only: use another one for values";
        Err(Error::new(ErrorKind::Unsupported, "keep values", why))
    }

    /// Ends the sessions of which only the engine keeps an [`Arc`]. A session that cannot be ended now
    /// expires later.
    async fn end_unused_sessions(&self);
}

/// A session of an engine. The entries that were added on it end with it.
#[async_trait]
pub trait Session: fmt::Debug + Send + Sync + 'static {
    /// Its name in the engine.
    fn id(&self) -> i64;

    /// How long the engine keeps it after [`confirmed`](Self::confirmed), at the least.
    fn life(&self) -> Duration;

    /// A moment before the last request was sent that confirmed it with a majority of the servers.
    fn confirmed(&self) -> Moment;

    /// Whether it is known to be over.
    fn is_over(&self) -> bool;

    /// Resolves when it is known to be over.
    async fn ended(&self);
}

/// One entry in the queue of a lock.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry<K> {
    /// Its place: lower comes first. No two entries of a queue have the same.
    pub order: Order,
    /// The mode that its claim asks for. An entry that another program made is taken for
    /// [`Exclusive`](Mode::Exclusive), unless the engine knows better.
    pub mode: Mode,
    /// The owner of its claim, if its name says so.
    pub owner: Option<OwnerId>,
    /// The engine's name for it.
    pub key: K,
}

/// The queue of a lock.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing<K> {
    /// The entries, in their order.
    pub entries: Vec<Entry<K>>,
    /// Every entry up to this order is shown, if it is there at all.
    pub covers: Order,
}

/// What came of [`Engine::enter`].
#[derive(Clone, Debug)]
pub struct Entered<K> {
    /// The new entry.
    pub entry: Entry<K>,
    /// The fencing token that goes with it.
    pub token: Token,
    /// The queue with the new entry in it, if it was looked at.
    pub listing: Option<Listing<K>>,
}

/// What a watch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watching {
    /// The entry's removal. A watch that also reports writes does no harm, but costs a check.
    Removal,
    /// The entry's removal, or a write to it.
    Change,
}

/// What happened to a watched entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was removed.
    Removed,
    /// It was removed, and another entry has its place in the order: only a listing shows which.
    Replaced,
    /// It was written to, or something may have happened.
    Written,
}

/// What an engine knows of an entry, for display.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// Its data.
    pub record: Vec<u8>,
    /// Its fencing token, if it holds.
    pub token: Option<Token>,
    /// How much longer its session lasts at most, if the engine reports it.
    pub time_left: Option<Duration>,
}
