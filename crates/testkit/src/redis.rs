//! Redis servers of one's own, on free ports of the loopback address.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{GENEROUS, temp_dir};

/// A Redis server, killed by its pid when it is dropped, its files with it.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

impl RedisServer {
    /// Starts one without persistence, with these arguments besides, and waits until it answers.
    ///
    /// # Errors
    /// If it cannot be started, or does not answer in time.
    pub fn start(arguments: &[&str]) -> io::Result<Self> {
        let folder = temp_dir();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        // Another may take the port between our look and the server's: then look again.
        let mut last = io::Error::other("no port was free");
        for _ in 0..5 {
            let port = free_port()?;
            let mut child = spawn(port, folder.path(), &arguments)?;
            match answers(port, &mut child) {
                Ok(()) => return Ok(Self { child, port, arguments, folder }),
                Err(error) => {
                    last = error;
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        }
        Err(last)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill9(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Starts it again on the same port, with what it kept on disk, if anything.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill9()?;
        self.child = spawn(self.port, self.folder.path(), &self.arguments)?;
        answers(self.port, &mut self.child)
    }

    /// Sends one command on a connection of its own, and returns the reply's text: enough for a
    /// test to look or meddle.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn command(&self, words: &[&str]) -> io::Result<String> {
        command(self.port, words)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, folder: &Path, arguments: &[String]) -> io::Result<Child> {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
    command.args(["--enable-debug-command", "yes"]).arg("--dir").arg(folder).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

fn answers(port: u16, child: &mut Child) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < GENEROUS {
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("redis-server ended at once: {status}")));
        }
        // Whoever asks for a password answers, too.
        if let Ok(reply) = command(port, &["PING"])
            && (reply.contains("PONG") || reply.contains("NOAUTH"))
        {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn command(port: u16, words: &[&str]) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(GENEROUS))?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes())?;
    reply(&mut BufReader::new(stream))
}

/// One reply as text: the elements of an array one a line.
fn reply(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    let Some(kind) = line.chars().next() else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    let length = || line[1..].parse::<i64>().map_err(io::Error::other);
    match kind {
        '$' => match usize::try_from(length()?) {
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                reader.read_exact(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            Err(_) => Ok("(nil)".into()),
        },
        '*' => {
            let parts = (0..length()?).map(|_| reply(reader));
            Ok(parts.collect::<io::Result<Vec<_>>>()?.join("\n"))
        }
        '-' => Ok(line.to_owned()),
        _ => Ok(line[1..].to_owned()),
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
