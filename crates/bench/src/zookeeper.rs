//! ZooKeeper: the overhead of tenure over bare calls on the same kind of connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{Client, Options};
use tenure_testkit::ZooKeeperServer;
use tenure_zookeeper::testing::{Bare, Kind, Rights};
use tenure_zookeeper::{ZooKeeperConfig, ZooKeeperStore};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::figure::Samples;
use crate::machine::runtime;
use crate::scale::Scale;
use crate::table::Row;
use crate::timing::{each, pairs, reported};

const ROUNDS: usize = 9;
const PAIRS: usize = 150;
const HANDOFFS: usize = 12;
/// Why a free lock may cost more than its node.
pub(crate) const FENCE: &str =
    "the transaction also writes to the fence, and a look at the lock follows it";

/// As in production: a write is on the disk before it is answered.
pub(crate) const SETTINGS: &[&str] = &["forceSync=yes", "preAllocSize=65536"];

/// Acquiring and releasing a free lock, compared with creating and deleting a node: by one client,
/// and by two clients in turn, each of which must check that the other has released it.
pub(crate) fn free(scale: Scale) -> Outcome<Vec<Row>> {
    let server = ZooKeeperServer::start(SETTINGS)?;
    let runtime = runtime(1)?;
    let client = connect(&runtime, &server)?;
    let pair = [connect(&runtime, &server)?, connect(&runtime, &server)?];
    let [mut again, mut in_turn, mut theirs] = [const { Samples::new() }; 3];
    runtime.block_on(async {
        let mutex = client.mutex("again")?;
        let [one, other] = [pair[0].mutex("in turn")?, pair[1].mutex("in turn")?];
        let bare = bare(&server).await?;
        for _ in 0..scale.rounds(ROUNDS) {
            let count = scale.count(PAIRS);
            again.add(pairs(&mutex, count).await?);
            let mut turns = Vec::new();
            for _ in 0..count / 2 {
                turns.extend(pairs(&one, 1).await?);
                turns.extend(pairs(&other, 1).await?);
            }
            in_turn.add(turns);
            theirs.add(each(count, async || Ok(bare.delete(&create(&bare).await?).await?)).await?);
        }
        Outcome::Ok(())
    })?;
    let against = "a bare create and delete";
    let row = |what, ours| Row::of_times(what, ours, against, &theirs, Some(1.1)).because(FENCE);
    Ok(vec![
        row("zookeeper: acquire + release, free, one task", &again),
        row("zookeeper: acquire + release, free, two clients in turn", &in_turn),
    ])
}

/// The time from the release to the waiter's guard, compared with a deletion and its watch event in
/// another session.
pub(crate) fn handoff(scale: Scale) -> Outcome<Vec<Row>> {
    let server = ZooKeeperServer::start(SETTINGS)?;
    let runtime = runtime(2)?;
    let clients = [connect(&runtime, &server)?, connect(&runtime, &server)?];
    let bares = [runtime.block_on(bare(&server))?, runtime.block_on(bare(&server))?];
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..scale.rounds(ROUNDS) {
        ours.add(runtime.block_on(reported(HANDOFFS, async || our_handoff(&clients).await))?);
        theirs.add(runtime.block_on(reported(HANDOFFS, async || their_handoff(&bares).await))?);
    }
    let (what, against) =
        ("zookeeper: hand-off to another client", "a bare deletion and its event");
    let reason = "the event is read on the store's thread, which wakes the waiter's";
    Ok(vec![Row::of_times(what, &ours, against, &theirs, Some(1.1)).because(reason)])
}

/// How long the waiter has waited when the lock is released.
const WAIT: Duration = Duration::from_millis(20);

async fn our_handoff([holder, waiter]: &[Client; 2]) -> Outcome<Duration> {
    let options = Options::new().ttl(Duration::from_secs(30));
    let guard = holder.mutex("handoff")?.with(options.clone()).acquire().await?;
    let mutex = waiter.mutex("handoff")?.with(options);
    let waiting = tokio::spawn(async move {
        let guard = mutex.acquire().await?;
        let granted = Instant::now();
        guard.release().await?;
        Ok::<_, tenure_core::Error>(granted)
    });
    tokio::time::sleep(WAIT).await;
    let start = Instant::now();
    guard.release().await?;
    Ok(waiting.await??.duration_since(start))
}

async fn their_handoff([holder, waiter]: &[Bare; 2]) -> Outcome<Duration> {
    let (held, wanted) = (create(holder).await?, create(waiter).await?);
    let changed = waiter.watch(&held).await?;
    let waiter = waiter.clone();
    let waiting = tokio::spawn(async move {
        changed.await;
        let granted = Instant::now();
        waiter.delete(&wanted).await?;
        Ok::<_, tenure_core::Error>(granted)
    });
    tokio::time::sleep(WAIT).await;
    let start = Instant::now();
    holder.delete(&held).await?;
    Ok(waiting.await??.duration_since(start))
}

pub(crate) fn connect(runtime: &Runtime, server: &ZooKeeperServer) -> Outcome<Client> {
    let config = ZooKeeperConfig::new(vec![("127.0.0.1".into(), server.port())]);
    let store = runtime.block_on(ZooKeeperStore::connect(config))?;
    let _inside = runtime.enter();
    Ok(Client::new(Arc::new(store))?)
}

/// A session for bare calls.
async fn bare(server: &ZooKeeperServer) -> Outcome<Bare> {
    let bare = Bare::connect(server.port()).await?;
    bare.make("/bare").await?;
    Ok(bare)
}

async fn create(bare: &Bare) -> Outcome<String> {
    let created = bare.create("/bare/lock-", &[b'v'; 60], Kind::EphemeralSequential, Rights::All);
    Ok(created.await?)
}
