//! A crowd of readers behind a writer on Redis: what their admission costs everybody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::handoff::stay_on;
use crate::peer::Peer;
use crate::redis::{Bare, connect, runtime};
use crate::table::Row;

const READERS: usize = 10_000;
const PROCESSES: usize = 4;
const LOCK: &str = "crowd";

/// The longest that another call may wait.
const LIMIT: Duration = Duration::from_millis(10);

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    stay_on(0)?;
    let server = RedisServer::start(&[])?;
    stay_on(1)?;
    let runtime = runtime(1)?;
    let client = connect(&runtime, server.port(), true)?;
    let writer = runtime.block_on(client.rw_lock(LOCK)?.write())?;
    let mut peers = Vec::new();
    for _ in 0..PROCESSES {
        let mut peer = Peer::start("redis-crowd", server.port().to_string())?;
        peer.order(&(READERS / PROCESSES).to_string())?;
        peers.push(peer);
    }
    let line = format!("tenure:{{tenure:{LOCK}}}:line");
    let start = Instant::now();
    while server.command(&["ZCARD", &line])? != READERS.to_string() {
        if start.elapsed() > Duration::from_secs(60) {
            return Err("the readers do not get in line".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Whatever takes a millisecond is written down.
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
    let waited = other.join().map_err(|_| "the other client broke")??;
    let information = |what: &str, time| {
        let what = format!("redis: {READERS} readers behind a writer: {what}");
        Row::of_times(what, time, "the limit", LIMIT, None)
    };
    let mut rows = vec![
        information("until all hold", admitted),
        information("the longest command in the server", slowest(&server)?),
    ];
    let mut longest = information("the longest that another call waits", waited);
    longest.bound = Some(1.0);
    rows.push(longest);
    Ok(rows)
}

/// How long the slowest of another client's calls took. It is on the server's core, where only the
/// server is in its way.
fn other_calls(port: u16, over: &AtomicBool) -> Outcome<Duration> {
    stay_on(0)?;
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
    // Each entry begins with its number, the time of day and the microseconds it took.
    let lines: Vec<&str> = log.lines().collect();
    let times = lines.windows(4).filter_map(|lines| {
        let numbers = lines[..3].iter().map(|line| line.parse::<u64>());
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        (numbers[1] > 1_000_000_000 && !lines[3].starts_with(char::is_numeric)).then(|| numbers[2])
    });
    Ok(Duration::from_micros(times.max().unwrap_or(1000)))
}

/// A process full of readers, `<how many>`: says when all of them hold.
pub(crate) fn serve(port: &str) -> Outcome<()> {
    let runtime = runtime(1)?;
    let client = connect(&runtime, port.parse()?, true)?;
    let mut order = String::new();
    std::io::stdin().read_line(&mut order)?;
    let mut tasks = JoinSet::new();
    for _ in 0..order.trim_end().parse::<usize>()? {
        let lock = client.rw_lock(LOCK)?;
        tasks.spawn_on(async move { lock.read().await }, runtime.handle());
    }
    let mut guards = Vec::new();
    while let Some(guard) = runtime.block_on(tasks.join_next()) {
        guards.push(guard??);
    }
    println!("{}", guards.len());
    // They hold until they are told to end.
    std::io::stdin().read_line(&mut order)?;
    std::process::exit(0);
}
