//! One server of the quorum: whether it can be asked, and whether it counts.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Moment, now};
use tenure_core::{Error, ErrorKind, OwnerId, Result};
use tenure_proto::quorum::{Quarantine, Sighting};
use tokio::runtime::Handle;

use super::debts::{Debts, Release};
use super::runs::Runs;
use super::scripts::Scripts;
use crate::config::{RedisConfig, Topology};
use crate::fault::{fault, lost};
use crate::link::Link;
use crate::pace::Pace;
pub(super) use crate::pace::chance;
use crate::wire::{Connection, Hearer, Reply, Value, cmd};

pub(super) struct Node {
    pub(super) number: usize,
    /// Host and port.
    pub(super) name: String,
    pub(super) link: Link,
    scripts: Arc<Scripts>,
    runs: Arc<Runs>,
    debts: Debts,
    home: Handle,
    pace: Pace,
    state: Mutex<State>,
}

struct State {
    /// A connection on which the server has said who it is.
    greeted: Option<Connection>,
    /// The server's number for it, and the run it was made in.
    known_as: Option<(i64, Arc<str>)>,
    standing: Standing,
    greeting: bool,
    /// Whether a connection is looked for until there is one, for the sake of the debts.
    chased: bool,
    trouble: Option<String>,
}

enum Standing {
    /// It is not decided yet whom to trust at first sight.
    Open(Option<Sighting<Arc<str>>>),
    Judged(Quarantine<Arc<str>>),
}

const GREET: &str = "ask a server who it is";

impl Node {
    pub(super) fn new(
        number: usize,
        config: &RedisConfig,
        hearer: Arc<dyn Hearer>,
        scripts: &Arc<Scripts>,
        runs: &Arc<Runs>,
    ) -> Result<Arc<Self>> {
        let name = match &config.topology {
            Topology::Single { server: (host, port) } => format!("{host}:{port}"),
            _ => return Err(Error::new(ErrorKind::Internal, GREET, "it is not a single server")),
        };
        let state = State {
            greeted: None,
            known_as: None,
            standing: Standing::Open(None),
            greeting: false,
            chased: false,
            trouble: None,
        };
        Ok(Arc::new(Self {
            number,
            name,
            link: Link::new(config, Some(hearer))?,
            scripts: Arc::clone(scripts),
            runs: Arc::clone(runs),
            debts: Debts::default(),
            home: Handle::current(),
            pace: Pace::of_dials(),
            state: Mutex::new(state),
        }))
    }

    /// The connection, if there is one, and whether the server's votes count: one that has
    /// restarted may have forgotten its locks. A connection is looked for in the background, for
    /// nobody waits for a server that may be dead.
    pub(super) fn connection(self: &Arc<Self>, at: Moment) -> Option<(Connection, bool)> {
        let mut state = self.state.lock();
        if let Some(connection) = &state.greeted
            && connection.is_open()
        {
            let judged = matches!(&state.standing, Standing::Judged(q) if q.is_over(at));
            return Some((connection.clone(), judged && !self.runs.is_twin(self.number)));
        }
        state.greeted = None;
        if !state.greeting && self.pace.is_due() {
            state.greeting = true;
            let node = Arc::clone(self);
            self.home.spawn(async move { node.greet().await });
        }
        None
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

    /// Why it does not answer or count, for a message.
    pub(super) fn trouble(&self, now: Moment) -> Option<String> {
        let state = self.state.lock();
        if self.runs.is_twin(self.number) {
            return Some("the same server as another, which has only one vote".into());
        }
        if state.greeted.as_ref().is_none_or(|connection| !connection.is_open()) {
            return Some(state.trouble.clone().unwrap_or_else(|| "no connection".into()));
        }
        match &state.standing {
            Standing::Judged(quarantine) if !quarantine.is_over(now) => {
                let left = quarantine.until().map_or(Duration::ZERO, |until| until.since(now));
                Some(format!("restarted, and does not count for another {}s", left.as_secs() + 1))
            }
            _ => None,
        }
    }

    /// For how long the server has been up, if it has been seen.
    pub(super) fn uptime(&self) -> Option<Duration> {
        match &self.state.lock().standing {
            Standing::Open(seen) => seen.as_ref().map(|sighting| sighting.uptime),
            Standing::Judged(_) => None,
        }
    }

    /// Decides whether the server is trusted as it was first seen. From here on, it is judged.
    pub(super) fn judge(&self, mut quarantine: Quarantine<Arc<str>>) {
        let mut state = self.state.lock();
        if let Standing::Open(seen) = &mut state.standing {
            if let Some(sighting) = seen.take() {
                quarantine.handle_sighting(sighting);
            }
            state.standing = Standing::Judged(quarantine);
        }
    }

    /// Connects, and lets the server say who it is.
    pub(super) async fn greet(self: &Arc<Self>) -> Option<Error> {
        tokio::time::sleep_until(self.pace.turn()).await;
        let greeted = self.introduce().await;
        let mut state = self.state.lock();
        state.greeting = false;
        match greeted {
            Ok(connection) => {
                self.debts.send_over(&connection, now());
                state.greeted = Some(connection);
                state.trouble = None;
                None
            }
            Err(error) => {
                state.trouble = Some(error.to_string());
                Some(error)
            }
        }
    }

    async fn introduce(&self) -> Result<Connection> {
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
        self.cut_off_the_last(&connection, id, &run).await?;
        let sighting = Sighting { run: Arc::clone(&run), uptime: Duration::from_secs(uptime), at };
        self.runs.handle_run(self.number, &run);
        if self.runs.is_twin(self.number) {
            tracing::error!(server = self.name, "the same server as another: it is not counted");
        }
        let mut state = self.state.lock();
        match &mut state.standing {
            Standing::Open(seen) => *seen = Some(sighting),
            Standing::Judged(quarantine) => quarantine.handle_sighting(sighting),
        }
        Ok(connection)
    }

    /// What is still on its way on the connection before this one must not arrive after what goes
    /// over this one: an old release could undo a new claim. Where there is none before it, the
    /// command is sent all the same, and ends nothing: a user that lacks the right to it is told so
    /// when it connects, and not when a connection has broken.
    async fn cut_off_the_last(
        &self,
        connection: &Connection,
        id: i64,
        run: &Arc<str>,
    ) -> Result<()> {
        let last = self.state.lock().known_as.clone();
        let last = last.filter(|(_, of_run)| of_run == run).map_or(id, |(last, _)| last);
        let kill = cmd("CLIENT").arg("KILL").arg("ID").arg(last.to_string());
        let kill = kill.arg("SKIPME").arg("yes");
        answer(connection.post(&kill).ok_or_else(gone)?).await?;
        self.state.lock().known_as = Some((id, Arc::clone(run)));
        Ok(())
    }

    /// A claim of this owner is about to be sent.
    pub(super) fn forgive(&self, owner: OwnerId) {
        self.debts.forgive(owner);
    }

    /// Sees to it that the server hears of a release which it has not confirmed on the connection
    /// that was used, or could not be sent there. No later than `until` it is of no use.
    pub(super) fn owe(self: &Arc<Self>, release: &Release, reply: Option<Reply>, until: Moment) {
        let mut state = self.state.lock();
        let open = state.greeted.as_ref().filter(|connection| connection.is_open());
        let reply = match (reply, open) {
            // There is a new connection, on which the owner has not asked yet.
            (None, Some(connection)) => connection.post(&release.command),
            (reply, _) => reply,
        };
        self.debts.add(release, reply, until);
        if !std::mem::replace(&mut state.chased, true) {
            self.home.spawn(chase(Arc::downgrade(self)));
        }
    }
}

/// Looks for a connection as long as there are debts, also while nobody asks for anything.
async fn chase(node: Weak<Node>) {
    while let Some(node) = node.upgrade() {
        node.connection(now());
        let mut state = node.state.lock();
        if !node.debts.are_open(now()) {
            state.chased = false;
            return;
        }
        drop(state);
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
