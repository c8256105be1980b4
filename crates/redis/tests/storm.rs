//! Fifty waiters on one lock while the server is meddled with: nobody holds beside another, nobody
//! is stuck, and tokens keep rising.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_core::{Client, Options};
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::RedisServer;

const CLIENTS: usize = 5;
const TASKS_EACH: usize = 10;

/// What everybody who holds the lock looks at and changes.
#[derive(Default)]
struct Watched {
    held: AtomicBool,
    last_token: AtomicU64,
    rounds: AtomicU64,
    over: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_meddled_with_server_lets_nobody_in_twice_and_nobody_wait_for_ever() {
    if tenure_testkit::lacks("redis-server", "the storm") {
        return;
    }
    // What is acknowledged survives a restart: without that, a restart forgets who holds.
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = RedisServer::start(&durable).unwrap();
    let watched = Arc::new(Watched::default());
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let client = Client::new(Arc::new(connect(server.port()).await));
        for _ in 0..TASKS_EACH {
            tasks.push(tokio::spawn(take_turns(client.clone(), Arc::clone(&watched))));
        }
    }
    let start = Instant::now();
    let mut meddled = 0;
    while start.elapsed() < storm() {
        meddle(&mut server, meddled);
        meddled += 1;
        // Every piece of trouble is followed by work, or it was too much.
        let before = watched.rounds.load(Ordering::Relaxed);
        let moved = || async { watched.rounds.load(Ordering::Relaxed) > before + 50 };
        assert!(tenure_testkit::eventually(Duration::from_secs(60), moved).await, "all are stuck");
    }
    watched.over.store(true, Ordering::Relaxed);
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("one is stuck").unwrap();
    }
    assert!(meddled >= 5, "only {meddled} kinds of trouble");
}

/// How long it lasts. `TENURE_STORM_SECONDS=30` for a longer one.
fn storm() -> Duration {
    let seconds = std::env::var("TENURE_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(8))
}

fn meddle(server: &mut RedisServer, turn: u32) {
    let command = |words: &[&str]| drop(server.command(words));
    match turn % 5 {
        0 => command(&["SCRIPT", "FLUSH"]),
        1 => command(&["CLIENT", "KILL", "TYPE", "pubsub"]),
        2 => command(&["CLIENT", "KILL", "TYPE", "normal"]),
        3 => command(&["DEBUG", "SLEEP", "1"]),
        _ => server.restart().unwrap(),
    }
}

async fn connect(port: u16) -> RedisStore {
    let server = ("127.0.0.1".into(), port);
    RedisStore::connect(RedisConfig::new(Topology::Single { server })).await.unwrap()
}

async fn take_turns(client: Client, watched: Arc<Watched>) {
    // So long that no trouble here lasts for a term: whoever holds, holds.
    let options = Options::new().ttl(Duration::from_secs(60));
    let mutex = client.mutex("storm").unwrap().with(options);
    while !watched.over.load(Ordering::Relaxed) {
        // A fault may end an attempt; then it is made again.
        let Ok(guard) = mutex.acquire().await else { continue };
        assert!(!watched.held.swap(true, Ordering::SeqCst), "two hold at once");
        let token = guard.token().unwrap().get();
        assert!(watched.last_token.swap(token, Ordering::SeqCst) < token, "tokens went back");
        tokio::task::yield_now().await;
        watched.rounds.fetch_add(1, Ordering::Relaxed);
        watched.held.store(false, Ordering::SeqCst);
        drop(guard.release().await);
    }
    client.close().await;
}
