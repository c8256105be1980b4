//! Other primitives, compared with the mutex of the same engine: entering a hold again, readers of a free
//! lock, and several locks at once.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Client, Rate};
use tenure_local::LocalStore;
use tenure_testkit::{EtcdServer, RedisServer, ZooKeeperServer};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::figure::Samples;
use crate::machine::{pin_to_core, runtime, unpin};
use crate::redis_wire::{Bare, connect};
use crate::scale::Scale;
use crate::table::Row;
use crate::timing::mean;
use crate::{etcd, zookeeper};

const ROUNDS: usize = 15;

/// local: a holder enters its hold again.
pub(crate) fn local_reentry(scale: Scale) -> Outcome<Vec<Row>> {
    const PAIRS: usize = 20_000;
    unpin()?;
    let (runtime, directory) = (runtime(1)?, tempfile::tempdir()?);
    let client = Client::new(Arc::new(LocalStore::open(directory.path())?))?;
    let (account, mutex) = (client.reentrant_mutex("held")?, client.mutex("free")?);
    runtime.block_on(async {
        let hold = account.acquire().await?;
        let (mut again, mut free) = (Samples::default(), Samples::default());
        for _ in 0..scale.rounds(ROUNDS) {
            let enter = async || Ok(account.acquire().await?.release().await?);
            again.push(mean(scale.count(PAIRS), enter).await?);
            free.push(
                mean(scale.count(PAIRS), async || Ok(mutex.acquire().await?.release().await?))
                    .await?,
            );
        }
        hold.release().await?;
        Ok(vec![Row::of_times(
            "local: acquire + release, re-entry",
            &again,
            "acquire + release, free",
            &free,
            Some(0.2),
        )])
    })
}

/// local: a reader of a free lock.
pub(crate) fn local_reader(scale: Scale) -> Outcome<Vec<Row>> {
    unpin()?;
    let (runtime, directory) = (runtime(1)?, tempfile::tempdir()?);
    let client = Client::new(Arc::new(LocalStore::open(directory.path())?))?;
    Ok(vec![reader(scale, "local", &runtime, &client, 10_000)?])
}

/// Redis: a reader of a free lock.
pub(crate) fn redis_reader(scale: Scale) -> Outcome<Vec<Row>> {
    let (_server, runtime, client) = redis()?;
    Ok(vec![reader(scale, "redis", &runtime, &client, 1_000)?])
}

/// etcd: a reader of a free lock.
pub(crate) fn etcd_reader(scale: Scale) -> Outcome<Vec<Row>> {
    let (server, runtime) = (EtcdServer::start(&[])?, runtime(1)?);
    let client = etcd::connect(&runtime, &server)?;
    Ok(vec![reader(scale, "etcd", &runtime, &client, 60)?])
}

/// ZooKeeper: a reader of a free lock.
pub(crate) fn zookeeper_reader(scale: Scale) -> Outcome<Vec<Row>> {
    let (server, runtime) = (ZooKeeperServer::start(zookeeper::SETTINGS)?, runtime(1)?);
    let client = zookeeper::connect(&runtime, &server)?;
    Ok(vec![reader(scale, "zookeeper", &runtime, &client, 60)?])
}

/// Redis: a counter, a rate limiter and a cell, against one bare command of a blocking client. For information:
/// that each costs one round trip is a test of the Redis crate.
pub(crate) fn redis_values(scale: Scale) -> Outcome<Vec<Row>> {
    const CALLS: usize = 2_000;
    let (server, runtime, client) = redis()?;
    let calls = scale.count(CALLS);
    let counter = client.counter("stock")?;
    let limiter = client.rate_limiter("mails", Rate::gcra(1_000_000, Duration::from_secs(60)))?;
    let cell = client.cell::<u64>("cell")?;
    runtime.block_on(async {
        let mut bare = Bare::connect(server.port())?;
        let [mut added, mut taken, mut swapped, mut incremented] = [const { Samples::new() }; 4];
        for _ in 0..scale.rounds(ROUNDS) {
            added.push(mean(calls, async || Ok(counter.add(1).await.map(drop)?)).await?);
            taken.push(mean(calls, async || Ok(limiter.take(1).await.map(drop)?)).await?);
            let update =
                async || Ok(cell.update(|value| value.unwrap_or(0) + 1).await.map(drop)?);
            swapped.push(mean(calls, update).await?);
            let bare = async || bare.round_trip(b"*2\r\n$4\r\nINCR\r\n$4\r\nbare\r\n");
            incremented.push(mean(calls, bare).await?);
        }
        let row = |what: &str, times| {
            Row::of_times(format!("redis: {what}"), &times, "one bare INCR", &incremented, None)
        };
        Ok(vec![
            row("counter, add", added),
            row("rate limiter, take", taken),
            row("cell, update without a conflict", swapped),
        ])
    })
}

/// Redis: four locks at once.
pub(crate) fn redis_multi(scale: Scale) -> Outcome<Vec<Row>> {
    const PAIRS: usize = 1_000;
    let (_server, runtime, client) = redis()?;
    let (four, one) = (client.multi_lock(["a", "b", "c", "d"])?, client.mutex("one")?);
    runtime.block_on(async {
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        for _ in 0..scale.rounds(ROUNDS) {
            ours.push(
                mean(scale.count(PAIRS), async || Ok(four.acquire().await?.release().await?))
                    .await?,
            );
            theirs.push(
                mean(scale.count(PAIRS), async || Ok(one.acquire().await?.release().await?))
                    .await?,
            );
        }
        Ok(vec![Row::of_times(
            "redis: acquire + release, four free locks",
            &ours,
            "acquire + release of one lock",
            &theirs,
            Some(1.5),
        )])
    })
}

fn reader(
    scale: Scale,
    engine: &str,
    runtime: &Runtime,
    client: &Client,
    pairs: usize,
) -> Outcome<Row> {
    let (catalogue, mutex) = (client.rw_lock("catalogue")?, client.mutex("mutex")?);
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..scale.rounds(ROUNDS) {
        let read = async || Ok(catalogue.read().await?.release().await?);
        ours.push(runtime.block_on(mean(scale.count(pairs), read))?);
        let hold = async || Ok(mutex.acquire().await?.release().await?);
        theirs.push(runtime.block_on(mean(scale.count(pairs), hold))?);
    }
    Ok(Row::of_times(
        format!("{engine}: read + release, free"),
        &ours,
        "acquire + release of a mutex",
        &theirs,
        Some(1.2),
    ))
}

/// A server and a client on a core each.
fn redis() -> Outcome<(RedisServer, Runtime, Client)> {
    pin_to_core(0)?;
    let server = RedisServer::start(&[])?;
    pin_to_core(1)?;
    let runtime = runtime(1)?;
    let client = connect(&runtime, server.port(), true)?;
    Ok((server, runtime, client))
}
