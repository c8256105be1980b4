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
use crate::line::Line;
use crate::losses::losses;
use crate::record::Record;

/// How many entries are added at once by the tasks of their callers.
const CALLERS_ARRIVALS: usize = 16;

/// How many entries are added at once by tasks of the store. More would only wait in the engine, and
/// time out there; fewer would cost the engine more, since it carries out together what arrives together.
const ARRIVALS: usize = 64;

/// How many entries of claims that expired are removed at once.
const REMOVALS: usize = 64;

/// Before a task tries again what failed.
const PAUSE: Duration = Duration::from_millis(250);

/// A session without claims is let go after this long.
const IDLE: Duration = Duration::from_secs(60);

pub(crate) struct Shared<E: Engine> {
    pub(crate) engine: E,
    pub(crate) claims: Claims<E>,
    /// The locks that this process waits for. Locked before any of its lines.
    pub(crate) lines: Mutex<HashMap<LockName, Arc<Line<E>>>>,
    pub(crate) calls: CallOrder,
    callers_arrivals: Semaphore,
    arrivals: Semaphore,
    removals: Semaphore,
    pub(crate) listeners: LossListeners,
    pub(crate) background: Background,
    /// The tasks that attend to sessions, by session.
    attended: Mutex<HashMap<i64, Attended<E>>>,
    /// All other tasks. They keep what is shared, and so must be stopped with the store: then this is
    /// `None`, and no task is started any more.
    tasks: Mutex<Option<JoinSet<()>>>,
}

/// A session, and the task that attends to it.
type Attended<E> = (Arc<<E as Engine>::Session>, JoinHandle<()>);

impl<E: Engine> Shared<E> {
    pub(crate) fn new(engine: E, background: Background) -> Arc<Self> {
        Arc::new(Self {
            engine,
            claims: Claims::default(),
            lines: Mutex::default(),
            calls: CallOrder::new(background.runtime().clone()),
            callers_arrivals: Semaphore::new(CALLERS_ARRIVALS),
            arrivals: Semaphore::new(ARRIVALS),
            removals: Semaphore::new(REMOVALS),
            listeners: LossListeners::default(),
            background,
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

    /// Adds an entry, when few others are being added.
    ///
    /// A lone caller sends the request from its own task, because to wake another thread costs as much
    /// as a tenth of a transaction. In a crowd the store does it: callers that are not polled must not
    /// keep others out.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        session: &Arc<E::Session>,
        claim: &Claim,
        look: bool,
    ) -> Result<Entered<E::Key>> {
        let record = Record::write(claim, false, Duration::ZERO);
        if let Ok(_permit) = self.callers_arrivals.try_acquire() {
            return self.engine.enter(session, claim, record, look).await;
        }
        let (shared, session, claim) = (Arc::clone(self), Arc::clone(session), claim.clone());
        let enter = async move {
            // The semaphore is never closed, so this cannot fail.
            let _permit = shared.arrivals.acquire().await;
            shared.engine.enter(&session, &claim, record, look).await
        };
        self.background.run("acquire", enter).await
    }

    pub(crate) fn line(&self, name: &LockName) -> Option<Arc<Line<E>>> {
        self.lines.lock().get(name).cloned()
    }

    /// Has a task wait for a claim's turn.
    pub(crate) fn stand_in_line(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &Entry<E::Key>,
        listing: Option<Listing<E::Key>>,
    ) {
        let mut lines = self.lines.lock();
        let line = match lines.get(&claim.name) {
            Some(line) => Arc::clone(line),
            None => {
                let line = Arc::new(Line::new(claim.name.clone()));
                lines.insert(claim.name.clone(), Arc::clone(&line));
                self.spawn(Arc::clone(&line).follow(Arc::clone(self)));
                line
            }
        };
        let gone = line.enter(claim.owner, entry, listing);
        drop(lines);
        self.forget(gone);
        line.advance(self);
    }

    /// Notes that a waiting claim is admitted.
    pub(crate) fn admit(self: &Arc<Self>, owner: OwnerId, order: Order) {
        let Some(tracked) = self.claims.admit(owner, order) else { return };
        if let (Mode::Permits { .. }, State::Holds(entry, _)) =
            (tracked.claim.mode, tracked.state.clone())
        {
            let shared = Arc::clone(self);
            self.spawn(async move { shared.tell_next(&tracked, &entry).await });
        }
    }

    /// Writes to the entry of a permit holder that had to wait: the process of the next waiter
    /// watches it, and may have its turn too.
    async fn tell_next(&self, tracked: &Tracked<E>, entry: &Entry<E::Key>) {
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
                    tracing::debug!(lock = %name, %error, "the next waiter is not told yet");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// The entries of these waiters are gone: by force, or because they expired.
    pub(crate) fn forget(&self, gone: impl IntoIterator<Item = (OwnerId, Order)>) {
        gone.into_iter().for_each(|(owner, order)| self.claims.forget(owner, order));
    }

    /// A claim's entry was removed: others may have their turn.
    pub(crate) fn left(self: &Arc<Self>, tracked: &Tracked<E>) {
        self.claims.remove(tracked);
        self.removed(&tracked.claim.name, &tracked.state);
    }

    /// Tells the line of a lock that an entry of this process is not in it any more.
    fn removed(self: &Arc<Self>, name: &LockName, state: &State<E::Key>) {
        if let State::Waits(entry, _) | State::Holds(entry, _) = state
            && let Some(line) = self.line(name)
        {
            line.remove(self, entry.order);
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
                () = shared.hear_losses(&session) => true,
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
    async fn hear_losses(self: &Arc<Self>, session: &Arc<E::Session>) {
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
                    tracing::debug!(session = session.id(), %error, "losses are not heard");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn evicted(self: &Arc<Self>, hold: Hold) {
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
                    if idle && self.let_go_if_unused(session) {
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

    /// Has the next claim on a session start another task to attend to it. False: a claim uses it.
    fn let_go_if_unused(&self, session: &Arc<E::Session>) -> bool {
        let mut attended = self.attended.lock();
        let unused = self.claims.usage(session) == Usage::Unused;
        if unused {
            attended.remove(&session.id());
        }
        unused
    }

    /// Stops to attend to sessions that no claim uses, so that the engine can end them.
    pub(crate) async fn let_go_of_unused_sessions(&self) {
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
        while !tracked.session.is_over() && self.claims.is_staying(&tracked) {
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
                // If the owner has come anew since, this may be the new claim's entry. If not, it is
                // not: a new claim enters only after this one is forgotten.
                Some((entry, _)) if self.claims.is_staying(tracked) => {
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
