//! What the tests of several topologies share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Client, Error, Guard, Options};
use tenure_redis::{RedisConfig, RedisStore, Topology};
pub(crate) use tenure_testkit::parse_addresses as addresses;
use tenure_testkit::{Ensemble, GENEROUS, RedisCluster, RedisServer, eventually};
use tenure_trials::until_waiting;
use tokio::task::JoinHandle;

/// A bound for what takes a failover: the servers must first agree that one is dead.
pub(crate) const FAILOVER: Duration = Duration::from_secs(60);

pub(crate) fn single(port: u16) -> RedisConfig {
    RedisConfig::new(Topology::Single { server: ("127.0.0.1".into(), port) })
}

pub(crate) async fn client(config: &RedisConfig) -> Client {
    Client::new(Arc::new(RedisStore::connect(config.clone()).await.unwrap())).unwrap()
}

/// A client of the one server at this address.
pub(crate) async fn connect(address: &str) -> Client {
    client(&single(addresses(address)[0].1)).await
}

/// One server that keeps all acknowledged writes through a restart. Without that, a restart would lose the
/// holders.
pub(crate) fn durable() -> Ensemble<RedisServer> {
    let server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    Ensemble::of(vec![server.unwrap()]).unwrap()
}

pub(crate) async fn refusal(config: &RedisConfig) -> Error {
    RedisStore::connect(config.clone()).await.unwrap_err()
}

/// Acquires a lock, through any fault on the way.
pub(crate) async fn insist(client: &Client, name: &str, options: &Options) -> Guard {
    let mutex = client.mutex(name).unwrap().with(options.clone());
    let start = std::time::Instant::now();
    loop {
        match mutex.acquire_within(FAILOVER).await {
            Ok(guard) => return guard,
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                assert!(start.elapsed() < FAILOVER, "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// A waiter that nothing wakes but a push gets the lock when it is released.
pub(crate) async fn hand_over_by_push(holder: &Client, waiter: &Client, name: &str) {
    let deaf = Options::new().ttl(Duration::from_secs(600)).poll_cap(Duration::from_secs(3600));
    let held = holder.mutex(name).unwrap().with(deaf.clone()).acquire().await.unwrap();
    let mutex = waiter.mutex(name).unwrap().with(deaf);
    let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    until_waiting(holder, name, 1).await;
    let token = held.token();
    held.release().await.unwrap();
    let next = tokio::time::timeout(GENEROUS, waiting).await;
    let next = next.unwrap_or_else(|_| panic!("no push for {name}")).unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

/// Tasks that contend for locks until they are told to stop.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    held: Vec<Arc<AtomicU64>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Three tasks for each lock, each with a place in the queue. A token must be above every one that
    /// was seen before its claim was made.
    pub(crate) fn start(client: &Client, names: &[String]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
        let mut load = Self { over, held: Vec::new(), tasks: Vec::new() };
        for name in names.iter().flat_map(|name| [name; 3]) {
            let held = Arc::new(AtomicU64::new(0));
            load.held.push(held.clone());
            let (client, name) = (client.clone(), name.clone());
            let (seen, over) = (seen.clone(), load.over.clone());
            load.tasks.push(tokio::spawn(async move {
                let options = Options::new().ttl(Duration::from_secs(3));
                while !over.load(Ordering::Relaxed) {
                    let before = seen.lock().get(&name).copied().unwrap_or(0);
                    let guard = insist(&client, &name, &options).await;
                    let token = guard.token().unwrap().get();
                    assert!(token > before, "{name}: {token} after {before}");
                    let mut seen = seen.lock();
                    let last = seen.entry(name.clone()).or_default();
                    *last = token.max(*last);
                    drop(seen);
                    held.fetch_add(1, Ordering::Relaxed);
                    drop(guard);
                }
            }));
        }
        load
    }

    /// Returns when every task has held its lock `more` times from now on.
    pub(crate) async fn go_on(&self, more: u64) {
        let before: Vec<u64> = self.held.iter().map(|held| held.load(Ordering::Relaxed)).collect();
        let all = eventually(2 * FAILOVER, || async {
            assert!(!self.tasks.iter().any(JoinHandle::is_finished), "a task gave up");
            let counts = self.held.iter().zip(&before);
            counts.into_iter().all(|(held, before)| held.load(Ordering::Relaxed) >= before + more)
        });
        assert!(all.await, "a task does not go on: {:?} after {before:?}", self.held);
    }

    pub(crate) async fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

pub(crate) fn said(server: &RedisServer, words: &[&str]) -> String {
    server.command(words).unwrap()
}

/// A slot on its way to another master.
pub(crate) struct Moving<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    from: usize,
    to: usize,
}

impl<'a> Moving<'a> {
    pub(crate) fn start(cluster: &'a RedisCluster, key: &str) -> Self {
        let nodes = cluster.nodes();
        let from = cluster.master_of(key).unwrap();
        let to = (from + 1) % 3;
        let slot = said(&nodes[0], &["CLUSTER", "KEYSLOT", key]);
        let (source, target) = (cluster.id_of(from).unwrap(), cluster.id_of(to).unwrap());
        assert_eq!(said(&nodes[to], &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]), "OK");
        assert_eq!(said(&nodes[from], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]), "OK");
        Self { cluster, slot, from, to }
    }

    /// Moves up to a hundred keys, and says how many there were.
    pub(crate) fn left_behind(&self) -> usize {
        let nodes = self.cluster.nodes();
        let port = nodes[self.to].port().to_string();
        let keys = said(&nodes[self.from], &["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"]);
        let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
        if !keys.is_empty() {
            let head = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            said(&nodes[self.from], &[&head[..], &keys].concat());
        }
        keys.len()
    }

    pub(crate) async fn finish(self) {
        let moved = eventually(GENEROUS, || async { self.left_behind() == 0 });
        assert!(moved.await, "keys were left behind");
        let target = self.cluster.id_of(self.to).unwrap();
        for node in [self.to, self.from, (self.to + 1) % 3] {
            let node = &self.cluster.nodes()[node];
            let assign = ["CLUSTER", "SETSLOT", &self.slot, "NODE", &target];
            assert_eq!(said(node, &assign), "OK");
        }
    }
}
