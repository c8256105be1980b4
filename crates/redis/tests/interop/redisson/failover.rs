//! Contenders of both kinds through the death of a master. Grants wait for a replica on both sides, so the new master
//! has them: no two claims may hold.

use std::path::Path;
use std::time::Instant;

use futures_util::future::join_all;
use tenure_core::{Client, Options};
use tenure_redis::Topology;
use tenure_testkit::{GENEROUS, RedisCluster, RedisSentinel, eventually, report_count, temp_dir};

use super::many_nodes::{addresses, connect, named};
use super::{CURRENT, Duration, Java, NAME};

const EACH: usize = 5;
const TIME: Duration = Duration::from_secs(48);
/// The master dies then.
const DEATH: Duration = Duration::from_secs(8);
/// From then on, each side must make progress again.
const LATE: Duration = Duration::from_secs(36);
/// What a dead master leaves locked is free after it.
const TERM: Duration = Duration::from_secs(10);

/// How often a side has counted, and how often at the end.
#[derive(Clone, Copy, Default)]
struct Counts {
    all: u64,
    late: u64,
}

async fn count_through(place: &str, servers: &str, topology: Topology, fail: impl AsyncFnOnce()) {
    let folder = temp_dir();
    let file = &*folder.path().join("counter");
    std::fs::write(file, "0").unwrap();
    let client = connect(topology, 1).await;
    let mut theirs = Java::start(&CURRENT, servers, "lock", TERM).await;
    let (time, late) = (TIME.as_millis(), LATE.as_millis());
    theirs.send(&format!("outlast {EACH} {time} {late} {}", file.display()));
    let start = Instant::now();
    let rounds = join_all((0..EACH).map(|_| ours(&client, file, start)));
    let failure = async {
        tokio::time::sleep(DEATH).await;
        fail().await;
    };
    let (ours, ()) = tokio::join!(rounds, failure);
    let ours = ours.into_iter().fold(Counts::default(), |sum, one| Counts {
        all: sum.all + one.all,
        late: sum.late + one.late,
    });
    let answer = theirs.line().await;
    let (all, late) = answer.split_once(' ').unwrap();
    let theirs = Counts { all: all.parse().unwrap(), late: late.parse().unwrap() };
    let counted: u64 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    assert_eq!(counted, ours.all + theirs.all, "an update was lost");
    let late = [ours.late, theirs.late];
    assert!(late.iter().all(|&count| count > 0), "both go on after the failover: {late:?}");
    report_count("Redisson 4.7.0", &format!("5 and 5 for 48 s, {place}"), ours.all, theirs.all);
}

async fn ours(client: &Client, file: &Path, start: Instant) -> Counts {
    let mutex = client.mutex(NAME).unwrap().with(Options::new().ttl(TERM));
    let mut counts = Counts::default();
    while start.elapsed() < TIME {
        let guard = match mutex.acquire_within(Duration::from_secs(2)).await {
            Ok(guard) => guard,
            Err(error) => {
                // Shown if the test fails.
                eprintln!("ours after {:?}: {error}", start.elapsed());
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let before: u64 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        tokio::task::yield_now().await;
        if guard.is_valid() {
            std::fs::write(file, (before + 1).to_string()).unwrap();
            counts.all += 1;
            counts.late += u64::from(start.elapsed() > LATE);
        }
        // The janitor tries again if the master is gone.
        drop(guard.release().await);
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_lose_no_update_through_a_failover_by_sentinels() {
    if CURRENT.is_missing("contenders through a failover by Sentinels") {
        return;
    }
    let mut group = RedisSentinel::start(Duration::from_secs(2)).unwrap();
    let sentinels = addresses(&group.addresses());
    let servers = named("sentinel", &sentinels);
    let topology = Topology::Sentinel { sentinels, service: "main".into() };
    count_through("behind Sentinels, whose master dies", &servers, topology, async || {
        group.server(0).kill9().unwrap();
        assert!(
            eventually(GENEROUS, || async { group.master().is_some_and(|one| one != 0) }).await
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_lose_no_update_through_a_failover_of_a_cluster() {
    if CURRENT.is_missing("contenders through a failover of a Cluster") {
        return;
    }
    let mut cluster = RedisCluster::start().unwrap();
    let nodes = addresses(&cluster.addresses());
    let servers = named("cluster", &nodes);
    count_through(
        "on a Cluster, of which a master dies",
        &servers,
        Topology::Cluster { nodes },
        async || {
            let dead = cluster.master_of(NAME).unwrap();
            cluster.kill9(dead).unwrap();
            let follows = async || cluster.master_of(NAME).is_some_and(|one| one != dead);
            assert!(eventually(GENEROUS, follows).await);
            // The new master needs a replica, or no grant of ours would be confirmed.
            cluster.restart(dead).unwrap();
        },
    )
    .await;
}
