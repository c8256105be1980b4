//! How long no claim can hold a lock while the servers elect another leader, after theirs was killed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure::{Client, Options};
use tenure_testkit::{EtcdCluster, RedisSentinel, ZooKeeperEnsemble};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::figure::Figure;
use crate::machine::runtime;
use crate::scale::Scale;
use crate::table::Row;

const TASKS: usize = 4;
const TTL: Duration = Duration::from_secs(5);
/// How long the tasks take turns before the leader is killed.
const BEFORE: Duration = Duration::from_secs(2);
/// The longest time for the servers to serve again.
const LIMIT: Duration = Duration::from_secs(60);
/// After how long without a sign of life a Sentinel takes a master for dead.
const DOWN_AFTER: Duration = Duration::from_secs(1);

pub(crate) fn measure(_: Scale) -> Outcome<Vec<Row>> {
    let runtime = runtime(2)?;
    let row = |engine: &str, what: &str, gap: Duration| {
        let what = format!("{engine}: {what} is killed, longest time without a holder");
        Row::new(what, "s", Figure::once(gap.as_secs_f64()))
    };
    let mut sentinel = RedisSentinel::start(DOWN_AFTER)?;
    let master = sentinel.master().ok_or("no Redis server is the master")?;
    let url = format!("redis+sentinel://{}/main", sentinel.addresses());
    let redis = longest_gap(&runtime, &url, || Ok(sentinel.server(master).kill9()?))?;
    let mut etcd = EtcdCluster::start()?;
    let leader = etcd.leader().ok_or("etcd has no leader")?;
    let url = format!("etcd://{}", etcd.addresses());
    let on_etcd = longest_gap(&runtime, &url, || Ok(etcd.members()[leader].kill9()?))?;
    drop(etcd);
    let mut zookeeper = ZooKeeperEnsemble::start(crate::zookeeper::SETTINGS)?;
    let leader = zookeeper.leader().ok_or("ZooKeeper has no leader")?;
    let url = format!("zk://{}", zookeeper.addresses());
    let on_zookeeper = longest_gap(&runtime, &url, || Ok(zookeeper.members()[leader].kill9()?))?;
    Ok(vec![
        row("redis", "the master of a Sentinel that waits 1 s", redis),
        row("etcd", "the leader of three", on_etcd),
        row("zookeeper", "the leader of three", on_zookeeper),
    ])
}

/// Lets tasks take turns, kills the leader, and returns the longest time between two grants until some turns later.
fn longest_gap(
    runtime: &Runtime,
    url: &str,
    kill: impl FnOnce() -> Outcome<()>,
) -> Outcome<Duration> {
    let client = runtime.block_on(tenure::connect(url))?;
    let grants = Arc::new(Mutex::new(Vec::new()));
    let count = || grants.lock().unwrap_or_else(PoisonError::into_inner).len();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn_on(take_turns(client.clone(), Arc::clone(&grants)), runtime.handle());
    }
    std::thread::sleep(BEFORE);
    if count() < TASKS {
        return Err("the tasks take no turns before the kill".into());
    }
    kill()?;
    let (killed, at_kill) = (Instant::now(), count());
    // Turns that were under way end first, and the servers may serve for a moment.
    while count() < at_kill + 2 * TASKS || killed.elapsed() < 4 * BEFORE {
        if killed.elapsed() > LIMIT {
            return Err("no turns within a minute of the kill".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    tasks.abort_all();
    let grants = grants.lock().unwrap_or_else(PoisonError::into_inner);
    let gaps = grants.windows(2).map(|pair: &[Instant]| pair[1].duration_since(pair[0]));
    Ok(gaps.max().unwrap_or_default())
}

/// Takes the lock for a moment, again and again, also after errors.
async fn take_turns(client: Client, grants: Arc<Mutex<Vec<Instant>>>) {
    loop {
        let Ok(mutex) = client.mutex("failover") else { return };
        if let Ok(guard) = mutex.with(Options::new().ttl(TTL)).acquire().await {
            grants.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            tokio::time::sleep(Duration::from_millis(5)).await;
            // After the kill, the server that answered is gone: the lock ends with its term.
            let _ = guard.release().await;
        }
    }
}
