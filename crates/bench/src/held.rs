//! What held locks cost while they are renewed: CPU time and memory of both sides.
//!
//! The holders are processes of their own, which end with the measurement: guards in this process would go on
//! to be renewed beside the scenarios after it.

use std::time::{Duration, Instant};

use tenure::{Client, Guard, Options};

use crate::Outcome;
use crate::contest::Contest;
use crate::figure::Figure;
use crate::machine::{cpu_of, memory_of, pin_to_core, runtime, unpin};
use crate::peer::Peer;
use crate::scale::Scale;
use crate::table::{Row, grouped};

/// A lock is renewed every ten seconds.
const TTL: Duration = Duration::from_secs(30);
/// The time of a renewal of each lock.
const OBSERVED: Duration = Duration::from_secs(10);
/// The first renewals come all at once, like the acquisitions, and are not counted.
const SETTLED: Duration = Duration::from_secs(2);

/// Holds 1,000, 10,000 and, where `most` allows it, 100,000 locks in one process; and 10,000 in a hundred.
pub(crate) fn measure(contest: &Contest, scale: Scale, most: usize) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for (processes, locks) in [(1, 1_000), (1, 10_000), (100, 10_000), (1, 100_000)] {
        if locks <= most && !(scale.is_quick && (locks > 10_000 || processes > 1)) {
            rows.extend(hold_many(contest, scale, processes, locks)?);
        }
    }
    Ok(rows)
}

fn hold_many(contest: &Contest, scale: Scale, processes: usize, locks: usize) -> Outcome<Vec<Row>> {
    pin_to_core(0)?;
    let server = contest.start_server()?;
    if server.pid().is_some() {
        pin_to_core(1)?;
    }
    let memory_of_server = || server.pid().map_or(Ok(0), memory_of);
    let alone = memory_of_server()?;
    let mut holders = Vec::new();
    for _ in 0..processes {
        holders.push(Peer::start("holder", contest.url(&server))?);
    }
    unpin()?;
    for holder in &mut holders {
        // It is connected.
        holder.reply()?;
    }
    let clients: Vec<u32> = holders.iter().map(Peer::pid).collect();
    let sides = [clients, server.pid().into_iter().collect()];
    let memory = || both(&sides, |pid| Ok(memory_of(pid)? as f64));
    let before = memory()?;
    for holder in &mut holders {
        holder.send(&(locks / processes).to_string())?;
    }
    let mut held = 0;
    for holder in &mut holders {
        held += holder.reply()?;
    }
    let after = memory()?;
    std::thread::sleep(SETTLED);
    let used = || both(&sides, |pid| Ok(cpu_of(pid)?.as_secs_f64()));
    let (start, first) = (Instant::now(), used()?);
    std::thread::sleep(scale.time(OBSERVED));
    let (elapsed, last) = (start.elapsed().as_secs_f64(), used()?);
    let mut valid = 0;
    for holder in &mut holders {
        holder.send("look")?;
        valid += holder.reply()?;
    }
    if (held, valid) != (locks as u64, locks as u64) {
        return Err(format!("of {locks} locks, {held} were taken and {valid} kept").into());
    }
    let memory = [0, 1].map(|side| (after[side] - before[side]).max(0.0) / locks as f64);
    let shares = [0, 1].map(|side| (last[side] - first[side]) / elapsed * 100.0);
    let mut rows = rows(contest, processes, locks, server.pid().is_some(), memory, shares);
    if processes > 1 {
        let engine = contest.engine;
        let each = |bytes: f64| Figure::once(bytes / processes as f64);
        let what = |side| {
            format!("{engine}: {processes} connected clients, memory of the {side} for each")
        };
        rows.push(Row::new(what("process"), "bytes", each(before[0])));
        if server.pid().is_some() {
            rows.push(Row::new(what("server"), "bytes", each((before[1] - alone as f64).max(0.0))));
        }
    }
    Ok(rows)
}

/// A value of the clients together, and of the server.
fn both(sides: &[Vec<u32>; 2], of: impl Fn(u32) -> Outcome<f64>) -> Outcome<[f64; 2]> {
    let sum = |pids: &Vec<u32>| pids.iter().map(|pid| of(*pid)).sum::<Outcome<f64>>();
    Ok([sum(&sides[0])?, sum(&sides[1])?])
}

fn rows(
    contest: &Contest,
    processes: usize,
    locks: usize,
    has_server: bool,
    memory: [f64; 2],
    shares: [f64; 2],
) -> Vec<Row> {
    let engine = contest.engine;
    let among = if processes > 1 { format!(" in {processes} processes") } else { String::new() };
    let held = format!("{} locks held{among}", grouped(locks));
    let mut rows = Vec::new();
    for (side, name) in ["client", "server"].into_iter().enumerate() {
        if side == 1 && !has_server {
            continue;
        }
        let share = Figure::once(shares[side]);
        // Of a core; for as many locks as are in the bound.
        let bound = (locks == 100_000).then_some(1.0);
        let row = Row::new(format!("{engine}: {held}, none lost, {name} CPU"), "%", share)
            .limit("a tenth of a core", Figure::once(10.0), bound)
            .because(contest.held);
        rows.push(match processes {
            1 => row.at(format!("{engine}: {name} CPU for held locks"), "locks held", locks as f64),
            _ => row,
        });
        let what = format!("{engine}: {held}, memory of the {name} for each");
        rows.push(Row::new(what, "bytes", Figure::once(memory[side])));
    }
    rows
}

async fn hold(client: &Client, locks: usize) -> Outcome<Vec<Guard>> {
    let mut guards: Vec<Guard> = Vec::with_capacity(locks);
    let mut tasks = tokio::task::JoinSet::new();
    for lock in 0..locks {
        let name = format!("held-{}-{lock}", std::process::id());
        let mutex = client.mutex(&name)?.with(Options::new().ttl(TTL));
        tasks.spawn(async move { mutex.acquire().await });
        if tasks.len() == 500 || lock + 1 == locks {
            while let Some(guard) = tasks.join_next().await {
                guards.push(guard??);
            }
        }
    }
    Ok(guards)
}

/// The peer: connects and prints a line; reads how many locks to take, and prints how many it holds; and for
/// each later line, how many it has not lost.
pub(crate) fn run_peer(url: &str) -> Outcome<()> {
    runtime(1)?.block_on(serve(url))
}

async fn serve(url: &str) -> Outcome<()> {
    let client = tenure::connect(url).await?;
    // Whatever a first lock needs is there.
    let first = client.mutex(&format!("first-{}", std::process::id()))?;
    first.acquire().await?.release().await?;
    println!("0");
    let mut guards = Vec::new();
    while let Some(line) = line().await? {
        if let Ok(locks) = line.parse() {
            guards = hold(&client, locks).await?;
        }
        println!("{}", guards.iter().filter(|guard| guard.is_valid()).count());
    }
    // The locks end with this process, or with the server: releasing all of them would take long.
    std::process::exit(0)
}

/// The next line of the standard input, while the tasks of the runtime go on.
pub(crate) async fn line() -> Outcome<Option<String>> {
    Ok(tokio::task::spawn_blocking(|| std::io::stdin().lines().next().transpose()).await??)
}
