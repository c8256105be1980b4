//! A Redis Cluster for tests.

use std::io;
use std::time::{Duration, Instant};

use crate::redis::free_port;
use crate::{ExternalClient, GENEROUS, RedisServer};

/// Three masters with a replica each. Dropping it kills all of them by their pids.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

impl RedisCluster {
    /// Starts one, and waits until every slot is served and every replica follows its master. A node that
    /// does not answer for five seconds counts as dead, so that a busy machine does not look like a
    /// fault.
    ///
    /// # Errors
    /// If it cannot be started, or is not ready in time.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts one whose nodes have these additional arguments.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(arguments: &[&str]) -> io::Result<Self> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        Self::start_each(|| arguments.clone())
    }

    /// Starts one with additional arguments, made for each node.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_each(arguments: impl Fn() -> Vec<String>) -> io::Result<Self> {
        Self::join((0..2 * MASTERS).map(|_| node(&arguments())).collect::<io::Result<Vec<_>>>()?)
    }

    /// Starts one of another version, which may be older than 7.0.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_other(version: &ExternalClient) -> io::Result<Self> {
        let nodes = (0..2 * MASTERS).map(|_| other_node(version));
        Self::join(nodes.collect::<io::Result<Vec<_>>>()?)
    }

    fn join(nodes: Vec<RedisServer>) -> io::Result<Self> {
        let cluster = Self { nodes };
        cluster.meet()?;
        cluster.assign()?;
        cluster.until(|node| {
            let state = node.command(&["CLUSTER", "INFO"])?;
            let replication = node.command(&["INFO", "replication"])?;
            let follows = replication.contains("role:slave");
            // A node that need not cover every slot reports "ok" before it knows all nodes.
            Ok(state.contains("cluster_state:ok")
                && state.contains(&format!("cluster_slots_ok:{SLOTS}"))
                && (!follows || replication.contains("master_link_status:up"))
                && (follows || replication.contains("state=online")))
        })?;
        Ok(cluster)
    }

    /// Starts a server in cluster mode that belongs to no Cluster.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn stranger() -> io::Result<RedisServer> {
        node(&[])
    }

    /// Its nodes: at first three masters, then their replicas in the same order.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The nodes that were masters at first, and their replicas in the same order, to be stopped or killed.
    pub fn masters_and_replicas(&mut self) -> (&mut [RedisServer], &mut [RedisServer]) {
        self.nodes.split_at_mut(MASTERS)
    }

    /// `host:port` of every node, with commas between.
    pub fn addresses(&self) -> String {
        let named: Vec<_> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        named.join(",")
    }

    /// The index in [`nodes`](Self::nodes) of the master that serves the slot of `key`, in the view of a
    /// running node. `None` while no node serves it.
    pub fn master_of(&self, key: &str) -> Option<usize> {
        let asked = self.nodes.iter().find_map(|node| {
            let slot = node.command(&["CLUSTER", "KEYSLOT", key]).ok()?;
            Some((slot.parse::<u32>().ok()?, node.command(&["CLUSTER", "NODES"]).ok()?))
        });
        let (slot, table) = asked?;
        let line = table.lines().find(|line| serves(line, slot))?;
        self.nodes.iter().position(|node| line.contains(&format!(":{}@", node.port())))
    }

    /// The Cluster's name for a node.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn id_of(&self, node: usize) -> io::Result<String> {
        self.nodes[node].command(&["CLUSTER", "MYID"])
    }

    /// Kills a node with SIGKILL.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill9(&mut self, node: usize) -> io::Result<()> {
        self.nodes[node].kill9()
    }

    /// Starts a node again that was killed: it follows the node that took its slots.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn restart(&mut self, node: usize) -> io::Result<()> {
        self.nodes[node].restart()
    }

    fn meet(&self) -> io::Result<()> {
        for (epoch, node) in (1..).zip(&self.nodes) {
            done(&node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()])?)?;
        }
        let all = self.nodes.len().to_string();
        for node in &self.nodes[1..] {
            let bus = node.command(&["CONFIG", "GET", "cluster-port"])?;
            let bus = bus.lines().last().unwrap_or_default();
            // Before 7.0 it could not be set; 0 stands for the default.
            let bus: u16 = bus.parse().ok().filter(|&bus| bus != 0).unwrap_or(node.port() + BUS);
            let (port, bus) = (node.port().to_string(), bus.to_string());
            done(&self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?)?;
        }
        self.until(|node| {
            Ok(node.command(&["CLUSTER", "INFO"])?.contains(&format!("known_nodes:{all}")))
        })
    }

    fn assign(&self) -> io::Result<()> {
        let (masters, replicas) = self.nodes.split_at(MASTERS);
        for (place, (master, replica)) in masters.iter().zip(replicas).enumerate() {
            let slots = place * SLOTS / MASTERS..(place + 1) * SLOTS / MASTERS;
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
            done(&master.command(&words.collect::<Vec<_>>())?)?;
            let id = self.id_of(place)?;
            done(&replica.command(&["CLUSTER", "REPLICATE", &id])?)?;
        }
        Ok(())
    }

    fn until(&self, ready: impl Fn(&RedisServer) -> io::Result<bool>) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < 3 * GENEROUS {
            let all = self.nodes.iter().map(&ready).collect::<io::Result<Vec<_>>>()?;
            if all.iter().all(|ready| *ready) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(io::Error::other("the Cluster was not ready in time"))
    }
}

/// The default distance of a node's bus port from its port.
const BUS: u16 = 10_000;

fn other_node(version: &ExternalClient) -> io::Result<RedisServer> {
    let cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"];
    // The bus must have a port, and a free one.
    for _ in 0..50 {
        match RedisServer::start_other(version, &cluster) {
            Ok(server) if server.port() < u16::MAX - BUS => return Ok(server),
            _ => {}
        }
    }
    Err(io::Error::other("no port with a free one for the bus was found"))
}

fn node(arguments: &[String]) -> io::Result<RedisServer> {
    let mut last = io::Error::other("no port was free");
    // The bus would take the port plus 10,000, which may not exist.
    for _ in 0..3 {
        let bus = free_port()?.to_string();
        let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        let timing = ["--cluster-node-timeout", "5000", "--repl-diskless-sync-delay", "0"];
        let besides: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match RedisServer::start(&[&cluster[..], &timing, &besides].concat()) {
            Ok(server) => return Ok(server),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether a line of `CLUSTER NODES` describes a live master that has this slot.
fn serves(line: &str, slot: u32) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let flags: Vec<&str> = words.get(2).map_or_else(Vec::new, |flags| flags.split(',').collect());
    let covers = |range: &&str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        matches!((first.parse::<u32>(), last.parse::<u32>()),
            (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    };
    flags.contains(&"master") && !flags.contains(&"fail") && words.iter().skip(8).any(covers)
}

fn done(reply: &str) -> io::Result<()> {
    if reply == "OK" { Ok(()) } else { Err(io::Error::other(reply.to_owned())) }
}
