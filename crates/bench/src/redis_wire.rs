//! Access to Redis for the scenarios: a tenure client, a bare socket, and a proxy that records what
//! tenure sends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::Client;
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;

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
        // The first calls detect the server's capabilities.
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

pub(crate) fn connect(runtime: &Runtime, port: u16, fencing: bool) -> Outcome<Client> {
    let mut config = RedisConfig::new(Topology::Single { server: ("127.0.0.1".into(), port) });
    config.fencing = fencing;
    let store = runtime.block_on(RedisStore::connect(config))?;
    let _inside = runtime.enter();
    Ok(Client::new(Arc::new(store))?)
}

/// A blocking connection that sends commands and skips their replies.
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

/// Reads and discards one reply. Fails on an error reply.
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
        Some('-') | None => Err(format!("the server replied {line:?}").into()),
        Some(_) => Ok(()),
    }
}

/// A proxy that records what clients send. Its threads end with the connections.
pub(crate) struct Recorder {
    port: u16,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    pub(crate) fn start(server: u16) -> Outcome<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&sent);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten().take(8) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
                let (Ok(reader), Ok(back)) = (client.try_clone(), server.try_clone()) else {
                    return;
                };
                let record = Arc::clone(&record);
                std::thread::spawn(move || forward(reader, server, Some(&record)));
                std::thread::spawn(move || forward(back, client, None));
            }
        });
        Ok(Self { port, sent })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The bytes that were sent since the last call.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.sent.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, record: Option<&Mutex<Vec<u8>>>) {
    let mut bytes = [0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if let Some(record) = record {
            let mut sent = record.lock().unwrap_or_else(PoisonError::into_inner);
            sent.extend_from_slice(&bytes[..read]);
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
