//! All servers of the quorum, and which server each address leads to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Moment, now};
use tenure_core::{Error, ErrorKind, Result};
use tenure_proto::quorum::{NotAQuorum, Quarantine, check_nodes, majority};
use tokio::time::Instant;

use super::node::Node;
use super::scripts::Scripts;
use super::waiters::{NodeListener, QuorumWaiters};
use crate::config::RedlockConfig;
use crate::wire::{Command, Connection, Reply, Value};

pub(super) struct Nodes {
    pub(super) list: Vec<Arc<Node>>,
    pub(super) scripts: Arc<Scripts>,
}

/// A node, and why it did not do what it was asked to.
pub(super) type Fault = (usize, Error);

/// The nodes as they are when a call begins. The whole call uses these connections.
pub(super) struct View {
    pub(super) connections: Vec<Option<Connection>>,
    /// Which nodes are asked for votes.
    pub(super) eligible: Vec<bool>,
}

/// How long the other nodes have once a majority has answered.
const COURTESY: Duration = Duration::from_millis(100);

const CONNECT: &str = "connect to the quorum";

impl Nodes {
    /// Connects to all servers, and decides which to trust.
    pub(super) async fn connect(
        config: &RedlockConfig,
        waiters: &Arc<QuorumWaiters>,
    ) -> Result<Self> {
        let scripts = Arc::new(Scripts::new());
        let identities = Arc::new(ServerIdentities::new(config.nodes.len()));
        let mut list = Vec::new();
        for (number, node) in config.nodes.iter().enumerate() {
            let listener = Arc::new(NodeListener { waiters: Arc::clone(waiters), node: number });
            list.push(Node::new(number, node, listener, &scripts, &identities)?);
        }
        let nodes = Self { list, scripts };
        nodes.greet_all(config).await?;
        if let Err(why) = identities.check() {
            return Err(Error::new(ErrorKind::Invalid, CONNECT, why.to_string()));
        }
        nodes.decide_trust(config.max_ttl);
        Ok(nodes)
    }

    async fn greet_all(&self, config: &RedlockConfig) -> Result<()> {
        let mut greetings = tokio::task::JoinSet::new();
        for node in &self.list {
            let node = Arc::clone(node);
            greetings.spawn(async move { Some((node.number, node.greet().await?)) });
        }
        let (mut there, mut faults) = (0, Vec::new());
        while there < majority(self.list.len()) {
            match greetings.join_next().await {
                Some(Ok(None)) => there += 1,
                Some(Ok(Some(fault))) => faults.push(fault),
                Some(Err(_)) => {}
                None => return Err(self.too_few(CONNECT, there, &faults)),
            }
        }
        let (start, longest) = (Instant::now(), config.nodes.iter().map(|node| node.timeout).max());
        loop {
            // While all servers that have answered are new, an older one among the others would show that
            // the set is not.
            let new = self.are_new(config.max_ttl);
            let limit = longest.filter(|_| new).unwrap_or_default().max(COURTESY);
            let next = tokio::time::timeout_at(start + limit, greetings.join_next()).await;
            if !matches!(next, Ok(Some(_))) {
                break;
            }
        }
        // Servers that take longer are connected in the background.
        greetings.detach_all();
        Ok(())
    }

    /// A server that is younger than the longest TTL may have forgotten its locks. If all servers that
    /// answer are that young, the whole set is new, and there was nothing to forget.
    fn decide_trust(&self, max_ttl: Duration) {
        let new = self.are_new(max_ttl);
        for node in &self.list {
            // A server that was not reached is judged when it is.
            let trusted = new && node.uptime().is_some();
            node.decide_trust(match trusted {
                true => Quarantine::trusting_the_first(max_ttl),
                false => Quarantine::new(max_ttl),
            });
        }
    }

    fn are_new(&self, max_ttl: Duration) -> bool {
        let settled = max_ttl + max_ttl / 100 + Duration::from_secs(2);
        self.list.iter().filter_map(|node| node.uptime()).all(|up| up < settled)
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.list.len())
    }

    /// The nodes as they are now. A node that has not answered for longer than `limit` is not asked again,
    /// as long as the others are enough.
    pub(super) fn view(&self, at: Moment, limit: Duration) -> View {
        let mut connections = Vec::with_capacity(self.list.len());
        let (mut counting, mut prompt) = (Vec::new(), Vec::new());
        for node in &self.list {
            let known = node.connection(at);
            counting.push(known.as_ref().is_some_and(|(_, counts)| *counts));
            let connection = known.map(|(connection, _)| connection);
            let late = connection
                .as_ref()
                .and_then(Connection::oldest_unanswered)
                .is_some_and(|d| d > limit);
            prompt.push(counting[counting.len() - 1] && !late);
            connections.push(connection);
        }
        let enough = prompt.iter().filter(|&&prompt| prompt).count() >= self.majority();
        View { connections, eligible: if enough { prompt } else { counting } }
    }

    /// The error for a refusal. A server that has lost the scripts gets them again.
    pub(super) fn refused(
        &self,
        operation: &'static str,
        view: &View,
        node: usize,
        value: &Value,
    ) -> Error {
        let Value::Refusal(refusal) = value else {
            let why = "the reply makes no sense: is this a Redis server?";
            return Error::new(ErrorKind::Unreachable, operation, why);
        };
        if refusal.code == "NOSCRIPT" {
            for script in self.scripts.all() {
                view.post(node, &script.load());
            }
            let why = "the server has lost its scripts, and was given them again";
            return Error::new(ErrorKind::Unreachable, operation, why);
        }
        crate::fault::fault(operation, refusal)
    }

    /// The error for too few answers: what most nodes said, or otherwise the problem of each node.
    pub(super) fn too_few(
        &self,
        operation: &'static str,
        answered: usize,
        faults: &[Fault],
    ) -> Error {
        let (nodes, needed) = (self.list.len(), self.majority());
        let telling = || faults.iter().map(|(_, error)| error).filter(|it| !it.is_transient());
        if nodes - telling().count() < needed
            && let Some(error) = telling().next()
        {
            return error.clone();
        }
        let at = now();
        // The problem of each node is named once.
        let problem = |node: &Arc<Node>| {
            let fault = || faults.iter().find(|(number, _)| *number == node.number);
            let problem = node.problem(at).or_else(|| Some(fault()?.1.to_string()))?;
            let named = problem.contains(&node.name);
            Some(if named { problem } else { format!("{}: {problem}", node.name) })
        };
        let mut problems: Vec<String> = self.list.iter().filter_map(problem).collect();
        let slow = nodes.saturating_sub(answered + problems.len());
        if slow > 0 {
            let told = "did not answer in time: check that they run, or raise node-timeout=";
            problems.push(format!("{slow} {told}"));
        }
        let why = format!(
            "quorum lost: {answered} of {nodes} servers answer, {needed} are needed ({})",
            problems.join("; ")
        );
        Error::new(ErrorKind::QuorumLost, operation, why)
    }
}

impl View {
    /// Sends a command to a node. `None`: there is no connection.
    pub(super) fn post(&self, node: usize, command: &Command) -> Option<Reply> {
        self.connections[node].as_ref()?.post(command)
    }

    /// Handles the replies that have arrived from the nodes with a bit in `asked`. The nodes asked first
    /// may have answered while the others were asked; then the caller need not be woken. To poll for the
    /// others does not pay: the servers may need the core that the caller would poll on.
    pub(super) fn look(&self, asked: u32) {
        for (node, connection) in self.connections.iter().enumerate() {
            if let Some(connection) = connection.as_ref().filter(|_| asked & 1 << node != 0) {
                connection.look_once();
            }
        }
    }
}

/// The run id of the server at each address, where known. An address may lead to another server at any
/// time: a server that is reached at two addresses has one vote.
pub(super) struct ServerIdentities {
    seen: Mutex<Vec<Option<Seen>>>,
    /// A bit for each address whose server was reached at another address before.
    duplicates: AtomicU32,
}

#[derive(Clone)]
struct Seen {
    run: Arc<str>,
    /// How many servers were seen before.
    order: usize,
}

impl ServerIdentities {
    pub(super) fn new(nodes: usize) -> Self {
        Self { seen: Mutex::new(vec![None; nodes]), duplicates: AtomicU32::new(0) }
    }

    /// An address leads to this server.
    pub(super) fn handle_server(&self, node: usize, run: &Arc<str>) {
        let mut seen = self.seen.lock();
        if seen[node].as_ref().is_some_and(|it| it.run == *run) {
            return;
        }
        let order = seen.iter().flatten().map(|it| it.order + 1).max().unwrap_or(0);
        seen[node] = Some(Seen { run: Arc::clone(run), order });
        let is_duplicate = |it: &Seen| {
            seen.iter().flatten().any(|other| other.run == it.run && other.order < it.order)
        };
        let duplicates =
            (0..seen.len()).filter(|&node| seen[node].as_ref().is_some_and(is_duplicate));
        self.duplicates.store(duplicates.fold(0, |bits, node| bits | 1 << node), Ordering::Release);
    }

    pub(super) fn is_duplicate(&self, node: usize) -> bool {
        self.duplicates.load(Ordering::Acquire) & 1 << node != 0
    }

    pub(super) fn check(&self) -> Result<(), NotAQuorum> {
        let seen = self.seen.lock();
        check_nodes(&seen.iter().map(|it| it.as_ref().map(|it| &it.run)).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_votes_at_the_address_where_it_was_first_seen() {
        let identities = ServerIdentities::new(3);
        let see = |node, run: &str| {
            identities.handle_server(node, &run.into());
            [0, 1, 2].map(|node| u8::from(identities.is_duplicate(node)))
        };
        assert_eq!(see(1, "b"), [0, 0, 0]);
        assert_eq!(see(2, "c"), [0, 0, 0]);
        assert_eq!(see(0, "a"), [0, 0, 0]);
        assert!(identities.check().is_ok());
        assert_eq!(see(0, "b"), [1, 0, 0], "also if a lower number comes later");
        assert!(identities.check().is_err());
        assert_eq!(see(1, "b"), [1, 0, 0], "to see it again changes nothing");
        assert_eq!(see(1, "a"), [0, 0, 0], "the addresses have changed places");
        assert_eq!(see(2, "a"), [0, 0, 1]);
    }
}
