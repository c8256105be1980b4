//! Locks shared on a Cluster and behind Sentinels.

use std::sync::Arc;
use std::time::Instant;

use tenure_core::Client;
use tenure_redis::{RedisConfig, RedissonStore, Sharded, Topology};
use tenure_testkit::{
    ExternalClient, GENEROUS, RedisCluster, RedisSentinel, RedisServer, eventually,
};
use tokio::time::timeout;

use super::{CURRENT, Duration, Java, LONG, NAME, WATCHDOG, long, redisson_3_22};

pub(super) fn addresses(list: &str) -> Vec<(String, u16)> {
    let address = |one: &str| {
        let (host, port) = one.rsplit_once(':').unwrap();
        (host.to_owned(), port.parse().unwrap())
    };
    list.split(',').map(address).collect()
}

pub(super) async fn connect(topology: Topology, replicas: u32) -> Client {
    let mut config = RedisConfig::new(topology);
    config.prefix.clear();
    config.replicas = replicas;
    Client::new(Arc::new(RedissonStore::connect(config).await.unwrap())).unwrap()
}

/// As the Java programs name servers.
pub(super) fn named(kind: &str, addresses: &[(String, u16)]) -> String {
    let ports: Vec<_> = addresses.iter().map(|(_, port)| port.to_string()).collect();
    format!("{kind}:{}", ports.join(","))
}

/// Hands the lock over both ways. The poll cap is longer than the bound: only messages can be what is heard.
async fn hand_over(ours: &Client, theirs: &mut Java, version: &ExternalClient, place: &str) {
    let options = long().poll_cap(Duration::from_secs(600));
    let mutex = ours.mutex(NAME).unwrap().with(options);
    let guard = mutex.acquire().await.unwrap();
    theirs.want(Some(LONG));
    assert!(theirs.is_silent().await);
    let start = Instant::now();
    guard.release().await.unwrap();
    theirs.held().await;
    let to_theirs = start.elapsed();
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiter.is_finished());
    let start = Instant::now();
    theirs.release().await;
    let guard = timeout(GENEROUS, waiter).await.expect("our waiter hears of it").unwrap();
    super::report(version, "lock", place, [start.elapsed(), to_theirs]);
    guard.release().await.unwrap();
}

async fn on_a_cluster(version: &ExternalClient) {
    let cluster = RedisCluster::start().unwrap();
    let nodes = addresses(&cluster.addresses());
    let mut theirs = Java::start(version, &named("cluster", &nodes), "lock", WATCHDOG).await;
    let ours = connect(Topology::Cluster { nodes }, 0).await;
    hand_over(&ours, &mut theirs, version, " on a Cluster").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_both_arrive_on_a_cluster() {
    for version in [&CURRENT, &redisson_3_22::RELEASE] {
        if !version.is_missing("messages on a Cluster") {
            on_a_cluster(version).await;
        }
    }
}

/// Both sides publish through the channels that are set, whatever the servers could do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_both_arrive_with_sharded_channels_and_without() {
    if CURRENT.is_missing("sharded channels") {
        return;
    }
    let cluster = RedisCluster::start().unwrap();
    let nodes = addresses(&cluster.addresses());
    for (sharded, kind, place) in [
        (Sharded::On, "cluster+on", " on a Cluster, `sharded=on`"),
        (Sharded::Off, "cluster+off", " on a Cluster, `sharded=off`"),
    ] {
        let mut theirs = Java::start(&CURRENT, &named(kind, &nodes), "lock", WATCHDOG).await;
        let mut config = RedisConfig::new(Topology::Cluster { nodes: nodes.clone() });
        config.prefix.clear();
        config.sharded = sharded;
        let ours = Client::new(Arc::new(RedissonStore::connect(config).await.unwrap())).unwrap();
        hand_over(&ours, &mut theirs, &CURRENT, place).await;
        let count = |command: &str| {
            let used = |node: &RedisServer| {
                let stats = node.command(&["INFO", "commandstats"]).unwrap();
                stats.lines().any(|line| line.starts_with(&format!("cmdstat_{command}:")))
            };
            cluster.nodes().iter().any(used)
        };
        // The first of the two modes leaves no message of the other kind.
        if sharded == Sharded::On {
            assert!(count("spublish") && !count("publish"));
        } else {
            assert!(count("publish"));
        }
    }
}

/// After a failover the lock is shared as before it: whichever side takes it keeps the other out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_shared_before_and_after_a_failover_by_sentinels() {
    if CURRENT.is_missing("a failover by Sentinels") {
        return;
    }
    let mut group = RedisSentinel::start(Duration::from_secs(2)).unwrap();
    let sentinels = addresses(&group.addresses());
    let mut theirs = Java::start(&CURRENT, &named("sentinel", &sentinels), "lock", WATCHDOG).await;
    let ours = connect(Topology::Sentinel { sentinels, service: "main".into() }, 0).await;
    hand_over(&ours, &mut theirs, &CURRENT, " behind Sentinels").await;
    group.server(0).kill9().unwrap();
    assert!(eventually(GENEROUS, || async { group.master().is_some_and(|one| one != 0) }).await);
    share_after_a_failover(&ours, &mut theirs).await;
}

/// The master of the lock's slot dies, and its replica follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_shared_before_and_after_a_failover_of_a_cluster() {
    if CURRENT.is_missing("a failover of a Cluster") {
        return;
    }
    let mut cluster = RedisCluster::start().unwrap();
    let nodes = addresses(&cluster.addresses());
    let mut theirs = Java::start(&CURRENT, &named("cluster", &nodes), "lock", WATCHDOG).await;
    let ours = connect(Topology::Cluster { nodes }, 0).await;
    assert!(theirs.try_hold(None).await);
    theirs.release().await;
    let dead = cluster.master_of(NAME).unwrap();
    cluster.kill9(dead).unwrap();
    share_after_a_failover(&ours, &mut theirs).await;
}

async fn share_after_a_failover(ours: &Client, theirs: &mut Java) {
    let mutex = ours.mutex(NAME).unwrap().with(long());
    let mut guard = None;
    for _ in 0..60 {
        match mutex.acquire_within(Duration::from_secs(2)).await {
            Ok(held) => {
                guard = Some(held);
                break;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
    let guard = guard.expect("ours finds the new master");
    // Their Redisson follows on its own: until then it answers with an error or not at all.
    theirs.send("wait 600000");
    assert!(theirs.is_silent().await, "two claims hold after the failover");
    guard.release().await.unwrap();
    theirs.held().await;
    assert!(ours.mutex(NAME).unwrap().try_acquire().await.is_err());
    theirs.release().await;
}
