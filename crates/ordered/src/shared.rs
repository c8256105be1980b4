//! What the calls of a store share with the tasks that go on between calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Background, Claim, Hold, LossListeners, now};
use tenure_core::{LockName, Mode, OwnerId, Result, Token};
use tenure_proto::Order;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::calls::CallOrder;
use crate::claims::{Claims, State, Tracked, Usage};
use crate::engine::{Engine, Entered, Entry, Listing, Session};
use crate::follower::FollowedQueue;
use crate::record::Record;
use crate::record::losses;

/// How many entries are added at once by the tasks of their callers.
const CALLERS_ARRIVALS: usize = 16;

/// How many entries are added at once by tasks of the store. More would only wait in the engine, and
/// time out there; fewer would cost the engine more, since it carries out together what arrives together.
const ARRIVALS: usize = 64;

/// How many entries of claims that expired are removed at once.
const REMOVALS: usize = 64;

/// The pause before a task repeats a call that failed.
const PAUSE: Duration = Duration::from_millis(250);

/// A session without claims is no longer kept alive after this long.
const IDLE: Duration = Duration::from_secs(60);

pub(crate) struct Shared<E: Engine> {
    pub(crate) engine: E,
    pub(crate) claims: Claims<E>,
    /// The queues that this process waits in. Locked before any of them.
    pub(crate) queues: Mutex<HashMap<LockName, Arc<FollowedQueue<E>>>>,
    pub(crate) calls: CallOrder,
    callers_arrivals: Semaphore,
    arrivals: Semaphore,
    removals: Semaphore,
    pub(crate) listeners: LossListeners,
    pub(crate) background: Background,
    /// The interval at which the watched entries of a queue are checked, in case a notification was lost.
    pub(crate) check: Duration,
    /// The tasks that attend to sessions, by session.
    attended: Mutex<HashMap<i64, Attended<E>>>,
    /// All other tasks. They keep what is shared, and so must be stopped with the store: then this is
    /// `None`, and no task is started any more.
    tasks: Mutex<Option<JoinSet<()>>>,
}

/// A session, and the task that attends to it.
type Attended<E> = (Arc<<E as Engine>::Session>, JoinHandle<()>);

impl<E: Engine> Shared<E> {
    pub(crate) fn new(engine: E, background: Background, check: Duration) -> Arc<Self> {
        Arc::new(Self {
            engine,
            claims: Claims::default(),
            queues: Mutex::default(),
            calls: CallOrder::new(background.runtime().clone()),
            callers_arrivals: Semaphore::new(CALLERS_ARRIVALS),
            arrivals: Semaphore::new(ARRIVALS),
            removals: Semaphore::new(REMOVALS),
            listeners: LossListeners::default(),
            background,
            check,
            attended: Mutex::default(),
            tasks: Mutex::new(Some(JoinSet::new())),
        })
    }

    /// Starts a task that ends with the store at the latest.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        let Some(tasks) = &mut *tasks else { return };
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, self.background.runtime());
    }

    /// Adds an entry, as soon as few others are being added.
    ///
    /// A lone caller sends the request from its own task, because waking another thread costs as much
    /// as a tenth of a transaction. In a crowd a task of the store sends it: a caller that is not polled
    /// must not delay others.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        session: &Arc<E::Session>,
        claim: &Claim,
    ) -> Result<Entered<E::Key>> {
        let record = Record::write(claim, false, Duration::ZERO);
        if let Ok(_permit) = self.callers_arrivals.try_acquire() {
            let look = self.must_look(&claim.name);
            return self.engine.enter(session, claim, record, look).await;
        }
        let (shared, session, claim) = (Arc::clone(self), Arc::clone(session), claim.clone());
        let enter = async move {
            // The semaphore is never closed, so this cannot fail.
            let _permit = shared.arrivals.acquire().await;
            // Decided only now: of a crowd that comes at once, only the first claims find the queue
            // empty.
            let look = shared.must_look(&claim.name);
            shared.engine.enter(&session, &claim, record, look).await
        };
        self.background.run("acquire", enter).await
    }

    /// Whether a claim that arrives is to look at the queue by itself. If others of this process wait,
    /// one task lists the queue for all of them.
    fn must_look(&self, name: &LockName) -> bool {
        self.followed(name).is_none_or(|followed| followed.waiting() < 2)
    }

    pub(crate) fn followed(&self, name: &LockName) -> Option<Arc<FollowedQueue<E>>> {
        self.queues.lock().get(name).cloned()
    }

    /// Adds a waiting claim to the queue that its lock's task follows.
    pub(crate) fn join_queue(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &Entry<E::Key>,
        listing: Option<Listing<E::Key>>,
    ) {
        let mut queues = self.queues.lock();
        let followed = match queues.get(&claim.name) {
            Some(followed) => Arc::clone(followed),
            None => {
                let followed = Arc::new(FollowedQueue::new(claim.name.clone()));
                queues.insert(claim.name.clone(), Arc::clone(&followed));
                self.spawn(Arc::clone(&followed).follow(Arc::clone(self)));
                followed
            }
        };
        let gone = followed.enter(claim.owner, entry, listing);
        drop(queues);
        self.forget(gone);
        followed.advance(self);
    }

    /// Notes that a waiting claim is admitted.
    pub(crate) fn admit(self: &Arc<Self>, owner: OwnerId, order: Order) {
        let Some(tracked) = self.claims.admit(owner, order) else { return };
        if let (Mode::Permits { .. }, State::Holds(entry, _)) =
            (tracked.claim.mode, tracked.state.clone())
        {
            let shared = Arc::clone(self);
            self.spawn(async move { shared.notify_next(&tracked, &entry).await });
        }
    }

    /// Writes to the entry of a permit holder that had to wait: the process of the next waiter watches
    /// the entry, because the next waiter may be admitted too.
    async fn notify_next(&self, tracked: &Tracked<E>, entry: &Entry<E::Key>) {
        const TRIES: usize = 20;
        let Claim { name, owner, .. } = &tracked.claim;
        for _ in 0..TRIES {
            let record = Record::write(&tracked.claim, true, Duration::ZERO);
            match self.engine.write(name, entry, record).await {
                Ok(()) => {
                    self.claims.update(*owner, now(), |tracked| tracked.unrecorded = None);
                    return;
                }
                Err(error) => {
                    tracing::debug!(lock = %name, %error, "the next waiter is not notified yet");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Forgets waiters whose entries are gone: evicted, or expired.
    pub(crate) fn forget(&self, gone: impl IntoIterator<Item = (OwnerId, Order)>) {
        gone.into_iter().for_each(|(owner, order)| self.claims.forget(owner, order));
    }

    /// Forgets a claim whose entry was removed, and admits the waiters that it kept out.
    pub(crate) fn left(self: &Arc<Self>, tracked: &Tracked<E>) {
        self.claims.remove(tracked);
        self.removed(&tracked.claim.name, &tracked.state);
    }

    /// Notes in a followed queue that an entry of this process was removed.
    fn removed(self: &Arc<Self>, name: &LockName, state: &State<E::Key>) {
        if let State::Waits(entry, _) | State::Holds(entry, _) = state
            && let Some(followed) = self.followed(name)
        {
            followed.remove(self, entry.order);
        }
    }

    /// Keeps a session alive for claims that wait on it, and listens for losses, until it is over or
    /// no claim has used it for a while. To be called once the claim is in the registry: the session
    /// of a claim that is not there yet counts as unused.
    pub(crate) fn attend(self: &Arc<Self>, session: &Arc<E::Session>) {
        let mut attended = self.attended.lock();
        if let Some((known, task)) = attended.get(&session.id())
            && Arc::ptr_eq(known, session)
            && !task.is_finished()
        {
            return;
        }
        if self.tasks.lock().is_none() {
            return;
        }
        attended.retain(|_, (_, task)| !task.is_finished());
        let (shared, session) = (Arc::clone(self), Arc::clone(session));
        let (id, known) = (session.id(), Arc::clone(&session));
        let task = async move {
            let over = tokio::select! {
                () = session.ended() => true,
                () = shared.listen_for_losses(&session) => true,
                () = shared.keep_alive(&session) => session.is_over(),
            };
            if over {
                shared.session_over(&session);
            }
        };
        attended.insert(id, (known, self.background.runtime().spawn(task)));
    }

    fn session_over(self: &Arc<Self>, session: &Arc<E::Session>) {
        tracing::debug!(session = session.id(), "the session is over");
        for tracked in self.claims.remove_all_on(session) {
            if let State::Holds(_, token) = tracked.state {
                self.listeners.lost(Hold::new(tracked.claim.owner, Some(token)));
            }
            self.removed(&tracked.claim.name, &tracked.state);
        }
    }

    /// Listens for the losses of a session's claims. Returns when the session is over.
    async fn listen_for_losses(self: &Arc<Self>, session: &Arc<E::Session>) {
        loop {
            let heard = match self.engine.open_loss_channel(session).await {
                Ok(None) => return,
                Ok(Some((content, changed))) => {
                    losses(&content).for_each(|hold| self.evicted(hold));
                    changed.await
                }
                Err(error) => Err(error),
            };
            match heard {
                _ if session.is_over() => return,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(session = session.id(), %error, "the loss channel cannot be read");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Notes that a claim of this client was evicted.
    pub(crate) fn evicted(self: &Arc<Self>, hold: Hold) {
        self.listeners.lost(hold);
        if let Some(tracked) = self.claims.evicted(hold) {
            self.removed(&tracked.claim.name, &tracked.state);
        }
    }

    /// Confirms a session often enough for the claims that wait on it: one that is admitted begins
    /// its term with what the session has left. Returns when the session is over or idle.
    async fn keep_alive(&self, session: &Arc<E::Session>) {
        let mut unused = None;
        loop {
            let pause = (session.life() / 8).clamp(Duration::from_millis(50), IDLE / 4);
            tokio::time::sleep(pause).await;
            let usage = self.claims.usage(session);
            match usage {
                Usage::Unused => {
                    let idle = now().since(*unused.get_or_insert_with(now)) >= IDLE;
                    if idle && self.stop_attending_if_unused(session) {
                        return;
                    }
                    continue;
                }
                Usage::Used | Usage::WaitedOn => unused = None,
            }
            if usage == Usage::WaitedOn && now().since(session.confirmed()) >= pause {
                match self.engine.confirm(session, now()).await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => tracing::debug!(%error, "the session is not confirmed"),
                }
            }
        }
    }

    /// Stops attending to a session, unless a claim uses it: then this returns false. The next claim on
    /// the session starts another task.
    fn stop_attending_if_unused(&self, session: &Arc<E::Session>) -> bool {
        let mut attended = self.attended.lock();
        let unused = self.claims.usage(session) == Usage::Unused;
        if unused {
            attended.remove(&session.id());
        }
        unused
    }

    /// Stops attending to sessions that no claim uses, so that the engine can end them.
    pub(crate) async fn stop_attending_to_unused(&self) {
        let unused: Vec<JoinHandle<()>> = {
            let mut attended = self.attended.lock();
            let idle = attended
                .iter()
                .filter(|(_, (session, _))| self.claims.usage(session) == Usage::Unused);
            let idle: Vec<i64> = idle.map(|(id, _)| *id).collect();
            idle.iter().filter_map(|id| attended.remove(id)).map(|(_, task)| task).collect()
        };
        for task in unused {
            task.abort();
            // An error says that it has ended, too.
            let _ = task.await;
        }
    }

    /// Removes the entries of claims that were not renewed in time, until it is stopped.
    pub(crate) async fn expire_claims(self: Arc<Self>) {
        loop {
            let (overdue, next) = self.claims.overdue(now());
            for one in overdue {
                self.spawn(Arc::clone(&self).expire(one));
            }
            let until = next.map_or(IDLE, |next| next.since(now()).min(IDLE));
            tokio::select! {
                () = self.claims.earlier.notified() => {}
                () = tokio::time::sleep(until) => {}
            }
        }
    }

    async fn expire(self: Arc<Self>, tracked: Tracked<E>) {
        // The entries of a session that is over go with it.
        while !tracked.session.is_over() && self.claims.is_registered(&tracked) {
            let removed = {
                // The semaphore is never closed, so this cannot fail.
                let _permit = self.removals.acquire().await;
                self.remove_entries(&tracked).await
            };
            match removed {
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(lock = %tracked.claim.name, %error, "not removed yet");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        self.left(&tracked);
    }

    /// Removes the entry of a claim, wherever it is. True: there was one.
    pub(crate) async fn remove_entries(&self, tracked: &Tracked<E>) -> Result<bool> {
        let name = &tracked.claim.name;
        match &tracked.state {
            State::Waits(entry, _) | State::Holds(entry, _) => {
                self.engine.remove(name, entry).await
            }
            State::Unsure => match self.find(tracked).await? {
                // If the owner has made a new claim since, this may be the new claim's entry. If this
                // one is still registered, it is not: a new claim enters only after this one is
                // forgotten.
                Some((entry, _)) if self.claims.is_registered(tracked) => {
                    self.engine.remove(name, &entry).await
                }
                _ => Ok(false),
            },
        }
    }

    /// Finds the entry of a claim whose request had an unknown outcome. `None`: there is none, and
    /// there never will be.
    pub(crate) async fn find(
        &self,
        tracked: &Tracked<E>,
    ) -> Result<Option<(Entry<E::Key>, Token)>> {
        let Tracked { claim, session, .. } = tracked;
        if !self.engine.fence_writes(session, now()).await? {
            return Ok(None);
        }
        self.engine.find(session, claim).await
    }

    pub(crate) fn stop(&self) {
        drop(self.tasks.lock().take());
        for (_, (_, task)) in self.attended.lock().drain() {
            task.abort();
        }
    }
}
