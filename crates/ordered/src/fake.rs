//! An engine in memory, for tests: one [`World`] is the server, each [`FakeEngine`] a client of it.
//! A test can [pause](World::pause) or [lose](World::lose) single requests and replies.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tenure_core::store::{Background, Claim, Eviction, Fencing, Moment, Store, now};
use tenure_core::{
    AuditRecord, Error, ErrorKind, Fence, Finding, LockName, Mode, OwnerId, Result, Token,
};
use tenure_proto::Order;
use tokio::sync::{oneshot, watch};

use crate::engine::{
    Change, Details, Engine, Entered, Entry, Listing, Session as SessionTrait, Watching,
};
use crate::record::with_loss;

/// What all clients share.
#[derive(Debug, Default)]
pub(crate) struct World {
    state: Mutex<State>,
    script: Mutex<Vec<(Point, Fault)>>,
    /// Changes with every write.
    written: watch::Sender<u64>,
    /// How many removals are under way, and how many were at the most.
    removing: AtomicUsize,
    pub(crate) most_removing: AtomicUsize,
    /// When watches were asked for.
    pub(crate) watched: Mutex<Vec<Moment>>,
    /// How often all watches have ended without a change.
    streams: watch::Sender<u64>,
    /// Watches report no changes, and listings are not answered.
    pub(crate) mute: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    revision: i64,
    queues: HashMap<LockName, BTreeMap<Order, Stored>>,
    /// The loss channels of sessions that live.
    sessions: HashMap<i64, Vec<u8>>,
    /// How often the write fence of each session was moved.
    fences: HashMap<i64, u64>,
}

#[derive(Clone, Debug)]
struct Stored {
    entry: Entry<i64>,
    session: i64,
    record: Vec<u8>,
    written: i64,
}

/// A moment in a call at which a test can interfere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// Before the request of `enter` is sent.
    EnterSent,
    /// When the request of `enter` was sent: if it is lost, it may take effect later.
    EnterUnderWay,
    /// Between the effect of `enter` and its reply.
    EnterReplied,
    /// Between the effect of `fence_writes` and its reply.
    Fenced,
    /// Between the effect of `remove` and its reply.
    Removed,
    /// Before the request of `downgrade` is sent.
    DowngradeSent,
    /// Between the effect of `downgrade` and its reply.
    Downgraded,
    /// Before the reply of `is_free`.
    IsFree,
}

#[derive(Debug)]
enum Fault {
    Pause(oneshot::Sender<()>, oneshot::Receiver<()>),
    Lose,
}

/// A call that is paused when it comes to a point.
pub(crate) struct Paused {
    arrived: oneshot::Receiver<()>,
    go: oneshot::Sender<()>,
}

impl Paused {
    /// Waits until a call has come to the point.
    pub(crate) async fn arrived(&mut self) {
        (&mut self.arrived).await.unwrap();
    }

    pub(crate) fn go_on(self) {
        self.go.send(()).unwrap();
    }
}

impl World {
    /// Pauses the next call that comes to this point.
    pub(crate) fn pause(&self, point: Point) -> Paused {
        let ((arrives, arrived), (go, goes)) = (oneshot::channel(), oneshot::channel());
        self.script.lock().push((point, Fault::Pause(arrives, goes)));
        Paused { arrived, go }
    }

    /// Loses the next request or reply at this point.
    pub(crate) fn lose(&self, point: Point) {
        self.script.lock().push((point, Fault::Lose));
    }

    /// Ends all watches, as if the connection that they came over was lost.
    pub(crate) fn end_watches(&self) {
        self.streams.send_modify(|count| *count += 1);
    }

    async fn reach(&self, point: Point) -> Result<()> {
        let fault = {
            let mut script = self.script.lock();
            let next = script.iter().position(|(known, _)| *known == point);
            next.map(|next| script.remove(next).1)
        };
        match fault {
            None => Ok(()),
            Some(Fault::Pause(arrives, goes)) => {
                let _ = arrives.send(());
                let _ = goes.await;
                Ok(())
            }
            Some(Fault::Lose) => {
                Err(Error::new(ErrorKind::Unreachable, "ask", "lost").with_unknown_effect())
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = {
            let mut state = self.state.lock();
            state.revision += 1;
            change(&mut state)
        };
        self.written.send_modify(|count| *count += 1);
        changed
    }

    /// Adds an entry, if the session lives and its write fence is where it was.
    fn add(&self, session: i64, fence: u64, claim: &Claim, record: Vec<u8>) -> Option<Entry<i64>> {
        self.change(|state| {
            let moved = state.fences.get(&session).copied().unwrap_or_default() != fence;
            if moved || !state.sessions.contains_key(&session) {
                return None;
            }
            let (order, written) = (Order::from(state.revision), state.revision);
            let Claim { mode, owner, name, .. } = claim.clone();
            let entry = Entry { order, mode, owner: Some(owner), key: session };
            let stored = Stored { entry: entry.clone(), session, record, written };
            state.queues.entry(name).or_default().insert(order, stored);
            Some(entry)
        })
    }

    fn fence(&self, session: i64) -> u64 {
        self.state.lock().fences.get(&session).copied().unwrap_or_default()
    }

    /// The orders of a lock's entries.
    pub(crate) fn entries(&self, name: &LockName) -> Vec<Order> {
        let state = self.state.lock();
        state.queues.get(name).map(|queue| queue.keys().copied().collect()).unwrap_or_default()
    }

    /// Ends a session, as if it had expired.
    pub(crate) fn end_session(&self, session: i64) {
        self.change(|state| {
            state.sessions.remove(&session);
            for queue in state.queues.values_mut() {
                queue.retain(|_, stored| stored.session != session);
            }
        });
    }

    /// The owners of a lock's entries.
    pub(crate) fn owners(&self, name: &LockName) -> Vec<OwnerId> {
        self.list(name).entries.into_iter().filter_map(|entry| entry.owner).collect()
    }

    /// The sessions that live.
    pub(crate) fn sessions(&self) -> Vec<i64> {
        self.state.lock().sessions.keys().copied().collect()
    }

    fn lives(&self, session: i64) -> bool {
        self.state.lock().sessions.contains_key(&session)
    }

    fn find(&self, name: &LockName, order: Order) -> Option<Stored> {
        self.state.lock().queues.get(name)?.get(&order).cloned()
    }

    fn list(&self, name: &LockName) -> Listing<i64> {
        let state = self.state.lock();
        let queue = state.queues.get(name).into_iter().flatten();
        let entries = queue.map(|(_, stored)| stored.entry.clone()).collect();
        Listing { entries, covers: state.revision.into() }
    }
}

#[derive(Debug)]
pub(crate) struct FakeSession {
    id: i64,
    life: Duration,
    confirmed: AtomicU64,
    over: watch::Sender<bool>,
}

impl FakeSession {
    fn check(&self, world: &World) -> bool {
        let lives = world.lives(self.id);
        if !lives {
            self.over.send_replace(true);
        }
        lives
    }
}

#[async_trait]
impl SessionTrait for FakeSession {
    fn id(&self) -> i64 {
        self.id
    }

    fn life(&self) -> Duration {
        self.life
    }

    fn confirmed(&self) -> Moment {
        Moment::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    async fn ended(&self) {
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }
}

/// One client.
#[derive(Debug)]
pub(crate) struct FakeEngine {
    pub(crate) world: Arc<World>,
    sessions: Mutex<HashMap<Duration, Arc<FakeSession>>>,
}

impl FakeEngine {
    async fn changed(world: Arc<World>, name: LockName, seen: Stored) -> Result<Change> {
        let has_changed = |world: &World| match world.find(&name, seen.entry.order) {
            None => Some(Change::Removed),
            Some(stored) if stored.written != seen.written => Some(Change::Written),
            Some(_) => None,
        };
        Self::until(world, has_changed).await
    }

    /// Resolves when a change is there, unless the watch ends before, or watches report no changes.
    async fn until<T>(world: Arc<World>, mut found: impl FnMut(&World) -> Option<T>) -> Result<T> {
        let (mut written, mut streams) = (world.written.subscribe(), world.streams.subscribe());
        loop {
            if let Some(change) = found(&world).filter(|_| !world.mute.load(Ordering::Acquire)) {
                return Ok(change);
            }
            tokio::select! {
                _ = written.changed() => {}
                _ = streams.changed() => {
                    return Err(Error::new(ErrorKind::Unreachable, "watch", "the stream ended"));
                }
            }
        }
    }
}

#[async_trait]
impl Engine for FakeEngine {
    type Config = Arc<World>;
    type Session = FakeSession;
    type Key = i64;

    async fn connect(world: Arc<World>, _: &Background) -> Result<Self> {
        Ok(Self { world, sessions: Mutex::default() })
    }

    fn fencing(&self) -> Fencing {
        Fencing::Until { fault: "the test ends" }
    }

    async fn session(&self, ttl: Duration) -> Result<Arc<FakeSession>> {
        let mut sessions = self.sessions.lock();
        if let Some(session) = sessions.get(&ttl)
            && !session.is_over()
            && session.check(&self.world)
        {
            session.confirmed.store(now().as_nanos(), Ordering::Release);
            return Ok(Arc::clone(session));
        }
        let id = self.world.change(|state| {
            state.sessions.insert(state.revision, Vec::new());
            state.revision
        });
        let confirmed = AtomicU64::new(now().as_nanos());
        let over = watch::Sender::new(false);
        let session = Arc::new(FakeSession { id, life: ttl, confirmed, over });
        sessions.insert(ttl, Arc::clone(&session));
        Ok(session)
    }

    async fn confirm(&self, session: &Arc<FakeSession>, _: Moment) -> Result<bool> {
        let sent = now();
        let lives = session.check(&self.world);
        if lives {
            session.confirmed.fetch_max(sent.as_nanos(), Ordering::AcqRel);
        }
        Ok(lives)
    }

    async fn enter(
        &self,
        session: &Arc<FakeSession>,
        claim: &Claim,
        record: Vec<u8>,
        look: bool,
    ) -> Result<Entered<i64>> {
        self.world.reach(Point::EnterSent).await?;
        let entry = loop {
            let fence = self.world.fence(session.id);
            if let Err(lost) = self.world.reach(Point::EnterUnderWay).await {
                let (world, id, claim) = (Arc::clone(&self.world), session.id, claim.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(now().as_nanos() % 8)).await;
                    world.add(id, fence, &claim, record)
                });
                return Err(lost);
            }
            if let Some(entry) = self.world.add(session.id, fence, claim, record.clone()) {
                break entry;
            }
            if !session.check(&self.world) {
                return Err(Error::new(ErrorKind::Unreachable, "acquire", "the session is over"));
            }
        };
        let listing = look.then(|| self.world.list(&claim.name));
        self.world.reach(Point::EnterReplied).await?;
        let token = Token::new(entry.order as u64);
        Ok(Entered { entry, token, listing })
    }

    async fn fence_writes(&self, session: &Arc<FakeSession>, _: Moment) -> Result<bool> {
        self.world.change(|state| *state.fences.entry(session.id).or_default() += 1);
        self.world.reach(Point::Fenced).await?;
        Ok(session.check(&self.world))
    }

    async fn find(
        &self,
        session: &Arc<FakeSession>,
        claim: &Claim,
    ) -> Result<Option<(Entry<i64>, Token)>> {
        let found = self.world.list(&claim.name).entries.into_iter();
        let mut found = found.filter(|entry| entry.owner == Some(claim.owner));
        let own = found.find(|entry| entry.key == session.id);
        Ok(own.map(|entry| (entry.clone(), Token::new(entry.order as u64))))
    }

    async fn is_free(&self, name: &LockName) -> Result<Option<bool>> {
        self.world.reach(Point::IsFree).await?;
        Ok(Some(self.world.entries(name).is_empty()))
    }

    async fn list(&self, name: &LockName) -> Result<Listing<i64>> {
        if self.world.mute.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
        Ok(self.world.list(name))
    }

    async fn watch_queue(
        &self,
        name: &LockName,
    ) -> Result<(Listing<i64>, BoxFuture<'static, Result<()>>)> {
        self.world.watched.lock().push(now());
        let (world, name, listing) = (Arc::clone(&self.world), name.clone(), self.world.list(name));
        let seen: Vec<Order> = listing.entries.iter().map(|entry| entry.order).collect();
        let changed = Self::until(world, move |world| {
            let there = world.entries(&name);
            seen.iter().any(|order| !there.contains(order)).then_some(())
        });
        Ok((listing, Box::pin(changed)))
    }

    async fn watch(
        &self,
        name: &LockName,
        entry: &Entry<i64>,
        _: Watching,
    ) -> Result<Option<BoxFuture<'static, Result<Change>>>> {
        self.world.watched.lock().push(now());
        let seen = self.world.find(name, entry.order);
        let changed = |seen| Self::changed(Arc::clone(&self.world), name.clone(), seen);
        Ok(seen.map(|seen| Box::pin(changed(seen)) as _))
    }

    async fn remove(&self, name: &LockName, entry: &Entry<i64>) -> Result<bool> {
        let removing = self.world.removing.fetch_add(1, Ordering::AcqRel) + 1;
        self.world.most_removing.fetch_max(removing, Ordering::AcqRel);
        tokio::task::yield_now().await;
        self.world.removing.fetch_sub(1, Ordering::AcqRel);
        let removed = self.world.change(|state| {
            state.queues.get_mut(name).is_some_and(|queue| queue.remove(&entry.order).is_some())
        });
        self.world.reach(Point::Removed).await?;
        Ok(removed)
    }

    async fn renew(
        &self,
        session: &Arc<FakeSession>,
        name: &LockName,
        entry: &Entry<i64>,
        record: Option<Vec<u8>>,
    ) -> Result<bool> {
        if let Some(record) = record {
            self.write(name, entry, record).await?;
        }
        let there = self.world.find(name, entry.order).is_some();
        Ok(self.confirm(session, now()).await? && there)
    }

    async fn write(&self, name: &LockName, entry: &Entry<i64>, record: Vec<u8>) -> Result<()> {
        self.world.change(|state| {
            let revision = state.revision;
            let queue = state.queues.get_mut(name);
            if let Some(stored) = queue.and_then(|queue| queue.get_mut(&entry.order)) {
                (stored.record, stored.written) = (record, revision);
            }
        });
        Ok(())
    }

    fn as_reader(&self, entry: &Entry<i64>) -> Entry<i64> {
        Entry { mode: Mode::Shared, ..entry.clone() }
    }

    async fn downgrade(
        &self,
        session: &Arc<FakeSession>,
        name: &LockName,
        entry: &Entry<i64>,
        record: Vec<u8>,
    ) -> Result<bool> {
        self.world.reach(Point::DowngradeSent).await?;
        let there = self.world.change(|state| {
            let revision = state.revision;
            let stored = state.queues.get_mut(name)?.get_mut(&entry.order)?;
            (stored.record, stored.written, stored.entry.mode) = (record, revision, entry.mode);
            Some(())
        });
        self.world.reach(Point::Downgraded).await?;
        Ok(session.check(&self.world) && there.is_some())
    }

    async fn open_loss_channel(
        &self,
        session: &Arc<FakeSession>,
    ) -> Result<Option<(Vec<u8>, BoxFuture<'static, Result<Change>>)>> {
        let (world, id) = (Arc::clone(&self.world), session.id);
        let mut written = world.written.subscribe();
        let content = world.state.lock().sessions.get(&id).cloned();
        let Some(content) = content else {
            session.check(&world);
            return Ok(None);
        };
        let known = content.clone();
        let changed = async move {
            while world.state.lock().sessions.get(&id) == Some(&known) {
                let _ = written.changed().await;
            }
            Ok(Change::Written)
        };
        Ok(Some((content, Box::pin(changed))))
    }

    async fn evict(&self, eviction: &Eviction, entry: &Entry<i64>, _: bool) -> Result<bool> {
        Ok(self.world.change(|state| {
            let queue = state.queues.get_mut(&eviction.name);
            let removed = queue.and_then(|queue| queue.remove(&entry.order));
            let token = Some(Token::new(entry.order as u64));
            if let Some(stored) = &removed
                && let Some(content) = state.sessions.get_mut(&stored.session)
            {
                *content = with_loss(content, &eviction.owner, token);
            }
            removed.is_some()
        }))
    }

    async fn audit(&self, _: &LockName) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    async fn add_audit_record(&self, _: &LockName, _: &AuditRecord) -> Result<bool> {
        Ok(true)
    }

    async fn details(
        &self,
        name: &LockName,
        entries: &[Entry<i64>],
        _: usize,
    ) -> Result<Vec<Option<Details>>> {
        let details = |entry: &Entry<i64>| {
            let record = self.world.find(name, entry.order)?.record;
            Some(Details { record, ..Default::default() })
        };
        Ok(entries.iter().map(details).collect())
    }

    async fn names(&self, prefix: &str) -> Result<Vec<LockName>> {
        let state = self.world.state.lock();
        let mut names: Vec<LockName> = state.queues.keys().cloned().collect();
        names.retain(|name| name.as_str().starts_with(prefix) && !state.queues[name].is_empty());
        names.sort();
        Ok(names)
    }

    fn foreign_owner(&self, _: &LockName, key: &i64) -> String {
        key.to_string()
    }

    fn fence(&self, _: &LockName, _: &Entry<i64>) -> Option<Fence> {
        None
    }

    async fn diagnose(&self, _: &dyn Store) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn end_unused_sessions(&self) {}
}
