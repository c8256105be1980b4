//! A quorum of servers for one test, and a load that detects two holders at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_core::store::{Claim, ClaimOutcome, Store, WaitPolicy};
use tenure_core::{Client, Options, Token};
use tenure_redis::{RedisConfig, RedlockConfig, RedlockStore, Topology};
use tenure_testkit::{GENEROUS, RedisServer, eventually};
use tokio::task::JoinHandle;

pub(crate) fn start(count: usize) -> Vec<RedisServer> {
    (0..count).map(|_| RedisServer::start(&[]).unwrap()).collect()
}

/// Servers on these ports, with more time to answer than a busy machine takes.
pub(crate) fn config(ports: impl IntoIterator<Item = u16>) -> RedlockConfig {
    let single = |port| Topology::Single { server: ("127.0.0.1".into(), port) };
    let nodes = ports.into_iter().map(|port| RedisConfig::new(single(port)));
    let mut config = RedlockConfig::new(nodes.collect());
    config.node_timeout = Some(Duration::from_secs(1));
    config
}

pub(crate) fn ports(servers: &[RedisServer]) -> Vec<u16> {
    servers.iter().map(RedisServer::port).collect()
}

pub(crate) fn of(servers: &[RedisServer]) -> RedlockConfig {
    config(ports(servers))
}

pub(crate) async fn store(config: &RedlockConfig) -> Arc<RedlockStore> {
    Arc::new(RedlockStore::connect(config.clone()).await.unwrap())
}

pub(crate) async fn client(config: &RedlockConfig) -> Client {
    Client::new(store(config).await).unwrap()
}

/// Asks again and again, until the claim holds the lock.
pub(crate) async fn hold(store: &RedlockStore, claim: &Claim) -> Token {
    let start = Instant::now();
    while start.elapsed() < GENEROUS {
        if let Ok(ClaimOutcome::Granted(grant)) = store.claim(claim, WaitPolicy::NoWait).await {
            return grant.token.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the lock was never granted");
}

/// The counter of a single server.
pub(crate) fn counter(server: &RedisServer) -> u64 {
    let said = server.command(&["GET", "tenure:{token}"]).unwrap();
    let digits: Vec<_> = said.lines().filter_map(|line| line.trim().parse().ok()).collect();
    digits.last().copied().unwrap_or_else(|| panic!("no number: {said}"))
}

/// Another client's lock on a single server, until `unblock`.
pub(crate) fn block(server: &RedisServer, name: &str) {
    server.command(&["SET", &format!("tenure:{name}"), "foreign"]).unwrap();
}

pub(crate) fn unblock(server: &RedisServer, name: &str) {
    server.command(&["DEL", &format!("tenure:{name}")]).unwrap();
}

pub(crate) fn has(server: &RedisServer, name: &str) -> bool {
    let exists = server.command(&["EXISTS", &format!("tenure:{name}")]).unwrap();
    exists.contains('1')
}

/// Tasks that take turns with one lock, and what they saw.
#[derive(Default)]
pub(crate) struct Load {
    inside: AtomicBool,
    last_token: AtomicU64,
    pub(crate) turns: AtomicU64,
    over: AtomicBool,
}

impl Load {
    pub(crate) fn start(self: &Arc<Self>, clients: &[Client], tasks: usize) -> Vec<JoinHandle<()>> {
        let task = |number: usize| {
            let (load, client) = (Arc::clone(self), clients[number % clients.len()].clone());
            tokio::spawn(async move { load.take_turns(client).await })
        };
        (0..tasks).map(task).collect()
    }

    async fn take_turns(&self, client: Client) {
        let mutex = client.mutex("load").unwrap().with(Options::new().ttl(GENEROUS));
        while !self.over.load(Ordering::SeqCst) {
            let guard = mutex.acquire().await.unwrap();
            assert!(!self.inside.swap(true, Ordering::SeqCst), "two claims hold at once");
            let token = guard.token().unwrap().get();
            let last = self.last_token.swap(token, Ordering::SeqCst);
            assert!(last < token, "{token} after {last}");
            self.turns.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            self.inside.store(false, Ordering::SeqCst);
            // What cannot be released at once is released in the background.
            let _ = guard.release().await;
        }
    }

    /// Waits for this many more turns.
    pub(crate) async fn goes_on(&self, turns: u64) {
        let enough = self.turns.load(Ordering::SeqCst) + turns;
        let done = || async { self.turns.load(Ordering::SeqCst) >= enough };
        assert!(eventually(GENEROUS * 2, done).await, "the load stands still");
    }

    pub(crate) async fn end(&self, tasks: Vec<JoinHandle<()>>) {
        self.over.store(true, Ordering::SeqCst);
        for task in tasks {
            tokio::time::timeout(GENEROUS, task).await.expect("the task ends").unwrap();
        }
    }
}
