//! Hand-offs among many waiters in several processes, on any engine.
//!
//! Every holder records its token, when it asked for the lock, and when it got and released it, by the clock
//! that all processes share. Sorted by token, these records give the time of each hand-off.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::Outcome;
use crate::contest::Contest;
use crate::figure::{Figure, Samples, micros};
use crate::machine::{cpu_of, memory_of, pin_to_core, runtime, unpin};
use crate::peer::Peer;
use crate::scale::Scale;
use crate::table::{Row, grouped};

const PROCESSES: usize = 4;
const OBSERVED: Duration = Duration::from_secs(3);
/// How long many waiters are observed while they are idle.
const IDLE: Duration = Duration::from_secs(3);
pub(crate) const LOCK: &str = "queue";
/// From this many waiters on, what each of them takes of the memory can be told.
const CROWD: usize = 1_000;

/// What was seen of a queue, and a value of `during` at its beginning and its end.
pub(crate) struct Observed<T> {
    /// From each release to the next holder.
    pub(crate) hand_offs: Samples,
    /// From each request to the hold.
    waits: Samples,
    pub(crate) holds: usize,
    pub(crate) values: [T; 2],
    /// The memory of all clients and, by `memory`, of others: with their waiters, less without.
    memory: [u64; 2],
    /// From the first request until all of them waited.
    arrived: Duration,
    /// The CPU time of all clients while their waiters were idle, as a share of a core in per cent.
    idle: f64,
    /// Bytes that passed the loopback device for each hold.
    bytes: f64,
}

impl<T> Observed<T> {
    /// A share of something for each hold.
    pub(crate) fn per_hold(&self, sum: f64) -> f64 {
        sum / self.holds as f64
    }
}

/// How a hand-off grows with the number of waiters.
pub(crate) fn measure(contest: &Contest, scale: Scale) -> Outcome<Vec<Row>> {
    let engine = contest.engine;
    let mut rows = Vec::new();
    for waiters in [1, 16, 128, 1_024, 10_000] {
        if scale.is_quick && waiters > 1_024 {
            continue;
        }
        pin_to_core(0)?;
        let server = contest.start_server()?;
        if server.pid().is_some() {
            pin_to_core(1)?;
        }
        let cpu = || server.pid().map_or(Ok(Duration::ZERO), cpu_of);
        let memory = || server.pid().map_or(Ok(0), memory_of);
        // One more than wait, because one of them holds.
        let seen = observe(scale, &contest.url(&server), waiters + 1, cpu, memory);
        unpin()?;
        let seen = seen?;
        let name = grouped(waiters);
        let plot = format!("{engine}: a hand-off");
        rows.push(
            Row::time(format!("{engine}: hand-off, {name} waiting"), seen.hand_offs.median()).at(
                plot,
                "waiting",
                waiters as f64,
            ),
        );
        if server.pid().is_some() {
            let used = micros(seen.values[1].saturating_sub(seen.values[0]));
            let what = format!("{engine}: server CPU for a hand-off, {name} waiting");
            let plot = format!("{engine}: server CPU for a hand-off");
            let used = Figure::once(seen.per_hold(used));
            rows.push(Row::time(what, used).at(plot, "waiting", waiters as f64));
        }
        for (share, percent) in [("95 of 100", 95.0), ("99 of 100", 99.0), ("all", 100.0)] {
            let what = format!("{engine}: wait of {share}, at most, {name} waiting");
            let wait = seen.waits.percentile(percent);
            rows.push(Row::time(what, wait).limit("the median wait", seen.waits.median(), None));
        }
        if server.pid().is_some() {
            let what =
                format!("{engine}: bytes over the loopback device for a hand-off, {name} waiting");
            rows.push(Row::new(what, "bytes", Figure::once(seen.bytes)));
        }
        if waiters >= CROWD {
            let what = format!("{engine}: {name} arrive at once, until all of them wait");
            rows.push(Row::time(what, Figure::once(micros(seen.arrived))));
            let what = format!("{engine}: CPU of the clients while {name} waiters are idle");
            rows.push(Row::new(what, "%", Figure::once(seen.idle)));
            let each = |bytes: u64| Figure::once(bytes as f64 / waiters as f64);
            let what =
                |side| format!("{engine}: memory of the {side} for a waiter, {name} waiting");
            rows.push(Row::new(what("clients"), "bytes", each(seen.memory[0])));
            if server.pid().is_some() {
                rows.push(Row::new(what("server"), "bytes", each(seen.memory[1])));
            }
        }
    }
    Ok(rows)
}

/// Lets `count` tasks take one lock in turn, and watches them for a while.
pub(crate) fn observe<T>(
    scale: Scale,
    url: &str,
    count: usize,
    value: impl Fn() -> Outcome<T>,
    memory: impl Fn() -> Outcome<u64>,
) -> Outcome<Observed<T>> {
    let directory = tempfile::tempdir()?;
    let processes = PROCESSES.min(count);
    let mut peers: Vec<Queued> = Vec::new();
    for number in 0..processes {
        let mut peer = Peer::start("queue", url)?;
        // It is connected.
        peer.reply()?;
        // The first ones have one more, so that the sum is right.
        let tasks = count / processes + usize::from(number < count % processes);
        peers.push((peer, tasks, directory.path().join(number.to_string())));
    }
    let clients = || peers.iter().map(|(peer, ..)| memory_of(peer.pid())).sum::<Outcome<u64>>();
    let before = [clients()?, memory()?];
    let observer = runtime(1)?;
    let client = observer.block_on(tenure::connect(url))?;
    // While it is held, all of them arrive.
    let gate = observer.block_on(client.mutex(LOCK)?.acquire())?;
    for (peer, tasks, record) in &mut peers {
        peer.send(&format!("{tasks} {}", record.display()))?;
    }
    let start = Instant::now();
    while observer.block_on(client.inspect(LOCK))?.waiters.len() < count {
        if start.elapsed() > Duration::from_secs(60) {
            return Err("the waiters do not join the queue".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let arrived = start.elapsed();
    let clients = || peers.iter().map(|(peer, ..)| memory_of(peer.pid())).sum::<Outcome<u64>>();
    let after = [clients()?, memory()?];
    let idle = if count > CROWD { idle_share(scale, &peers)? } else { 0.0 };
    observer.block_on(gate.release())?;
    std::thread::sleep(scale.time(Duration::from_secs(1)));
    let (from, first, sent) = (clock(), value()?, loopback_bytes()?);
    std::thread::sleep(scale.time(OBSERVED));
    let (until, last, sent) = (clock(), value()?, loopback_bytes()?.saturating_sub(sent));
    let mut holds = Vec::new();
    for (peer, _, record) in &mut peers {
        peer.send("stop")?;
        peer.reply()?;
        for line in std::fs::read_to_string(record)?.lines() {
            let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
            holds
                .push(<[u64; 4]>::try_from(numbers?).map_err(|_| "a record has not four numbers")?);
        }
    }
    holds.sort_unstable();
    holds.retain(|[_, _, began, _]| (from..until).contains(began));
    let span = |from: u64, until: u64| Duration::from_nanos(until.saturating_sub(from));
    let hand_offs: Vec<Duration> =
        holds.windows(2).map(|pair| span(pair[0][3], pair[1][2])).collect();
    if hand_offs.len() < scale.count(400) {
        return Err(format!("only {} hand-offs", hand_offs.len()).into());
    }
    Ok(Observed {
        hand_offs: Samples::in_parts(hand_offs, 9),
        waits: Samples::in_parts(holds.iter().map(|hold| span(hold[1], hold[2])).collect(), 1),
        holds: holds.len(),
        values: [first, last],
        memory: [0, 1].map(|side| after[side].saturating_sub(before[side])),
        arrived,
        idle,
        bytes: sent as f64 / holds.len() as f64,
    })
}

/// The share of a core, in per cent, that the processes use while all their tasks wait.
fn idle_share(scale: Scale, peers: &[Queued]) -> Outcome<f64> {
    let used = || peers.iter().map(|(peer, ..)| cpu_of(peer.pid())).sum::<Outcome<Duration>>();
    std::thread::sleep(Duration::from_millis(500));
    let (start, before) = (Instant::now(), used()?);
    std::thread::sleep(scale.time(IDLE));
    Ok((used()?.saturating_sub(before)).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
}

/// A process, how many of its tasks take the lock, and the file for its holds.
type Queued = (Peer, usize, PathBuf);

/// The bytes that the loopback device has received, which are those that it has sent.
fn loopback_bytes() -> Outcome<u64> {
    let devices = std::fs::read_to_string("/proc/net/dev")?;
    let counts = devices.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    let bytes = counts.and_then(|counts| counts.split_whitespace().next());
    Ok(bytes.ok_or("no loopback device in /proc/net/dev")?.parse()?)
}

/// The time in nanoseconds, by the clock that all processes share.
pub(crate) fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The peer: connects and prints a line, reads `TASKS FILE`, runs the tasks until it reads another line, and
/// writes their records to the file.
pub(crate) fn run_peer(url: &str) -> Outcome<()> {
    let runtime = runtime(1)?;
    let client = runtime.block_on(tenure::connect(url))?;
    // The first acquisition opens what all later ones use.
    let warm = client.mutex(&format!("{LOCK}-{}", std::process::id()))?;
    runtime.block_on(async { warm.acquire().await?.release().await })?;
    println!("0");
    let mut request = String::new();
    std::io::stdin().read_line(&mut request)?;
    let (count, record) = request.trim_end().split_once(' ').ok_or("a request has two words")?;
    let holds = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..count.parse::<usize>()? {
        let (mutex, holds) = (client.mutex(LOCK)?, Arc::clone(&holds));
        let work = async move {
            let mut asked = clock();
            while let Ok(guard) = mutex.acquire().await {
                let began = clock();
                let token = guard.token().map_or(0, |token| token.get());
                let hold = (token, asked, began, clock());
                holds.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
                let _ = guard.release().await;
                asked = clock();
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
    for (token, asked, began, ended) in holds.lock().unwrap_or_else(PoisonError::into_inner).iter()
    {
        writeln!(file, "{token} {asked} {began} {ended}")?;
    }
    file.flush()?;
    println!("0");
    // The claims that still wait end with this process.
    std::process::exit(0);
}
