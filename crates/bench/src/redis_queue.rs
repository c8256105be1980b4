//! Redis: what hand-offs among waiters in several processes cost the server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_testkit::RedisServer;

use crate::Outcome;
use crate::figure::{Figure, Samples};
use crate::machine::pin_to_core;
use crate::queue::{self, clock};
use crate::redis_wire::{Bare, skip};
use crate::scale::Scale;
use crate::table::{Row, grouped};

/// The acceptable time in scripts, in microseconds, for one turn: to queue, and to hand over.
const LIMIT: f64 = 60.0;

pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    let mut first = None;
    for waiters in [2, 100, 10_000] {
        if scale.is_quick && waiters > 100 {
            continue;
        }
        let name = grouped(waiters);
        pin_to_core(0)?;
        let server = RedisServer::start(&[])?;
        pin_to_core(1)?;
        let base = bare_round_trip_and_push(&server)?;
        let redisson = redisson_lock(&server)?;
        let url = format!("redis://127.0.0.1:{}", server.port());
        let used = || Ok([calls(&server)?, in_scripts(&server)?].map(|sum| sum as f64));
        let seen = queue::observe(scale, &url, waiters, used, || Ok(0))?;
        let [first_used, last_used] = seen.values;
        let [calls, micros] = [0, 1].map(|at| seen.per_hold(last_used[at] - first_used[at]));
        let turn = Figure::once(base);
        rows.push(
            Row::time(format!("redis: hand-off among {name} tasks"), seen.hand_offs.median())
                .limit("a round trip and a push over bare sockets", turn, Some(1.5)),
        );
        let few = *first.get_or_insert(calls);
        let what = format!("redis: commands per hand-off among {name} tasks");
        rows.push(
            Row::new(what, "calls", Figure::once(calls))
                .limit("among 2", Figure::once(few), Some(1.1))
                .because(
                    "among 2 the queue is often empty, and such a hand-off takes fewer commands",
                ),
        );
        let what = format!("redis: time in scripts per hand-off among {name} tasks");
        rows.push(
            Row::time(what, Figure::once(micros))
                .peer("Redisson's scripts, by one bare client", Figure::once(redisson))
                .limit("the limit", Figure::once(LIMIT), Some(1.0))
                .because(
                    "Redisson's plain lock keeps no queue, gives no token, and wakes all that wait",
                ),
        );
    }
    Ok(rows)
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

/// The sum of the medians, in microseconds, of a bare round trip and of a bare push message.
fn bare_round_trip_and_push(server: &RedisServer) -> Outcome<f64> {
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
    let pushes = pushes.map(Duration::from_nanos).collect();
    let median = |times| Samples::in_parts(times, 1).median().value;
    Ok(median(trips) + median(pushes))
}
