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

/// How often a short queue is listed although nothing was heard, in case news was lost.
const LIST_ANYWAY: Duration = Duration::from_secs(30);

/// The interval grows with the queue, so that the listings of all its waiters' processes together do
/// not grow with the square of its length: so many entries are listed in each `LIST_ANYWAY`.
const SHORT_QUEUE: usize = 100;
const LONGEST_INTERVAL: u32 = 20;

/// From when on, and how often, an outage is reported to the log.
const FIRST_WARNING: Duration = Duration::from_secs(5);
const NEXT_WARNING: Duration = Duration::from_secs(60);

pub(crate) struct Line<E: Engine> {
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

impl<E: Engine> Line<E> {
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

    /// Notes that an entry was removed, and admits those that it kept out.
    pub(crate) fn remove(&self, shared: &Arc<Shared<E>>, order: Order) {
        {
            let mut view = self.view.lock();
            view.queue.handle_removed(order);
            view.entries.remove(&order);
            view.waiters.remove(&order);
        }
        self.advance(shared);
    }

    /// Admits the waiters whose turn has come, and wakes the task for what is left to do.
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
            line: Arc::clone(&self),
            shared,
            watches: HashMap::new(),
            events: FuturesUnordered::new(),
            paused: false,
            list_at: Instant::now(),
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
            trouble: None,
        };
        follower.list_later();
        while follower.begin_wanted() {
            tokio::select! {
                Some(event) = follower.events.next() => {
                    follower.handle(event);
                    follower.handle_what_is_there();
                }
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(follower.list_at) => {
                    self.view.lock().queue.handle_stale();
                    follower.list_later();
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

/// The task of one line.
struct Follower<E: Engine> {
    line: Arc<Line<E>>,
    shared: Arc<Shared<E>>,
    watches: HashMap<Order, (WatchFor, AbortHandle)>,
    events: FuturesUnordered<BoxFuture<'static, Event<E::Key>>>,
    /// Nothing new is begun until the pause after a fault is over.
    paused: bool,
    /// When the queue is listed although nothing was heard.
    list_at: Instant,
    backoff: Backoff,
    trouble: Option<Trouble>,
}

/// An outage, and when to report it next.
struct Trouble {
    since: Moment,
    report: Moment,
}

enum Event<K> {
    Listed(Result<Listing<K>>),
    Watched(Order, WatchFor, Result<Option<BoxFuture<'static, Result<Change>>>>),
    Changed(Order, WatchFor, Result<Change>),
    /// A watch was given up.
    Dropped,
    Resume,
}

impl<E: Engine> Follower<E> {
    /// Begins what the view asks for. False: no waiter is left, and the line is closed.
    fn begin_wanted(&mut self) -> bool {
        let line = Arc::clone(&self.line);
        let mut lines = None;
        let mut view = line.view.lock();
        if view.queue.is_idle() {
            drop(view);
            // Waiters are added while the lines are locked, so none is added to one that ends.
            lines = Some(self.shared.lines.lock());
            view = line.view.lock();
            if view.queue.is_idle() {
                if let Some(lines) = &mut lines {
                    lines.remove(&line.name);
                }
                return false;
            }
        }
        drop(lines);
        let wanted = view.wanted.clone();
        // There may be as many as a semaphore has permits.
        let kinds: HashMap<Order, WatchFor> = wanted.watch.iter().copied().collect();
        self.watches.retain(|order, (kind, abort)| {
            let keep = kinds.get(order) == Some(kind);
            if !keep {
                abort.abort();
                view.queue.handle_unwatched(*order);
            }
            keep
        });
        if self.paused {
            return true;
        }
        if wanted.list {
            view.queue.handle_listing_begun();
            view.wanted.list = false;
            let (shared, name) = (Arc::clone(&self.shared), line.name.clone());
            let listed = async move { Event::Listed(shared.engine.list(&name).await) };
            self.events.push(Box::pin(listed));
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
        let (shared, name, order) = (Arc::clone(&self.shared), self.line.name.clone(), entry.order);
        let watching = match kind {
            WatchFor::Removal => Watching::Removal,
            WatchFor::Change => Watching::Change,
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

    /// Handles events that have happened by now, so that the view is looked at once for all of them.
    fn handle_what_is_there(&mut self) {
        for _ in 0..self.events.len() {
            let Some(Some(event)) = self.events.next().now_or_never() else { return };
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event<E::Key>) {
        match event {
            Event::Listed(Ok(listing)) => {
                self.recover();
                let mut view = self.line.view.lock();
                view.queue.handle_listing_ended(false);
                let gone = view.show(listing);
                drop(view);
                self.shared.forget(gone);
                self.list_later();
            }
            Event::Listed(Err(error)) => {
                self.line.view.lock().queue.handle_listing_ended(true);
                self.pause(&error);
            }
            Event::Watched(order, kind, Ok(Some(changed))) => {
                self.recover();
                self.line.view.lock().queue.handle_watched(order, kind);
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
                let mut view = self.line.view.lock();
                view.queue.handle_unwatched(order);
                if kind == WatchFor::Change || change == Change::Replaced {
                    view.queue.handle_stale();
                }
            }
            Event::Watched(order, _, Err(error)) | Event::Changed(order, _, Err(error)) => {
                self.watches.remove(&order);
                self.line.view.lock().queue.handle_unwatched(order);
                self.pause(&error);
            }
            Event::Dropped => {}
            Event::Resume => self.paused = false,
        }
    }

    fn gone(&self, order: Order, missing: bool) {
        let mut view = self.line.view.lock();
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

    /// Waits for a moment before anything new is begun: the lines of a client that lost its
    /// connection do not all come back at once.
    fn pause(&mut self, error: &Error) {
        let now = now();
        let trouble =
            self.trouble.get_or_insert_with(|| Trouble { since: now, report: now + FIRST_WARNING });
        let (lock, waiting) = (&self.line.name, self.line.waiting());
        if !error.is_transient() {
            for owner in self.line.waiters() {
                self.shared.claims.fail(owner, error);
            }
        }
        if now >= trouble.report {
            trouble.report = now + NEXT_WARNING;
            let lasts = now.since(trouble.since);
            tracing::warn!(%lock, waiting, ?lasts, %error, "waiting on although the store fails");
        } else {
            tracing::debug!(%lock, waiting, %error, "watching again after a pause");
        }
        if !self.paused {
            self.paused = true;
            let pause = self.backoff.next(self.chance());
            self.events.push(Box::pin(async move {
                tokio::time::sleep(pause).await;
                Event::Resume
            }));
        }
    }

    fn list_later(&mut self) {
        let entries = self.line.view.lock().entries.len();
        self.list_at = Instant::now() + list_interval(entries).mul_f64(self.spread());
    }

    fn recover(&mut self) {
        self.trouble = None;
        self.backoff.reset();
    }

    /// A number that differs from moment to moment and from line to line.
    fn chance(&self) -> u64 {
        let name = self.line.name.as_str().bytes();
        let seed = now().as_nanos() ^ (Arc::as_ptr(&self.line) as usize as u64);
        name.fold(seed, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Between 0.75 and 1.25.
    fn spread(&self) -> f64 {
        0.75 + (self.chance() >> 11) as f64 / (1_u64 << 53) as f64 / 2.0
    }
}

fn list_interval(entries: usize) -> Duration {
    let intervals = u32::try_from(entries.div_ceil(SHORT_QUEUE)).unwrap_or(u32::MAX);
    LIST_ANYWAY * intervals.clamp(1, LONGEST_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_queue_is_listed_less_often() {
        assert_eq!(list_interval(0), LIST_ANYWAY);
        assert_eq!(list_interval(SHORT_QUEUE), LIST_ANYWAY);
        assert_eq!(list_interval(10 * SHORT_QUEUE), 10 * LIST_ANYWAY);
        assert_eq!(list_interval(usize::MAX), LONGEST_INTERVAL * LIST_ANYWAY);
    }
}
