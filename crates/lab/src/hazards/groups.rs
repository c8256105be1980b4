//! Masters that their Sentinels or their Cluster replace, without a word to the clients.

use std::io;
use std::time::Duration;

use tenure_testkit::RedisServer;

use crate::stage::{LONG, Outcome, Stage};

/// How long a group may take to notice that its master is dead and to agree on another one. A lock that A holds for
/// [`LONG`] has not expired by then.
const ELECTION: Duration = Duration::from_secs(24);

/// The replicas stand still and miss the lock of A; then the master dies, and they go on.
pub(super) async fn failover(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.fault("the replicas lag");
    let (masters, replicas) = stage.servers.group();
    replicas.iter_mut().try_for_each(|replica| replica.stop())?;
    // What a stopped replica has not read would still arrive otherwise.
    for master in masters {
        master.command(&["CLIENT", "KILL", "TYPE", "replica"])?;
    }
    stage.hold_and_read("A", LONG).await?;
    stage.fault("the master dies, and the group elects a replica");
    let lock = stage.lock.clone();
    stage.servers.master_with(&lock)?.kill9()?;
    stage.servers.group().1.iter_mut().try_for_each(|replica| replica.cont())?;
    ask(stage).await
}

/// Every master restarts without data before the group takes it for dead. The replicas copy what it has.
pub(super) fn restart_empty(stage: &mut Stage) -> io::Result<()> {
    stage.fault("the masters restart empty, and their replicas copy that");
    stage.servers.group().0.iter_mut().try_for_each(RedisServer::restart)
}

/// B asks until the group has a master again; if it gets the lock, both work.
pub(super) async fn ask(stage: &mut Stage) -> io::Result<()> {
    let wait = Duration::from_secs(4);
    let end = std::time::Instant::now() + ELECTION;
    let mut outcome = stage.acquire("B", LONG, wait).await?;
    while outcome != Outcome::Held && std::time::Instant::now() < end {
        stage.wait(Duration::from_millis(100)).await?;
        outcome = stage.acquire("B", LONG, wait).await?;
    }
    match outcome {
        Outcome::Held => stage.read("B").await?,
        Outcome::Busy => {}
        // Without a master nothing was shown.
        Outcome::Failed(why) => return Err(io::Error::other(why)),
    }
    stage.write("A").await?;
    stage.write("B").await
}
