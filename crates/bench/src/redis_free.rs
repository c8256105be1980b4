//! Redis: the overhead of tenure over the commands that it sends. The baseline sends the same bytes,
//! recorded from tenure's own connection, over a bare socket.

use tenure_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::figure::Samples;
use crate::machine::pin_to_core;
use crate::machine::runtime;
use crate::redis_wire::{Bare, connect, recorded_pair};
use crate::scale::Scale;
use crate::table::Row;
use crate::timing::{each, pairs};

const ROUNDS: usize = 9;
const PAIRS: usize = 4_000;

pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
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
            let (ours, theirs) = free_pair(scale, &server, &runtime, fencing)?;
            let what = format!("redis: acquire + release{kind}, free, one task, {cores_used}");
            let against = "the same two commands over a bare socket";
            rows.push(Row::of_times(what, &ours, against, &theirs, bound));
        }
    }
    Ok(rows)
}

/// The times of an acquire and release through tenure, and of the same bytes over a bare socket.
fn free_pair(
    scale: Scale,
    server: &RedisServer,
    runtime: &Runtime,
    fencing: bool,
) -> Outcome<(Samples, Samples)> {
    let commands = recorded_pair(server, runtime, fencing)?;
    let client = connect(runtime, server.port(), fencing)?;
    let mut bare = Bare::connect(server.port())?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..scale.rounds(ROUNDS) {
        let mutex = client.mutex("bench")?;
        let count = scale.count(PAIRS);
        let round = async move { pairs(&mutex, count).await };
        ours.add(runtime.block_on(runtime.spawn(round))??);
        let both = async || commands.iter().try_for_each(|command| bare.round_trip(command));
        theirs.add(runtime.block_on(each(count, both))?);
    }
    Ok((ours, theirs))
}
