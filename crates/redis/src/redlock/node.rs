//! One server of the quorum: whether it can be asked, and whether it counts.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Moment, now};
use tenure_core::{Error, ErrorKind, OwnerId, Result};
use tenure_proto::quorum::{Quarantine, Sighting};
use tokio::runtime::Handle;

use super::nodes::ServerIdentities;
use super::scripts::Scripts;
use super::unconfirmed_releases::{Release, UnconfirmedReleases};
use crate::config::{RedisConfig, Topology};
use crate::fault::{fault, lost};
use crate::link::Link;
use crate::retry::RetryPacer;
pub(super) use crate::retry::random;
use crate::wire::{Connection, MessageListener, Reply, Value, cmd};

pub(super) struct Node {
    pub(super) number: usize,
    /// Host and port.
    pub(super) name: String,
    pub(super) link: Link,
    scripts: Arc<Scripts>,
    identities: Arc<ServerIdentities>,
    unconfirmed: UnconfirmedReleases,
    home: Handle,
    pacer: RetryPacer,
    state: Mutex<State>,
}

struct State {
    /// A connection on which the server has identified itself.
    greeted: Option<Connection>,
    /// The server's id of the last connection, and the run id of the server.
    known_as: Option<(i64, Arc<str>)>,
    trust: Trust,
    greeting: bool,
    /// Whether a task dials until there is a connection, because releases are unconfirmed.
    reconnecting: bool,
    problem: Option<String>,
}

enum Trust {
    /// Not decided yet: all servers are looked at before any is trusted at first sight.
    Undecided(Option<Sighting<Arc<str>>>),
    Decided(Quarantine<Arc<str>>),
}

const GREET: &str = "identify a server of the quorum";

impl Node {
    pub(super) fn new(
        number: usize,
        config: &RedisConfig,
        listener: Arc<dyn MessageListener>,
        scripts: &Arc<Scripts>,
        identities: &Arc<ServerIdentities>,
    ) -> Result<Arc<Self>> {
        let name = match &config.topology {
            Topology::Single { server: (host, port) } => format!("{host}:{port}"),
            _ => return Err(Error::new(ErrorKind::Internal, GREET, "it is not a single server")),
        };
        let state = State {
            greeted: None,
            known_as: None,
            trust: Trust::Undecided(None),
            greeting: false,
            reconnecting: false,
            problem: None,
        };
        Ok(Arc::new(Self {
            number,
            name,
            link: Link::new(config, Some(listener))?,
            scripts: Arc::clone(scripts),
            identities: Arc::clone(identities),
            unconfirmed: UnconfirmedReleases::default(),
            home: Handle::current(),
            pacer: RetryPacer::for_dials(),
            state: Mutex::new(state),
        }))
    }

    /// The connection, if there is one to a server that has no other address, and whether the server's votes
    /// count: a server that restarted may have forgotten its locks. If there is none, it is dialled in the
    /// background: no call waits for a server that may be dead.
    pub(super) fn connection(self: &Arc<Self>, at: Moment) -> Option<(Connection, bool)> {
        let mut state = self.state.lock();
        if let Some(connection) = &state.greeted
            && connection.is_open()
        {
            // Requests for the server go to its other address: here it would vote a second time, and two
            // connections keep no order.
            if self.is_duplicate() {
                return None;
            }
            let judged = matches!(&state.trust, Trust::Decided(q) if q.is_over(at));
            return Some((connection.clone(), judged));
        }
        state.greeted = None;
        if !state.greeting && self.pacer.is_due() {
            state.greeting = true;
            let node = Arc::clone(self);
            self.home.spawn(async move { node.greet().await });
        }
        None
    }

    /// Whether the server was reached at another address before.
    fn is_duplicate(&self) -> bool {
        self.identities.is_duplicate(self.number)
    }

    /// Whether messages on this channel arrive, from a server that can be asked.
    pub(super) fn listens_to(self: &Arc<Self>, channel: &str) -> bool {
        self.connection(now()).is_some_and(|(connection, _)| match connection.carries_pushes() {
            true => connection.listens_to(channel),
            false => self.link.listens_to(channel),
        })
    }

    /// Whether the server can be asked, and messages on this channel need another connection, which
    /// is not there: in RESP2, a connection that subscribes can do nothing else.
    pub(super) fn lacks_listener(self: &Arc<Self>, channel: &str) -> bool {
        self.connection(now()).is_some_and(|(connection, _)| {
            !connection.carries_pushes() && !self.link.listens_to(channel)
        })
    }

    /// Why the server does not answer or count, for an error message.
    pub(super) fn problem(&self, now: Moment) -> Option<String> {
        let state = self.state.lock();
        if self.is_duplicate() {
            return Some("the same server as another, which has only one vote".into());
        }
        if state.greeted.as_ref().is_none_or(|connection| !connection.is_open()) {
            return Some(state.problem.clone().unwrap_or_else(|| "no connection".into()));
        }
        match &state.trust {
            Trust::Decided(quarantine) if !quarantine.is_over(now) => {
                let left = quarantine.until().map_or(Duration::ZERO, |until| until.since(now));
                Some(format!("restarted, and does not count for another {}s", left.as_secs() + 1))
            }
            _ => None,
        }
    }

    /// For how long the server has been up, if it has been seen.
    pub(super) fn uptime(&self) -> Option<Duration> {
        match &self.state.lock().trust {
            Trust::Undecided(seen) => seen.as_ref().map(|sighting| sighting.uptime),
            Trust::Decided(_) => None,
        }
    }

    /// Decides whether the server is trusted as it was first seen.
    pub(super) fn decide_trust(&self, mut quarantine: Quarantine<Arc<str>>) {
        let mut state = self.state.lock();
        if let Trust::Undecided(seen) = &mut state.trust {
            if let Some(sighting) = seen.take() {
                quarantine.handle_sighting(sighting);
            }
            state.trust = Trust::Decided(quarantine);
        }
    }

    /// Connects, and asks the server for its identity.
    pub(super) async fn greet(self: &Arc<Self>) -> Option<Error> {
        tokio::time::sleep_until(self.pacer.next_attempt()).await;
        let greeted = self.identify().await;
        let mut state = self.state.lock();
        state.greeting = false;
        match greeted {
            Ok(connection) => {
                if !self.is_duplicate() {
                    self.unconfirmed.resend(&connection, now());
                }
                state.greeted = Some(connection);
                state.problem = None;
                None
            }
            Err(error) => {
                state.problem = Some(error.to_string());
                Some(error)
            }
        }
    }

    async fn identify(&self) -> Result<Connection> {
        let connection = self.link.connection().await?;
        let post = |command| connection.post(&command).ok_or_else(gone);
        let info = post(cmd("INFO").arg("server"))?;
        let id = post(cmd("CLIENT").arg("ID"))?;
        let loads = self.scripts.all().map(|script| post(script.load()));
        let info = answer(info).await?.text().unwrap_or_default();
        let at = now();
        let field = |name: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(name));
        let (Some(run), Some(uptime)) = (field("run_id:"), field("uptime_in_seconds:")) else {
            let why = "it does not say its run id: is this a Redis server?";
            return Err(Error::new(ErrorKind::Unreachable, GREET, why));
        };
        let (run, uptime): (Arc<str>, u64) = (run.into(), uptime.parse().unwrap_or(0));
        let Value::Integer(id) = answer(id).await? else { return Err(gone()) };
        for (script, load) in self.scripts.all().into_iter().zip(loads) {
            if let Some(digest) = answer(load?).await?.text() {
                script.loaded(digest);
            }
        }
        self.close_previous(&connection, id, &run).await?;
        let sighting = Sighting { run: Arc::clone(&run), uptime: Duration::from_secs(uptime), at };
        self.identities.handle_server(self.number, &run);
        if self.is_duplicate() {
            tracing::error!(server = self.name, "the same server as another: it is not counted");
        }
        let mut state = self.state.lock();
        match &mut state.trust {
            Trust::Undecided(seen) => *seen = Some(sighting),
            Trust::Decided(quarantine) => quarantine.handle_sighting(sighting),
        }
        Ok(connection)
    }

    /// Has the server close the previous connection: a release that is still on its way there must not
    /// arrive after a new claim on this connection. If there was no previous connection, the
    /// command is sent all the same, and ends nothing: a user without the right to it learns that when it
    /// connects, and not only when a connection has broken.
    async fn close_previous(&self, connection: &Connection, id: i64, run: &Arc<str>) -> Result<()> {
        let last = self.state.lock().known_as.clone();
        let last = last.filter(|(_, of_run)| of_run == run).map_or(id, |(last, _)| last);
        let kill = cmd("CLIENT").arg("KILL").arg("ID").arg(last.to_string());
        let kill = kill.arg("SKIPME").arg("yes");
        answer(connection.post(&kill).ok_or_else(gone)?).await?;
        self.state.lock().known_as = Some((id, Arc::clone(run)));
        Ok(())
    }

    /// A claim of this owner is about to be sent.
    pub(super) fn forget_releases_of(&self, owner: OwnerId) {
        self.unconfirmed.forget_releases_of(owner);
    }

    /// Keeps a release that the server has not confirmed, or that could not be sent, and sends it again
    /// over the next connection. After `until` the hold has expired.
    pub(super) fn confirm_later(
        self: &Arc<Self>,
        release: &Release,
        reply: Option<Reply>,
        until: Moment,
    ) {
        let mut state = self.state.lock();
        let open = state.greeted.as_ref().filter(|it| it.is_open() && !self.is_duplicate());
        self.unconfirmed.add(release, reply, until, open);
        if !std::mem::replace(&mut state.reconnecting, true) {
            self.home.spawn(reconnect_while_unconfirmed(Arc::downgrade(self)));
        }
    }

    /// Whether releases are unconfirmed. If not, no task dials for them any longer.
    fn still_unconfirmed(&self) -> bool {
        let mut state = self.state.lock();
        let open = state.greeted.as_ref().filter(|it| it.is_open() && !self.is_duplicate());
        let any_left = self.unconfirmed.any_left(now(), open, |open| {
            for script in self.scripts.all() {
                open.post(&script.load());
            }
        });
        state.reconnecting = any_left;
        any_left
    }
}

/// Dials as long as there are unconfirmed releases, also while no call is made.
async fn reconnect_while_unconfirmed(node: Weak<Node>) {
    while let Some(node) = node.upgrade() {
        node.connection(now());
        if !node.still_unconfirmed() {
            return;
        }
        drop(node);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn answer(reply: Reply) -> Result<Value> {
    match reply.await {
        Ok(Ok(Value::Refusal(refusal))) => Err(fault(GREET, &refusal)),
        Ok(Ok(value)) => Ok(value),
        Ok(Err(loss)) => Err(lost(GREET, &loss)),
        Err(_) => Err(gone()),
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unreachable, GREET, "the connection has just ended")
}
