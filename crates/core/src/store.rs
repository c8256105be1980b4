//! For engine authors: the contract between tenure and a store of locks.
//!
//! A program that only takes locks needs nothing of this module.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::{
    AuditEvent, AuditRecord, Error, ErrorKind, Fence, Finding, Holder, LockName, LockState, Result,
    Token,
};

pub use crate::background::{Background, require_runtime};
pub use crate::capabilities::{Capabilities, Fencing};
pub use crate::cells::contract::{
    Add, Added, CellClock, CellKey, CellSpace, Cells, Expiry, Rule, Stored, Swap, SwapId, Swapped,
    Take, Taken, Version,
};
pub use crate::cells::parties::is_for_parties;
pub use crate::claim::{Claim, Origin};
pub use crate::clock::{Clock, now};
pub use crate::connecting::Connecting;
pub use crate::factory::{Scheme, StoreFactory, UrlOption};
pub use crate::hints::{ChangeHints, Hint, HintSender};
pub use crate::listener::{Hold, LossListener, LossListeners};
pub use crate::memory::MemoryFactory;
pub use crate::password::Password;
pub use crate::self_test::{self_test, self_test_on};
pub use crate::url::StoreUrl;
pub use tenure_proto::{Moment, admitted};

/// How long one call to a store may take, unless a URL (`timeout=`) or a configuration says otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest that one step of a call may take: a dial, or the reply of one server. It is nine tenths of
/// the call timeout.
///
/// The client ends a call at its timeout. An engine that gave up at the same moment would race with it, and
/// the caller would sometimes get the engine's error, which names the server and knows whether anything was
/// sent, and sometimes the client's, which knows neither. A shorter step always ends first.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::step_limit;
///
/// assert_eq!(step_limit(Duration::from_secs(2)), Duration::from_millis(1800));
/// ```
pub fn step_limit(call_timeout: Duration) -> Duration {
    call_timeout - call_timeout / 10
}

/// How long a store keeps a lock's audit records after the newest of them: records of names that are used
/// once must not pile up.
pub const AUDIT_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Keeps locks: on a server, a quorum of servers, in a directory.
///
/// Implementers promise:
/// - Every call is idempotent on its [`Claim`]: repeating it, also after a lost reply, changes
///   nothing more.
/// - No call but [`wait`](Store::wait) waits for the lock, and none retries. The caller renews
///   holds. A fault is returned at once, with its effect. The caller bounds each call; a store that
///   bounds steps of it, such as a dial, does so by [`step_limit`].
/// - Every future may be dropped at any await. What a dropped call did in the store is undone by
///   the caller with [`release`](Store::release), sent after it in the same order.
/// - Faults are errors; busy, queued, lost and not held are answers.
///
/// The methods with a default are for what few stores can do or need. A store around a store must pass
/// each of them on, except `claim_together` and `release_together`, without which claims travel one by one.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// What the store can promise.
    fn capabilities(&self) -> Capabilities;

    /// The longest TTL that the store accepts, if it knows one. It refuses a claim with a longer one as
    /// [`Invalid`](crate::ErrorKind::Invalid).
    ///
    /// Clients shorten the default TTL to this, and never one that was asked for.
    fn longest_ttl(&self) -> Option<Duration> {
        None
    }

    /// Asks for the lock.
    ///
    /// A claim that holds already is granted again: the same token, and its term starts anew.
    /// A claim that is queued already keeps its position, and the lease of its queue entry starts anew. A
    /// claim whose entry or grant has expired is a new one. A claim that may be admitted must not
    /// overtake one that waits.
    ///
    /// # Errors
    /// Faults of the store; [`Unsupported`](crate::ErrorKind::Unsupported) for a mode it lacks.
    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome>;

    /// Waits until a queued claim is granted, or may have been.
    ///
    /// [`ClaimOutcome::Queued`] means: ask [`claim`](Store::claim) again. The caller bounds the wait; a
    /// store without push may sleep here for ever.
    ///
    /// # Errors
    /// Faults of the store.
    ///
    /// # Cancel safety
    /// The queue entry lives in the store: a dropped wait loses nothing, and a grant that arrives in
    /// between is found by the next `claim` or `wait`.
    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome>;

    /// Starts a held claim's term anew, from now.
    ///
    /// # Errors
    /// Faults of the store. That the claim does not hold the lock is the answer [`Renewal::Lost`].
    async fn renew(&self, claim: &Claim) -> Result<Renewal>;

    /// Turns the hold of a writer into that of a reader, in one step: no other writer holds in between. Its
    /// term starts anew, and the readers at the head of the queue are granted the lock beside it.
    ///
    /// Only a claim that was granted exclusively is passed. If it is a reader already, it stays one and its
    /// term starts anew: so a lost reply is repaired by asking again. From the answer on, all calls pass the
    /// same claim with [`Mode::Shared`](crate::Mode::Shared).
    ///
    /// # Errors
    /// Faults of the store. [`Unsupported`](crate::ErrorKind::Unsupported), with the reason, if it cannot
    /// do this without letting a writer in between. That the claim does not hold the lock is the answer
    /// [`Downgraded::Lost`].
    async fn downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        let why = "this store cannot turn a write hold into a read hold in one step: release the lock and \
                   acquire it for reading, and check what has changed in between";
        Err(Error::new(ErrorKind::Unsupported, "downgrade", why).about(&claim.name))
    }

    /// Gives up a claim, whether it holds, waits, or never arrived. Compares the owner. Of the
    /// claim only the name and the owner matter. Hands the lock to the next waiter.
    ///
    /// # Errors
    /// Faults of the store.
    async fn release(&self, claim: &Claim) -> Result<Released>;

    /// Takes several free locks in one call, all or none: for [`MultiLock`](crate::MultiLock). The claims are
    /// exclusive, and of different locks.
    ///
    /// `None`: nothing was taken, because a claim holds one of the locks or waits for it, or because the store
    /// would need as many calls as there are claims. Then the caller makes each claim by itself.
    ///
    /// # Errors
    /// As [`claim`](Store::claim).
    async fn claim_together(&self, claims: &[Claim]) -> Result<Option<Vec<Grant>>> {
        let _ = claims;
        Ok(None)
    }

    /// Gives up several holds in one call, all or none.
    ///
    /// `false`: nothing was given up, because one of the claims does not hold, because a claim waits for one of
    /// the locks, or because the store would need as many calls as there are claims. Then the caller releases
    /// each claim by itself.
    ///
    /// # Errors
    /// As [`release`](Store::release).
    async fn release_together(&self, claims: &[Claim]) -> Result<bool> {
        let _ = claims;
        Ok(false)
    }

    /// Notifies `listener`, from now on, when a hold ends early: evicted, or with the end of its session.
    /// The store keeps the listener until it [is closed](LossListener::is_closed).
    ///
    /// The store reports only what is certain, because the guard is lost at once and for good. A loss that
    /// is not reported is found by the next renewal. A second report of the same loss, or one of a hold
    /// that no client has, does no harm. Releases, and terms that end without a renewal, are not reported.
    fn subscribe_losses(&self, listener: LossListener) {
        drop(listener);
    }

    /// What is true in the store as long as this hold of the lock lasts, for transactions of the same
    /// store. `None` where there is no such comparison.
    fn fence(&self, name: &LockName, hold: Hold) -> Option<Fence> {
        let _ = (name, hold);
        None
    }

    /// A snapshot of one lock, expired holders and waiters left out.
    ///
    /// # Errors
    /// Faults of the store.
    async fn inspect(&self, name: &LockName) -> Result<LockState>;

    /// The holders of a lock, as [`inspect`](Store::inspect) shows them, without its queue. Each of many waiters
    /// asks this now and then, so a store that can leave out the queue should.
    ///
    /// # Errors
    /// Faults of the store.
    async fn holders(&self, name: &LockName) -> Result<Vec<Holder>> {
        Ok(self.inspect(name).await?.holders)
    }

    /// The names of all locks that are held or waited for and begin with `prefix`, sorted. Of very many locks,
    /// it may name some that have become free, where to know that would take a call for each.
    ///
    /// # Errors
    /// Faults of the store.
    async fn list(&self, prefix: &str) -> Result<Vec<LockName>>;

    /// Hints, from now on, at locks that begin with `prefix` and may have changed, for
    /// [`Watch`](crate::Watch). `None`: the store can only be asked. It is called on a tokio runtime.
    ///
    /// The first hint, that [any lock](HintSender::any_changed) may have changed, says that the store listens. A
    /// hint may be missing or needless: watches also ask for all locks now and then. The store keeps the sender
    /// until the receiver of the hints [is gone](HintSender::closed), and drops it when it can no longer
    /// listen: then it is called again, at most once in each interval of the watch.
    fn changes(&self, prefix: &str) -> Option<ChangeHints> {
        let _ = prefix;
        None
    }

    /// Takes a lock from its holder, or a waiter out of the queue, by force: only if the claim of `owner` is
    /// still there. Advances the fencing token past that of the evicted claim, and leaves an audit record in
    /// the store.
    ///
    /// # Errors
    /// Faults of the store.
    async fn evict(&self, eviction: &Eviction) -> Result<Released>;

    /// The records of evictions and revocations of one lock, newest first: the last
    /// [`AuditRecord::KEPT`] of them at the least.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported), with the reason, if the store keeps no records that
    /// it can show; faults of the store.
    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        Err(no_audit("read the records of", name))
    }

    /// Adds a record to those of a lock. [`evict`](Store::evict) does so by itself.
    ///
    /// # Errors
    /// As [`audit`](Store::audit).
    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        let _ = record;
        Err(no_audit("write a record of", name))
    }

    /// Checks the store and its surroundings: what is unsafe, what could be better, and what is as it should
    /// be. It may take and release a lock with a name of its own; other locks are left alone.
    ///
    /// # Errors
    /// Faults that keep the store from being checked at all. A check that is not allowed is a finding.
    async fn diagnose(&self) -> Result<Vec<Finding>>;

    /// The store's small values beside its locks.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported), with the reason, if it keeps none.
    fn cells(&self) -> Result<&dyn Cells> {
        let why = "this store keeps locks only: use another one for values";
        Err(Error::new(ErrorKind::Unsupported, "keep values", why))
    }

    /// Closes sessions and leases in the engine that no claim needs now. Those that cannot be closed end by
    /// themselves, later. Calls that come meanwhile or afterwards are served as usual.
    async fn close_idle(&self) {}
}

fn no_audit(operation: &'static str, name: &LockName) -> Error {
    let why = "this store keeps no records that it can show: look into the store itself";
    Error::new(ErrorKind::Unsupported, operation, why).about(name)
}

/// What the store does with a claim that cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Answer [`ClaimOutcome::Busy`] and keep nothing of the claim.
    NoWait,
    /// Queue the claim.
    Queue {
        /// Remove the claim from the queue if it does not ask again within this time.
        lease: Duration,
        /// The longest interval at which the claim asks again. A store whose tickets are
        /// [`tended`](QueueTicket::tended) checks for lost wake-ups as often.
        poll: Duration,
    },
}

impl WaitPolicy {
    /// Queues the claim for `lease` after each request, of which there are three in that time.
    pub const fn queue(lease: Duration) -> Self {
        Self::Queue { lease, poll: Duration::from_nanos(lease.as_nanos() as u64 / 3) }
    }
}

/// A store's answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The claim holds the lock.
    Granted(Grant),
    /// The claim waits in the queue.
    Queued(QueueTicket),
    /// The lock is held, and the policy was [`WaitPolicy::NoWait`]. The store keeps nothing of the claim.
    Busy,
}

/// A grant of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The fencing token, if the store gives one.
    pub token: Option<Token>,
    /// The latest moment known to be before the grant's term began, on the store's clock
    /// ([`Capabilities::clock`]).
    /// `None`: the moment before the call that returned the grant was sent.
    pub since: Option<Moment>,
}

impl Grant {
    /// A grant with this token, whose term began no earlier than `since`.
    pub const fn new(token: Option<Token>, since: Option<Moment>) -> Self {
        Self { token, since }
    }
}

/// A claim's position in the queue, as the store needs to know it for [`Store::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QueueTicket {
    /// When to ask again even without a wake-up: the lease of a holder in the way ends by then.
    pub ask_again_in: Option<Duration>,
    /// Whether the store keeps the claim queued while [`wait`](Store::wait) is pending, and recovers lost
    /// wake-ups by itself: then the caller need not ask again before it is told to.
    pub tended: bool,
    /// The store's own mark for the queue entry, so that it is found again without a search.
    pub mark: u64,
}

impl QueueTicket {
    /// A ticket of a claim that should ask again after this time, if it is known.
    pub const fn new(ask_again_in: Option<Duration>) -> Self {
        Self { ask_again_in, tended: false, mark: 0 }
    }

    /// The same ticket, of a claim that the store keeps queued by itself.
    #[must_use]
    pub const fn tended(mut self) -> Self {
        self.tended = true;
        self
    }

    /// The same ticket with the store's own mark.
    #[must_use]
    pub const fn with_mark(mut self, mark: u64) -> Self {
        self.mark = mark;
        self
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The term starts anew.
    Renewed,
    /// The claim does not hold the lock (any more).
    Lost,
}

/// The answer to a downgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Downgraded {
    /// The claim holds the lock as a reader. The token is that of the write hold, or a higher one.
    Shared(Grant),
    /// The claim does not hold the lock (any more).
    Lost,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The claim held the lock, and gave it up.
    Released,
    /// The claim did not hold the lock. If it waited, it no longer does.
    NotHeld,
}

/// A request to take a lock, or a position in its queue, from one claim by force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Eviction {
    /// The lock.
    pub name: LockName,
    /// The owner of the claim, as the store spells it ([`Holder::owner`](crate::Holder)). No other claim
    /// is evicted.
    pub owner: String,
    /// The claim's fencing token, for the audit record, where it is known.
    pub token: Option<Token>,
    /// The process that evicts it.
    pub by: Arc<Origin>,
    /// Why, for the audit record.
    pub reason: String,
    /// When the eviction was ordered, for the audit record.
    pub at: SystemTime,
}

impl Eviction {
    /// An eviction by this process. `owner` is an [`OwnerId`](crate::OwnerId), or the text that the store
    /// showed for a claim of another client.
    pub fn new(name: LockName, owner: impl ToString, reason: impl Into<String>) -> Self {
        let (owner, reason) = (owner.to_string(), reason.into());
        Self { name, owner, token: None, by: Origin::here(), reason, at: SystemTime::now() }
    }

    /// The same eviction, with the token of the claim for the audit record.
    #[must_use]
    pub const fn with_token(mut self, token: Option<Token>) -> Self {
        self.token = token;
        self
    }

    /// The record of this eviction that a store keeps.
    pub fn record(&self) -> AuditRecord {
        let Self { owner, token, by, reason, at, .. } = self;
        let mut record = AuditRecord::new(AuditEvent::Evicted, owner, *token, reason);
        (record.at, record.by) = (Some(*at), Arc::clone(by));
        record
    }
}
