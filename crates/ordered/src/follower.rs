//! One lock's queue, as the waiters of this process see it, and the task that follows it.
//!
//! The task lists and watches for all waiters of the process together ([`OrderedQueue`]). It lives
//! as long as there are waiters. An outage does not end it: it goes on when the engine answers again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tenure_core::store::{Moment, now};
use tenure_core::{Error, LockName, Mode, OwnerId, Result};
use tenure_proto::{Backoff, Order, OrderedQueue, Step, WatchFor};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::engine::{Change, Engine, Entry, Listing, Watching};
use crate::shared::Shared;

/// The interval at which the watched entries are checked although no notification came, in case one was
/// lost.
///
/// That costs the same in a queue of any length. A lost write to an entry shows in a listing alone: so
/// does a removal behind a watch on the whole queue.
pub(crate) const CHECK: Duration = Duration::from_secs(30);

/// Queues of up to this many entries are listed in each [`CHECK`]. For longer ones the interval grows
/// with the length: so the listings of all waiting processes together do not grow with its square.
const SHORT_QUEUE: usize = 100;
const LONGEST_INTERVAL: u32 = 20;

/// After a fault, the watches of this many queues begin again in each second. Fewer in tests, so that the
/// spread is longer than the work takes on a busy machine.
const QUEUES_PER_SECOND: u32 = if cfg!(test) { 50 } else { 1_000 };
const LONGEST_SPREAD: Duration = Duration::from_secs(10);

/// From when on, and how often, an outage is reported to the log.
const FIRST_WARNING: Duration = Duration::from_secs(5);
const NEXT_WARNING: Duration = Duration::from_secs(60);

pub(crate) struct FollowedQueue<E: Engine> {
    pub(crate) name: LockName,
    view: Mutex<View<E::Key>>,
    /// Wakes the task: there may be something to list or to watch.
    wake: Notify,
}

struct View<K> {
    queue: OrderedQueue,
    entries: HashMap<Order, Entry<K>>,
    waiters: HashMap<Order, OwnerId>,
    wanted: Step,
}

impl<E: Engine> FollowedQueue<E> {
    pub(crate) fn new(name: LockName) -> Self {
        let view = View {
            queue: OrderedQueue::default(),
            entries: HashMap::new(),
            waiters: HashMap::new(),
            wanted: Step::default(),
        };
        Self { name, view: Mutex::new(view), wake: Notify::new() }
    }

    /// Adds a waiter of this process. Returns the waiters that the listing shows to be gone.
    pub(crate) fn enter(
        &self,
        owner: OwnerId,
        entry: &Entry<E::Key>,
        listing: Option<Listing<E::Key>>,
    ) -> Vec<(OwnerId, Order)> {
        let mut view = self.view.lock();
        view.entries.insert(entry.order, entry.clone());
        view.waiters.insert(entry.order, owner);
        view.queue.handle_entered(entry.order, entry.mode);
        listing.map(|listing| view.show(listing)).unwrap_or_default()
    }

    /// How many waiters of this process are in the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.view.lock().queue.waiting()
    }

    fn waiters(&self) -> Vec<OwnerId> {
        self.view.lock().waiters.values().copied().collect()
    }

    pub(crate) fn is_first(&self, order: Order) -> bool {
        self.view.lock().queue.is_first(order)
    }

    /// Notes that an entry was removed, and admits the waiters that it kept out.
    pub(crate) fn remove(&self, shared: &Arc<Shared<E>>, order: Order) {
        {
            let mut view = self.view.lock();
            view.queue.handle_removed(order);
            view.entries.remove(&order);
            view.waiters.remove(&order);
        }
        self.advance(shared);
    }

    /// Notes that an exclusive entry has become a shared one, and admits the readers that it kept out.
    pub(crate) fn downgrade(&self, shared: &Arc<Shared<E>>, entry: &Entry<E::Key>) {
        {
            let mut view = self.view.lock();
            view.queue.handle_downgraded(entry.order);
            if let Some(known) = view.entries.get_mut(&entry.order) {
                *known = entry.clone();
            }
        }
        self.advance(shared);
    }

    /// Admits the waiters that the view admits, and wakes the task if there is something to list or watch.
    pub(crate) fn advance(&self, shared: &Arc<Shared<E>>) {
        let mut view = self.view.lock();
        let step = view.queue.step();
        for order in &step.admitted {
            if let Some(owner) = view.waiters.remove(order) {
                shared.admit(owner, *order);
            }
        }
        if step != view.wanted {
            view.wanted = step;
            self.wake.notify_one();
        }
    }

    /// Follows the queue until this process has no waiters in it.
    pub(crate) async fn follow(self: Arc<Self>, shared: Arc<Shared<E>>) {
        let mut follower = Follower {
            followed: Arc::clone(&self),
            shared,
            watches: HashMap::new(),
            queue_watch: None,
            events: FuturesUnordered::new(),
            paused: false,
            check_at: Instant::now(),
            list_at: Instant::now(),
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
            outage: None,
        };
        follower.check_later();
        follower.list_later();
        while follower.begin_wanted() {
            tokio::select! {
                Some(event) = follower.events.next() => {
                    follower.handle(event);
                    follower.handle_what_is_there();
                }
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(follower.check_at.min(follower.list_at)) => {
                    follower.check();
                }
            }
            self.advance(&follower.shared);
        }
    }
}

impl<K> View<K> {
    fn show(&mut self, listing: Listing<K>) -> Vec<(OwnerId, Order)> {
        let listed = listing.entries.iter().map(|entry| (entry.order, entry.mode));
        let listed: Vec<(Order, Mode)> = listed.collect();
        let gone = self.queue.handle_listed(listed, listing.covers);
        let mut entries: HashMap<Order, Entry<K>> = HashMap::new();
        entries.extend(self.entries.drain().filter(|(order, _)| *order > listing.covers));
        entries.extend(listing.entries.into_iter().map(|entry| (entry.order, entry)));
        self.entries = entries;
        let owner = |order| Some((self.waiters.remove(&order)?, order));
        gone.into_iter().filter_map(owner).collect()
    }
}

/// The task that follows one queue.
struct Follower<E: Engine> {
    followed: Arc<FollowedQueue<E>>,
    shared: Arc<Shared<E>>,
    watches: HashMap<Order, (WatchFor, AbortHandle)>,
    /// The watch on the queue as a whole.
    queue_watch: Option<AbortHandle>,
    events: FuturesUnordered<BoxFuture<'static, Event<E::Key>>>,
    /// Nothing new is begun until the pause after a fault is over.
    paused: bool,
    /// When the watched entries are looked at, and the queue is listed, although no notification came.
    check_at: Instant,
    list_at: Instant,
    backoff: Backoff,
    outage: Option<Outage>,
}

/// An outage, and when to report it next.
struct Outage {
    since: Moment,
    report: Moment,
}

/// Resolves when a queue that is watched as a whole has changed.
type QueueWatch = BoxFuture<'static, Result<()>>;

enum Event<K> {
    /// A listing; with a watch on the queue if one was asked for.
    Listed(Result<(Listing<K>, Option<QueueWatch>)>),
    QueueChanged(Result<()>),
    Watched(Order, WatchFor, Result<Option<BoxFuture<'static, Result<Change>>>>),
    Changed(Order, WatchFor, Result<Change>),
    /// A watch was given up.
    Dropped,
    Resume,
}

impl<E: Engine> Follower<E> {
    /// Begins what the view asks for. False: no waiter is left, and the queue is followed no more.
    fn begin_wanted(&mut self) -> bool {
        let followed = Arc::clone(&self.followed);
        let mut queues = None;
        let mut view = followed.view.lock();
        if view.queue.is_idle() {
            drop(view);
            // Waiters are added while `queues` is locked, so none is added to a queue that ends here.
            queues = Some(self.shared.queues.lock());
            view = followed.view.lock();
            if view.queue.is_idle() {
                if let Some(queues) = &mut queues {
                    queues.remove(&followed.name);
                }
                return false;
            }
        }
        drop(queues);
        let wanted = view.wanted.clone();
        // There may be as many entries to watch as a semaphore has permits.
        let kinds: HashMap<Order, WatchFor> = wanted.watch.iter().copied().collect();
        self.watches.retain(|order, (kind, abort)| {
            let keep = kinds.get(order) == Some(kind);
            if !keep {
                abort.abort();
                view.queue.handle_unwatched(*order);
            }
            keep
        });
        if !wanted.watch_queue
            && let Some(abort) = self.queue_watch.take()
        {
            abort.abort();
            view.queue.handle_queue_unwatched();
        }
        if self.paused {
            return true;
        }
        if wanted.list {
            view.queue.handle_listing_begun();
            view.wanted.list = false;
            let (shared, name) = (Arc::clone(&self.shared), followed.name.clone());
            let watches = wanted.watch_queue && self.queue_watch.is_none();
            self.events.push(Box::pin(async move {
                Event::Listed(if watches {
                    let watched = shared.engine.watch_queue(&name).await;
                    watched.map(|(listing, changed)| (listing, Some(changed)))
                } else {
                    shared.engine.list(&name).await.map(|listing| (listing, None))
                })
            }));
        }
        for (order, kind) in wanted.watch {
            if let Some(entry) = view.entries.get(&order)
                && !self.watches.contains_key(&order)
            {
                self.watch(entry.clone(), kind);
            }
        }
        true
    }

    fn watch(&mut self, entry: Entry<E::Key>, kind: WatchFor) {
        let (shared, name, order) =
            (Arc::clone(&self.shared), self.followed.name.clone(), entry.order);
        let watching = match kind {
            WatchFor::Removal => Watching::Removal,
            WatchFor::Change | WatchFor::Downgrade => Watching::Change,
        };
        let watched = async move {
            let watched = shared.engine.watch(&name, &entry, watching).await;
            Event::Watched(order, kind, watched)
        };
        self.push(order, kind, watched);
    }

    fn push(
        &mut self,
        order: Order,
        kind: WatchFor,
        event: impl Future<Output = Event<E::Key>> + Send + 'static,
    ) {
        let (abort, registration) = AbortHandle::new_pair();
        self.watches.insert(order, (kind, abort));
        let event = Abortable::new(event, registration);
        self.events.push(Box::pin(async move { event.await.unwrap_or(Event::Dropped) }));
    }

    /// Handles all events that are ready, so that the view is evaluated once for all of them.
    fn handle_what_is_there(&mut self) {
        for _ in 0..self.events.len() {
            let Some(Some(event)) = self.events.next().now_or_never() else { return };
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event<E::Key>) {
        match event {
            Event::Listed(Ok((listing, changed))) => {
                self.recover();
                let mut view = self.followed.view.lock();
                view.queue.handle_listing_ended(false);
                if let Some(changed) = changed {
                    view.queue.handle_queue_watched();
                    let (abort, registration) = AbortHandle::new_pair();
                    let changed = Abortable::new(changed, registration);
                    self.queue_watch = Some(abort);
                    self.events.push(Box::pin(async move {
                        changed.await.map_or(Event::Dropped, Event::QueueChanged)
                    }));
                }
                let gone = view.show(listing);
                drop(view);
                self.shared.forget(gone);
                self.list_later();
            }
            Event::Listed(Err(error)) => {
                self.followed.view.lock().queue.handle_listing_ended(true);
                self.pause(&error);
            }
            Event::QueueChanged(outcome) => {
                self.queue_watch = None;
                self.followed.view.lock().queue.handle_queue_unwatched();
                if let Err(error) = outcome {
                    self.pause(&error);
                }
            }
            Event::Watched(order, kind, Ok(Some(changed))) => {
                self.recover();
                self.followed.view.lock().queue.handle_watched(order, kind);
                let changed = async move { Event::Changed(order, kind, changed.await) };
                self.push(order, kind, changed);
            }
            Event::Watched(order, _, Ok(None)) => {
                self.recover();
                self.watches.remove(&order);
                self.gone(order, true);
            }
            Event::Changed(order, _, Ok(Change::Removed)) => {
                self.watches.remove(&order);
                self.gone(order, false);
            }
            Event::Changed(order, kind, Ok(change @ (Change::Written | Change::Replaced))) => {
                self.watches.remove(&order);
                let mut view = self.followed.view.lock();
                view.queue.handle_unwatched(order);
                if kind != WatchFor::Removal || change == Change::Replaced {
                    view.queue.handle_stale();
                }
            }
            Event::Watched(order, _, Err(error)) | Event::Changed(order, _, Err(error)) => {
                self.watches.remove(&order);
                self.followed.view.lock().queue.handle_unwatched(order);
                self.pause(&error);
            }
            Event::Dropped => {}
            Event::Resume => self.paused = false,
        }
    }

    fn gone(&self, order: Order, missing: bool) {
        let mut view = self.followed.view.lock();
        if missing {
            view.queue.handle_missing(order);
        } else {
            view.queue.handle_removed(order);
        }
        view.entries.remove(&order);
        let owner = view.waiters.remove(&order);
        drop(view);
        self.shared.forget(owner.map(|owner| (owner, order)));
    }

    /// Begins nothing new for a while. The pause differs from queue to queue, so that a client that lost
    /// its connection does not set all its watches again at once.
    fn pause(&mut self, error: &Error) {
        let now = now();
        let outage =
            self.outage.get_or_insert_with(|| Outage { since: now, report: now + FIRST_WARNING });
        let (lock, waiting) = (&self.followed.name, self.followed.waiting());
        if !error.is_transient() {
            for owner in self.followed.waiters() {
                self.shared.claims.fail(owner, error);
            }
        }
        if now >= outage.report {
            outage.report = now + NEXT_WARNING;
            let lasts = now.since(outage.since);
            tracing::warn!(%lock, waiting, ?lasts, %error, "still waiting for the lock: the store fails");
        } else {
            tracing::debug!(%lock, waiting, %error, "watching again after a pause");
        }
        if !self.paused {
            self.paused = true;
            let queues = self.shared.queues.lock().len();
            let pause = self.backoff.next(self.chance()) + spread_over(queues, self.fraction());
            self.events.push(Box::pin(async move {
                tokio::time::sleep(pause).await;
                Event::Resume
            }));
        }
    }

    /// Checks whether the watched entries are there, by watching them again; and lists the queue if that
    /// is due.
    fn check(&mut self) {
        let followed = Arc::clone(&self.followed);
        let mut view = followed.view.lock();
        if Instant::now() >= self.list_at {
            view.queue.handle_stale();
            drop(view);
            self.list_later();
            return;
        }
        self.watches.retain(|order, (kind, abort)| {
            match kind {
                WatchFor::Change => return true,
                WatchFor::Downgrade => view.queue.handle_checked(*order),
                WatchFor::Removal => view.queue.handle_unwatched(*order),
            }
            abort.abort();
            false
        });
        drop(view);
        self.check_later();
    }

    fn check_later(&mut self) {
        self.check_at = Instant::now() + self.shared.check.mul_f64(self.jitter());
    }

    fn list_later(&mut self) {
        let entries = self.followed.view.lock().entries.len();
        let interval = list_interval(self.shared.check, entries);
        self.list_at = Instant::now() + interval.mul_f64(self.jitter());
    }

    fn recover(&mut self) {
        self.outage = None;
        self.backoff.reset();
    }

    /// A number that differs from moment to moment and from queue to queue.
    fn chance(&self) -> u64 {
        let name = self.followed.name.as_str().bytes();
        let seed = now().as_nanos() ^ (Arc::as_ptr(&self.followed) as usize as u64);
        name.fold(seed, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Between 0 and 1.
    fn fraction(&self) -> f64 {
        (self.chance() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Between 0.75 and 1.25.
    fn jitter(&self) -> f64 {
        0.75 + self.fraction() / 2.0
    }
}

fn list_interval(check: Duration, entries: usize) -> Duration {
    let intervals = u32::try_from(entries.div_ceil(SHORT_QUEUE)).unwrap_or(u32::MAX);
    check * intervals.clamp(1, LONGEST_INTERVAL)
}

/// How long one of `queues` queues waits before it watches again, so that they do not all do so at once.
fn spread_over(queues: usize, fraction: f64) -> Duration {
    let seconds = queues as f64 / f64::from(QUEUES_PER_SECOND);
    Duration::from_secs_f64(seconds.min(LONGEST_SPREAD.as_secs_f64())).mul_f64(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_queue_is_listed_less_often() {
        assert_eq!(list_interval(CHECK, 0), CHECK);
        assert_eq!(list_interval(CHECK, SHORT_QUEUE), CHECK);
        assert_eq!(list_interval(CHECK, 10 * SHORT_QUEUE), 10 * CHECK);
        assert_eq!(list_interval(CHECK, usize::MAX), LONGEST_INTERVAL * CHECK);
    }
}
