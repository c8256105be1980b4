//! Servers that fail over, forget, or believe a wrong clock.

use std::io;
use std::path::Path;
use std::time::Duration;

use tenure_testkit::{Proxy, RedisServer, Way};

use super::{Hazard, SETUP, groups, has_master, is_group, is_one_redis, is_redlock, play};
use crate::algorithms::{Family, Info};
use crate::servers::{Setup, until_it_follows};
use crate::stage::{LONG, Outcome, SOON, Stage};

pub(super) static HAZARDS: &[Hazard] = &[
    Hazard {
        id: "server-clock",
        title: "a server's clock is set forward",
        story: "A holds the lock for 30 s. The server's clock jumps 31 s ahead (of a quorum, that of one server, \
            while A had just a majority). B asks.",
        setup: Setup { clock: true, ..SETUP },
        spares: has_settable_clock,
        play: play!(server_clock),
    },
    Hazard {
        id: "failover",
        title: "fail-over to a replica that has not seen the lock",
        story: "The replica lags. A holds the lock on the master, which dies. The replica is promoted, and B asks.",
        setup: Setup { replicas: 1, ..SETUP },
        spares: has_master,
        play: play!(failover),
    },
    Hazard {
        id: "failover-after-wait",
        title: "fail-over to the other replica",
        story: "One of two replicas has acknowledged the lock of A. It dies with the master; the other one, which \
            lagged, is promoted. B asks.",
        setup: Setup { replicas: 2, ..SETUP },
        spares: is_one_redis,
        play: play!(failover_after_wait),
    },
    Hazard {
        id: "restart-empty",
        title: "restart without data",
        story: "A holds the lock. The server, or every server of a quorum, restarts empty. B asks.",
        setup: SETUP,
        spares: forgets_at_once,
        play: play!(restart_empty),
    },
    Hazard {
        id: "one-restarts-empty",
        title: "one server of a quorum restarts without data",
        story: "A holds the lock on three of five servers. One of the three restarts empty, and B asks: it may \
            find a majority.",
        setup: SETUP,
        spares: is_redlock,
        play: play!(one_restarts_empty),
    },
    Hazard {
        id: "delayed-restart",
        title: "restart without data after the TTL",
        story: "A has held the lock three times. Its servers restart empty, but only after every TTL has passed, as \
            the essays recommend. B acquires: its token must be greater.",
        setup: Setup { redlock_url: "max-ttl=2s", ..SETUP },
        spares: is_redlock_with_tokens,
        play: play!(delayed_restart),
    },
    Hazard {
        id: "power-loss",
        title: "power loss with a log synced every second",
        story: "A holds the lock. The server loses what it had not synced, and restarts with the older log. B asks.",
        setup: Setup { log: true, ..SETUP },
        spares: loses_its_log,
        play: play!(power_loss),
    },
    Hazard {
        id: "token-after-loss",
        title: "tokens after a loss of all data",
        story: "A has held the lock three times. The servers restart empty. B acquires: its token must be greater.",
        setup: Setup { redlock_url: "max-ttl=2s", ..SETUP },
        spares: forgets_with_tokens,
        play: play!(token_after_loss),
    },
    Hazard {
        id: "eviction",
        title: "eviction by memory",
        story: "A holds the lock. The server runs out of memory and evicts keys that have a TTL. B asks.",
        setup: SETUP,
        spares: is_one_redis,
        play: play!(eviction),
    },
    Hazard {
        id: "flushed-scripts",
        title: "the server forgets its scripts",
        story: "A holds the lock, and the server's script cache is flushed. A releases: B must get the lock.",
        setup: SETUP,
        spares: uses_scripts,
        play: play!(flushed_scripts),
    },
    Hazard {
        id: "slot-migration",
        title: "a slot moves while its lock is held",
        story: "A holds the lock. Its slot moves to another master, key by key. A releases: B must get the lock.",
        setup: SETUP,
        spares: is_cluster,
        play: play!(slot_migration),
    },
];

fn has_settable_clock(info: &Info) -> Option<&'static str> {
    match info.family {
        Family::Redis | Family::Redlock => None,
        Family::Cluster | Family::Sentinel => Some("played on one server"),
        _ => Some("no wall clock ends its terms"),
    }
}

fn forgets(info: &Info) -> Option<&'static str> {
    match info.family {
        Family::Redlock => None,
        Family::Etcd | Family::ZooKeeper => {
            Some("its servers keep what they have acknowledged on disk")
        }
        _ => has_master(info),
    }
}

/// A grant waits for a replica, which takes a while to follow a master that has restarted.
fn forgets_at_once(info: &Info) -> Option<&'static str> {
    match info.waits_for_replicas() {
        true => Some("its replica keeps the data; a fail-over is another hazard"),
        false => forgets(info),
    }
}

fn loses_its_log(info: &Info) -> Option<&'static str> {
    is_one_redis(info).or_else(|| forgets_at_once(info))
}

fn forgets_with_tokens(info: &Info) -> Option<&'static str> {
    if info.has_tokens { forgets(info) } else { Some("it has no tokens") }
}

fn is_redlock_with_tokens(info: &Info) -> Option<&'static str> {
    if info.has_tokens { is_redlock(info) } else { Some("it has no tokens") }
}

fn uses_scripts(info: &Info) -> Option<&'static str> {
    if info.uses_scripts() { None } else { Some("it calls no scripts by their hash") }
}

fn is_cluster(info: &Info) -> Option<&'static str> {
    if info.family == Family::Cluster { None } else { Some("it has no slots") }
}

/// The servers of a quorum that are enough for a majority.
const MAJORITY: usize = 3;

/// A holds the lock, in a quorum on a bare majority, and has read.
async fn hold_narrowly(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    if stage.info.family == Family::Redlock {
        stage.fault("A reaches three of five servers");
        stage.client("A")?.proxies[MAJORITY..].iter().for_each(|way| way.set(Way::Black));
    }
    stage.hold_and_read("A", LONG).await
}

/// B asks; if it gets the lock, both work.
async fn ask(stage: &mut Stage) -> io::Result<()> {
    // Its connections may have to be made anew.
    if stage.acquire("B", LONG, Duration::from_secs(4)).await? == Outcome::Held {
        stage.read("B").await?;
    }
    stage.write("A").await?;
    stage.write("B").await
}

async fn server_clock(stage: &mut Stage) -> io::Result<()> {
    hold_narrowly(stage).await?;
    let place = stage.servers.clocks.len().min(MAJORITY) - 1;
    stage.fault("the server's clock jumps 31 s ahead");
    stage.servers.clocks[place].set_ahead(LONG + Duration::from_secs(1))?;
    ask(stage).await
}

fn ok(reply: String) -> io::Result<()> {
    if reply == "OK" { Ok(()) } else { Err(io::Error::other(reply)) }
}

/// Lets a replica follow through a proxy.
fn follow(replica: &RedisServer, way: &Proxy) -> io::Result<()> {
    ok(replica.command(&["REPLICAOF", "127.0.0.1", &way.port().to_string()])?)?;
    until_it_follows(replica)
}

/// The master dies, and this replica takes its place.
fn promote(stage: &mut Stage, place: usize) -> io::Result<()> {
    stage.fault("the master dies, and a replica is promoted");
    stage.servers.redis[0].kill9()?;
    ok(stage.servers.replicas[place].command(&["REPLICAOF", "NO", "ONE"])?)?;
    let port = stage.servers.replicas[place].port();
    stage.servers.ports = vec![port];
    stage.lead_to(port);
    Ok(())
}

async fn failover(stage: &mut Stage) -> io::Result<()> {
    if is_group(stage.info) {
        return groups::failover(stage).await;
    }
    let way = Proxy::start(stage.servers.ports[0])?;
    follow(&stage.servers.replicas[0], &way)?;
    stage.enter_all(&["A", "B"]).await?;
    stage.fault("the replica lags");
    way.set(Way::Black);
    match stage.acquire("A", LONG, Duration::from_secs(1)).await? {
        Outcome::Held => stage.must_read("A").await?,
        // The grant is not acknowledged.
        _ if stage.info.waits_for_replicas() => {}
        other => return Err(io::Error::other(format!("A does not get the free lock: {other:?}"))),
    }
    promote(stage, 0)?;
    ask(stage).await
}

async fn failover_after_wait(stage: &mut Stage) -> io::Result<()> {
    let proxies = [Proxy::start(stage.servers.ports[0])?, Proxy::start(stage.servers.ports[0])?];
    for (replica, way) in stage.servers.replicas.iter().zip(&proxies) {
        follow(replica, way)?;
    }
    stage.enter_all(&["A", "B"]).await?;
    stage.fault("the second replica lags");
    proxies[1].set(Way::Black);
    stage.hold_and_read("A", LONG).await?;
    stage.fault("the first replica dies");
    stage.servers.replicas[0].kill9()?;
    promote(stage, 1)?;
    if stage.info.waits_for_replicas() {
        // Otherwise it would grant nothing.
        stage.servers.add_replica()?;
    }
    ask(stage).await
}

fn restart(stage: &mut Stage, places: std::ops::Range<usize>, how: &str) -> io::Result<()> {
    stage.fault(how);
    stage.servers.redis[places].iter_mut().try_for_each(RedisServer::restart)
}

async fn restart_empty(stage: &mut Stage) -> io::Result<()> {
    hold_narrowly(stage).await?;
    if is_group(stage.info) {
        groups::restart_empty(stage)?;
        return groups::ask(stage).await;
    }
    let all = 0..stage.servers.redis.len();
    restart(stage, all, "all servers restart empty")?;
    ask(stage).await
}

async fn one_restarts_empty(stage: &mut Stage) -> io::Result<()> {
    hold_narrowly(stage).await?;
    restart(stage, MAJORITY - 1..MAJORITY, "one of A's servers restarts empty")?;
    ask(stage).await
}

/// A holds the lock several times.
async fn count_up(stage: &mut Stage) -> io::Result<()> {
    for _ in 0..3 {
        stage.hold("A", stage.ttl).await?;
        stage.must_read("A").await?;
        stage.write("A").await?;
        stage.release("A").await?;
    }
    Ok(())
}

/// B gets the lock after a loss of data, and works.
async fn work_after_loss(stage: &mut Stage) -> io::Result<()> {
    // A server that has just started may have to wait for the longest TTL.
    stage.expect_work("B", stage.ttl, SOON * 2).await
}

async fn delayed_restart(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.fault("A reaches three of five servers");
    stage.client("A")?.proxies[MAJORITY..].iter().for_each(|way| way.set(Way::Black));
    count_up(stage).await?;
    stage.fault("its servers die");
    for server in &mut stage.servers.redis[..MAJORITY] {
        server.kill9()?;
    }
    stage.wait(stage.ttl * 5 / 2).await?;
    restart(stage, 0..MAJORITY, "they restart empty")?;
    work_after_loss(stage).await
}

async fn token_after_loss(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    count_up(stage).await?;
    match is_group(stage.info) {
        true => groups::restart_empty(stage)?,
        false => restart(stage, 0..stage.servers.redis.len(), "all servers restart empty")?,
    }
    work_after_loss(stage).await
}

/// What a log on disk is in.
const LOG: &str = "appendonlydir";

async fn power_loss(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    ok(stage.servers.redis[0].command(&["SET", "unrelated", "1"])?)?;
    let folder = stage.servers.redis[0].folder().to_owned();
    copy(&folder.join(LOG), &folder.join("synced"))?;
    stage.hold_and_read("A", LONG).await?;
    stage.fault("the power fails before the log is synced");
    stage.servers.redis[0].kill9()?;
    std::fs::remove_dir_all(folder.join(LOG))?;
    copy(&folder.join("synced"), &folder.join(LOG))?;
    restart(stage, 0..1, "the server restarts with the older log")?;
    ask(stage).await
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    for file in std::fs::read_dir(from)? {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

async fn eviction(stage: &mut Stage) -> io::Result<()> {
    hold_narrowly(stage).await?;
    let server = &stage.servers.redis[0];
    let set = |option, value| ok(server.command(&["CONFIG", "SET", option, value])?);
    set("maxmemory-policy", "volatile-lru")?;
    set("maxmemory", "1mb")?;
    // It needs memory, is refused, and makes the server evict what it may.
    let filled = server.command(&["SET", "large", &"x".repeat(2 << 20)])?;
    let _ = server.command(&["SET", "more", "x"])?;
    server.command(&["DEL", "large"])?;
    set("maxmemory", "0")?;
    stage.fault(format!("memory runs out ({filled})"));
    ask(stage).await
}

async fn flushed_scripts(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.hold_and_read("A", LONG).await?;
    stage.write("A").await?;
    stage.fault("the servers' scripts are flushed");
    for server in stage.servers.all_redis() {
        ok(server.command(&["SCRIPT", "FLUSH"])?)?;
    }
    stage.release("A").await?;
    stage.expect_work("B", LONG, SOON).await
}

async fn slot_migration(stage: &mut Stage) -> io::Result<()> {
    stage.enter_all(&["A", "B"]).await?;
    stage.hold_and_read("A", LONG).await?;
    stage.start_acquire("B", LONG, LONG)?;
    stage.wait(Duration::from_millis(500)).await?;
    stage.fault("the slot of the lock moves to another master");
    let lock = stage.lock.clone();
    let unknown = || io::Error::other("the servers run no Cluster");
    let cluster = stage.servers.cluster.as_ref().ok_or_else(unknown)?;
    move_slot(cluster, &lock)?;
    stage.write("A").await?;
    stage.release("A").await?;
    stage.expect_work_after_wait("B", SOON * 3).await
}

/// Moves the slot of a lock, key by key, to another master.
fn move_slot(cluster: &tenure_testkit::RedisCluster, lock: &str) -> io::Result<()> {
    let nowhere = || io::Error::other("no master has the lock");
    let masters = cluster.nodes().len() / 2;
    let keys = |node: usize| cluster.nodes()[node].command(&["KEYS", &format!("*{lock}*")]);
    let mut from = None;
    for node in 0..masters {
        if !keys(node)?.trim().is_empty() {
            from = Some(node);
        }
    }
    let from = from.ok_or_else(nowhere)?;
    let to = (from + 1) % masters;
    let key = keys(from)?.lines().next().unwrap_or_default().to_owned();
    let (source, target) = (&cluster.nodes()[from], &cluster.nodes()[to]);
    let slot = source.command(&["CLUSTER", "KEYSLOT", &key])?;
    let (source_id, target_id) = (cluster.id_of(from)?, cluster.id_of(to)?);
    ok(target.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id])?)?;
    ok(source.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id])?)?;
    for _ in 0..100 {
        let keys = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])?;
        if keys.trim().is_empty() {
            break;
        }
        for key in keys.lines() {
            let port = target.port().to_string();
            source.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])?;
        }
    }
    for node in [target, source] {
        ok(node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id])?)?;
    }
    Ok(())
}
