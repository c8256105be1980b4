//! The store contract on a quorum, call by call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tenure_core::store::{
    Background, Capabilities, Cells, Claim, ClaimOutcome, Downgraded, Eviction, Fencing, Grant,
    QueueTicket, Released, Renewal, Store, WaitPolicy, now,
};
use tenure_core::{
    AuditRecord, Effect, Error, ErrorKind, Finding, LockName, LockState, Mode, Result, Token,
};
use tenure_proto::quorum::{self, Forecast};

use super::ballot::{Ballot, Decision};
use super::nodes::Nodes;
use super::unconfirmed_releases::Release;
use super::waiters::QuorumWaiters;
use super::{Quorum, merged_view};
use crate::config::RedlockConfig;
use crate::diagnose::diagnose_quorum;
use crate::held::{HeldClaims, Hold};
use crate::inspect;
use crate::keys::{Keyring, Keys};
use crate::store::millis;
use crate::wire::Command;

/// Locks on a quorum of independent Redis servers.
pub struct RedlockStore(Quorum);

/// Per-node timeout for calls that are not on the acquire path.
const BACKGROUND_TIMEOUT: Duration = Duration::from_millis(500);

impl RedlockStore {
    /// Connects to the servers.
    ///
    /// # Errors
    /// [`QuorumLost`](ErrorKind::QuorumLost) if too few answer in time,
    /// [`Denied`](ErrorKind::Denied) for credentials that most refuse, and
    /// [`Invalid`](ErrorKind::Invalid) for servers that cannot be a quorum.
    pub async fn connect(config: RedlockConfig) -> Result<Self> {
        config.check()?;
        let background = Background::start("tenure-redlock")?;
        let opening = Self::open(config, background.clone());
        background.run("connect to the quorum", opening).await
    }

    /// Runs on the background thread, which serves all connections from then on.
    async fn open(config: RedlockConfig, background: Background) -> Result<Self> {
        let count = config.nodes.len();
        let waiters = Arc::new(QuorumWaiters::new(count));
        let nodes = Nodes::connect(&config, &waiters).await?;
        let keyring = Keyring::new(&config.nodes[0].prefix, false);
        let id = tenure_core::OwnerId::random().to_string();
        let margin = config.node_timeout.unwrap_or_else(|| quorum::node_timeout(config.max_ttl));
        Ok(Self(Quorum {
            channel: keyring.inbox(0, &id),
            keyring,
            forecast: Mutex::new(Forecast::new(count, margin)),
            held: Arc::new(HeldClaims::default()),
            background,
            config,
            nodes,
            waiters,
        }))
    }
}

impl Quorum {
    /// How long a node may take to answer.
    pub(super) fn limit(&self, ttl: Duration) -> Duration {
        self.config.node_timeout.unwrap_or_else(|| quorum::node_timeout(ttl))
    }

    /// The per-node timeout of calls that are not on the acquire path.
    fn background_timeout(&self) -> Duration {
        self.config.node_timeout.unwrap_or(BACKGROUND_TIMEOUT).max(BACKGROUND_TIMEOUT)
    }

    pub(super) fn renewal(&self, claim: &Claim, keys: &Keys, token: Token) -> Command {
        let [holder, _, _, pool, ends, counter] = keys.all();
        self.nodes.scripts.renew.call(
            &[holder, pool, ends, counter],
            &[claim.owner.into(), millis(claim.ttl).into(), token.get().into()],
        )
    }

    /// Turns a node's vote for a writer into one for a reader.
    pub(super) fn downgrading(&self, claim: &Claim, keys: &Keys) -> Command {
        let arguments = [claim.owner.into(), millis(claim.ttl).into()];
        self.nodes.scripts.downgrade.call(&keys.all(), &arguments)
    }

    pub(super) fn release(&self, claim: &Claim, keys: &Keys, stay: bool) -> Release {
        let (owner, stay) = (claim.owner, if stay { "stay" } else { "leave" });
        let command = self.nodes.scripts.release.call(&keys.all(), &[owner.into(), stay.into()]);
        Release { owner, command }
    }

    fn refuse(&self, claim: &Claim) -> Result<()> {
        if !quorum::carries(claim.mode) {
            let why = "a quorum cannot count permits: each server counts by itself, and together \
                       they would give out too many; use one server, or etcd";
            return Err(Error::new(ErrorKind::Unsupported, "acquire", why).about(&claim.name));
        }
        if claim.ttl > self.config.max_ttl {
            let (ttl, most) = (claim.ttl, self.config.max_ttl);
            let why = format!(
                "a TTL of {ttl:?} is above {most:?}, after which a server that restarted is \
                 trusted again: shorten it, or set max-ttl= to the longest in use"
            );
            return Err(Error::new(ErrorKind::Invalid, "acquire", why).about(&claim.name));
        }
        Ok(())
    }

    /// Whether enough nodes can notify this client that there is room.
    fn listens(&self) -> bool {
        let listening = self.nodes.list.iter().filter(|node| node.listens_to(&self.channel));
        listening.count() >= self.nodes.majority()
    }

    /// Subscribes to the nodes that speak RESP2, each over a connection of its own, for as long as a
    /// node may take to answer. A waiter that a node cannot notify is left out of that node's queue, and
    /// asks again at its poll.
    async fn subscribe_in_resp2(&self, limit: Duration) {
        let lacking = self.nodes.list.iter().filter(|node| node.lacks_listener(&self.channel));
        let lacking: Vec<_> = lacking.cloned().collect();
        if lacking.is_empty() {
            return;
        }
        let channel = self.channel.clone();
        let subscribing = async move {
            let each = lacking.iter().map(|node| node.link.subscribe("SUBSCRIBE", &channel));
            let _in_time = tokio::time::timeout(limit, join_all(each)).await;
            Ok(())
        };
        // The store's thread serves these connections, too.
        let _told_by_poll = self.background.run("subscribe to messages", subscribing).await;
    }

    async fn vote(&self, claim: &Claim, keys: &Keys, lease: Duration) -> Result<Decision> {
        let sent = now();
        let decision = Ballot::new(self, claim, keys, lease).decide().await?;
        if let Decision::Won { token, asked } = decision {
            self.waiters.forget(claim.owner);
            let hold = Hold { token, downgraded: false, asked, ends: sent + claim.ttl };
            self.held.put(claim.owner, hold, sent);
        }
        Ok(decision)
    }

    async fn queue(&self, claim: &Claim, keys: &Keys, lease: Duration) -> Result<ClaimOutcome> {
        let owner = claim.owner;
        // A claim waits only after its client has subscribed, and a client subscribes only when a claim
        // must wait.
        if !self.waiters.is_registered(owner)
            && !self.listens()
            && let Decision::Won { token, .. } = self.vote(claim, keys, Duration::ZERO).await?
        {
            return Ok(granted(token));
        }
        let known = self.waiters.is_registered(owner);
        self.waiters.enter(owner);
        self.subscribe_in_resp2(self.limit(claim.ttl)).await;
        let decision = self.vote(claim, keys, lease).await;
        if let Err(error) = &decision
            && error.effect() == Effect::None
            && !known
        {
            self.waiters.forget(owner);
        }
        let ask_again_in = match decision? {
            Decision::Won { token, .. } => return Ok(granted(token)),
            Decision::Contended { split: true, took, .. } => Some(self.waiters.pause(owner, took)),
            Decision::Contended { again, took, .. } => {
                self.waiters.reset_pauses(owner);
                // Waiters for the same end should not ask at the same moment.
                again.map(|again| again + quorum::pauses(took).next(super::node::random()))
            }
        };
        Ok(ClaimOutcome::Queued(QueueTicket::new(ask_again_in)))
    }
}

fn granted(token: Token) -> ClaimOutcome {
    ClaimOutcome::Granted(Grant::new(Some(token), None))
}

#[async_trait]
impl Store for RedlockStore {
    fn capabilities(&self) -> Capabilities {
        let fencing = Fencing::Until {
            fault: "a server restarts without its data while the servers' clocks differ by more \
                    than the longest TTL, or most of them lose their data at once while their \
                    clocks are behind",
        };
        Capabilities::none()
            .fencing(fencing)
            .waiters()
            .push()
            .shared()
            .downgrade()
            .audits()
            .cross_process()
            .ages()
    }

    fn longest_ttl(&self) -> Option<Duration> {
        Some(self.0.config.max_ttl)
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        let quorum = &self.0;
        quorum.refuse(claim)?;
        let keys = quorum.keyring.keys(&claim.name);
        if let Some(hold) = quorum.held.get(claim.owner)
            && quorum.renew(claim, &keys, hold.token).await? == Renewal::Renewed
        {
            return Ok(granted(hold.token));
        }
        match policy {
            WaitPolicy::Queue { lease, .. } => quorum.queue(claim, &keys, lease).await,
            WaitPolicy::NoWait => match quorum.vote(claim, &keys, Duration::ZERO).await? {
                Decision::Won { token, .. } => Ok(granted(token)),
                Decision::Contended { .. } => Ok(ClaimOutcome::Busy),
            },
        }
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        self.0.waiters.notified_of_room(claim.owner).await;
        Ok(ClaimOutcome::Queued(*ticket))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        let keys = self.0.keyring.keys(&claim.name);
        // A claim that is not remembered may hold nevertheless; its renewal raises no counter.
        let token = self.0.held.get(claim.owner).map_or(Token::new(0), |hold| hold.token);
        self.0.renew(claim, &keys, token).await
    }

    async fn downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        let Some(hold) = self.0.held.get(claim.owner) else { return Ok(Downgraded::Lost) };
        let keys = self.0.keyring.keys(&claim.name);
        // Nodes that lost the claim are repaired with a reader's vote.
        let mut reader = claim.clone();
        reader.mode = Mode::Shared;
        self.0.held.downgrade(claim.owner);
        Ok(match self.0.renew(&reader, &keys, hold.token).await? {
            Renewal::Renewed => Downgraded::Shared(Grant::new(Some(hold.token), None)),
            Renewal::Lost => Downgraded::Lost,
        })
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let keys = self.0.keyring.keys(&claim.name);
        self.0.waiters.forget(claim.owner);
        let asked = self.0.held.remove(claim.owner).map_or(u32::MAX, |hold| hold.asked);
        let release = self.0.release(claim, &keys, false);
        let until = now() + claim.ttl;
        let released =
            self.0.release_everywhere(&release, asked, self.0.background_timeout(), until).await;
        released.map_err(|error| error.about(&claim.name))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let nodes = self.0.look(name, self.0.background_timeout()).await?;
        let enough = self.0.enough(nodes.len());
        Ok(merged_view::merge(name, nodes, enough))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.0.list(prefix, self.0.config.nodes[0].timeout).await
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        let keys = self.0.keyring.keys(&eviction.name);
        let (owner, record) = (&eviction.owner, eviction.record().to_line());
        let keys = [&keys.all()[..], &[keys.audit()]].concat();
        let value = inspect::unspell(owner).unwrap_or_else(|| owner.clone().into_bytes());
        let arguments = [(&**owner).into(), (&*record).into(), (&value).into()];
        let evict = self.0.nodes.scripts.evict.call(&keys, &arguments);
        let released = self.0.evict_everywhere(&evict, self.0.background_timeout()).await;
        released.map_err(|error| error.about(&eviction.name))
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        let records = self.0.audit(name, self.0.background_timeout()).await;
        records.map_err(|error| error.about(name))
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        let (keys, line) = (self.0.keyring.keys(name), record.to_line());
        let add = self.0.nodes.scripts.record.call(&[keys.audit()], &[(&line).into()]);
        let added = self.0.record_everywhere(&add, self.0.background_timeout()).await;
        added.map_err(|error| error.about(name))
    }

    fn cells(&self) -> Result<&dyn Cells> {
        let why = "a quorum of independent servers agrees on which claim holds a lock, not on a value: \
                   a write that reached a minority may be read later, or lost (use Redis, Sentinel, \
                   Cluster, etcd or ZooKeeper for values)";
        Err(Error::new(ErrorKind::Unsupported, "keep values", why))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let Quorum { config, nodes, .. } = &self.0;
        let nodes: Vec<_> = nodes
            .list
            .iter()
            .zip(&config.nodes)
            .map(|(node, config)| (node.name.as_str(), &node.link, config))
            .collect();
        diagnose_quorum(self, &nodes, config.max_ttl).await
    }
}

impl fmt::Debug for RedlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockStore").field("config", &self.0.config).finish_non_exhaustive()
    }
}
