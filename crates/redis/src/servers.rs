//! Who serves a lock: the one server, or the Cluster's node that has the lock's slot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::RwLock;
use rustis::client::Client;
use rustis::commands::{ClusterCommands, ClusterHealthStatus, ClusterShardResult};
use rustis::resp::{CommandBuilder, Value, cmd};
use rustis::{ErrorKind as Kind, RedisErrorKind as Code};
use tenure_core::{Error, ErrorKind, Result};

use crate::config::{RedisConfig, Topology};
use crate::connect::connect;
use crate::fault::fault;
use crate::pool::{Address, Pool};

/// Connections to the servers, one to each.
///
/// A Cluster is routed here and not by the client library, which gives up the whole Cluster when
/// one master is gone, and does not come back while the dead one is remembered.
#[derive(Clone)]
pub(crate) enum Servers {
    /// One server, or the master that Sentinels name.
    One(Client),
    Cluster(Arc<Cluster>),
}

pub(crate) struct Cluster {
    config: RedisConfig,
    seeds: Vec<Address>,
    /// The last slot of each range, its first, and the master that serves it.
    map: RwLock<BTreeMap<u16, (u16, Address)>>,
    clients: Pool<Client>,
    learning: AtomicBool,
    /// How often nobody answered: each time another is asked first.
    turn: AtomicUsize,
}

/// A command is sent on at most so often: a slot that moves sends it on twice.
const REDIRECTIONS: usize = 5;

impl Servers {
    pub(crate) async fn connect(config: &RedisConfig) -> Result<Self> {
        let Topology::Cluster { nodes } = &config.topology else {
            return Ok(Self::One(connect(config).await?));
        };
        let cluster = Cluster {
            config: config.clone(),
            seeds: nodes.clone(),
            map: RwLock::default(),
            clients: Pool::default(),
            learning: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        };
        let learnt = tokio::time::timeout(config.timeout, cluster.learn()).await;
        learnt.unwrap_or_else(|_| Err(silent(config)))?;
        Ok(Self::Cluster(Arc::new(cluster)))
    }

    /// Sends a command to the server that has this slot, wherever that is by now.
    pub(crate) async fn send(
        &self,
        operation: &'static str,
        slot: u16,
        command: impl Fn() -> CommandBuilder,
    ) -> Result<Value> {
        match self.try_send(operation, slot, command).await? {
            Ok(value) => Ok(value),
            Err(error) => Err(fault(operation, error)),
        }
    }

    /// As [`send`](Self::send), but the server's refusal is the inner error.
    pub(crate) async fn try_send(
        &self,
        operation: &'static str,
        slot: u16,
        command: impl Fn() -> CommandBuilder,
    ) -> Result<rustis::Result<Value>> {
        match self {
            Self::One(client) => Ok(flat(client.send(command(), None).await)),
            Self::Cluster(cluster) => cluster.send(operation, slot, command).await,
        }
    }

    /// Where the slot is served; nowhere in particular on one server.
    pub(crate) async fn address(&self, slot: u16) -> Result<Option<Address>> {
        match self {
            Self::One(_) => Ok(None),
            Self::Cluster(cluster) => Ok(Some(cluster.address(slot).await?)),
        }
    }

    /// Where the slot is served, as far as is known at the moment.
    pub(crate) fn known_address(&self, slot: u16) -> Option<Address> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => cluster.known(slot),
        }
    }

    /// Whether a slot is served there, as far as is known at the moment.
    pub(crate) fn serves(&self, address: &Address) -> bool {
        match self {
            Self::One(_) => true,
            Self::Cluster(cluster) => cluster.masters().contains(address),
        }
    }

    /// One connection to each server that has locks.
    pub(crate) async fn all(&self) -> Result<Vec<Client>> {
        let cluster = match self {
            Self::One(client) => return Ok(vec![client.clone()]),
            Self::Cluster(cluster) => cluster,
        };
        cluster.learn().await?;
        let masters = cluster.masters();
        let mut clients = Vec::with_capacity(masters.len());
        for master in masters {
            clients.push(cluster.client(&master).await?.as_ref().clone());
        }
        Ok(clients)
    }

    /// A connection to some server that has locks.
    pub(crate) async fn any(&self) -> Result<Client> {
        let cluster = match self {
            Self::One(client) => return Ok(client.clone()),
            Self::Cluster(cluster) => cluster,
        };
        let mut last = silent(&cluster.config);
        for master in cluster.masters() {
            match cluster.client(&master).await {
                Ok(client) => return Ok(client.as_ref().clone()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Something did not arrive: look again who serves what, without waiting for it.
    pub(crate) fn doubt(&self) {
        let Self::Cluster(cluster) = self else { return };
        if cluster.learning.swap(true, Ordering::AcqRel) {
            return;
        }
        let cluster = Arc::clone(cluster);
        tokio::spawn(async move {
            let _late = tokio::time::timeout(cluster.config.timeout, cluster.learn()).await;
            cluster.learning.store(false, Ordering::Release);
        });
    }
}

impl Cluster {
    async fn send(
        self: &Arc<Self>,
        operation: &'static str,
        slot: u16,
        command: impl Fn() -> CommandBuilder,
    ) -> Result<rustis::Result<Value>> {
        let mut asking = None;
        let mut outcome = Ok(Value::Null);
        for _ in 0..REDIRECTIONS {
            let (address, ask) = match asking.take() {
                Some(address) => (address, true),
                None => (self.address(slot).await?, false),
            };
            let client = self.client(&address).await?;
            outcome = if ask {
                // The node takes in the slot piece by piece, and must be told that we know.
                let mut pipeline = client.create_pipeline();
                pipeline.forget_command(cmd("ASKING"));
                pipeline.queue_command(command());
                flat(pipeline.execute().await)
            } else {
                flat(client.send(command(), None).await)
            };
            let Err(error) = &outcome else { return Ok(outcome) };
            match error.kind() {
                Kind::Redis(reply) => match &reply.kind {
                    Code::Moved { address: to, .. } => self.moved(slot, complete(to, &address.0)),
                    Code::Ask { address: to, .. } => asking = Some(complete(to, &address.0)),
                    _ => return Ok(outcome),
                },
                _ => {
                    Servers::Cluster(Arc::clone(self)).doubt();
                    return Ok(outcome);
                }
            }
        }
        tracing::debug!(operation, slot, "sent on too often");
        Ok(outcome)
    }

    async fn address(&self, slot: u16) -> Result<Address> {
        if let Some(address) = self.known(slot) {
            return Ok(address);
        }
        self.learn().await?;
        self.known(slot).ok_or_else(|| {
            let why = "no master serves the lock's slot: a part of the Cluster is down";
            Error::new(ErrorKind::Unreachable, "reach the Cluster", why)
        })
    }

    fn known(&self, slot: u16) -> Option<Address> {
        let map = self.map.read();
        let (_, (first, address)) = map.range(slot..).next()?;
        (*first <= slot).then(|| address.clone())
    }

    /// The slot is elsewhere: that is certain. The rest is looked up in the background.
    fn moved(self: &Arc<Self>, slot: u16, to: Address) {
        let mut map = self.map.write();
        let range =
            map.range(slot..).next().map(|(last, (first, from))| (*last, *first, from.clone()));
        if let Some((last, first, from)) = range.filter(|(_, first, _)| *first <= slot) {
            map.remove(&last);
            if first < slot {
                map.insert(slot - 1, (first, from.clone()));
            }
            if slot < last {
                map.insert(last, (slot + 1, from));
            }
        }
        map.insert(slot, (slot, to));
        drop(map);
        Servers::Cluster(Arc::clone(self)).doubt();
    }

    fn masters(&self) -> Vec<Address> {
        let map = self.map.read();
        let mut masters: Vec<Address> = map.values().map(|(_, address)| address.clone()).collect();
        masters.sort();
        masters.dedup();
        masters
    }

    async fn client(&self, address: &Address) -> Result<Arc<Client>> {
        let config = alone(&self.config, address);
        self.clients.get(address, connect(&config)).await
    }

    /// Asks the masters known, and the seeds, until one says who serves what.
    async fn learn(&self) -> Result<()> {
        let mut addresses = self.masters();
        addresses.extend(self.seeds.iter().cloned());
        let turn = self.turn.load(Ordering::Relaxed) % addresses.len().max(1);
        addresses.rotate_left(turn);
        let mut last = silent(&self.config);
        for address in &addresses {
            match self.shards(address).await {
                Ok(map) => {
                    *self.map.write() = map;
                    let masters = self.masters();
                    self.clients.retain(|address| masters.contains(address));
                    return Ok(());
                }
                // A refusal says more than that another is down.
                Err(error) if last.is_transient() => last = error,
                Err(_) => {}
            }
            self.turn.fetch_add(1, Ordering::Relaxed);
        }
        Err(last)
    }

    async fn shards(&self, address: &Address) -> Result<BTreeMap<u16, (u16, Address)>> {
        // One that is gone must not take the time that another needs.
        let limit = self.config.timeout / 3;
        let ask = async {
            let client = self.client(address).await?;
            let shards: Vec<ClusterShardResult> =
                client.cluster_shards().await.map_err(|error| fault("reach the Cluster", error))?;
            Ok(shards)
        };
        let shards = tokio::time::timeout(limit, ask).await;
        let shards = shards.unwrap_or_else(|_| Err(silent(&self.config)))?;
        let mut map = BTreeMap::new();
        for shard in shards {
            let slots = shard.slots.clone();
            if let Some(master) = self.master(shard, &address.0) {
                map.extend(slots.iter().map(|(first, last)| (*last, (*first, master.clone()))));
            }
        }
        if map.is_empty() {
            let why = "the Cluster serves no slot: see CLUSTER INFO";
            return Err(Error::new(ErrorKind::Unreachable, "reach the Cluster", why));
        }
        Ok(map)
    }

    /// The shard's master that is alive. One that was replaced is named with no slots.
    fn master(&self, shard: ClusterShardResult, asked: &str) -> Option<Address> {
        let alive = |role: &str, health: &ClusterHealthStatus| {
            role == "master" && *health == ClusterHealthStatus::Online
        };
        let node = shard.nodes.into_iter().find(|node| alive(&node.role, &node.health))?;
        let port = match self.config.tls {
            Some(_) => node.tls_port.or(node.port),
            None => node.port,
        }?;
        let host = if matches!(&*node.endpoint, "" | "?") { node.ip } else { node.endpoint };
        Some(complete(&(host, port), asked))
    }
}

/// A node that was never told its own address names none: it is where it was asked.
fn complete((host, port): &Address, asked: &str) -> Address {
    let host = if matches!(&**host, "" | "?") { asked } else { host };
    (host.to_owned(), *port)
}

/// The same, on one node.
pub(crate) fn alone(config: &RedisConfig, address: &Address) -> RedisConfig {
    RedisConfig { topology: Topology::Single { server: address.clone() }, ..config.clone() }
}

fn silent(config: &RedisConfig) -> Error {
    let why =
        format!("no node of the Cluster answers within {:?}: check the hosts", config.timeout);
    Error::new(ErrorKind::Unreachable, "reach the Cluster", why)
}

/// A refusal is an error, however it is wrapped.
fn flat(reply: rustis::Result<Value>) -> rustis::Result<Value> {
    match reply {
        Ok(Value::Error(error)) => Err(error.into()),
        reply => reply,
    }
}
