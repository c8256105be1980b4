//! Redis: many concurrent tasks, with client and server each on a core of its own, compared with
//! another client and with the limit of the server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rslock::LockManager;
use tenure_core::Client;
use tenure_testkit::{RedisServer, VALKEY_9};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::figure::Samples;
use crate::machine::pin_to_core;
use crate::machine::{cpu_of, runtime};
use crate::redis_wire::{connect, recorded_pair};
use crate::scale::Scale;
use crate::table::{Row, grouped};

const ROUNDS: usize = 7;
const TASKS: usize = 1_024;
/// Acquisitions in each round, by all tasks together.
const PAIRS: usize = 51_200;
const TTL: Duration = Duration::from_secs(30);

/// Why locks with tokens cost a Redis server more.
pub(crate) const TOKEN: &str = "a token needs a script (1.8 us of the server's time if empty) and the server's clock \
                     (TIME, 0.65 us), which keeps tokens rising after a failover";
/// Why few tasks may cost more.
const FEW: &str =
    "so few tasks that both cores wait for each other: how their batches overlap decides";

pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
    pin_to_core(0)?;
    let server = RedisServer::start(&[])?;
    pin_to_core(1)?;
    let runtime = runtime(1)?;
    let mut rows = Vec::new();
    for tasks in [16, 64, 256, TASKS] {
        rows.extend(against_rslock(scale, &server, &runtime, tasks)?);
    }
    rows.extend(against_the_server(scale, &server, &runtime)?);
    rows.extend(on_valkey(scale, &runtime)?);
    Ok(rows)
}

/// The CPU time for an acquire and release on a server that has a compare-and-delete command.
fn on_valkey(scale: Scale, runtime: &Runtime) -> Outcome<Vec<Row>> {
    if VALKEY_9.is_missing("the CPU of Valkey 9") {
        return Ok(Vec::new());
    }
    pin_to_core(0)?;
    let server = RedisServer::start_other(&VALKEY_9, &[])?;
    pin_to_core(1)?;
    let raw = pipeline(&recorded_pair(&server, runtime, false)?);
    let unfenced = connect(runtime, server.port(), false)?;
    let fenced = connect(runtime, server.port(), true)?;
    let mut times = [const { Samples::new() }; 3];
    for _ in 0..scale.rounds(ROUNDS) {
        times[0].push(on_server(&server, || ours(runtime, &unfenced, TASKS))?.1);
        times[1].push(on_server(&server, || pipelined(&server, &raw))?.1);
        times[2].push(on_server(&server, || ours(runtime, &fenced, TASKS))?.1);
    }
    let [unfenced, bare, fenced] = times;
    let row = |what, ours| {
        let what = format!("valkey 9: 1,024 tasks, {what}, server CPU per acquire + release");
        Row::of_times(what, ours, "bare SET NX PX + DELIFEQ", &bare, Some(1.3))
    };
    Ok(vec![row("unfenced", &unfenced), row("fenced", &fenced).because(TOKEN)])
}

fn against_rslock(
    scale: Scale,
    server: &RedisServer,
    runtime: &Runtime,
    tasks: usize,
) -> Outcome<[Row; 2]> {
    let unfenced = connect(runtime, server.port(), false)?;
    let fenced = connect(runtime, server.port(), true)?;
    let other = Arc::new(LockManager::new(vec![format!("redis://127.0.0.1:{}/", server.port())]));
    let mut times = [const { Samples::new() }; 3];
    for _ in 0..scale.rounds(ROUNDS) {
        times[0].push(timed(|| ours(runtime, &unfenced, tasks))?);
        times[1].push(timed(|| theirs(runtime, &other, tasks))?);
        times[2].push(timed(|| ours(runtime, &fenced, tasks))?);
    }
    let [unfenced, other, fenced] = times.map(|times| times.median());
    let row = |what, time, peer_bound| {
        let what = format!("redis: {} tasks, {what}, time per acquire + release", grouped(tasks));
        Row { peer_bound, ..Row::time(what, time).peer("rslock, as many tasks", other) }
    };
    // With tokens, the server is the limit from about 64 tasks on: the script costs the server more
    // than all commands of rslock.
    let fenced_bound = (tasks <= 64).then_some(1.0 / 0.85);
    let few = if tasks <= 16 { FEW } else { "" };
    let unfenced = row("unfenced", unfenced, Some(1.0)).because(few);
    Ok([unfenced, row("fenced", fenced, fenced_bound).because(TOKEN)])
}

fn against_the_server(scale: Scale, server: &RedisServer, runtime: &Runtime) -> Outcome<Vec<Row>> {
    let unfenced = connect(runtime, server.port(), false)?;
    let fenced = connect(runtime, server.port(), true)?;
    let raw = pipeline(&recorded_pair(server, runtime, false)?);
    let (mut times, mut limits) = (Samples::default(), Samples::default());
    let (mut unfenced_cpu, mut fenced_cpu) = (Samples::default(), Samples::default());
    for _ in 0..scale.rounds(ROUNDS) {
        let (time, cpu) = on_server(server, || ours(runtime, &unfenced, TASKS))?;
        times.push(time);
        unfenced_cpu.push(cpu);
        limits.push(on_server(server, || pipelined(server, &raw))?.0);
        fenced_cpu.push(on_server(server, || ours(runtime, &fenced, TASKS))?.1);
    }
    Ok(vec![
        Row::of_times(
            "redis: 1,024 tasks, unfenced, time per acquire + release beside a pipeline",
            &times,
            "the same commands, pipelined over a bare socket",
            &limits,
            Some(1.0 / 0.85),
        ),
        Row::of_times(
            "redis: 1,024 tasks, fenced, server CPU per acquire + release",
            &fenced_cpu,
            "the same, unfenced",
            &unfenced_cpu,
            Some(1.8),
        )
        .because(TOKEN),
    ])
}

/// The time per acquire and release.
fn timed(work: impl FnOnce() -> Outcome<()>) -> Outcome<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().div_f64(PAIRS as f64))
}

/// The time and the server's CPU time per acquire and release.
pub(crate) fn on_server(
    server: &RedisServer,
    work: impl FnOnce() -> Outcome<()>,
) -> Outcome<(Duration, Duration)> {
    let before = cpu_of(server.pid())?;
    let time = timed(work)?;
    Ok((time, (cpu_of(server.pid())? - before).div_f64(PAIRS as f64)))
}

fn each(tasks: usize) -> usize {
    PAIRS / tasks
}

pub(crate) fn ours(runtime: &Runtime, client: &Client, count: usize) -> Outcome<()> {
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..count {
            let mutex = client.mutex(&format!("b{task:04}"))?;
            tasks.spawn(async move {
                for _ in 0..each(count) {
                    mutex.acquire().await?.release().await?;
                }
                Ok::<(), tenure_core::Error>(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    })
}

fn theirs(runtime: &Runtime, manager: &Arc<LockManager>, count: usize) -> Outcome<()> {
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..count {
            let (manager, name) = (Arc::clone(manager), format!("r{task:04}"));
            tasks.spawn(async move {
                for _ in 0..each(count) {
                    let lock = manager.lock(name.as_bytes(), TTL).await?;
                    manager.unlock(&lock).await;
                }
                Ok::<(), rslock::LockError>(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    })
}

/// The recorded commands, once per task with a name of its own, as long as the recorded one.
pub(crate) fn pipeline(pair: &[Vec<u8>; 2]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for task in 0..TASKS {
        for command in pair {
            let text = String::from_utf8_lossy(command);
            bytes.extend_from_slice(text.replace("bench", &format!("b{task:04}")).as_bytes());
        }
    }
    bytes
}

/// Sends pipelined commands as fast as the server accepts them.
pub(crate) fn pipelined(server: &RedisServer, commands: &[u8]) -> Outcome<()> {
    let mut writer = TcpStream::connect(("127.0.0.1", server.port()))?;
    writer.set_nodelay(true)?;
    let mut reader = writer.try_clone()?;
    let expected = "+OK\r\n:1\r\n".len() * PAIRS;
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let (mut chunk, mut read) = (vec![0; 65_536], 0);
            while read < expected {
                match reader.read(&mut chunk)? {
                    0 => return Err(std::io::Error::other("the server closed the connection")),
                    length => read += length,
                }
                if chunk.contains(&b'-') {
                    return Err(std::io::Error::other("the server refused a command"));
                }
            }
            Ok(())
        });
        for _ in 0..each(TASKS) {
            writer.write_all(commands)?;
        }
        reading.join().map_err(|_| "the reading thread panicked")??;
        Ok(())
    })
}
