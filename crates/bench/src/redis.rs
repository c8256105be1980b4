//! Redis: what tenure adds to the commands it sends. The other side of each comparison sends the
//! very same bytes over a bare socket, recorded from tenure's own connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::Client;
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::handoff::stay_on;
use crate::record::Recorder;
use crate::table::{Row, median};

const ROUNDS: usize = 9;
const PAIRS: usize = 4_000;

pub(crate) fn free() -> Outcome<Vec<Row>> {
    let cores = std::thread::available_parallelism()?.get();
    let mut rows = Vec::new();
    for (core, where_, bound) in [(1, "two cores", Some(1.1)), (0, "one core", Some(1.25))] {
        if core >= cores {
            continue;
        }
        // What is started inherits where it may run.
        stay_on(0)?;
        let server = RedisServer::start(&[])?;
        stay_on(core)?;
        let runtime = runtime(1)?;
        for (fencing, kind) in [(true, ""), (false, " unfenced")] {
            let (ours, theirs) = free_pair(&server, &runtime, fencing)?;
            let what = format!("redis: acquire + release{kind}, free, one task, {where_}");
            let against = "the same two commands over a bare socket";
            rows.push(Row::of_times(what, ours, against, theirs, bound));
        }
    }
    Ok(rows)
}

/// Medians of one pair through tenure, and of the same bytes over a bare socket.
fn free_pair(
    server: &RedisServer,
    runtime: &Runtime,
    fencing: bool,
) -> Outcome<(Duration, Duration)> {
    let commands = recorded_pair(server, runtime, fencing)?;
    let client = connect(runtime, server.port(), fencing)?;
    let mut bare = Bare::connect(server.port())?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mutex = client.mutex("bench")?;
        let round = async move {
            let mut times = Vec::with_capacity(PAIRS);
            for _ in 0..PAIRS {
                let start = Instant::now();
                mutex.acquire().await?.release().await?;
                times.push(start.elapsed());
            }
            Ok::<_, tenure_core::Error>(times)
        };
        ours.extend(runtime.block_on(runtime.spawn(round))??);
        for _ in 0..PAIRS {
            let start = Instant::now();
            for command in &commands {
                bare.round_trip(command)?;
            }
            theirs.push(start.elapsed());
        }
    }
    Ok((median(ours), median(theirs)))
}

/// The two commands of an acquire and a release, as tenure sends them.
pub(crate) fn recorded_pair(
    server: &RedisServer,
    runtime: &Runtime,
    fencing: bool,
) -> Outcome<[Vec<u8>; 2]> {
    let recorder = Recorder::start(server.port())?;
    let client = connect(runtime, recorder.port(), fencing)?;
    runtime.block_on(async {
        let mutex = client.mutex("bench")?;
        // The first ones find out what the server understands.
        for _ in 0..3 {
            mutex.acquire().await?.release().await?;
        }
        recorder.take();
        let guard = mutex.acquire().await?;
        let acquire = recorder.take();
        guard.release().await?;
        Ok([acquire, recorder.take()])
    })
}

pub(crate) fn runtime(threads: usize) -> Outcome<Runtime> {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    Ok(builder.enable_all().build()?)
}

pub(crate) fn connect(runtime: &Runtime, port: u16, fencing: bool) -> Outcome<Client> {
    let mut config = RedisConfig::new(Topology::Single { server: ("127.0.0.1".into(), port) });
    config.fencing = fencing;
    let store = runtime.block_on(RedisStore::connect(config))?;
    let _inside = runtime.enter();
    Ok(Client::new(Arc::new(store))?)
}

/// A connection that knows nothing but how to read a reply to its end.
pub(crate) struct Bare {
    writer: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Bare {
    pub(crate) fn connect(port: u16) -> Outcome<Self> {
        let writer = TcpStream::connect(("127.0.0.1", port))?;
        writer.set_nodelay(true)?;
        let reader = BufReader::new(writer.try_clone()?);
        let mut bare = Self { writer, reader };
        bare.round_trip(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n")?;
        Ok(bare)
    }

    pub(crate) fn round_trip(&mut self, command: &[u8]) -> Outcome<()> {
        self.send(command)?;
        self.receive()
    }

    pub(crate) fn send(&mut self, command: &[u8]) -> Outcome<()> {
        Ok(self.writer.write_all(command)?)
    }

    pub(crate) fn receive(&mut self) -> Outcome<()> {
        skip(&mut self.reader)
    }
}

/// Reads one reply and forgets it. An error reply is an error.
pub(crate) fn skip(reader: &mut impl BufRead) -> Outcome<()> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let length = || line[1..].trim_end().parse::<i64>();
    match line.chars().next() {
        Some('$' | '=') => {
            if let Ok(length) = u64::try_from(length()?) {
                std::io::copy(&mut reader.take(length + 2), &mut std::io::sink())?;
            }
            Ok(())
        }
        Some('*' | '>' | '~') => (0..length()?).try_for_each(|_| skip(reader)),
        Some('%') => (0..length()? * 2).try_for_each(|_| skip(reader)),
        Some('-') | None => Err(format!("the server said {line:?}").into()),
        Some(_) => Ok(()),
    }
}
