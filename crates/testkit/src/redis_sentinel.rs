//! Redis servers with Sentinels, for tests.

use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::redis::{free_port, program};
use crate::redis_wire::command;
use crate::{ChildProcess, GENEROUS, RedisServer, temp_dir};

/// A master, two replicas and three Sentinels that know the service as `main`. Dropping it kills all of
/// them by their pids.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    _process: ChildProcess,
    port: u16,
    _folder: TempDir,
}

impl RedisSentinel {
    /// Starts them, and waits until the replicas follow and the Sentinels know each other. A master
    /// that does not answer for `down_after` is taken for dead.
    ///
    /// # Errors
    /// If one cannot be started, or they are not ready in time.
    pub fn start(down_after: Duration) -> io::Result<Self> {
        let quick = ["--repl-diskless-sync-delay", "0"];
        let master = RedisServer::start(&quick)?;
        let port = master.port().to_string();
        let mut servers = vec![master];
        for _ in 0..2 {
            let follow = ["--replicaof", "127.0.0.1", &port];
            servers.push(RedisServer::start(&[&quick[..], &follow].concat())?);
        }
        let sentinels =
            (0..3).map(|_| Sentinel::start(&port, down_after)).collect::<io::Result<Vec<_>>>()?;
        let group = Self { servers, sentinels };
        group.until_ready()?;
        Ok(group)
    }

    /// The servers: at first the master and two replicas.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// `host:port` of every Sentinel, with commas between.
    pub fn addresses(&self) -> String {
        let named: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        named.join(",")
    }

    /// The index of the server that the Sentinels call the master now.
    pub fn master(&self) -> Option<usize> {
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"];
        let named = self.sentinels.iter().find_map(|one| command(one.port, &ask).ok())?;
        let port: u16 = named.lines().last()?.parse().ok()?;
        self.servers.iter().position(|server| server.port() == port)
    }

    /// Sends one command to the Sentinel on this port.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn ask(&self, sentinel: u16, words: &[&str]) -> io::Result<String> {
        command(sentinel, words)
    }

    /// The servers, to be stopped or killed.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// A server, to be stopped or killed.
    pub fn server(&mut self, place: usize) -> &mut RedisServer {
        &mut self.servers[place]
    }

    fn until_ready(&self) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < 3 * GENEROUS {
            let replication = self.servers[0].command(&["INFO", "replication"])?;
            let follow = replication.matches("state=online").count() == self.servers.len() - 1;
            let known = self.sentinels.iter().all(|sentinel| {
                let master = command(sentinel.port, &["SENTINEL", "MASTER", "main"]);
                master.is_ok_and(|master| {
                    has(&master, "num-slaves", "2") && has(&master, "num-other-sentinels", "2")
                })
            });
            if follow && known {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(io::Error::other("the Sentinels were not ready in time"))
    }
}

impl Sentinel {
    fn start(master: &str, down_after: Duration) -> io::Result<Self> {
        let folder = temp_dir();
        let port = free_port()?;
        let millis = down_after.as_millis();
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds main {millis}\n\
             sentinel failover-timeout main 5000\n",
            folder.path().display()
        );
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, settings)?;
        let mut program = Command::new(program());
        program.arg(&file).arg("--sentinel");
        program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { _process: ChildProcess::spawn(program)?, port, _folder: folder })
    }
}

/// Whether a reply of alternating names and values has this value under this name.
fn has(reply: &str, name: &str, value: &str) -> bool {
    let lines: Vec<&str> = reply.lines().collect();
    lines.windows(2).any(|pair| pair[0] == name && pair[1] == value)
}
