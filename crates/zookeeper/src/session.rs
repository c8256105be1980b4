//! Sessions, shared by the claims of one client that want to live equally long.
//!
//! The client library keeps a session alive by itself, so what a session says is only this: its
//! process lives, and reaches the servers. Claims that nobody renews are removed one by one
//! (`tenants.rs`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Background, Error, ErrorKind, Moment, Result, now};
use tokio::sync::Mutex as Turn;
use tokio::task::AbortHandle;
use zookeeper_client::{Client, Error as Fault, SessionState, StateWatcher};

use crate::config::ZooKeeperConfig;
use crate::connect::{CONNECT, open};
use crate::fault::fault;

/// How much longer than the claims on it a session lasts.
///
/// A server tells the leader twice a tick whom it has heard of. If it dies before that, the leader
/// counts from the sign of life before. Signs are sent once a second, a tick has two by default.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// The session that is opened before anybody has asked for a lock: for the default TTL.
const FIRST: Duration = Duration::from_secs(30);

/// A session that nobody has used for so long is closed when another is opened.
const IDLE: Duration = Duration::from_secs(60);

/// A node of any version will do.
const ANY_VERSION: i32 = -1;

/// One session with ZooKeeper.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) zk: Client,
    timeout: Duration,
    /// The moment before the last write was sent that was answered.
    confirmed: AtomicU64,
    /// Who has it confirmed does so for all who wait for their turn.
    turn: Turn<()>,
    used: AtomicU64,
    /// Who listens for losses.
    listener: Mutex<Option<AbortHandle>>,
    /// The thread that serves the session's connection.
    background: Background,
}

impl Session {
    pub(crate) fn id(&self) -> i64 {
        self.zk.session_id().0
    }

    /// How long the servers keep it without a sign of life.
    pub(crate) fn life(&self) -> Duration {
        self.zk.session_timeout()
    }

    /// Notes who listens for losses, if nobody does already.
    pub(crate) fn attend(&self, start: impl FnOnce() -> AbortHandle) {
        self.listener.lock().get_or_insert_with(start);
    }

    /// Whether somebody has it, besides those who keep it: a claim, or a call.
    fn is_shared(self: &Arc<Self>) -> bool {
        let kept = 1 + usize::from(self.listener.lock().is_some());
        Arc::strong_count(self) > kept
    }

    /// Whether somebody uses it, or did a short while ago.
    fn is_in_use(self: &Arc<Self>) -> bool {
        let idle = now().since(Moment::from_nanos(self.used.load(Ordering::Relaxed)));
        !self.is_over() && (self.is_shared() || idle < IDLE)
    }

    /// Stops listening: who listens keeps it.
    fn leave_alone(&self) {
        if let Some(listener) = self.listener.lock().take() {
            listener.abort();
        }
    }

    /// Whether it is gone for good, as far as the client library knows.
    pub(crate) fn is_over(&self) -> bool {
        self.zk.state().is_terminated()
    }

    /// The moment before the last write was sent that was answered: a majority took part in it, so
    /// the session lasts from then on. A server that lost the leader goes on answering for a while,
    /// and so does a leader that lost the others, even to `sync`: what they answer alone does not
    /// count.
    pub(crate) fn confirmed(&self) -> Moment {
        Moment::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// A write that was sent after this moment has been answered.
    pub(crate) fn confirm(&self, sent: Moment) {
        self.confirmed.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// Has a majority confirm the session after `began`, by a write that changes nothing: that this
    /// node is there. False: it is not. If another's write was in time, nobody has looked.
    pub(crate) async fn reach(
        self: &Arc<Self>,
        operation: &'static str,
        node: &str,
        began: Moment,
    ) -> Result<bool> {
        let (session, node) = (Arc::clone(self), node.to_owned());
        let confirm = async move {
            let _turn = session.turn.lock().await;
            if session.confirmed() >= began {
                return Ok(true);
            }
            match session.write_nothing(&node).await {
                Ok(()) => Ok(true),
                Err(Fault::NoNode) => Ok(false),
                Err(error) => Err(fault(operation, error)),
            }
        };
        self.background.run(operation, confirm).await
    }

    async fn write_nothing(&self, node: &str) -> Result<(), Fault> {
        let sent = now();
        let mut together = self.zk.new_multi_writer();
        together.add_check_version(node, ANY_VERSION)?;
        let checked = async { together.commit().await.map(drop).map_err(Fault::from) };
        self.answer(checked).await?;
        self.confirm(sent);
        Ok(())
    }

    /// Waits for a connection. What is sent without one stays in a queue, for how long nobody knows.
    pub(crate) async fn ready(&self, operation: &'static str) -> Result<()> {
        self.used.store(now().as_nanos(), Ordering::Relaxed);
        if self.zk.state() == SessionState::SyncConnected {
            return Ok(());
        }
        let settled = until(self.zk.state_watcher(), |state| {
            state.is_terminated() || state == SessionState::SyncConnected
        });
        let why = match tokio::time::timeout(self.timeout, settled).await {
            Ok(SessionState::SyncConnected) => return Ok(()),
            Ok(_) => "the session has ended: ask again",
            Err(_) => "there is no connection to any server: check that they run",
        };
        Err(Error::new(ErrorKind::Unreachable, operation, why))
    }

    /// The answer to a call that has been sent, within the time there is.
    pub(crate) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::time::timeout(self.timeout, call).await.unwrap_or(Err(Fault::Timeout))
    }
}

/// The sessions of one client.
pub(crate) struct Sessions {
    config: ZooKeeperConfig,
    background: Background,
    by_seconds: Mutex<HashMap<u64, Arc<Session>>>,
    /// The longest TTL that the servers allow, if they cut the first session short.
    longest_ttl: OnceLock<Duration>,
    /// Who opens a session does so for all who wait for it.
    seats: Mutex<HashMap<u64, Arc<Turn<()>>>>,
}

impl Sessions {
    pub(crate) async fn connect(
        config: ZooKeeperConfig,
        background: Background,
    ) -> Result<Arc<Self>> {
        let (by_seconds, seats) = (Mutex::default(), Mutex::default());
        let longest_ttl = OnceLock::new();
        let sessions = Arc::new(Self { config, background, by_seconds, longest_ttl, seats });
        let allowed = sessions.of_length(CONNECT, FIRST).await?.life().saturating_sub(GRACE);
        if allowed < FIRST {
            // It is not set before.
            let _ = sessions.longest_ttl.set(allowed);
        }
        Ok(sessions)
    }

    /// The longest TTL that the servers allow, if that is shorter than the default.
    pub(crate) fn longest_ttl(&self) -> Option<Duration> {
        self.longest_ttl.get().copied()
    }

    /// A session for claims of this TTL, connected.
    pub(crate) async fn get(
        self: &Arc<Self>,
        operation: &'static str,
        ttl: Duration,
    ) -> Result<Arc<Session>> {
        let session = self.ready(operation, ttl).await?;
        let longest = session.life().saturating_sub(GRACE);
        if longest < ttl {
            let life = session.life();
            let why = format!(
                "the servers end a session after {life:?}: ask for a TTL of at most {longest:?}, or \
                 raise their maxSessionTimeout"
            );
            return Err(Error::new(ErrorKind::Invalid, operation, why));
        }
        Ok(session)
    }

    /// Any session, to look at things, connected.
    pub(crate) async fn any(self: &Arc<Self>, operation: &'static str) -> Result<Arc<Session>> {
        let alive = self.by_seconds.lock().values().find(|one| !one.is_over()).cloned();
        if let Some(session) = alive {
            let ready = session.ready(operation).await;
            if !session.is_over() {
                return ready.map(|()| session);
            }
        }
        self.ready(operation, FIRST).await
    }

    /// A session of this length, connected. One that turns out to have ended is replaced.
    async fn ready(
        self: &Arc<Self>,
        operation: &'static str,
        ttl: Duration,
    ) -> Result<Arc<Session>> {
        let session = self.of_length(operation, ttl).await?;
        let ready = session.ready(operation).await;
        if !session.is_over() {
            return ready.map(|()| session);
        }
        let session = self.of_length(operation, ttl).await?;
        session.ready(operation).await?;
        Ok(session)
    }

    async fn of_length(
        self: &Arc<Self>,
        operation: &'static str,
        ttl: Duration,
    ) -> Result<Arc<Session>> {
        let seconds = u64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
        if let Some(session) = self.open_one(seconds) {
            return Ok(session);
        }
        let sessions = Arc::clone(self);
        let opening = async move { sessions.open(operation, seconds).await };
        self.background.run(operation, opening).await
    }

    /// Opens a session for all who wait for it.
    async fn open(&self, operation: &'static str, seconds: u64) -> Result<Arc<Session>> {
        let seat = Arc::clone(self.seats.lock().entry(seconds).or_default());
        let _turn = seat.lock().await;
        if let Some(session) = self.open_one(seconds) {
            return Ok(session);
        }
        let sent = now();
        let opened = open(&self.config, Duration::from_secs(seconds) + GRACE).await;
        let zk = opened.map_err(|error| renamed(operation, error))?;
        let moment = || AtomicU64::new(sent.as_nanos());
        let timeout = self.config.timeout;
        let session = Arc::new(Session {
            zk,
            timeout,
            confirmed: moment(),
            turn: Turn::new(()),
            used: moment(),
            listener: Mutex::default(),
            background: self.background.clone(),
        });
        let mut open = self.by_seconds.lock();
        open.retain(|_, other| {
            let in_use = other.is_in_use();
            // One that is over has its last words to say.
            if !in_use && !other.is_over() {
                other.leave_alone();
            }
            in_use
        });
        open.insert(seconds, Arc::clone(&session));
        Ok(session)
    }

    /// Stops listening, so that sessions close when nobody uses them any more.
    pub(crate) fn leave_alone(&self) {
        self.by_seconds.lock().values().for_each(|session| session.leave_alone());
    }

    /// Closes the sessions that nobody has. One that cannot be closed now ends by itself.
    pub(crate) async fn give_back(&self) {
        let mut closed = Vec::new();
        self.by_seconds.lock().retain(|_, session| {
            let keep = session.is_over() || session.is_shared();
            if !keep {
                session.leave_alone();
                closed.push(session.zk.state_watcher());
            }
            keep
        });
        for watcher in closed {
            until(watcher, SessionState::is_terminated).await;
        }
    }

    fn open_one(&self, seconds: u64) -> Option<Arc<Session>> {
        self.by_seconds.lock().get(&seconds).filter(|one| !one.is_over()).cloned()
    }
}

/// Waits for a state that will do.
async fn until(mut watcher: StateWatcher, will_do: impl Fn(SessionState) -> bool) -> SessionState {
    let mut state = watcher.state();
    while !will_do(state) {
        state = watcher.changed().await;
    }
    state
}

/// To open a session is part of what was asked for.
fn renamed(operation: &'static str, error: Error) -> Error {
    if operation == CONNECT {
        return error;
    }
    Error::new(error.kind(), operation, error.to_string()).caused_by(error)
}
