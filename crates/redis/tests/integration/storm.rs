//! Fifty waiters on one lock while the servers are disturbed: no two claims hold at once, and no waiter
//! is stuck, and tokens keep rising. Nothing here loses what a server has acknowledged: a failover of
//! a Cluster is one that both servers agree on, and Sentinels see none. `STORM` says for how many seconds.
//!
//! And minutes of faults on one server, to be run by hand, alone on a machine:
//!
//! `STORM=120 SEED=7 cargo test -p tenure-redis --test integration storm:: -- --ignored --nocapture --skip redlock`

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::servers::{addresses, client, connect, durable, said};
use tenure_core::Client;
use tenure_redis::{RedisConfig, Topology};
use tenure_testkit::{RedisCluster, RedisSentinel, RedisServer, eventually};
use tenure_trials::{LONGEST_STALL, Turns, storm};

const CLIENTS: usize = 5;
const TASKS_EACH: usize = 10;

/// The key of the lock that is taken in turn.
const KEY: &str = "tenure:turns";

/// Longer than any server stands still here: Sentinels take none for dead.
const PATIENT: Duration = Duration::from_secs(60);

on_servers! {
    async fn a_disturbed_server_admits_no_second_holder_and_every_waiter() {
        let mut server = durable();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(connect(&server.addresses()).await);
        }
        outlast(clients, async |turn| match turn % 5 {
            4 => server.members()[0].restart().unwrap(),
            turn => meddle(&server.members()[0], turn),
        })
        .await;
    }
}

on_servers! {
    async fn a_disturbed_cluster_admits_no_second_holder_and_every_waiter() {
        let cluster = RedisCluster::start().unwrap();
        let nodes = addresses(&cluster.addresses());
        let clients = clients(&RedisConfig::new(Topology::Cluster { nodes })).await;
        outlast(clients, async |turn| match turn % 5 {
            4 => fail_over(&cluster).await,
            turn => {
                for node in cluster.nodes() {
                    meddle(node, turn);
                }
            }
        })
        .await;
    }
}

on_servers! {
    async fn a_disturbed_master_of_sentinels_admits_no_second_holder_and_every_waiter() {
        let mut group = RedisSentinel::start(PATIENT).unwrap();
        let sentinels = addresses(&group.addresses());
        let ports: Vec<u16> = sentinels.iter().map(|(_, port)| *port).collect();
        let topology = Topology::Sentinel { sentinels, service: "main".into() };
        outlast(clients(&RedisConfig::new(topology)).await, async |turn| match turn % 6 {
            4 => group.server(1 + turn as usize % 2).restart().unwrap(),
            5 => {
                for port in &ports {
                    group.ask(*port, &["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
                }
            }
            turn => meddle(&group.servers()[0], turn),
        })
        .await;
    }
}

async fn clients(config: &RedisConfig) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(config).await);
    }
    clients
}

/// All take turns while `disturb` is called again and again.
async fn outlast(clients: Vec<Client>, mut disturb: impl AsyncFnMut(u32)) {
    let seconds = std::env::var("STORM").ok().and_then(|seconds| seconds.parse().ok());
    let long = Duration::from_secs(seconds.unwrap_or(8));
    let turns = Arc::new(Turns::default());
    let tasks = turns.start(&clients, TASKS_EACH);
    let start = Instant::now();
    let mut turn = 0;
    while start.elapsed() < long || turn < 6 {
        disturb(turn).await;
        turn += 1;
        // Each disturbance is followed by work, or it was too much.
        turns.go_on(50).await;
    }
    turns.stop(tasks).await;
}

fn meddle(server: &RedisServer, turn: u32) {
    let command = |words: &[&str]| drop(server.command(words));
    match turn % 4 {
        0 => command(&["SCRIPT", "FLUSH"]),
        1 => command(&["CLIENT", "KILL", "TYPE", "pubsub"]),
        2 => command(&["CLIENT", "KILL", "TYPE", "normal"]),
        _ => command(&["DEBUG", "SLEEP", "1"]),
    }
}

/// Has the lock's master hand over to its replica, which first gets all that was written.
async fn fail_over(cluster: &RedisCluster) {
    let master = cluster.master_of(KEY).unwrap();
    let port = cluster.nodes()[master].port().to_string();
    let follows = |node: &&RedisServer| {
        let info = said(node, &["INFO", "replication"]);
        info.contains("role:slave") && info.contains(&format!("master_port:{port}"))
    };
    let replica = cluster.nodes().iter().find(follows).unwrap();
    // Both must agree, which they may be too busy for.
    let moved = eventually(PATIENT, || async {
        said(replica, &["CLUSTER", "FAILOVER"]);
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.master_of(KEY) != Some(master)
    });
    assert!(moved.await, "the replica did not take over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes, and a machine of its own"]
async fn in_a_storm_no_two_claims_hold_at_once_and_every_claim_goes_on() {
    if !tenure_testkit::lacks("redis-server", "storm") {
        storm(durable(), LONGEST_STALL, connect).await;
    }
}
