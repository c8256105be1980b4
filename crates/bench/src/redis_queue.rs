//! Redis: hand-offs among waiters in several processes.
//!
//! Every holder records its token, and when it got and released the lock, by the clock that all
//! processes share. Sorted by token, these records give the time of each hand-off.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tenure_testkit::RedisServer;

use crate::Outcome;
use crate::machine::pin_to_core;
use crate::machine::runtime;
use crate::peer::Peer;
use crate::redis_wire::{Bare, connect, skip};
use crate::table::{Row, median};

const PROCESSES: usize = 4;
const OBSERVED: Duration = Duration::from_secs(3);
const LOCK: &str = "queue";

/// The acceptable time in scripts, in microseconds, for one turn: to queue, and to hand over.
const LIMIT: f64 = 60.0;

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    let mut first = None;
    for (waiters, name) in [(2, "2"), (100, "100"), (10_000, "10,000")] {
        pin_to_core(0)?;
        let server = RedisServer::start(&[])?;
        pin_to_core(1)?;
        let base = bare_round_trip_and_push(&server)?;
        let redisson = redisson_lock(&server)?;
        let (time, calls, micros) = hand_offs(&server, waiters)?;
        rows.push(Row::of_times(
            format!("redis: hand-off among {name} waiters"),
            time,
            "a round trip and a push over bare sockets",
            base,
            Some(1.5),
        ));
        let few = *first.get_or_insert(calls);
        rows.push(Row {
            what: format!("redis: commands per hand-off among {name} waiters"),
            ours: calls,
            against: "among 2".into(),
            theirs: few,
            unit: "calls",
            bound: Some(1.1),
        });
        let spent = |against: &str, theirs, bound| Row {
            what: format!("redis: time in scripts per hand-off among {name} waiters"),
            ours: micros,
            against: against.into(),
            theirs,
            unit: "us",
            bound,
        };
        rows.push(spent("the limit", LIMIT, Some(1.0)));
        rows.push(spent("the scripts of Redisson's lock, by one bare client", redisson, None));
    }
    Ok(rows)
}

/// The median time of a hand-off, and the calls and the microseconds in scripts per hand-off.
fn hand_offs(server: &RedisServer, waiters: usize) -> Outcome<(Duration, f64, f64)> {
    let directory = tempfile::tempdir()?;
    let processes = PROCESSES.min(waiters);
    let mut peers = Vec::new();
    for number in 0..processes {
        let mut peer = Peer::start("redis-queue", server.port().to_string())?;
        let record = directory.path().join(number.to_string());
        peer.send(&format!("{} {}", waiters / processes, record.display()))?;
        peers.push(peer);
    }
    let queue = format!("tenure:{{tenure:{LOCK}}}:line");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        let length: usize = server.command(&["ZCARD", &queue])?.parse().unwrap_or(0);
        if length + processes >= waiters {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    let (from, before) = (clock(), (calls(server)?, in_scripts(server)?));
    std::thread::sleep(OBSERVED);
    let (until, after) = (clock(), (calls(server)?, in_scripts(server)?));
    let mut holds = Vec::new();
    for (number, mut peer) in peers.into_iter().enumerate() {
        peer.send("stop")?;
        peer.reply()?;
        for line in std::fs::read_to_string(directory.path().join(number.to_string()))?.lines() {
            let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
            holds.push(
                <[u64; 3]>::try_from(numbers?).map_err(|_| "a record has not three numbers")?,
            );
        }
    }
    holds.sort_unstable();
    holds.retain(|[_, began, _]| (from..until).contains(began));
    let times: Vec<Duration> = holds
        .windows(2)
        .map(|pair| Duration::from_nanos(pair[1][1].saturating_sub(pair[0][2])))
        .collect();
    if times.len() < 1_000 {
        return Err(format!("only {} hand-offs in {OBSERVED:?}", times.len()).into());
    }
    let per_hold = |sum: u64| sum as f64 / holds.len() as f64;
    Ok((median(times), per_hold(after.0 - before.0), per_hold(after.1 - before.1)))
}

/// The time that the server has spent in scripts, in microseconds.
fn in_scripts(server: &RedisServer) -> Outcome<u64> {
    let stats = server.command(&["INFO", "commandstats"])?;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let micros = line.and_then(|line| line.split_once("usec=")?.1.split(',').next()?.parse().ok());
    micros.ok_or_else(|| "the server has run no script".into())
}

/// The time in scripts, in microseconds, for one contended turn of Redisson's lock, with the commands
/// that it sends: an attempt, another one after the subscription, the release, and the attempt that
/// succeeds.
fn redisson_lock(server: &RedisServer) -> Outcome<f64> {
    const TIMES: usize = 4_000;
    const ATTEMPT: &str = "if redis.call('exists', KEYS[1]) == 0 or \
        redis.call('hexists', KEYS[1], ARGV[2]) == 1 then \
        redis.call('hincrby', KEYS[1], ARGV[2], '1') redis.call('pexpire', KEYS[1], ARGV[1]) \
        return nil end return redis.call('pttl', KEYS[1])";
    const RELEASE: &str = "if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then return nil end \
        if redis.call('hincrby', KEYS[1], ARGV[3], '-1') > 0 then \
        redis.call('pexpire', KEYS[1], ARGV[2]) return 0 end \
        redis.call('del', KEYS[1]) redis.call('publish', KEYS[2], ARGV[1]) return 1";
    let [attempt, release] =
        [ATTEMPT, RELEASE].map(|script| server.command(&["SCRIPT", "LOAD", script]));
    let (attempt, release) = (attempt?, release?);
    let owners = [1, 2].map(|number| format!("00000000-0000-0000-0000-00000000000{number}:1"));
    let [attempts, releases] = [
        owners.each_ref().map(|owner| encode(&["EVALSHA", &attempt, "1", "plain", "30000", owner])),
        owners.each_ref().map(|owner| {
            encode(&["EVALSHA", &release, "2", "plain", "plain:channel", "0", "30000", owner])
        }),
    ];
    let mut bare = Bare::connect(server.port())?;
    bare.round_trip(&attempts[0])?;
    let before = in_scripts(server)?;
    for turn in 0..TIMES {
        let (holder, waiter) = (turn % 2, (turn + 1) % 2);
        bare.round_trip(&attempts[waiter])?;
        bare.round_trip(&attempts[waiter])?;
        bare.round_trip(&releases[holder])?;
        bare.round_trip(&attempts[waiter])?;
    }
    Ok((in_scripts(server)? - before) as f64 / TIMES as f64)
}

/// A command in the wire format.
fn encode(words: &[&str]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    command.into_bytes()
}

/// The number of commands that the server has executed.
fn calls(server: &RedisServer) -> Outcome<u64> {
    let stats = server.command(&["INFO", "commandstats"])?;
    let counts = stats
        .lines()
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    Ok(counts.sum())
}

/// The time in nanoseconds, by the clock that all processes share.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The sum of the medians of a bare round trip and of a bare push message.
fn bare_round_trip_and_push(server: &RedisServer) -> Outcome<Duration> {
    const TIMES: usize = 4_000;
    let mut publisher = Bare::connect(server.port())?;
    let subscriber = TcpStream::connect(("127.0.0.1", server.port()))?;
    let mut messages = BufReader::new(subscriber.try_clone()?);
    (&subscriber).write_all(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n")?;
    skip(&mut messages)?;
    let received = Arc::new(Mutex::new(Vec::with_capacity(TIMES)));
    let listener = std::thread::spawn({
        let received = Arc::clone(&received);
        move || {
            for _ in 0..TIMES {
                // An array of three strings, each preceded by its length.
                let mut line = String::new();
                for _ in 0..7 {
                    line.clear();
                    let _ = messages.read_line(&mut line);
                }
                received.lock().unwrap_or_else(PoisonError::into_inner).push(clock());
            }
        }
    });
    let (mut trips, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let start = Instant::now();
        publisher.round_trip(b"*1\r\n$4\r\nPING\r\n")?;
        trips.push(start.elapsed());
        sent.push(clock());
        publisher.round_trip(b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$1\r\nx\r\n")?;
    }
    listener.join().map_err(|_| "the thread of the subscriber panicked")?;
    let received = received.lock().unwrap_or_else(PoisonError::into_inner);
    let pushes = received.iter().zip(&sent).map(|(received, sent)| received.saturating_sub(*sent));
    Ok(median(trips) + median(pushes.map(Duration::from_nanos).collect()))
}

/// The peer: reads `WAITERS FILE`, runs the waiters until it reads another line, and writes their
/// records to the file.
pub(crate) fn run_peer(port: &str) -> Outcome<()> {
    let runtime = runtime(1)?;
    let client = connect(&runtime, port.parse()?, true)?;
    let mut request = String::new();
    std::io::stdin().read_line(&mut request)?;
    let (waiters, record) = request.trim_end().split_once(' ').ok_or("a request has two words")?;
    let holds = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..waiters.parse::<usize>()? {
        let (mutex, holds) = (client.mutex(LOCK)?, Arc::clone(&holds));
        let work = async move {
            while let Ok(guard) = mutex.acquire().await {
                let began = clock();
                let token = guard.token().map_or(0, |token| token.get());
                holds.lock().unwrap_or_else(PoisonError::into_inner).push((token, began, clock()));
                let _ = guard.release().await;
            }
        };
        tasks.spawn_on(work, runtime.handle());
    }
    let (stop, stopped) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        let _ = stop.send(());
    });
    let _ = runtime.block_on(stopped);
    let mut file = std::io::BufWriter::new(std::fs::File::create(record)?);
    for (token, began, ended) in holds.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        writeln!(file, "{token} {began} {ended}")?;
    }
    file.flush()?;
    println!("0");
    // The claims that still wait end with this process.
    std::process::exit(0);
}
