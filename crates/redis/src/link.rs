//! A server, and the connection to it that is made when it is needed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::Tls;

use crate::config::{RedisConfig, Topology};
use crate::dialect::Dialect;
use crate::fault::{CONNECT, fault, kind_of, lost, silent, unmade};
use crate::wire::{Command, Connection, Hearer, Refusal, Stream, Value, cmd};

/// One server, or whichever is the master that Sentinels name. Many share one connection; when it
/// breaks, or has owed an answer for longer than a call may take, the next call makes another.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    config: RedisConfig,
    hearer: Option<Arc<dyn Hearer>>,
    state: Mutex<State>,
    dialect: Dialect,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// Where that leads to.
    server: Option<(String, u16)>,
    dialling: Option<Shared<BoxFuture<'static, Result<Connection>>>>,
}

impl State {
    /// Whether a connection is being made. One that was made has left the state; what is left of
    /// one that ended otherwise, with its runtime, is of no use.
    fn is_dialling(&self) -> bool {
        self.dialling.as_ref().is_some_and(|dialling| dialling.peek().is_none())
    }

    /// The connection, unless it is closed or stuck.
    fn at_hand(&self, limit: Duration) -> Option<&Connection> {
        let answers = |connection: &&Connection| connection.owes() < Some(limit);
        self.connection.as_ref().filter(|connection| connection.is_open()).filter(answers)
    }
}

/// How often Sentinels are asked who is master.
const FOLLOW: Duration = Duration::from_secs(1);

impl Link {
    /// A link to what the configuration names; a Cluster is not for one link. Nothing is sent yet.
    pub(crate) fn new(config: &RedisConfig, hearer: Option<Arc<dyn Hearer>>) -> Result<Self> {
        // So that a file which cannot be used is reported at once.
        config.tls.as_ref().map(Tls::connector).transpose()?;
        let (config, state) = (config.clone(), Mutex::default());
        Ok(Self(Arc::new(Inner { config, hearer, state, dialect: Dialect::default() })))
    }

    /// The connection, made anew if there is none, on the caller's runtime: that serves it from then
    /// on. If that runtime ends, so does the connection, and the next caller makes another.
    pub(crate) async fn connection(&self) -> Result<Connection> {
        let dialling = {
            let mut state = self.0.state.lock();
            if let Some(connection) = state.at_hand(self.0.config.timeout) {
                return Ok(connection.clone());
            }
            if !state.is_dialling() {
                let dial = tokio::spawn(dial(Arc::clone(&self.0)));
                let gone = || Error::new(ErrorKind::Unreachable, CONNECT, "its runtime has ended");
                let made = dial.map(move |made| made.unwrap_or_else(|_| Err(gone())));
                state.dialling = Some(made.boxed().shared());
            }
            state.dialling.clone()
        };
        match dialling {
            Some(dialling) => dialling.await,
            None => Err(restless(CONNECT)),
        }
    }

    /// The same server, over a connection of its own, which is made when it is needed.
    pub(crate) fn beside(&self) -> Self {
        let (config, state) = (self.0.config.clone(), Mutex::default());
        Self(Arc::new(Inner { config, hearer: None, state, dialect: Dialect::default() }))
    }

    /// Whether there is a connection that answers.
    pub(crate) fn is_connected(&self) -> bool {
        self.0.state.lock().at_hand(self.0.config.timeout).is_some()
    }

    /// What the server is known to understand.
    pub(crate) fn dialect(&self) -> &Dialect {
        &self.0.dialect
    }

    /// Where it leads to.
    pub(crate) fn name(&self) -> String {
        self.0.config.topology.servers()
    }

    /// The connection, if there is one.
    pub(crate) fn current(&self) -> Option<Connection> {
        self.0.state.lock().connection.clone()
    }

    /// Sends a command. What the server says against it is an error.
    pub(crate) async fn send(&self, operation: &'static str, command: &Command) -> Result<Value> {
        match self.try_send(operation, command).await? {
            Value::Refusal(refusal) => Err(fault(operation, &refusal)),
            value => Ok(value),
        }
    }

    /// Sends a command. What the server says against it is a value.
    pub(crate) async fn try_send(
        &self,
        operation: &'static str,
        command: &Command,
    ) -> Result<Value> {
        // One that ends just now takes nothing: it was not sent, and another is made.
        for _ in 0..2 {
            let connection = self.connection().await?;
            let Some(reply) = connection.call(command).await else { continue };
            let reply = reply.map_err(|loss| lost(operation, &loss))?;
            close_if_demoted(&connection, &reply);
            return Ok(reply);
        }
        Err(restless(operation))
    }

    /// Sends two commands with nothing in between. What the server says against them are values.
    pub(crate) async fn try_send_both(
        &self,
        operation: &'static str,
        first: &Command,
        second: &Command,
    ) -> Result<(Value, Value)> {
        for _ in 0..2 {
            let connection = self.connection().await?;
            let Some(replies) = connection.call_both(first, second).await else { continue };
            let replies = replies.map_err(|loss| lost(operation, &loss))?;
            close_if_demoted(&connection, &replies.0);
            close_if_demoted(&connection, &replies.1);
            return Ok(replies);
        }
        Err(restless(operation))
    }

    /// Listens to a channel, unless it does already.
    pub(crate) async fn subscribe(&self, command: &str, channel: &str) -> Result<(), Trouble> {
        let connection = self.connection().await.map_err(Trouble::Fault)?;
        if connection.listens_to(channel) {
            return Ok(());
        }
        const SUBSCRIBE: &str = "subscribe to news of locks";
        match connection.subscribe(&cmd(command).arg(channel), channel).await {
            Some(Ok(Value::Refusal(refusal))) => Err(Trouble::Refused(refusal)),
            Some(Ok(_)) => Ok(()),
            Some(Err(loss)) => Err(Trouble::Fault(lost(SUBSCRIBE, &loss))),
            None => {
                let why = "the connection has just ended";
                Err(Trouble::Fault(Error::new(ErrorKind::Unreachable, SUBSCRIBE, why)))
            }
        }
    }
}

/// Why there is no subscription.
pub(crate) enum Trouble {
    Refused(Refusal),
    Fault(Error),
}

/// It was a master, and is a replica now: the next call looks for the master.
fn close_if_demoted(connection: &Connection, reply: &Value) {
    if matches!(reply, Value::Refusal(it) if matches!(&*it.code, "READONLY" | "UNBLOCKED")) {
        connection.close();
    }
}

fn restless(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unreachable, operation, "the connection ends again and again")
}

async fn dial(link: Arc<Inner>) -> Result<Connection> {
    let made = tokio::time::timeout(link.config.timeout, link.dial()).await;
    let made = made.unwrap_or_else(|_| Err(silent(&link.config)));
    let mut state = link.state.lock();
    state.dialling = None;
    let (connection, server) = made?;
    // The server was slow, and goes on.
    if let Some(old) = state.at_hand(link.config.timeout) {
        return Ok(old.clone());
    }
    // What is still on its way over the old one has arrived, or never will: the server has answered
    // here, and what its machine did not acknowledge in time is thrown away. A proxy in between that
    // keeps bytes for longer is not covered: then the TTL ends what arrives late.
    if let Some(stuck) = state.connection.replace(connection.clone()) {
        stuck.close();
    }
    state.server = Some(server);
    drop(state);
    link.dialect.reset();
    if matches!(link.config.topology, Topology::Sentinel { .. }) {
        tokio::spawn(follow(Arc::downgrade(&link), connection.clone()));
    }
    Ok(connection)
}

impl Inner {
    async fn dial(&self) -> Result<(Connection, (String, u16))> {
        match &self.config.topology {
            Topology::Single { server } => Ok((self.dial_server(server).await?, server.clone())),
            Topology::Sentinel { sentinels, service } => self.dial_master(sentinels, service).await,
            Topology::Cluster { .. } => {
                let why = "a Cluster is reached node by node";
                Err(Error::new(ErrorKind::Internal, CONNECT, why))
            }
        }
    }

    async fn dial_server(&self, server: &(String, u16)) -> Result<Connection> {
        let connection = self.greet(server, &self.hello()?.arg("SETNAME").arg("tenure")).await?;
        if self.config.database != 0 {
            ask(&connection, &cmd("SELECT").number(self.config.database as u64)).await?;
        }
        Ok(connection)
    }

    fn hello(&self) -> Result<Command> {
        let RedisConfig { username, password, .. } = &self.config;
        let hello = cmd("HELLO").arg("3");
        Ok(match password {
            Some(password) => {
                let user = username.as_deref().unwrap_or("default");
                hello.arg("AUTH").arg(user).arg(&password.read()?)
            }
            None => hello,
        })
    }

    async fn greet(&self, server: &(String, u16), hello: &Command) -> Result<Connection> {
        // Certificates are read again for each connection, so that they can be replaced.
        let tls = self.config.tls.as_ref().map(Tls::connector).transpose()?;
        let stream = Stream::open(server, self.config.timeout, tls.as_ref()).await;
        let stream = stream.map_err(|error| unmade(server, &error))?;
        let limit = self.config.timeout;
        let connection = Connection::start(stream, limit, self.hearer.clone());
        ask(&connection, hello).await?;
        Ok(connection)
    }

    /// Asks the Sentinels one by one for the master, until it is one that says it is.
    async fn dial_master(
        &self,
        sentinels: &[(String, u16)],
        service: &str,
    ) -> Result<(Connection, (String, u16))> {
        let mut telling = silent(&self.config);
        let limit = self.share_of(sentinels);
        for sentinel in sentinels {
            let attempt = async {
                let master = self.master(sentinel, service).await?;
                let connection = self.dial_server(&master).await?;
                check_role(&connection).await?;
                Ok((connection, master))
            };
            match tokio::time::timeout(limit, attempt).await {
                Ok(Ok(made)) => return Ok(made),
                // A refusal says more than that another is down.
                Ok(Err(error)) if telling.is_transient() => telling = error,
                _ => {}
            }
        }
        Err(telling)
    }

    /// The master that this Sentinel names. A Sentinel has users of its own, and often none.
    async fn master(&self, sentinel: &(String, u16), service: &str) -> Result<(String, u16)> {
        let connection = match self.greet(sentinel, &cmd("HELLO").arg("3")).await {
            // One that wants a password is given the servers'.
            Err(error) if error.kind() == ErrorKind::Denied && self.config.password.is_some() => {
                self.greet(sentinel, &self.hello()?).await?
            }
            greeted => greeted?,
        };
        let which = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let named = ask(&connection, &which).await?.texts().unwrap_or_default();
        match &named[..] {
            [host, port] if port.parse::<u16>().is_ok() => {
                Ok((host.clone(), port.parse().unwrap_or_default()))
            }
            _ => {
                let why = format!(
                    "Sentinel {}:{} names no master {service}; check the service name",
                    sentinel.0, sentinel.1
                );
                Err(Error::new(ErrorKind::Unreachable, CONNECT, why))
            }
        }
    }

    /// The master that the first Sentinel to answer names.
    async fn named(&self, sentinels: &[(String, u16)], service: &str) -> Option<(String, u16)> {
        for sentinel in sentinels {
            let asked = self.master(sentinel, service);
            if let Ok(Ok(master)) = tokio::time::timeout(self.share_of(sentinels), asked).await {
                return Some(master);
            }
        }
        None
    }

    /// One that is gone must not take the time that another needs.
    fn share_of(&self, sentinels: &[(String, u16)]) -> Duration {
        self.config.timeout / u32::try_from(sentinels.len() + 1).unwrap_or(u32::MAX)
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

/// Asks over a connection that nothing else has been asked over yet.
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
        let server = link.state.lock().server.clone();
        let Some(server) = server else { continue };
        let Topology::Sentinel { sentinels, service } = &link.config.topology else { return };
        let moved = async {
            let named = link.named(sentinels, service).await?;
            if named == server {
                return None;
            }
            // One Sentinel may be behind: what it names has to be a master.
            let connection = link.dial_server(&named).await.ok()?;
            check_role(&connection).await.ok()?;
            Some((connection, named))
        };
        let moved = tokio::time::timeout(link.config.timeout, moved).await;
        // Another may have been made meanwhile, which is followed by a task of its own.
        if let Ok(Some((newer, named))) = moved
            && connection.is_open()
        {
            tracing::info!(host = named.0, port = named.1, "the master has moved");
            let mut state = link.state.lock();
            state.connection = Some(newer.clone());
            state.server = Some(named);
            drop(state);
            connection.close();
            connection = newer;
        }
    }
}
