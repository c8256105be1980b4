//! Many tasks at once on Redis: how much of what the server can do is left.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tenure_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::handoff::stay_on;
use crate::redis::{connect, recorded_pair, runtime};
use crate::table::{Row, median};

const ROUNDS: usize = 7;
const TASKS: usize = 1_024;
const PAIRS_EACH: usize = 100;
const PAIRS: u32 = (TASKS * PAIRS_EACH) as u32;

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    stay_on(0)?;
    let server = RedisServer::start(&[])?;
    stay_on(1)?;
    let runtime = runtime(1)?;
    let unfenced = connect(&runtime, server.port(), false)?;
    let fenced = connect(&runtime, server.port(), true)?;
    let pair = recorded_pair(&server, &runtime, false)?;
    let raw = pipeline(&pair);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut cheap, mut dear) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (time, cpu) = on_server(&server, || tasks(&runtime, &unfenced))?;
        ours.push(time);
        cheap.push(cpu);
        theirs.push(on_server(&server, || ceiling(&server, &raw))?.0);
        dear.push(on_server(&server, || tasks(&runtime, &fenced))?.1);
    }
    Ok(vec![
        Row::of_times(
            "redis: 1,024 tasks, unfenced, time per acquire + release",
            median(ours),
            "the same commands, pipelined over a bare socket",
            median(theirs),
            Some(1.0 / 0.85),
        ),
        Row::of_times(
            "redis: 1,024 tasks, fenced, the server's CPU per acquire + release",
            median(dear),
            "the same, unfenced",
            median(cheap),
            Some(2.2),
        ),
    ])
}

/// Time and the server's CPU time for each pair.
fn on_server(
    server: &RedisServer,
    work: impl FnOnce() -> Outcome<()>,
) -> Outcome<(Duration, Duration)> {
    let (start, before) = (Instant::now(), cpu_of(server.pid())?);
    work()?;
    Ok((start.elapsed() / PAIRS, (cpu_of(server.pid())? - before) / PAIRS))
}

/// The CPU time that a process has used.
pub(crate) fn cpu_of(pid: u32) -> Outcome<Duration> {
    // The first number counts nanoseconds on a core.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    let mut nanos = 0;
    for thread in threads {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

fn tasks(runtime: &Runtime, client: &tenure_core::Client) -> Outcome<()> {
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let mutex = client.mutex(&format!("b{task:04}"))?;
            tasks.spawn(async move {
                for _ in 0..PAIRS_EACH {
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

/// The recorded commands for as many names as there are tasks: names as long as the recorded one.
fn pipeline(pair: &[Vec<u8>; 2]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for task in 0..TASKS {
        for command in pair {
            let text = String::from_utf8_lossy(command);
            bytes.extend_from_slice(text.replace("bench", &format!("b{task:04}")).as_bytes());
        }
    }
    bytes
}

/// One thread writes as fast as the server takes it, another reads.
fn ceiling(server: &RedisServer, commands: &[u8]) -> Outcome<()> {
    let mut writer = TcpStream::connect(("127.0.0.1", server.port()))?;
    writer.set_nodelay(true)?;
    let mut reader = writer.try_clone()?;
    let expected = "+OK\r\n:1\r\n".len() * PAIRS as usize;
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
        for _ in 0..PAIRS_EACH {
            writer.write_all(commands)?;
        }
        reading.join().map_err(|_| "the reader broke")??;
        Ok(())
    })
}
