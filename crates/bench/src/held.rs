//! What held locks cost while they are renewed: CPU time and memory of both sides.

use std::time::{Duration, Instant};

use tenure::{Client, Guard, Options};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::contest::Contest;
use crate::figure::Figure;
use crate::machine::{cpu_of, memory_of, pin_to_core, runtime, unpin};
use crate::scale::Scale;
use crate::table::{Row, grouped};

/// A lock is renewed every ten seconds.
const TTL: Duration = Duration::from_secs(30);
/// The time of two renewals of each lock.
const OBSERVED: Duration = Duration::from_secs(20);

/// Holds 1,000, 10,000 and, where `most` allows it, 100,000 locks in one process.
pub(crate) fn measure(contest: &Contest, scale: Scale, most: usize) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for locks in [1_000, 10_000, 100_000] {
        if locks <= most && (locks <= 10_000 || !scale.is_quick) {
            rows.extend(hold_many(contest, scale, locks)?);
        }
    }
    Ok(rows)
}

fn hold_many(contest: &Contest, scale: Scale, locks: usize) -> Outcome<Vec<Row>> {
    pin_to_core(0)?;
    let server = contest.start_server()?;
    if server.pid().is_some() {
        pin_to_core(1)?;
    }
    let processes = [Some(std::process::id()), server.pid()];
    let memory = || {
        let of = |pid: Option<u32>| pid.map_or(Ok(0), memory_of);
        Outcome::Ok([of(processes[0])?, of(processes[1])?])
    };
    let runtime = runtime(1)?;
    let client = runtime.block_on(tenure::connect(&contest.url(&server)))?;
    // Whatever a first lock needs is there.
    runtime.block_on(async { client.mutex("first")?.acquire().await?.release().await })?;
    let before = memory()?;
    let guards = hold(&runtime, &client, locks)?;
    let after = memory()?;
    let shares = cpu_shares(scale, &runtime, &guards, processes)?;
    // The locks end with the server: releasing all of them would take long.
    guards.into_iter().for_each(std::mem::forget);
    unpin()?;
    let (engine, count) = (contest.engine, grouped(locks));
    let mut rows = Vec::new();
    for (side, name) in ["client", "server"].into_iter().enumerate() {
        if processes[side].is_none() {
            continue;
        }
        let share = Figure::once(shares[side]);
        let what = format!("{engine}: {count} locks held, none lost, {name} CPU");
        // Of a core; for as many locks as are in the bound.
        let bound = (locks == 100_000).then_some(1.0);
        let plot = format!("{engine}: {name} CPU for held locks");
        let row = Row::new(what, "%", share).limit("a tenth of a core", Figure::once(10.0), bound);
        rows.push(row.at(plot, "locks held", locks as f64));
        let bytes = after[side].saturating_sub(before[side]) as f64 / locks as f64;
        let what = format!("{engine}: {count} locks held, memory of the {name} for each");
        rows.push(Row::new(what, "bytes", Figure::once(bytes)));
    }
    Ok(rows)
}

fn hold(runtime: &Runtime, client: &Client, locks: usize) -> Outcome<Vec<Guard>> {
    runtime.block_on(async {
        let mut guards: Vec<Guard> = Vec::with_capacity(locks);
        let mut tasks = tokio::task::JoinSet::new();
        for lock in 0..locks {
            let mutex = client.mutex(&format!("held-{lock}"))?.with(Options::new().ttl(TTL));
            tasks.spawn(async move { mutex.acquire().await });
            if tasks.len() == 500 || lock + 1 == locks {
                while let Some(guard) = tasks.join_next().await {
                    guards.push(guard??);
                }
            }
        }
        Ok(guards)
    })
}

/// The share of a core, in per cent, that each process uses while the locks are renewed.
fn cpu_shares(
    scale: Scale,
    runtime: &Runtime,
    guards: &[Guard],
    processes: [Option<u32>; 2],
) -> Outcome<[f64; 2]> {
    // The first renewals come all at once, like the acquisitions, and are not counted.
    runtime.block_on(async { tokio::time::sleep(Duration::from_secs(2)).await });
    let used = || -> Outcome<Vec<Duration>> {
        processes.iter().map(|pid| pid.map_or(Ok(Duration::ZERO), cpu_of)).collect()
    };
    let (start, before) = (Instant::now(), used()?);
    runtime.block_on(async { tokio::time::sleep(scale.time(OBSERVED)).await });
    let (elapsed, after) = (start.elapsed().as_secs_f64(), used()?);
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    if lost > 0 {
        return Err(format!("{lost} of {} locks were lost", guards.len()).into());
    }
    Ok(std::array::from_fn(|n| (after[n] - before[n]).as_secs_f64() / elapsed * 100.0))
}
