//! Redis: the overhead of tenure over the commands that it sends. The baseline sends the same bytes,
//! recorded from tenure's own connection, over a bare socket.

use std::time::{Duration, Instant};

use tenure_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::machine::pin_to_core;
use crate::machine::runtime;
use crate::redis_wire::{Bare, connect, recorded_pair};
use crate::table::{Row, median};

const ROUNDS: usize = 9;
const PAIRS: usize = 4_000;

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let cores = std::thread::available_parallelism()?.get();
    let mut rows = Vec::new();
    for (core, cores_used, bound) in [(1, "two cores", Some(1.1)), (0, "one core", Some(1.25))] {
        if core >= cores {
            continue;
        }
        // The server inherits the core.
        pin_to_core(0)?;
        let server = RedisServer::start(&[])?;
        pin_to_core(core)?;
        let runtime = runtime(1)?;
        for (fencing, kind) in [(true, ""), (false, " unfenced")] {
            let (ours, theirs) = free_pair(&server, &runtime, fencing)?;
            let what = format!("redis: acquire + release{kind}, free, one task, {cores_used}");
            let against = "the same two commands over a bare socket";
            rows.push(Row::of_times(what, ours, against, theirs, bound));
        }
    }
    Ok(rows)
}

/// The medians of an acquire and release through tenure, and of the same bytes over a bare socket.
fn free_pair(
    server: &RedisServer,
    runtime: &Runtime,
    fencing: bool,
) -> Outcome<(Duration, Duration)> {
    let commands = recorded_pair(server, runtime, fencing)?;
    let client = connect(runtime, server.port(), fencing)?;
    let mut bare = Bare::connect(server.port())?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mutex = client.mutex("bench")?;
        let round = async move {
            let mut times = Vec::with_capacity(PAIRS);
            for _ in 0..PAIRS {
                let start = Instant::now();
                mutex.acquire().await?.release().await?;
                times.push(start.elapsed());
            }
            Ok::<_, tenure_core::Error>(times)
        };
        ours.extend(runtime.block_on(runtime.spawn(round))??);
        for _ in 0..PAIRS {
            let start = Instant::now();
            for command in &commands {
                bare.round_trip(command)?;
            }
            theirs.push(start.elapsed());
        }
    }
    Ok((median(ours), median(theirs)))
}
