//! A server, and the connection to it, which is made on demand.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::Tls;
use tokio::time::Instant;

use crate::config::{RedisConfig, Topology};
use crate::credentials::Credentials;
use crate::fault::{CONNECT, accepted, fault, kind_of, lost, no_answer, not_connected};
use crate::login::{log_in, log_in_by_auth};
use crate::native_commands::NativeCommands;
use crate::retry::{RetryPacer, SingleFlight};
use crate::sentinels::Sentinels;
use crate::servers::Address;
use crate::wire::{Command, Connection, MessageListener, Refusal, Stream, Value, cmd};

/// One server, or the master that Sentinels name. All calls share one connection. When it breaks, or has
/// not answered for longer than a call may take, the next call dials again: one dial at a time, and not
/// at the rate of the calls.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    config: RedisConfig,
    listener: Option<Arc<dyn MessageListener>>,
    kind: Kind,
    pacer: Arc<RetryPacer>,
    /// The Sentinels, in a topology that has them.
    sentinels: Option<Sentinels>,
    state: Mutex<State>,
    native: NativeCommands,
}

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Commands, and subscriptions where the server speaks RESP3.
    All,
    /// Subscriptions only, in RESP2.
    Subscriptions,
    /// Queries to a Sentinel.
    Sentinel,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Endpoint {
    Tcp(Address),
    Unix(PathBuf),
}

#[derive(Default)]
struct State {
    made: Option<Established>,
    dialling: Option<SingleFlight<Connection>>,
    /// The link for subscriptions if the server speaks RESP2, and the server that it leads to.
    subscriber: Option<(Endpoint, Link)>,
}

/// A connection, and the server that it leads to.
#[derive(Clone)]
struct Established {
    connection: Connection,
    server: Endpoint,
    at: Instant,
}

impl State {
    /// The connection, unless it is closed or does not answer.
    fn usable(&self, limit: Duration) -> Option<&Connection> {
        let answers = |connection: &&Connection| connection.oldest_unanswered() < Some(limit);
        let made = self.made.as_ref().map(|made| &made.connection);
        made.filter(|connection| connection.is_open()).filter(answers)
    }
}

/// How often the Sentinels are asked for the master.
const FOLLOW: Duration = Duration::from_secs(1);

/// A younger connection is not closed because its server is a replica: the master was looked up just
/// before.
const DEMOTION: Duration = Duration::from_secs(1);

impl Link {
    /// A link to the server or the Sentinels of the configuration, not to a Cluster. Nothing is sent yet.
    pub(crate) fn new(
        config: &RedisConfig,
        listener: Option<Arc<dyn MessageListener>>,
    ) -> Result<Self> {
        Self::with_pacer(config, listener, Arc::new(RetryPacer::for_dials()))
    }

    /// As [`new`](Self::new), for a server that other links dial at the same pace.
    pub(crate) fn with_pacer(
        config: &RedisConfig,
        listener: Option<Arc<dyn MessageListener>>,
        pacer: Arc<RetryPacer>,
    ) -> Result<Self> {
        // A file that cannot be used is reported at once.
        config.tls.as_ref().map(Tls::connector).transpose()?;
        Self::paced(config, listener, Kind::All, pacer)
    }

    /// A link to one Sentinel.
    pub(crate) fn to_sentinel(config: &RedisConfig) -> Result<Self> {
        Self::paced(config, None, Kind::Sentinel, Arc::new(RetryPacer::for_dials()))
    }

    fn paced(
        config: &RedisConfig,
        listener: Option<Arc<dyn MessageListener>>,
        kind: Kind,
        pacer: Arc<RetryPacer>,
    ) -> Result<Self> {
        let sentinels = match &config.topology {
            Topology::Sentinel { sentinels, service } => {
                Some(Sentinels::new(config, sentinels, service)?)
            }
            _ => None,
        };
        let (config, state) = (config.clone(), Mutex::default());
        let native = NativeCommands::default();
        Ok(Self(Arc::new(Inner { config, listener, kind, pacer, sentinels, state, native })))
    }

    /// The connection. If there is none, it is dialled on the caller's runtime, which serves it from then
    /// on. If that runtime ends, so does the connection, and the next call dials again.
    pub(crate) async fn connection(&self) -> Result<Connection> {
        let dialling = {
            let mut state = self.0.state.lock();
            if let Some(connection) = state.usable(self.0.config.step_limit()) {
                return Ok(connection.clone());
            }
            let limit = self.0.config.step_limit();
            let dialling = state.dialling.take().filter(|dialling| dialling.is_running(limit));
            let begin = || SingleFlight::start(CONNECT, dial(Arc::clone(&self.0)));
            state.dialling.insert(dialling.unwrap_or_else(begin)).outcome()
        };
        dialling.await
    }

    /// A link to the same server with a connection of its own, which is made on demand.
    pub(crate) fn with_own_connections(&self) -> Result<Self> {
        Self::paced(&self.0.config, None, Kind::All, Arc::clone(&self.0.pacer))
    }

    /// Whether there is a connection that answers.
    pub(crate) fn is_connected(&self) -> bool {
        self.0.state.lock().usable(self.0.config.step_limit()).is_some()
    }

    /// Which native commands the server has, as far as known.
    pub(crate) fn native(&self) -> &NativeCommands {
        &self.0.native
    }

    /// The address of the server, for messages.
    pub(crate) fn name(&self) -> String {
        self.0.config.topology.servers()
    }

    /// Whether messages on this channel arrive.
    pub(crate) fn listens_to(&self, channel: &str) -> bool {
        let state = self.0.state.lock();
        let here = state.made.as_ref().is_some_and(|made| made.connection.listens_to(channel));
        let subscriber = state.subscriber.as_ref().map(|(_, subscriber)| subscriber.clone());
        drop(state);
        here || subscriber.is_some_and(|subscriber| subscriber.listens_to(channel))
    }

    /// Sends a command. A refusal is an error.
    pub(crate) async fn send(&self, operation: &'static str, command: &Command) -> Result<Value> {
        let [reply] = self.call(operation, [command]).await?;
        accepted(operation, reply)
    }

    /// Sends commands with nothing in between. A refusal is a value.
    pub(crate) async fn call<const N: usize>(
        &self,
        operation: &'static str,
        commands: [&Command; N],
    ) -> Result<[Value; N]> {
        // A connection that ends at this moment takes nothing: the commands were not sent, and
        // another connection is made.
        for _ in 0..2 {
            let connection = self.connection().await?;
            let Some(replies) = connection.call_all(commands).await else { continue };
            let replies = replies.map_err(|loss| lost(operation, &loss))?;
            for reply in &replies {
                self.close_if_demoted(&connection, reply);
            }
            return Ok(replies);
        }
        Err(keeps_ending(operation))
    }

    /// Subscribes to a channel, unless that is done already.
    pub(crate) async fn subscribe(
        &self,
        command: &str,
        channel: &str,
    ) -> Result<(), SubscribeError> {
        let connection = self.subscriber_connection().await.map_err(SubscribeError::Fault)?;
        if connection.listens_to(channel) {
            return Ok(());
        }
        const SUBSCRIBE: &str = "subscribe to messages";
        match connection.subscribe(&cmd(command).arg(channel), channel).await {
            Some(Ok(Value::Refusal(refusal))) => Err(SubscribeError::Refused(refusal)),
            Some(Ok(_)) => Ok(()),
            Some(Err(loss)) => Err(SubscribeError::Fault(lost(SUBSCRIBE, &loss))),
            None => {
                let why = "the connection has just ended";
                Err(SubscribeError::Fault(Error::new(ErrorKind::Unreachable, SUBSCRIBE, why)))
            }
        }
    }

    /// Unsubscribes from a channel.
    pub(crate) fn unsubscribe(&self, command: &str, channel: &str) {
        let state = self.0.state.lock();
        let (made, subscriber) = (
            state.made.clone(),
            state.subscriber.as_ref().map(|(_, subscriber)| subscriber.clone()),
        );
        drop(state);
        match made.filter(|made| made.connection.listens_to(channel)) {
            Some(made) => made.connection.post_unsubscribe(command, channel),
            None => subscriber
                .into_iter()
                .for_each(|subscriber| subscriber.unsubscribe(command, channel)),
        }
    }

    /// The connection for messages: in RESP2, another one to the same server.
    async fn subscriber_connection(&self) -> Result<Connection> {
        let connection = self.connection().await?;
        let subscriber = {
            let mut state = self.0.state.lock();
            let State { made, subscriber, .. } = &mut *state;
            match made {
                Some(Established { connection, server, .. })
                    if self.0.kind == Kind::All && !connection.carries_pushes() =>
                {
                    if subscriber.as_ref().is_none_or(|(of, _)| of != server) {
                        *subscriber = Some((server.clone(), self.0.subscriber_to(server)?));
                    }
                    subscriber.as_ref().map(|(_, subscriber)| subscriber.clone())
                }
                _ => {
                    *subscriber = None;
                    None
                }
            }
        };
        match subscriber {
            Some(subscriber) => Box::pin(subscriber.connection()).await,
            None => Ok(connection),
        }
    }

    /// Closes the connection to a server that was a master and is a replica now: the next call looks for
    /// the master. Other calls lose their replies with it, so that is not done repeatedly.
    fn close_if_demoted(&self, connection: &Connection, reply: &Value) {
        if matches!(reply, Value::Refusal(it) if matches!(&*it.code, "READONLY" | "UNBLOCKED")) {
            let made = self.0.state.lock().made.as_ref().map(|made| made.at);
            if made.is_some_and(|at| at.elapsed() >= DEMOTION) {
                connection.close();
            }
        }
    }
}

/// Why a subscription failed.
pub(crate) enum SubscribeError {
    Refused(Refusal),
    Fault(Error),
}

fn keeps_ending(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unreachable, operation, "the connection ends repeatedly")
}

async fn dial(link: Arc<Inner>) -> Result<Connection> {
    tokio::time::sleep_until(link.pacer.next_attempt()).await;
    let made = tokio::time::timeout(link.config.step_limit(), link.dial()).await;
    let made = made.unwrap_or_else(|_| Err(no_answer(&link.config)));
    let mut state = link.state.lock();
    state.dialling = None;
    let made = made?;
    // The server was only slow: the old connection answers again.
    if let Some(old) = state.usable(link.config.step_limit()) {
        return Ok(old.clone());
    }
    // Commands that are still on their way over the old connection have arrived by now, or never will:
    // the server has answered on the new one, and unacknowledged data is dropped when the old one is
    // closed. A proxy that keeps bytes for longer is not covered: then the TTL ends what arrives late.
    link.adopt(state, made.clone());
    if link.sentinels.is_some() {
        tokio::spawn(follow(Arc::downgrade(&link), made.connection.clone()));
    }
    Ok(made.connection)
}

impl Inner {
    /// Replaces the connection and closes the former one. The new server may have other commands.
    fn adopt(&self, mut state: MutexGuard<'_, State>, made: Established) {
        self.native.reset();
        if let Some(former) = state.made.replace(made) {
            former.connection.close();
        }
    }

    async fn dial(&self) -> Result<Established> {
        match (&self.config.topology, &self.sentinels) {
            (Topology::Single { server }, _) => {
                self.dial_server(Endpoint::Tcp(server.clone())).await
            }
            (Topology::Unix { path }, _) => self.dial_server(Endpoint::Unix(path.clone())).await,
            (_, Some(sentinels)) => self.dial_master(sentinels).await,
            _ => {
                let why = "a Cluster is reached node by node";
                Err(Error::new(ErrorKind::Internal, CONNECT, why))
            }
        }
    }

    async fn dial_server(&self, server: Endpoint) -> Result<Established> {
        let login = match self.kind {
            Kind::Sentinel => self.config.sentinel_login()?,
            _ => self.config.login().await?,
        };
        let connection = match self.greet(&server, login.as_ref()).await {
            // A Sentinel that asks for a password gets the servers' one, unless it has its own.
            Err(error) if error.kind() == ErrorKind::Denied && login.is_none() => {
                let Some(login) = self.config.login().await? else { return Err(error) };
                self.greet(&server, Some(&login)).await?
            }
            greeted => greeted?,
        };
        // In RESP2, a connection that has subscribed cannot log in again: it ends with its login.
        if let (Some(provider), Some(login), Kind::All) =
            (&self.config.credentials, &login, self.kind)
        {
            provider.refresh(&connection, login);
        }
        if self.config.database != 0 && self.kind == Kind::All {
            ask(&connection, &cmd("SELECT").number(self.config.database as u64)).await?;
        }
        Ok(Established { connection, server, at: Instant::now() })
    }

    async fn greet(
        &self,
        server: &Endpoint,
        credentials: Option<&Credentials>,
    ) -> Result<Connection> {
        let limit = self.config.step_limit();
        let stream = match server {
            Endpoint::Tcp(address) => {
                // Certificates are read again for each connection, so that they can be replaced.
                let tls = self.config.tls.as_ref().map(Tls::connector).transpose()?;
                let stream = Stream::open(address, limit, tls.as_ref()).await;
                stream.map_err(|error| {
                    not_connected(&format!("{}:{}", address.0, address.1), error)
                })?
            }
            Endpoint::Unix(path) => {
                let stream = Stream::open_unix(path).await;
                stream.map_err(|error| not_connected(&path.display().to_string(), error))?
            }
        };
        let connection = Connection::start(stream, limit, self.listener.clone());
        let name = (self.kind != Kind::Sentinel).then_some(&*self.config.client_name);
        match self.kind {
            Kind::Subscriptions => {
                connection.take_lists_for_messages();
                log_in_by_auth(&connection, credentials, name).await?;
            }
            _ => log_in(&connection, credentials, name).await?,
        }
        Ok(connection)
    }

    /// A link for subscriptions to the same server.
    fn subscriber_to(&self, server: &Endpoint) -> Result<Link> {
        let topology = match server {
            Endpoint::Tcp(address) => Topology::Single { server: address.clone() },
            Endpoint::Unix(path) => Topology::Unix { path: path.clone() },
        };
        let config = RedisConfig { topology, ..self.config.clone() };
        Link::paced(&config, self.listener.clone(), Kind::Subscriptions, Arc::clone(&self.pacer))
    }

    /// Connects to the server that the Sentinels name, if its `ROLE` is master.
    async fn dial_master(&self, sentinels: &Sentinels) -> Result<Established> {
        let mut telling = no_answer(&self.config);
        for master in sentinels.masters().await? {
            match self.dial_if_master(master).await {
                Ok(made) => return Ok(made),
                Err(error) if telling.is_transient() => telling = error,
                Err(_) => {}
            }
        }
        Err(telling)
    }

    async fn dial_if_master(&self, server: Address) -> Result<Established> {
        let made = self.dial_server(Endpoint::Tcp(server)).await?;
        check_role(&made.connection).await?;
        Ok(made)
    }
}

async fn check_role(connection: &Connection) -> Result<()> {
    let role = ask(connection, &cmd("ROLE")).await?.array().unwrap_or_default();
    match role.first().and_then(Value::text).as_deref() {
        Some("master") => Ok(()),
        _ => {
            let why = "the server that Sentinel names is no master: a failover is under way";
            Err(Error::new(ErrorKind::Unreachable, CONNECT, why))
        }
    }
}

/// Sends a command over a new connection. A refusal is an error.
async fn ask(connection: &Connection, command: &Command) -> Result<Value> {
    match connection.call(command).await {
        Some(Ok(Value::Refusal(refusal))) => Err(fault(CONNECT, &refusal)),
        Some(Ok(value)) => Ok(value),
        Some(Err(loss)) => Err(Error::new(kind_of(&loss), CONNECT, loss.to_string())),
        None => Err(Error::new(ErrorKind::Unreachable, CONNECT, "the server closed it at once")),
    }
}

/// Follows the master for as long as this connection to it, or the one that takes its place, is
/// open: the old master may go on answering for seconds after a failover.
async fn follow(link: Weak<Inner>, mut connection: Connection) {
    while connection.is_open() {
        tokio::time::sleep(FOLLOW).await;
        let Some(link) = link.upgrade() else { return };
        let Some(sentinels) = &link.sentinels else { return };
        let moved =
            tokio::time::timeout(link.config.step_limit(), link.newer_master(sentinels)).await;
        // Another connection may have been made meanwhile, which has a task of its own.
        if let Ok(Some(newer)) = moved
            && connection.is_open()
        {
            tracing::info!(server = ?newer.server, "the master has moved");
            link.adopt(link.state.lock(), newer.clone());
            connection.close();
            connection = newer.connection;
        }
    }
}

impl Inner {
    /// A connection to the master, if the Sentinels name another than the one that is connected.
    async fn newer_master(&self, sentinels: &Sentinels) -> Option<Established> {
        let masters = sentinels.masters().await.ok()?;
        let server = self.state.lock().made.as_ref()?.server.clone();
        let is_other = |master: &&Address| Endpoint::Tcp((*master).clone()) != server;
        let named = masters.first().filter(is_other)?;
        // Sentinels may be outdated: the server has to say that it is a master.
        self.dial_if_master(named.clone()).await.ok()
    }
}
