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

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    let mut first = None;
    for (waiters, name) in [(2, "2"), (100, "100"), (10_000, "10,000")] {
        stay_on(0)?;
        let server = RedisServer::start(&[])?;
        stay_on(1)?;
        let base = base(&server)?;
        let (time, calls) = line(&server, waiters)?;
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
        });
    }
    Ok(rows)
}

/// The median hand-off, and how many calls the server counted for each.
fn line(server: &RedisServer, waiters: usize) -> Outcome<(Duration, f64)> {
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
    let (from, before) = (clock(), calls(server)?);
    std::thread::sleep(WATCHED);
    let (until, after) = (clock(), calls(server)?);
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
    Ok((median(times), (after - before) as f64 / holds.len() as f64))
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
