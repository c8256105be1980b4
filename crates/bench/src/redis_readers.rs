//! Redis: 10,000 readers wait behind a writer. Measures how long their admission delays the calls of
//! other clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::figure::{Figure, micros};
use crate::machine::pin_to_core;
use crate::machine::runtime;
use crate::peer::Peer;
use crate::redis_wire::{Bare, connect};
use crate::scale::Scale;
use crate::table::{Row, grouped};

const READERS: usize = 10_000;
const PROCESSES: usize = 4;
const LOCK: &str = "readers";

/// The longest acceptable delay of another client's call.
const LIMIT: Duration = Duration::from_millis(10);

pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
    let readers = scale.count(READERS);
    pin_to_core(0)?;
    let server = RedisServer::start(&[])?;
    pin_to_core(1)?;
    let runtime = runtime(1)?;
    let client = connect(&runtime, server.port(), true)?;
    let writer = runtime.block_on(client.rw_lock(LOCK)?.write())?;
    let mut peers = Vec::new();
    for _ in 0..PROCESSES {
        let mut peer = Peer::start("redis-readers", server.port().to_string())?;
        peer.send(&(readers / PROCESSES).to_string())?;
        peers.push(peer);
    }
    let queue = format!("tenure:{{tenure:{LOCK}}}:line");
    let start = Instant::now();
    while server.command(&["ZCARD", &queue])? != readers.to_string() {
        if start.elapsed() > Duration::from_secs(60) {
            return Err("the readers do not join the queue".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Logs every command that takes a millisecond or longer.
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"])?;
    server.command(&["SLOWLOG", "RESET"])?;
    let over = Arc::new(AtomicBool::new(false));
    let other = std::thread::spawn({
        let (over, port) = (Arc::clone(&over), server.port());
        move || other_calls(port, &over).map_err(|error| error.to_string())
    });
    let released = Instant::now();
    runtime.block_on(writer.release())?;
    for peer in &mut peers {
        peer.reply()?;
    }
    let admitted = released.elapsed();
    over.store(true, Ordering::SeqCst);
    let waited = other.join().map_err(|_| "the thread of the other client panicked")??;
    let row = |what: &str, time| {
        let what = format!("redis: {} readers behind a writer: {what}", grouped(readers));
        Row::time(what, Figure::once(micros(time)))
    };
    let limit = Figure::once(micros(LIMIT));
    Ok(vec![
        row("time until all hold", admitted),
        row("longest command in the server", slowest(&server)?),
        row("longest delay of another client's call", waited).limit("the limit", limit, Some(1.0)),
    ])
}

/// The time of the slowest call of another client. It runs on the server's core, where it competes
/// only with the server.
fn other_calls(port: u16, over: &AtomicBool) -> Outcome<Duration> {
    pin_to_core(0)?;
    let mut bare = Bare::connect(port)?;
    let mut longest = Duration::ZERO;
    while !over.load(Ordering::SeqCst) {
        let start = Instant::now();
        bare.round_trip(b"*1\r\n$4\r\nPING\r\n")?;
        longest = longest.max(start.elapsed());
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(longest)
}

/// The time of the slowest command, or a millisecond if none was slower.
fn slowest(server: &RedisServer) -> Outcome<Duration> {
    let log = server.command(&["SLOWLOG", "GET", "128"])?;
    // Each entry begins with its number, its time of day and its duration in microseconds.
    let lines: Vec<&str> = log.lines().collect();
    let times = lines.windows(4).filter_map(|lines| {
        let numbers = lines[..3].iter().map(|line| line.parse::<u64>());
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        (numbers[1] > 1_000_000_000 && !lines[3].starts_with(char::is_numeric)).then(|| numbers[2])
    });
    Ok(Duration::from_micros(times.max().unwrap_or(1000)))
}

/// The peer: reads a number of readers, starts them, and prints a line when all of them hold.
pub(crate) fn run_peer(port: &str) -> Outcome<()> {
    let runtime = runtime(1)?;
    let client = connect(&runtime, port.parse()?, true)?;
    let mut request = String::new();
    std::io::stdin().read_line(&mut request)?;
    let mut tasks = JoinSet::new();
    for _ in 0..request.trim_end().parse::<usize>()? {
        let lock = client.rw_lock(LOCK)?;
        tasks.spawn_on(async move { lock.read().await }, runtime.handle());
    }
    let mut guards = Vec::new();
    while let Some(guard) = runtime.block_on(tasks.join_next()) {
        guards.push(guard??);
    }
    println!("{}", guards.len());
    // The readers hold the lock until the input ends.
    std::io::stdin().read_line(&mut request)?;
    std::process::exit(0);
}
