//! A server that speaks Redis's protocol and gives the replies that a test chooses.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A stand-in for a Redis server: it answers each command with the bytes that a function returns,
/// and counts connections and commands. It ends when it is dropped.
#[derive(Debug)]
pub struct RedisStub {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: AtomicBool,
    connections: AtomicUsize,
    /// The words of each command, as they arrived.
    commands: Mutex<Vec<Vec<String>>>,
    open: Mutex<Vec<TcpStream>>,
}

/// The stub's reply to a command, as it goes over the wire. `None` closes the connection.
type Answer = dyn Fn(&[String]) -> Option<String> + Send + Sync;

impl RedisStub {
    /// Starts one on a free port of the loopback address.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(
        answer: impl Fn(&[String]) -> Option<String> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::start_on(0, answer)
    }

    /// Starts one on this port, where a server has been killed.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn start_on(
        port: u16,
        answer: impl Fn(&[String]) -> Option<String> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        let (shared, answer): (_, Arc<Answer>) = (Arc::new(Shared::default()), Arc::new(answer));
        let served = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if served.ended.load(Ordering::SeqCst) {
                    return;
                }
                served.connections.fetch_add(1, Ordering::SeqCst);
                let (shared, answer) = (Arc::clone(&served), Arc::clone(&answer));
                std::thread::spawn(move || {
                    // A client that goes away ends its connection.
                    let _ = shared.serve(stream, &*answer);
                });
            }
        });
        Ok(Self { port, shared, accepting: Some(accepting) })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections the stub has accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many commands the stub has received so far that begin with these words.
    pub fn received(&self, words: &[&str]) -> usize {
        let begins = |command: &&Vec<String>| {
            command.len() >= words.len()
                && command.iter().zip(words).all(|(one, other)| one.eq_ignore_ascii_case(other))
        };
        lock(&self.shared.commands).iter().filter(begins).count()
    }

    /// The words of every command so far.
    pub fn commands(&self) -> Vec<Vec<String>> {
        lock(&self.shared.commands).clone()
    }
}

impl Drop for RedisStub {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        for stream in lock(&self.shared.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        // From here on another process may take the port.
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream, answer: &Answer) -> io::Result<()> {
        stream.set_nodelay(true)?;
        lock(&self.open).push(stream.try_clone()?);
        let (mut reader, mut writer) = (BufReader::new(stream.try_clone()?), stream);
        while let Some(words) = command(&mut reader)? {
            lock(&self.commands).push(words.clone());
            match answer(&words) {
                Some(reply) => writer.write_all(reply.as_bytes())?,
                None => break,
            }
        }
        writer.shutdown(Shutdown::Both)
    }
}

/// The words of the next command; `None` when the client has closed the connection.
fn command(reader: &mut impl BufRead) -> io::Result<Option<Vec<String>>> {
    let Some(count) = header(reader, '*')? else { return Ok(None) };
    let mut words = Vec::new();
    for _ in 0..count {
        let length = header(reader, '$')?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word)?;
        words.push(String::from_utf8_lossy(&word[..length]).into_owned());
    }
    Ok(Some(words))
}

fn header(reader: &mut impl BufRead, kind: char) -> io::Result<Option<usize>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let number = line.trim_end().strip_prefix(kind).and_then(|number| number.parse().ok());
    number.map(Some).ok_or_else(|| io::Error::other(format!("not a command: {line:?}")))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
