//! Redlock with five servers, also with one of them unreachable, compared with the same commands over
//! bare sockets, with one server, and with another implementation of Redlock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rslock::LockManager;
use tenure_core::Client;
use tenure_redis::{RedisConfig, RedlockConfig, RedlockStore, Topology};
use tenure_testkit::{Proxy, RedisServer, Way};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::figure::Samples;
use crate::machine::runtime;
use crate::machine::unpin;
use crate::redis_wire::Recorder;
use crate::redis_wire::{Bare, connect};
use crate::scale::Scale;
use crate::table::Row;
use crate::timing;

const ROUNDS: usize = 7;
const PAIRS: usize = 2_000;
/// An unreachable node delays rslock by half a second each time.
const SLOW_PAIRS: usize = 3;
const TTL: Duration = Duration::from_secs(30);
const THREAD: &str = "the store's thread serves the connections, so that a blocked runtime loses no lock, and wakes the caller";

pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
    unpin()?;
    let servers: Vec<RedisServer> =
        (0..5).map(|_| RedisServer::start(&[])).collect::<Result<_, _>>()?;
    let ports: Vec<u16> = servers.iter().map(RedisServer::port).collect();
    let proxy = Proxy::start(ports[4])?;
    let proxied: Vec<u16> = [&ports[..4], &[proxy.port()]].concat();
    let runtime = runtime(1)?;
    let one = connect(&runtime, ports[0], true)?;
    let five = quorum(&runtime, &ports)?;
    let degraded = quorum(&runtime, &proxied)?;
    let other = manager(&ports);
    let other_degraded = manager(&proxied);
    for manager in [&other, &other_degraded] {
        theirs(&runtime, manager, SLOW_PAIRS)?;
    }
    proxy.set(Way::Black);
    // The first call finds out that the node does not answer.
    ours(&runtime, &degraded, 1)?;
    let commands = recorded_pair(&runtime, &ports)?;
    let mut sockets: Vec<Bare> =
        ports.iter().map(|port| Bare::connect(*port)).collect::<Result<_, _>>()?;
    let mut times = [const { Samples::new() }; 6];
    let count = scale.count(PAIRS);
    for _ in 0..scale.rounds(ROUNDS) {
        times[0].add(ours(&runtime, &one, count)?);
        times[1].add(ours(&runtime, &five, count)?);
        times[2].add(ours(&runtime, &degraded, count)?);
        times[3].add(theirs(&runtime, &other, count)?);
        times[5].add(bare(&mut sockets, &commands, count)?);
    }
    times[4].add(theirs(&runtime, &other_degraded, SLOW_PAIRS)?);
    let [one, five, degraded, other, other_degraded, bare] = times.map(|times| times.median());
    let row = |what: &str, ours| {
        Row::time(format!("redlock: acquire + release, free, one task, {what}"), ours)
    };
    let unreachable = "one of 5 nodes unreachable";
    Ok(vec![
        // The five servers share the cores of this machine, so five calls cost five times the work.
        row("5 nodes, by nodes", five).limit("the same on one node", one, None),
        row("5 nodes", five)
            .peer("rslock", other)
            .at_most(1.0)
            .limit("the same commands over five bare sockets", bare, Some(1.25))
            .because(THREAD),
        row(unreachable, degraded)
            .peer("rslock", other_degraded)
            .at_most(0.2)
            .limit("the same with all 5", five, Some(1.2))
            .because("a call to the silent node is still begun, and given up"),
    ])
}

/// The two commands of an acquire and a release, as tenure sends them to one of the nodes.
fn recorded_pair(runtime: &Runtime, ports: &[u16]) -> Outcome<[Vec<u8>; 2]> {
    let recorder = Recorder::start(ports[0])?;
    let client = quorum(runtime, &[&[recorder.port()], &ports[1..]].concat())?;
    runtime.block_on(async {
        let mutex = client.mutex("bench")?;
        mutex.acquire().await?.release().await?;
        // A majority may have answered before the recorded node got its command.
        let settled = || tokio::time::sleep(Duration::from_millis(50));
        settled().await;
        recorder.take();
        let guard = mutex.acquire().await?;
        settled().await;
        let acquire = recorder.take();
        guard.release().await?;
        settled().await;
        Ok([acquire, recorder.take()])
    })
}

/// The same commands to all servers at once.
fn bare(sockets: &mut [Bare], commands: &[Vec<u8>; 2], count: usize) -> Outcome<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        for command in commands {
            for socket in &mut *sockets {
                socket.send(command)?;
            }
            for socket in &mut *sockets {
                socket.receive()?;
            }
        }
        times.push(start.elapsed());
    }
    Ok(times)
}

fn quorum(runtime: &Runtime, ports: &[u16]) -> Outcome<Client> {
    let single = |&port: &u16| Topology::Single { server: ("127.0.0.1".into(), port) };
    let nodes = ports.iter().map(|port| RedisConfig::new(single(port))).collect();
    let store = runtime.block_on(RedlockStore::connect(RedlockConfig::new(nodes)))?;
    let _inside = runtime.enter();
    Ok(Client::new(Arc::new(store))?)
}

fn manager(ports: &[u16]) -> LockManager {
    LockManager::new(ports.iter().map(|port| format!("redis://127.0.0.1:{port}/")).collect())
}

fn ours(runtime: &Runtime, client: &Client, pairs: usize) -> Outcome<Vec<Duration>> {
    let mutex = client.mutex("bench")?;
    let round = async move { timing::pairs(&mutex, pairs).await };
    Ok(runtime.block_on(runtime.spawn(round))??)
}

fn theirs(runtime: &Runtime, manager: &LockManager, pairs: usize) -> Outcome<Vec<Duration>> {
    let manager = manager.clone();
    let round = async move {
        let mut times = Vec::with_capacity(pairs);
        for _ in 0..pairs {
            let start = Instant::now();
            let lock = manager.lock(b"bench-other".as_slice(), TTL).await?;
            manager.unlock(&lock).await;
            times.push(start.elapsed());
        }
        Ok::<_, rslock::LockError>(times)
    };
    Ok(runtime.block_on(runtime.spawn(round))??)
}
