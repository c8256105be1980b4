//! The CPU time for holding 100,000 locks at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{Client, Guard};
use tenure_local::LocalStore;
use tenure_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::machine::cpu_of;
use crate::machine::pin_to_core;
use crate::machine::runtime;
use crate::redis_wire::connect;
use crate::table::Row;

const LOCKS: usize = 100_000;
/// The time of three renewals of each lock, at a TTL of 30 s.
const OBSERVED: Duration = Duration::from_secs(30);

pub(crate) fn redis() -> Outcome<Vec<Row>> {
    pin_to_core(0)?;
    let server = RedisServer::start(&[])?;
    pin_to_core(1)?;
    let runtime = runtime(1)?;
    let client = connect(&runtime, server.port(), true)?;
    let guards = hold(&runtime, &client)?;
    let [ours, servers] = cpu_shares(&runtime, &guards, [std::process::id(), server.pid()])?;
    // The locks end with the server: releasing all of them would take long.
    guards.into_iter().for_each(std::mem::forget);
    Ok(vec![row("redis", "client CPU", ours), row("redis", "server CPU", servers)])
}

pub(crate) fn local() -> Outcome<Vec<Row>> {
    let directory = tempfile::tempdir()?;
    let runtime = runtime(1)?;
    let _inside = runtime.enter();
    let client = Client::new(Arc::new(LocalStore::open(directory.path().join("store"))?))?;
    let guards = hold(&runtime, &client)?;
    let [ours] = cpu_shares(&runtime, &guards, [std::process::id()])?;
    guards.into_iter().for_each(std::mem::forget);
    Ok(vec![row("local", "CPU", ours)])
}

fn hold(runtime: &Runtime, client: &Client) -> Outcome<Vec<Guard>> {
    runtime.block_on(async {
        let mut guards: Vec<Guard> = Vec::with_capacity(LOCKS);
        let mut tasks = tokio::task::JoinSet::new();
        for lock in 0..LOCKS {
            let mutex = client.mutex(&format!("held-{lock}"))?;
            tasks.spawn(async move { mutex.acquire().await });
            if tasks.len() == 1_000 {
                while let Some(guard) = tasks.join_next().await {
                    guards.push(guard??);
                }
            }
        }
        Ok(guards)
    })
}

/// The share of a core, in per cent, that each process uses while the locks are renewed.
fn cpu_shares<const N: usize>(
    runtime: &Runtime,
    guards: &[Guard],
    processes: [u32; N],
) -> Outcome<[f64; N]> {
    // The first renewals come all at once, like the acquisitions, and are not counted.
    runtime.block_on(async { tokio::time::sleep(Duration::from_secs(2)).await });
    let used = || -> Outcome<Vec<Duration>> { processes.iter().map(|pid| cpu_of(*pid)).collect() };
    let (start, before) = (Instant::now(), used()?);
    runtime.block_on(async { tokio::time::sleep(OBSERVED).await });
    let (elapsed, after) = (start.elapsed().as_secs_f64(), used()?);
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    if lost > 0 || guards.len() != LOCKS {
        return Err(format!("{lost} of {} locks were lost", guards.len()).into());
    }
    Ok(std::array::from_fn(|n| (after[n] - before[n]).as_secs_f64() / elapsed * 100.0))
}

fn row(store: &str, what: &str, share: f64) -> Row {
    Row {
        what: format!("{store}: 100,000 locks held, TTL 30 s, none lost, {what}"),
        ours: share,
        against: "a tenth of a core".into(),
        theirs: 10.0,
        unit: "%",
        bound: Some(1.0),
    }
}
