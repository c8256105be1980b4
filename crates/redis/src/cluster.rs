//! The nodes of a Cluster: where a command goes, and how redirections are followed.

mod slots;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_ok;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::{Mutex, RwLock};
use tenure_core::{Error, ErrorKind, Result};

use self::slots::{Shard, SlotMap, complete, of_shards, of_slots};
use crate::config::{RedisConfig, Sharded, Topology};
use crate::fault::fault;
use crate::link::{Link, SubscribeError};
use crate::retry::{RetryPacer, SharedOutcome, SingleFlight};
use crate::servers::Address;
use crate::wire::{Command, MessageListener, Refusal, Value, cmd};

pub(crate) struct Cluster {
    config: RedisConfig,
    listener: Option<Arc<dyn MessageListener>>,
    seeds: Vec<Address>,
    map: RwLock<SlotMap>,
    links: Mutex<HashMap<Address, Link>>,
    /// Of each node: the connections for commands and for renewals are dialled at one pace.
    pacers: Pacers,
    /// The topology look-up that is running, if any.
    refreshing: Mutex<Option<SingleFlight<()>>>,
    pacer: RetryPacer,
    /// Whether the nodes are older than 7.0: then there is no `CLUSTER SHARDS`, and there are no
    /// sharded channels.
    before_7: AtomicBool,
    /// How often a node did not answer, or knew a part of the slots: each time another is asked first.
    turn: AtomicUsize,
}

type Pacers = Arc<Mutex<HashMap<Address, Weak<RetryPacer>>>>;

/// How many redirections a command follows: a slot that moves needs two.
const REDIRECTIONS: usize = 5;

/// How many more nodes are asked after one that does not know the masters of all slots.
const EXTRA_NODES: usize = 2;

/// The part of the time for a look-up after which the next node is asked, too.
const HEAD_START: u32 = 12;

const REACH: &str = "reach the Cluster";

impl Cluster {
    pub(crate) async fn connect(
        config: &RedisConfig,
        seeds: &[Address],
        listener: Option<Arc<dyn MessageListener>>,
    ) -> Result<Arc<Self>> {
        let cluster = Self {
            config: config.clone(),
            listener,
            seeds: seeds.to_vec(),
            map: RwLock::default(),
            links: Mutex::default(),
            pacers: Arc::default(),
            refreshing: Mutex::default(),
            pacer: RetryPacer::for_lookups(),
            before_7: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        };
        let looked_up = tokio::time::timeout(config.step_limit(), cluster.look_up_slots()).await;
        looked_up.unwrap_or_else(|_| Err(no_answer(config)))?;
        Ok(Arc::new(cluster))
    }

    /// Sends a command to the node that has the slot, and follows redirections. See
    /// [`Servers::call`](crate::servers::Servers::call).
    pub(crate) async fn call(
        self: &Arc<Self>,
        operation: &'static str,
        slot: u16,
        command: &Command,
        wait: Option<&Command>,
    ) -> Result<(Value, Option<Value>)> {
        let asking = cmd("ASKING");
        let mut sent_on = None;
        let mut replies = (Value::Null, None);
        for _ in 0..REDIRECTIONS {
            let (address, ask) = match sent_on.take() {
                Some(address) => (address, true),
                None => (self.address(slot).await?, false),
            };
            let link = self.link_to(&address)?;
            // A node that is taking the slot in answers only to `ASKING`. The `WAIT` goes to the node
            // that carried the command out.
            let outcome = match (ask, wait) {
                (false, None) => link.call(operation, [command]).await.map(|[it]| (it, None)),
                (true, None) => {
                    link.call(operation, [&asking, command]).await.map(|[_, it]| (it, None))
                }
                (false, Some(wait)) => {
                    link.call(operation, [command, wait]).await.map(|[it, acks]| (it, Some(acks)))
                }
                (true, Some(wait)) => {
                    let replies = link.call(operation, [&asking, command, wait]).await;
                    replies.map(|[_, it, acks]| (it, Some(acks)))
                }
            };
            replies = outcome.inspect_err(|_| self.refresh_in_background())?;
            let Value::Refusal(refusal) = &replies.0 else { return Ok(replies) };
            let to = refusal.address().map(|to| complete(to, &address.0));
            match (&*refusal.code, to) {
                ("MOVED", Some(to)) => self.moved(slot, to),
                ("ASK", Some(to)) => sent_on = Some(to),
                _ => return Ok(replies),
            }
        }
        tracing::debug!(operation, slot, "too many redirections");
        Ok(replies)
    }

    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        slot: u16,
        channel: &str,
    ) -> Result<(), SubscribeError> {
        let mut done = Ok(());
        for _ in 0..REDIRECTIONS {
            let address = self.address(slot).await.map_err(SubscribeError::Fault)?;
            let link = self.link_to(&address).map_err(SubscribeError::Fault)?;
            done = link.subscribe(self.subscribe_command(), channel).await;
            let to = match &done {
                Err(SubscribeError::Refused(refusal)) if refusal.code == "MOVED" => {
                    refusal.address()
                }
                Err(_) => {
                    self.refresh_in_background();
                    return done;
                }
                Ok(()) => return done,
            };
            if let Some(to) = to {
                self.moved(slot, complete(to, &address.0));
            }
        }
        done
    }

    /// Whether the nodes are older than 7.0.
    pub(crate) fn is_before_7(&self) -> bool {
        self.before_7.load(Ordering::Acquire)
    }

    /// Whether messages go through sharded channels.
    pub(crate) fn is_sharded(&self) -> bool {
        match self.config.sharded {
            Sharded::Auto => !self.is_before_7(),
            Sharded::On => true,
            Sharded::Off => false,
        }
    }

    fn subscribe_command(&self) -> &'static str {
        if self.is_sharded() { "SSUBSCRIBE" } else { "SUBSCRIBE" }
    }

    /// Unsubscribes at the node that has the slot. A node that had it before has dropped the channel.
    pub(crate) fn unsubscribe(&self, slot: u16, channel: &str) {
        let command = if self.is_sharded() { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
        let link =
            self.master_of(slot).and_then(|address| self.links.lock().get(&address).cloned());
        if let Some(link) = link {
            link.unsubscribe(command, channel);
        }
    }

    /// The same Cluster with the same slot map and with connections of its own, which are made on
    /// demand.
    pub(crate) fn with_own_connections(&self) -> Self {
        Self {
            config: self.config.clone(),
            listener: None,
            seeds: self.seeds.clone(),
            map: RwLock::new(self.map.read().clone()),
            links: Mutex::default(),
            pacers: Arc::clone(&self.pacers),
            refreshing: Mutex::default(),
            pacer: RetryPacer::for_lookups(),
            before_7: AtomicBool::new(self.is_before_7()),
            turn: AtomicUsize::new(0),
        }
    }

    /// Whether there is a connection to the server that has this slot.
    pub(crate) fn is_connected(&self, slot: u16) -> bool {
        let link =
            self.master_of(slot).and_then(|address| self.links.lock().get(&address).cloned());
        link.is_some_and(|link| link.is_connected())
    }

    /// The master of the slot, as far as known.
    pub(crate) fn master_of(&self, slot: u16) -> Option<Address> {
        self.map.read().master_of(slot)
    }

    fn masters(&self) -> Vec<Address> {
        self.map.read().masters()
    }

    pub(crate) fn link_to(&self, address: &Address) -> Result<Link> {
        let mut links = self.links.lock();
        if let Some(link) = links.get(address) {
            return Ok(link.clone());
        }
        let (config, listener) = (single_node(&self.config, address), self.listener.clone());
        let link = Link::with_pacer(&config, listener, self.pacer_of(address))?;
        links.insert(address.clone(), link.clone());
        Ok(link)
    }

    /// The pacer for dials to this node, which lives as long as a link to it.
    fn pacer_of(&self, address: &Address) -> Arc<RetryPacer> {
        let mut pacers = self.pacers.lock();
        if let Some(pacer) = pacers.get(address).and_then(Weak::upgrade) {
            return pacer;
        }
        pacers.retain(|_, pacer| pacer.strong_count() > 0);
        let pacer = Arc::new(RetryPacer::for_dials());
        pacers.insert(address.clone(), Arc::downgrade(&pacer));
        pacer
    }

    /// A link to every master. Fails if a slot has no master: locks must not be left out silently.
    pub(crate) async fn all(&self) -> Result<Vec<Link>> {
        self.look_up_slots().await?;
        if let Some(slot) = self.map.read().unserved() {
            let why = format!(
                "no master serves slot {slot}: a part of the Cluster is down, and its locks cannot \
                 be seen: bring its nodes back (CLUSTER NODES names them)"
            );
            return Err(Error::new(ErrorKind::Unreachable, REACH, why));
        }
        self.masters().iter().map(|master| self.link_to(master)).collect()
    }

    /// A link to the master that answers first.
    pub(crate) async fn any(&self) -> Result<Link> {
        let links: Vec<Link> =
            self.masters().iter().map(|master| self.link_to(master)).collect::<Result<_>>()?;
        let reached = links.into_iter().map(|link| {
            async move {
                link.connection().await?;
                Ok(link)
            }
            .boxed()
        });
        match reached.collect::<Vec<_>>() {
            none if none.is_empty() => Err(no_answer(&self.config)),
            reached => select_ok(reached).await.map(|(link, _)| link),
        }
    }

    async fn address(self: &Arc<Self>, slot: u16) -> Result<Address> {
        if let Some(address) = self.master_of(slot) {
            return Ok(address);
        }
        self.refresh().await?;
        self.master_of(slot).ok_or_else(|| {
            let why = "no master serves the lock's slot: a part of the Cluster is down";
            Error::new(ErrorKind::Unreachable, REACH, why)
        })
    }

    /// Moves one slot in the map after a `MOVED`. The rest of the map is looked up in the background.
    fn moved(self: &Arc<Self>, slot: u16, to: Address) {
        self.map.write().assign(slot, to);
        self.refresh_in_background();
    }

    /// Looks up the topology after a failed call, without waiting for it.
    fn refresh_in_background(self: &Arc<Self>) {
        drop(self.refresh());
    }

    /// Looks up the topology, once for all concurrent callers, and not at the rate of errors.
    fn refresh(self: &Arc<Self>) -> SharedOutcome<()> {
        let mut refreshing = self.refreshing.lock();
        let under_way = |flight: &SingleFlight<()>| flight.is_running(self.config.step_limit());
        let refresh = refreshing.take().filter(under_way).unwrap_or_else(|| {
            let cluster = Arc::clone(self);
            SingleFlight::start(REACH, async move {
                tokio::time::sleep_until(cluster.pacer.next_attempt()).await;
                let looked_up =
                    tokio::time::timeout(cluster.config.step_limit(), cluster.look_up_slots())
                        .await;
                *cluster.refreshing.lock() = None;
                looked_up.unwrap_or_else(|_| Err(no_answer(&cluster.config)))
            })
        });
        refreshing.insert(refresh).outcome()
    }

    /// Asks the known masters, and the seeds, until one knows the masters of all slots. A node that has
    /// just joined the Cluster, or was removed from it, knows a part: so the most complete of a few
    /// answers counts.
    async fn look_up_slots(&self) -> Result<()> {
        let mut addresses = self.masters();
        addresses.extend(self.seeds.iter().cloned());
        let turn = self.turn.load(Ordering::Relaxed) % addresses.len().max(1);
        addresses.rotate_left(turn);
        let mut last = no_answer(&self.config);
        let (mut fullest, mut more) = (SlotMap::default(), 0);
        let (mut rest, mut asked) = (addresses.iter(), FuturesUnordered::new());
        asked.extend(rest.next().map(|address| self.shards(address)));
        while !asked.is_empty() {
            // Nodes that are silent must not use up the time of the others.
            let head_start =
                if rest.len() > 0 { self.config.step_limit() / HEAD_START } else { Duration::MAX };
            let answer = tokio::time::timeout(head_start, asked.next()).await;
            match answer {
                Ok(Some(Ok(map))) if map.served() > fullest.served() => fullest = map,
                // A refusal says more than that another node is down.
                Ok(Some(Err(error))) if last.is_transient() => last = error,
                _ => {}
            }
            if fullest.unserved().is_none() || more == EXTRA_NODES {
                break;
            }
            more += usize::from(!fullest.is_empty());
            self.turn.fetch_add(1, Ordering::Relaxed);
            asked.extend(rest.next().map(|address| self.shards(address)));
        }
        drop(asked);
        if fullest.is_empty() {
            return Err(last);
        }
        *self.map.write() = fullest;
        // Nodes that are asked for the topology keep their connections.
        let masters = self.masters();
        let is_asked =
            |address: &Address| masters.contains(address) || self.seeds.contains(address);
        self.links.lock().retain(|address, _| is_asked(address));
        Ok(())
    }

    async fn shards(&self, address: &Address) -> Result<SlotMap> {
        let limit = self.config.step_limit() / 3;
        let link = self.link_to(address)?;
        let map = tokio::time::timeout(limit, self.look_up(&link, &address.0)).await;
        let map = map.unwrap_or_else(|_| Err(no_answer(&self.config)))?;
        if map.is_empty() {
            let why = "the Cluster serves no slot: see CLUSTER INFO";
            return Err(Error::new(ErrorKind::Unreachable, REACH, why));
        }
        Ok(map)
    }

    async fn look_up(&self, link: &Link, asked: &str) -> Result<SlotMap> {
        if !self.is_before_7() {
            let [shards] = link.call(REACH, [&cmd("CLUSTER").arg("SHARDS")]).await?;
            match shards {
                Value::Refusal(refusal) if is_unknown(&refusal) => {}
                Value::Refusal(refusal) => return Err(fault(REACH, &refusal)),
                shards => {
                    let shards = shards.array().unwrap_or_default();
                    let shards = shards
                        .iter()
                        .filter_map(|shard| of_shards(shard, self.config.tls.is_some(), asked));
                    return self.with_lost_slots(link, asked, shards.collect()).await;
                }
            }
        }
        let slots = link.send(REACH, &cmd("CLUSTER").arg("SLOTS")).await?.array();
        self.before_7.store(true, Ordering::Release);
        let ranges = slots.unwrap_or_default();
        Ok(ranges.into_iter().filter_map(|range| of_slots(range, asked)).collect())
    }

    /// The map that these shards make. If slots are missing, those of the shards' live masters are looked
    /// up by `CLUSTER SLOTS`: after a failover, `CLUSTER SHARDS` of Redis 7.2 shows a shard without its
    /// slots until the former master is back.
    async fn with_lost_slots(
        &self,
        link: &Link,
        asked: &str,
        shards: Vec<Shard>,
    ) -> Result<SlotMap> {
        let masters: HashSet<Address> = shards.iter().map(|(_, master)| master.clone()).collect();
        let mut map: SlotMap = shards.into_iter().collect();
        if map.unserved().is_some() {
            let [slots] = link.call(REACH, [&cmd("CLUSTER").arg("SLOTS")]).await?;
            // A user without the right to ask gets the shards alone.
            let slots = slots.array().unwrap_or_default();
            let ranges = slots.into_iter().filter_map(|range| of_slots(range, asked));
            map.add_slots_of(&masters, ranges);
        }
        Ok(map)
    }
}

/// Whether a node does not know the subcommand. Before 7.0, the refusal names its arguments.
fn is_unknown(refusal: &Refusal) -> bool {
    refusal.code == "ERR"
        && (refusal.words.contains("nknown subcommand") || refusal.words.contains("SHARDS"))
}

/// The same configuration for one node of the Cluster.
pub(crate) fn single_node(config: &RedisConfig, address: &Address) -> RedisConfig {
    RedisConfig { topology: Topology::Single { server: address.clone() }, ..config.clone() }
}

fn no_answer(config: &RedisConfig) -> Error {
    let why =
        format!("no node of the Cluster answers within {:?}: check the hosts", config.step_limit());
    Error::new(ErrorKind::Unreachable, REACH, why)
}
