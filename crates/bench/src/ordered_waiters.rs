//! etcd and ZooKeeper: the server's CPU time for many waiters on one lock.

use std::time::{Duration, Instant};

use tenure_core::{Client, Guard, Options};
use tenure_testkit::{EtcdServer, ZooKeeperServer};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::figure::{Figure, micros};
use crate::machine::cpu_of;
use crate::machine::runtime;
use crate::scale::Scale;
use crate::table::Row;

const MANY: usize = 1_000;
const FEW: usize = 10;
const ROUNDS: usize = 3;

/// How long the waiters have to join the queue.
const ARRIVAL: Duration = Duration::from_secs(3);
/// How long the server is observed while the waiters are idle.
const IDLE: Duration = Duration::from_secs(10);

pub(crate) fn etcd(scale: Scale) -> Outcome<Vec<Row>> {
    let server = EtcdServer::start(&[])?;
    let runtime = runtime(2)?;
    let client = crate::etcd::connect(&runtime, &server)?;
    measure(scale, "etcd", &runtime, &client, server.pid())
}

pub(crate) fn zookeeper(scale: Scale) -> Outcome<Vec<Row>> {
    let server = ZooKeeperServer::start(crate::zookeeper::SETTINGS)?;
    let runtime = runtime(2)?;
    let client = crate::zookeeper::connect(&runtime, &server)?;
    measure(scale, "zookeeper", &runtime, &client, server.pid())
}

fn measure(
    scale: Scale,
    store: &str,
    runtime: &Runtime,
    client: &Client,
    pid: u32,
) -> Outcome<Vec<Row>> {
    let (mut many, mut few) = (Vec::new(), Vec::new());
    for round in 0..=scale.rounds(ROUNDS) {
        let one = runtime.block_on(arrive(client, pid, 1, MANY))?;
        let several = runtime.block_on(arrive(client, pid, MANY / FEW, FEW))?;
        // The first round warms up the server.
        if round > 0 {
            many.push(one);
            few.push(several);
        }
    }
    let each = |rounds: Vec<Duration>| {
        Figure::of_rounds(rounds.into_iter().map(|time| micros(time) / MANY as f64).collect())
    };
    let what = format!("{store}: server CPU per arriving waiter, 1,000 on one lock");
    let arrivals =
        Row::time(what, each(many)).limit("10 on each of 100 locks", each(few), Some(1.3));
    let what = format!("{store}: server CPU for 1,000 idle waiters for a permit");
    let idle = Row::new(what, "%", Figure::once(runtime.block_on(idle(client, pid))?));
    Ok(vec![arrivals, idle.limit("a hundredth of a core", Figure::once(1.0), Some(1.0))])
}

/// The CPU time that the server takes until `waiters` tasks wait for each of `locks` locks.
async fn arrive(client: &Client, pid: u32, locks: usize, waiters: usize) -> Outcome<Duration> {
    let name = |lock: usize| format!("arrivals-{lock}");
    let mut holders = Vec::new();
    for lock in 0..locks {
        holders.push(client.mutex(&name(lock))?.acquire().await?);
    }
    let before = cpu_of(pid)?;
    let mut waiting = JoinSet::new();
    for lock in 0..locks {
        let mutex = client.mutex(&name(lock))?;
        for _ in 0..waiters {
            let mutex = mutex.clone();
            waiting.spawn(async move { mutex.acquire().await?.release().await });
        }
    }
    tokio::time::sleep(ARRIVAL).await;
    let used = cpu_of(pid)? - before;
    for lock in 0..locks {
        let came = client.inspect(&name(lock)).await?.waiters.len();
        if came != waiters {
            return Err(format!("only {came} of {waiters} waiters arrived in time").into());
        }
    }
    for holder in holders {
        holder.release().await?;
    }
    while let Some(released) = waiting.join_next().await {
        released??;
    }
    Ok(used)
}

/// The share of a core, in per cent, that 1,000 waiters for permits cost the server while they are
/// idle.
async fn idle(client: &Client, pid: u32) -> Outcome<f64> {
    let options = Options::new().ttl(Duration::from_secs(30));
    let semaphore = client.semaphore("idle", 3)?.with(options);
    let mut holders: Vec<Guard> = Vec::new();
    for _ in 0..3 {
        holders.push(semaphore.acquire().await?);
    }
    let without = cpu_share(pid).await?;
    let mut waiting = JoinSet::new();
    for _ in 0..MANY {
        let semaphore = semaphore.clone();
        waiting.spawn(async move { semaphore.acquire().await?.release().await });
    }
    tokio::time::sleep(ARRIVAL).await;
    let with_waiters = cpu_share(pid).await?;
    let came = client.inspect("idle").await?.waiters.len();
    if came != MANY {
        return Err(format!("only {came} of {MANY} waiters arrived in time").into());
    }
    for holder in holders {
        holder.release().await?;
    }
    while let Some(released) = waiting.join_next().await {
        released??;
    }
    Ok((with_waiters - without).max(0.0))
}

async fn cpu_share(pid: u32) -> Outcome<f64> {
    let (start, before) = (Instant::now(), cpu_of(pid)?);
    tokio::time::sleep(IDLE).await;
    Ok((cpu_of(pid)? - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
}
