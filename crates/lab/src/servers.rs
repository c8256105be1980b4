//! The private servers of an experiment.

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure_testkit::{
    EtcdServer, FakeClock, GENEROUS, RedisCluster, RedisSentinel, RedisServer, TempDir,
    ZooKeeperServer,
};

use crate::algorithms::{Family, Info};

/// What an experiment needs of its servers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setup {
    /// Clocks that can be set forward.
    pub(crate) clock: bool,
    /// A client whose clock can be set forward.
    pub(crate) client_clock: bool,
    /// Replicas of one Redis server.
    pub(crate) replicas: usize,
    /// Redis keeps a log on disk, and confirms writes before it is synced.
    pub(crate) log: bool,
    /// Servers that no other experiment uses.
    pub(crate) alone: bool,
    /// Options of Redlock's URL.
    pub(crate) redlock_url: &'static str,
    /// How long a hold may last, in milliseconds.
    pub(crate) max_hold: Option<u64>,
}

impl Setup {
    /// What is appended to the URL of an algorithm's store.
    pub(crate) fn url_options(&self, info: &Info) -> &'static str {
        if info.family == Family::Redlock { self.redlock_url } else { "" }
    }
}

/// Servers that several experiments share, each with locks of its own, because they start slowly.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    etcd: Mutex<Option<EtcdServer>>,
    zookeeper: Mutex<Option<ZooKeeperServer>>,
}

/// The servers of one experiment. Dropping them ends them, each by its own id.
#[derive(Debug)]
pub(crate) struct Servers {
    /// Servers whose addresses clients get, or get a proxy to.
    pub(crate) redis: Vec<RedisServer>,
    pub(crate) replicas: Vec<RedisServer>,
    pub(crate) clocks: Vec<FakeClock>,
    pub(crate) etcd: Option<EtcdServer>,
    pub(crate) zookeeper: Option<ZooKeeperServer>,
    pub(crate) cluster: Option<RedisCluster>,
    pub(crate) sentinel: Option<RedisSentinel>,
    pub(crate) folder: Option<TempDir>,
    /// Ports of servers that a proxy can stand before.
    pub(crate) ports: Vec<u16>,
}

/// ZooKeeper measures sessions in ticks, and looks for expired ones at each tick.
const TICKS: &[&str] = &["tickTime=100", "minSessionTimeout=400"];

impl Servers {
    pub(crate) fn start(family: Family, setup: &Setup, shared: &Shared) -> io::Result<Self> {
        let mut servers = Self {
            redis: Vec::new(),
            replicas: Vec::new(),
            clocks: Vec::new(),
            etcd: None,
            zookeeper: None,
            cluster: None,
            sentinel: None,
            folder: None,
            ports: Vec::new(),
        };
        match family {
            Family::Redis => servers.start_redis(1, setup)?,
            Family::Redlock => servers.start_redis(5, setup)?,
            Family::Etcd if setup.alone => {
                let server = EtcdServer::start(&[])?;
                servers.ports = vec![server.port()];
                servers.etcd = Some(server);
            }
            Family::Etcd => {
                let port = of_all(&shared.etcd, || EtcdServer::start(&[]), EtcdServer::port)?;
                servers.ports = vec![port];
            }
            Family::ZooKeeper if setup.alone => {
                let server = ZooKeeperServer::start(TICKS)?;
                servers.ports = vec![server.port()];
                servers.zookeeper = Some(server);
            }
            Family::ZooKeeper => {
                let start = || ZooKeeperServer::start(TICKS);
                servers.ports = vec![of_all(&shared.zookeeper, start, ZooKeeperServer::port)?];
            }
            Family::Cluster => servers.cluster = Some(RedisCluster::start()?),
            Family::Sentinel => {
                let down_after = Duration::from_secs(1);
                servers.sentinel = Some(RedisSentinel::start(down_after)?);
            }
            Family::Local => servers.folder = Some(tenure_testkit::temp_dir()),
        }
        Ok(servers)
    }

    fn start_redis(&mut self, count: usize, setup: &Setup) -> io::Result<()> {
        let arguments: &[&str] = match setup.log {
            true => &["--appendonly", "yes", "--appendfsync", "everysec"],
            false => &["--repl-diskless-sync-delay", "0"],
        };
        for _ in 0..count {
            let server = match setup.clock {
                true => {
                    let clock = FakeClock::new()?;
                    let server = RedisServer::start_on_clock(arguments, &clock)?;
                    self.clocks.push(clock);
                    server
                }
                false => RedisServer::start(arguments)?,
            };
            self.ports.push(server.port());
            self.redis.push(server);
        }
        for _ in 0..setup.replicas {
            self.replicas.push(RedisServer::start(arguments)?);
        }
        Ok(())
    }

    /// Every server that runs scripts.
    pub(crate) fn all_redis(&self) -> impl Iterator<Item = &RedisServer> {
        let cluster = self.cluster.iter().flat_map(|cluster| cluster.nodes());
        let sentinel = self.sentinel.iter().flat_map(|group| group.servers());
        self.redis.iter().chain(cluster).chain(sentinel)
    }

    /// The servers of a Cluster or of Sentinels: the masters, and then their replicas.
    pub(crate) fn group(&mut self) -> (&mut [RedisServer], &mut [RedisServer]) {
        match (&mut self.cluster, &mut self.sentinel) {
            (Some(cluster), _) => cluster.masters_and_replicas(),
            (None, Some(sentinel)) => sentinel.servers_mut().split_at_mut(1),
            (None, None) => (&mut [], &mut []),
        }
    }

    /// The master of a group that has this lock.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn master_with(&mut self, lock: &str) -> io::Result<&mut RedisServer> {
        let pattern = format!("*{lock}*");
        for master in self.group().0 {
            if !master.command(&["KEYS", &pattern])?.trim().is_empty() {
                return Ok(master);
            }
        }
        Err(io::Error::other("no master has the lock"))
    }

    /// Starts a replica, and waits until it follows.
    pub(crate) fn add_replica(&mut self) -> io::Result<()> {
        let port = self.ports[0].to_string();
        let follow = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
        let replica = RedisServer::start(&follow)?;
        until_it_follows(&replica)?;
        self.replicas.push(replica);
        Ok(())
    }

    /// Their addresses, or the directory of a local store.
    pub(crate) fn addresses(&self) -> Vec<String> {
        if !self.ports.is_empty() {
            return self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        }
        if let Some(cluster) = &self.cluster {
            return cluster.addresses().split(',').map(str::to_owned).collect();
        }
        if let Some(sentinel) = &self.sentinel {
            return sentinel.addresses().split(',').map(str::to_owned).collect();
        }
        let folder = self.folder.iter().map(|folder| folder.path().display().to_string());
        folder.collect()
    }
}

/// Waits until a replica has the data of its master.
pub(crate) fn until_it_follows(replica: &RedisServer) -> io::Result<()> {
    let start = Instant::now();
    while !replica.command(&["INFO", "replication"])?.contains("master_link_status:up") {
        if start.elapsed() > GENEROUS {
            return Err(io::Error::other("the replica does not follow"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The port of a shared server, which the first experiment that needs it starts.
fn of_all<S>(
    slot: &Mutex<Option<S>>,
    start: impl FnOnce() -> io::Result<S>,
    port: impl Fn(&S) -> u16,
) -> io::Result<u16> {
    let mut slot = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if slot.is_none() {
        *slot = Some(start()?);
    }
    Ok(slot.as_ref().map_or(0, port))
}
