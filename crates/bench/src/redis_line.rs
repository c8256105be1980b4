//! A lock on Redis that goes from waiter to waiter, in several processes.
//!
//! Every hold writes down its token and when it began and let go, by the clock that processes
//! share. Put in the order of the tokens, that gives the time of each hand-off.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tenure_testkit::RedisServer;

use crate::Outcome;
use crate::handoff::stay_on;
use crate::peer::Peer;
use crate::redis::{Bare, connect, runtime, skip};
use crate::table::{Row, median};

const PROCESSES: usize = 4;
const WATCHED: Duration = Duration::from_secs(3);
const LOCK: &str = "line";

/// Microseconds that the server may spend in scripts for one turn: to queue, and to hand over.
const LIMIT: f64 = 60.0;

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    let mut first = None;
    for (waiters, name) in [(2, "2"), (100, "100"), (10_000, "10,000")] {
        stay_on(0)?;
        let server = RedisServer::start(&[])?;
        stay_on(1)?;
        let base = base(&server)?;
        let plain = plain_lock(&server)?;
        let (time, calls, micros) = line(&server, waiters)?;
        rows.push(Row::of_times(
            format!("redis: hand-off among {name} waiters"),
            time,
            "a round trip and a push over bare sockets",
            base,
            Some(1.5),
        ));
        let few = *first.get_or_insert(calls);
        rows.push(Row {
            what: format!("redis: commands in the server for each, among {name}"),
            ours: calls,
            against: "among 2".into(),
            theirs: few,
            unit: "calls",
            bound: Some(1.1),
            reason: "among 2 the line is often empty, and such a turn takes fewer calls",
        });
        let spent = |against: &str, theirs, bound| Row {
            what: format!("redis: time in scripts for each, among {name}"),
            ours: micros,
            against: against.into(),
            theirs,
            unit: "us",
            bound,
            reason: "",
        };
        rows.push(spent("the limit", LIMIT, Some(1.0)));
        rows.push(spent("what Redisson's plain lock sends, by one bare client", plain, None));
    }
    Ok(rows)
}

/// The median hand-off, and how many calls and microseconds in scripts the server counted for each.
fn line(server: &RedisServer, waiters: usize) -> Outcome<(Duration, f64, f64)> {
    let folder = tempfile::tempdir()?;
    let processes = PROCESSES.min(waiters);
    let mut peers = Vec::new();
    for number in 0..processes {
        let mut peer = Peer::start("redis-line", server.port().to_string())?;
        let record = folder.path().join(number.to_string());
        peer.order(&format!("{} {}", waiters / processes, record.display()))?;
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
    std::thread::sleep(WATCHED);
    let (until, after) = (clock(), (calls(server)?, in_scripts(server)?));
    let mut holds = Vec::new();
    for (number, mut peer) in peers.into_iter().enumerate() {
        peer.order("stop")?;
        peer.reply()?;
        for line in std::fs::read_to_string(folder.path().join(number.to_string()))?.lines() {
            let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
            holds.push(<[u64; 3]>::try_from(numbers?).map_err(|_| "a record makes no sense")?);
        }
    }
    holds.sort_unstable();
    holds.retain(|[_, began, _]| (from..until).contains(began));
    let times: Vec<Duration> = holds
        .windows(2)
        .map(|pair| Duration::from_nanos(pair[1][1].saturating_sub(pair[0][2])))
        .collect();
    if times.len() < 1_000 {
        return Err(format!("only {} hand-offs in {WATCHED:?}", times.len()).into());
    }
    let each = |sum: u64| sum as f64 / holds.len() as f64;
    Ok((median(times), each(after.0 - before.0), each(after.1 - before.1)))
}

/// Microseconds that the server has spent in scripts.
fn in_scripts(server: &RedisServer) -> Outcome<u64> {
    let stats = server.command(&["INFO", "commandstats"])?;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let micros = line.and_then(|line| line.split_once("usec=")?.1.split(',').next()?.parse().ok());
    micros.ok_or_else(|| "no script was run".into())
}

/// Microseconds in scripts for one contended turn of Redisson's plain lock, by the commands that it
/// sends: an attempt, another behind the subscription, the release, and the attempt that succeeds.
fn plain_lock(server: &RedisServer) -> Outcome<f64> {
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

/// A command as it goes over the wire.
fn encode(words: &[&str]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    command.into_bytes()
}

/// All calls that the server has counted.
fn calls(server: &RedisServer) -> Outcome<u64> {
    let stats = server.command(&["INFO", "commandstats"])?;
    let counts = stats
        .lines()
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    Ok(counts.sum())
}

/// Nanoseconds on the clock that all processes share.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The medians of a bare round trip and of a bare push, together.
fn base(server: &RedisServer) -> Outcome<Duration> {
    const TIMES: usize = 4_000;
    let mut publisher = Bare::connect(server.port())?;
    let subscriber = TcpStream::connect(("127.0.0.1", server.port()))?;
    let mut hears = BufReader::new(subscriber.try_clone()?);
    (&subscriber).write_all(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n")?;
    skip(&mut hears)?;
    let heard = Arc::new(Mutex::new(Vec::with_capacity(TIMES)));
    let listener = std::thread::spawn({
        let heard = Arc::clone(&heard);
        move || {
            for _ in 0..TIMES {
                // An array of three strings, each with its length before it.
                let mut line = String::new();
                for _ in 0..7 {
                    line.clear();
                    let _ = hears.read_line(&mut line);
                }
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(clock());
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
    listener.join().map_err(|_| "the listener broke")?;
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    let pushes = heard.iter().zip(&sent).map(|(heard, sent)| heard.saturating_sub(*sent));
    Ok(median(trips) + median(pushes.map(Duration::from_nanos).collect()))
}

/// A process full of waiters: `<how many> <where to write>`, then anything to stop.
pub(crate) fn serve(port: &str) -> Outcome<()> {
    let runtime = runtime(1)?;
    let client = connect(&runtime, port.parse()?, true)?;
    let mut order = String::new();
    std::io::stdin().read_line(&mut order)?;
    let (waiters, record) = order.trim_end().split_once(' ').ok_or("an order has two words")?;
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
    // Those who still wait end with the process, and their places by themselves.
    std::process::exit(0);
}
