//! What it costs to watch 10,000 held locks from another process.

use std::time::{Duration, Instant};

use tenure::WatchEvent;

use crate::Outcome;
use crate::contest::{Contest, ETCD, LOCAL, REDIS, ZOOKEEPER};
use crate::figure::Figure;
use crate::held::line;
use crate::machine::{cpu_of, pin_to_core, runtime, unpin};
use crate::peer::Peer;
use crate::scale::Scale;
use crate::table::{Row, grouped};

const LOCKS: usize = 10_000;
const OBSERVED: Duration = Duration::from_secs(6);

/// The CPU time of the watching process, and what it adds to that of the server.
pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for contest in [&LOCAL, &REDIS, &ETCD, &ZOOKEEPER] {
        rows.extend(watch(contest, scale)?);
    }
    Ok(rows)
}

fn watch(contest: &Contest, scale: Scale) -> Outcome<Vec<Row>> {
    let locks = scale.count(LOCKS);
    pin_to_core(0)?;
    let server = contest.start_server()?;
    if server.pid().is_some() {
        pin_to_core(1)?;
    }
    let url = contest.url(&server);
    let mut holder = Peer::start("holder", &url)?;
    holder.reply()?;
    holder.send(&locks.to_string())?;
    holder.reply()?;
    let share = |pid: Option<u32>| -> Outcome<f64> {
        let used = || pid.map_or(Ok(Duration::ZERO), cpu_of);
        let (start, before) = (Instant::now(), used()?);
        std::thread::sleep(scale.time(OBSERVED));
        Ok((used()?.saturating_sub(before)).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
    };
    let without = share(server.pid())?;
    let mut watcher = Peer::start("watcher", &url)?;
    unpin()?;
    let start = Instant::now();
    let seen = watcher.reply()?;
    let snapshot = start.elapsed();
    if seen != locks as u64 {
        return Err(format!("{}: the snapshot has {seen} of {locks} locks", contest.engine).into());
    }
    // Both sides at once: the samples go on.
    let (begin, before) = (Instant::now(), cpu_of(watcher.pid())?);
    let with = share(server.pid())?;
    let used = (cpu_of(watcher.pid())?.saturating_sub(before)).as_secs_f64();
    let own = used / begin.elapsed().as_secs_f64() * 100.0;
    let (engine, held) = (contest.engine, grouped(locks));
    let what = |side: &str| format!("{engine}: {held} locks watched, {side}");
    let mut rows = vec![
        Row::time(what("start to snapshot"), Figure::once(snapshot.as_secs_f64() * 1e6)),
        Row::new(what("CPU of the watcher"), "%", Figure::once(own)),
    ];
    if server.pid().is_some() {
        let more = Figure::once((with - without).max(0.0));
        rows.push(Row::new(what("more CPU of the server"), "%", more));
    }
    Ok(rows)
}

/// The peer: prints the number of locks in the first snapshot, and watches until its input ends.
pub(crate) fn run_peer(url: &str) -> Outcome<()> {
    let runtime = runtime(1)?;
    let outcome = runtime.block_on(follow(url));
    // The thread that reads the input may still do so.
    runtime.shutdown_background();
    outcome
}

async fn follow(url: &str) -> Outcome<()> {
    let client = tenure::connect(url).await?;
    let mut watch = client.watch("held-");
    let mut ended = std::pin::pin!(line());
    loop {
        tokio::select! {
            event = watch.next() => {
                if let WatchEvent::Snapshot(locks) = event? {
                    println!("{}", locks.len());
                }
            }
            // Ends the process, and with it the connections.
            ended = &mut ended => return ended.map(drop),
        }
    }
}
