//! A session with ZooKeeper, over one connection at a time.
//!
//! One task serves the session: it awaits the end of the connection, connects to another server,
//! restores the watches there, and decides when the session is over. A request that was sent on one
//! connection is never sent again on another.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tenure_core::store::Background;
use tenure_core::{Error, ErrorKind, Result};
use tenure_proto::Backoff;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::connection::{Answer, Connection, Outcome, Pace};
use super::dial::{CONNECT, Dialled, Failure, Hello, dial_any, explain, random};
use super::jute::Reader;
use super::messages::{CloseSession, Request, Watchable};
use super::watches::{Watch, Watches};
use super::{Fault, Target};

/// After a connection that lasted less than this, the next one is begun after a pause: a server may
/// take the session, and end each connection over what it is sent first.
const STEADY: Duration = Duration::from_secs(1);

/// A session with ZooKeeper, over one connection at a time. Clones are handles on the same session,
/// which is closed when the last of them is dropped.
///
/// The sockets are served on a [`Background`], whatever becomes of the caller's runtime.
#[derive(Clone)]
pub(crate) struct Session(Arc<Handle>);

/// Closes the session when it is dropped.
struct Handle(Arc<Shared>);

struct Shared {
    target: Arc<Target>,
    wanted: Duration,
    id: i64,
    /// Proves to other servers that this client owns the session.
    password: Vec<u8>,
    /// The session timeout in milliseconds.
    life: AtomicU64,
    watches: Arc<Watches>,
    /// The latest transaction that a server has reported.
    zxid: Arc<AtomicI64>,
    status: watch::Sender<Status>,
}

struct Status {
    /// How many connections there have been.
    number: u64,
    phase: Phase,
}

enum Phase {
    Connected(Connection),
    Disconnected,
    /// No request is taken any more.
    Closing,
    Over,
}

impl Phase {
    /// Whether requests can be sent. A connection that has ended takes none, also before the session's
    /// task has heard of its end.
    fn is_connected(&self) -> bool {
        matches!(self, Self::Connected(connection) if connection.is_open())
    }

    fn is_over(&self) -> bool {
        matches!(self, Self::Closing | Self::Over)
    }
}

impl Session {
    /// Opens a session with a timeout of `wanted`, or what the servers make of it.
    ///
    /// # Errors
    /// `Unreachable` or `QuorumLost` if no server opens a session within the target's timeout,
    /// `Denied` if the login is refused or one side does not trust the other, `Invalid` if no server
    /// is named or a file for TLS cannot be used.
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without nodes, which the servers end.
    pub(crate) async fn open(
        target: Arc<Target>,
        wanted: Duration,
        background: &Background,
    ) -> Result<Self> {
        if target.servers.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, CONNECT, "name at least one server"));
        }
        let kept = background.clone();
        let opening = async move {
            let hello = Hello { wanted, ..Hello::default() };
            let until = Instant::now() + target.timeout;
            let dialled = dial_any(&target, &hello, until).await;
            let dialled = dialled.map_err(|failures| explain(&target, &failures))?;
            Ok(Self::start(target, wanted, dialled, kept))
        };
        background.run(CONNECT, opening).await
    }

    fn start(
        target: Arc<Target>,
        wanted: Duration,
        mut dialled: Dialled,
        background: Background,
    ) -> Self {
        let shared = Arc::new(Shared {
            target,
            wanted,
            id: dialled.session,
            password: std::mem::take(&mut dialled.password),
            life: AtomicU64::new(0),
            watches: Arc::default(),
            zxid: Arc::default(),
            status: watch::Sender::new(Status { number: 0, phase: Phase::Disconnected }),
        });
        let link = shared.link(dialled);
        shared.publish(&link);
        tokio::spawn(shared.clone().serve(link, background));
        Self(Arc::new(Handle(shared)))
    }

    /// The session's number, which is the owner of its ephemeral nodes.
    pub(crate) fn id(&self) -> i64 {
        self.shared().id
    }

    /// The session timeout: how long the servers keep the session without a request. It never falls: a
    /// session that the servers shorten is over.
    pub(crate) fn life(&self) -> Duration {
        self.shared().life()
    }

    /// The number of the latest connection. It rises with each.
    #[cfg_attr(not(test), allow(dead_code, reason = "tests tell connections apart by it"))]
    pub(crate) fn connection(&self) -> u64 {
        self.shared().status.borrow().number
    }

    /// The latest transaction that a server has reported. No reply on this session shows an older state.
    pub(crate) fn zxid(&self) -> i64 {
        self.shared().zxid.load(Ordering::Acquire)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.shared().status.borrow().phase.is_connected()
    }

    /// Whether the session has expired, was closed, refused or shortened. It never comes back.
    pub(crate) fn is_over(&self) -> bool {
        self.shared().status.borrow().phase.is_over()
    }

    /// Resolves when the session is over. If it was closed, the servers have then confirmed it, or
    /// could not be reached.
    pub(crate) async fn ended(&self) {
        self.shared().until(|phase| matches!(phase, Phase::Over)).await;
    }

    /// Waits for a connection, for at most one call timeout.
    ///
    /// # Errors
    /// [`Fault::NotConnected`], or [`Fault::Over`].
    pub(crate) async fn ready(&self) -> Result<(), Fault> {
        let shared = self.shared();
        let settled = shared.until(|phase| phase.is_connected() || phase.is_over());
        match timeout(shared.target.timeout, settled).await {
            Ok(()) if self.is_over() => Err(Fault::Over),
            Ok(()) => Ok(()),
            Err(_) => Err(Fault::NotConnected),
        }
    }

    /// Sends a request on the current connection. Requests reach the server in the order of these
    /// calls, also of calls whose reply is not awaited. Without a connection nothing is sent, and the
    /// call fails with [`Fault::NotConnected`].
    ///
    /// # Cancel safety
    /// Dropping the call does not unsend the request.
    pub(crate) fn send<R: Request>(&self, request: R) -> Call<R> {
        Call(self.with_connection(|connection| connection.send(&request)).into(), PhantomData)
    }

    /// Sends two requests, one behind the other, with one write. As [`send`](Self::send) for each.
    ///
    /// A caller that needs both replies should await the second one first: it comes last, so the caller
    /// is woken once.
    pub(crate) fn send_both<A: Request, B: Request>(
        &self,
        first: A,
        second: B,
    ) -> (Call<A>, Call<B>) {
        let [first, second] = match &self.shared().status.borrow().phase {
            Phase::Connected(connection) => connection.send_both(&first, &second),
            Phase::Disconnected => [Err(Fault::NotConnected), Err(Fault::NotConnected)],
            Phase::Closing | Phase::Over => [Err(Fault::Over), Err(Fault::Over)],
        };
        (Call(first.into(), PhantomData), Call(second.into(), PhantomData))
    }

    /// As [`send`](Self::send), and leaves a watch, which comes with the reply. A reply that is a
    /// failure leaves none; that a node does not exist is a failure for [`GetData`] and
    /// [`GetChildren`], but not for [`Exists`].
    ///
    /// [`GetData`]: super::GetData
    /// [`GetChildren`]: super::GetChildren
    /// [`Exists`]: super::Exists
    pub(crate) fn send_watched<R: Watchable>(&self, request: R) -> WatchedCall<R> {
        let sent = self.with_connection(|connection| connection.send_watched(request));
        WatchedCall(sent.into(), PhantomData)
    }

    /// Closes the session, and with it deletes its ephemeral nodes. Takes at most one call timeout:
    /// servers that cannot be reached end the session when its own timeout has passed.
    ///
    /// # Cancel safety
    /// Dropping the future does not keep the session open.
    pub(crate) async fn close(&self) {
        self.shared().begin_to_close();
        let _late = timeout(self.shared().target.timeout, self.ended()).await;
    }

    fn shared(&self) -> &Shared {
        &self.0.0
    }

    fn with_connection(
        &self,
        send: impl FnOnce(&Connection) -> Result<oneshot::Receiver<Outcome>, Fault>,
    ) -> Result<oneshot::Receiver<Outcome>, Fault> {
        match &self.shared().status.borrow().phase {
            Phase::Connected(connection) => send(connection),
            Phase::Disconnected => Err(Fault::NotConnected),
            Phase::Closing | Phase::Over => Err(Fault::Over),
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.begin_to_close();
    }
}

/// The reply to a request that was sent.
#[must_use = "the request is sent, but its outcome is lost"]
pub(crate) struct Call<R>(Reply, PhantomData<fn() -> R>);

impl<R: Request> Call<R> {
    /// The latest transaction that the server knew when it answered: requests of this session that
    /// were sent later see this transaction and all before it.
    pub(crate) async fn zxid(mut self) -> Result<i64, Fault> {
        let answer = poll_fn(|context| self.0.poll(context)).await?;
        read::<R>(&answer).map(|_| answer.zxid)
    }
}

impl<R: Request> Future for Call<R> {
    type Output = Result<R::Reply, Fault>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.0.poll(context))?;
        Poll::Ready(read::<R>(&answer))
    }
}

/// The reply to a request that was sent, and the watch that it left.
#[must_use = "the request is sent, but its outcome is lost"]
pub(crate) struct WatchedCall<R>(Reply, PhantomData<fn() -> R>);

impl<R: Watchable> Future for WatchedCall<R> {
    type Output = Result<(R::Reply, Watch), Fault>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = ready!(self.0.poll(context))?;
        let reply = read::<R>(&answer)?;
        Poll::Ready(answer.watch.take().map(|watch| (reply, watch)).ok_or_else(malformed))
    }
}

/// A reply on its way.
enum Reply {
    /// Nothing was sent.
    Unsent(Fault),
    Sent(oneshot::Receiver<Outcome>),
}

impl From<Result<oneshot::Receiver<Outcome>, Fault>> for Reply {
    fn from(sent: Result<oneshot::Receiver<Outcome>, Fault>) -> Self {
        sent.map_or_else(Self::Unsent, Self::Sent)
    }
}

impl Reply {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        match self {
            Self::Unsent(fault) => Poll::Ready(Err(fault.clone())),
            Self::Sent(receiver) => Pin::new(receiver).poll(context).map(|outcome| {
                outcome.unwrap_or_else(|_| Err(Fault::Broken("its task is gone".into())))
            }),
        }
    }
}

fn read<R: Request>(answer: &Answer) -> Result<R::Reply, Fault> {
    match answer.code {
        Some(code) => R::refused(code).map_err(Fault::Refused),
        None => R::read(&mut Reader::new(&answer.body)).map_err(|_| malformed()),
    }
}

fn malformed() -> Fault {
    Fault::Broken("the reply makes no sense".into())
}

/// A connection, and the task that serves it.
struct Link {
    connection: Connection,
    ended: JoinHandle<Fault>,
    /// The session timeout that the server grants.
    life: Duration,
}

impl Shared {
    fn life(&self) -> Duration {
        Duration::from_millis(self.life.load(Ordering::Relaxed))
    }

    /// Serves a connection after its handshake.
    fn link(&self, dialled: Dialled) -> Link {
        let Dialled { stream, input, life, began, .. } = dialled;
        let pace = Pace::new(life, self.target.timeout);
        let (zxid, watches) = (Arc::clone(&self.zxid), Arc::clone(&self.watches));
        let (connection, ended) = Connection::start(stream, input, pace, began, zxid, watches);
        Link { connection, ended, life }
    }

    /// Serves the session until it is over. The thread lives for as long.
    async fn serve(self: Arc<Self>, mut link: Link, _background: Background) {
        let ending = Ending(Arc::clone(&self));
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        let why = loop {
            let began = Instant::now();
            let broken = tokio::select! {
                broken = &mut link.ended => broken,
                () = self.closing() => {
                    close(&link, self.target.timeout).await;
                    break "it was closed".into();
                }
            };
            let why = broken.map_or_else(|error| error.to_string(), |fault| fault.to_string());
            tracing::debug!(session = self.id, "disconnected: {why}");
            self.disconnect();
            let pause = if began.elapsed() < STEADY {
                backoff.next(random())
            } else {
                backoff.reset();
                Duration::ZERO
            };
            match self.reconnect(&link.connection, pause).await {
                Ok(next) => link = next,
                Err(why) => break why,
            }
            if link.life < self.life() {
                // The session is not closed: the holders hear of the loss now, and must have stopped
                // before the servers delete their nodes.
                break format!(
                    "the servers have shortened it from {:?} to {:?}: its holders rely on more",
                    self.life(),
                    link.life
                );
            }
            self.publish(&link);
        };
        ending.end(&why);
    }

    /// After a pause, connects to a server that goes on with the session, and restores the watches.
    ///
    /// # Errors
    /// Why the session is over.
    async fn reconnect(&self, last: &Connection, pause: Duration) -> Result<Link, String> {
        let (contact, zxid) = (last.contact(), self.zxid.load(Ordering::Acquire));
        let hello =
            Hello { wanted: self.wanted, zxid, session: self.id, password: self.password.clone() };
        // The servers may keep it a little longer than they say.
        let until = contact + self.life() + self.life() / 3;
        let closed = async {
            self.closing().await;
            tokio::time::sleep(self.target.timeout).await;
        };
        let dialling = async {
            tokio::time::sleep(pause).await;
            dial_any(&self.target, &hello, until).await
        };
        let dialled = tokio::select! {
            dialled = dialling => dialled,
            () = closed => return Err("it was closed, and no server could be told".into()),
        };
        let dialled = dialled.map_err(|failures| {
            let over = |failure: &&Failure| matches!(failure, Failure::Expired | Failure::Login(_));
            match failures.iter().find(over) {
                Some(failure) => failure.to_string(),
                None => format!("no server could be reached for longer than {:?}", self.life()),
            }
        })?;
        let link = self.link(dialled);
        for watches in self.watches.restore(zxid) {
            link.connection.restore(&watches);
        }
        Ok(link)
    }

    /// Lets requests be sent, unless the session is to be closed.
    fn publish(&self, link: &Link) {
        let life = u64::try_from(link.life.as_millis()).unwrap_or(u64::MAX);
        self.life.store(life, Ordering::Relaxed);
        self.status.send_modify(|status| {
            status.number += 1;
            if matches!(status.phase, Phase::Disconnected) {
                status.phase = Phase::Connected(link.connection.clone());
            }
        });
    }

    fn disconnect(&self) {
        self.status.send_modify(|status| {
            if matches!(status.phase, Phase::Connected(_)) {
                status.phase = Phase::Disconnected;
            }
        });
    }

    fn begin_to_close(&self) {
        self.status.send_modify(|status| {
            if !matches!(status.phase, Phase::Over) {
                status.phase = Phase::Closing;
            }
        });
    }

    async fn closing(&self) {
        self.until(|phase| matches!(phase, Phase::Closing)).await;
    }

    async fn until(&self, wanted: impl Fn(&Phase) -> bool) {
        // This fails only when the sender is gone, and this task owns the sender.
        let _ = self.status.subscribe().wait_for(|status| wanted(&status.phase)).await;
    }
}

/// Ends the session on the servers, if they can be reached within `limit`.
async fn close(link: &Link, limit: Duration) {
    if let Ok(reply) = link.connection.send(&CloseSession) {
        let _too_late = timeout(limit, reply).await;
    }
}

/// However the session's task ends, also with its runtime: no caller takes the session for alive.
struct Ending(Arc<Shared>);

impl Ending {
    fn end(&self, why: &str) {
        let shared = &self.0;
        let mut before = Phase::Over;
        shared.status.send_modify(|status| std::mem::swap(&mut status.phase, &mut before));
        shared.watches.end();
        match before {
            Phase::Over => {}
            Phase::Closing => tracing::debug!(session = shared.id, "the session is over: {why}"),
            _ => tracing::warn!(session = shared.id, "the session is over: {why}"),
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end("its task was dropped");
    }
}
