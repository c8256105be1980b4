//! Redis servers for tests, on free ports of the loopback address.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::redis_wire::command;
use crate::{ChildProcess, ExternalClient, FakeClock, GENEROUS, temp_dir};

/// A Redis server. Dropping it kills its process by its pid and removes its files.
#[derive(Debug)]
pub struct RedisServer {
    child: ChildProcess,
    port: u16,
    arguments: Vec<String>,
    /// Environment variables that preload a library, and its settings.
    environment: Vec<(String, String)>,
    /// A launch script of another server than the installed one.
    launcher: Option<PathBuf>,
    folder: TempDir,
}

/// The oldest Redis that tenure supports.
pub const REDIS_6_2: ExternalClient = ExternalClient { name: "redis-server-6.2", needs: &[] };
/// Valkey, a fork of Redis with commands of its own.
pub const VALKEY_9: ExternalClient = ExternalClient { name: "valkey-server-9", needs: &[] };

impl RedisServer {
    /// Starts a server without persistence, with these additional arguments, and waits until it answers. It
    /// is the `redis-server` on the search path, or the program that `TENURE_TEST_REDIS` names.
    ///
    /// # Errors
    /// If it cannot be started, or does not answer in time.
    pub fn start(arguments: &[&str]) -> io::Result<Self> {
        Self::start_in(arguments, Vec::new(), None)
    }

    /// As [`start`](Self::start), but of another version: [`REDIS_6_2`] or [`VALKEY_9`].
    ///
    /// # Errors
    /// As [`start`](Self::start), and if it is not installed.
    pub fn start_other(version: &ExternalClient, arguments: &[&str]) -> io::Result<Self> {
        let launcher = version.launcher().ok_or(io::ErrorKind::NotFound)?;
        Self::start_in(arguments, Vec::new(), Some(launcher))
    }

    /// As [`start`](Self::start), with a clock that can be set.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_on_clock(arguments: &[&str], clock: &FakeClock) -> io::Result<Self> {
        Self::start_in(arguments, clock.environment(), None)
    }

    fn start_in(
        arguments: &[&str],
        environment: Vec<(String, String)>,
        launcher: Option<PathBuf>,
    ) -> io::Result<Self> {
        let folder = temp_dir();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        // Another process may take the port before the server does: then try another one.
        let mut last = io::Error::other("no port was free");
        for _ in 0..5 {
            let port = free_port()?;
            let plan = Plan {
                arguments: &arguments,
                environment: &environment,
                launcher: launcher.as_deref(),
                folder: folder.path(),
            };
            let mut child = plan.spawn(port)?;
            match answers(port, &mut child) {
                Ok(()) => {
                    return Ok(Self { child, port, arguments, environment, launcher, folder });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Restarts it on the same port, with the data it has on disk, if any.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill9()?;
        let plan = Plan {
            arguments: &self.arguments,
            environment: &self.environment,
            launcher: self.launcher.as_deref(),
            folder: self.folder.path(),
        };
        self.child = plan.spawn(self.port)?;
        self.until_it_serves()
    }

    fn until_it_serves(&mut self) -> io::Result<()> {
        answers(self.port, &mut self.child)
    }

    fn leads(&self) -> bool {
        self.command(&["ROLE"]).is_ok_and(|role| role.contains("master"))
    }

    fn requests(&self) -> io::Result<u64> {
        let figures = self.command(&["INFO", "stats"])?;
        let name = "total_commands_processed:";
        let figure = figures.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        figure.ok_or_else(|| io::Error::other(format!("no {name} in: {figures}")))
    }

    fn account(&self) -> String {
        let said = [&["INFO"][..], &["CLIENT", "LIST"], &["KEYS", "*"]]
            .map(|words| self.command(words).unwrap_or_else(|error| error.to_string()));
        said.join("\n")
    }

    /// Sends one command on a connection of its own, and returns the reply's text, so
    /// that a test can inspect and change the server's data.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn command(&self, words: &[&str]) -> io::Result<String> {
        command(self.port, words)
    }
}

crate::child_process::deref_to_child!(RedisServer);
crate::ensemble::is_a_member!(RedisServer);

/// How a server is started.
struct Plan<'a> {
    arguments: &'a [String],
    environment: &'a [(String, String)],
    launcher: Option<&'a Path>,
    folder: &'a Path,
}

impl Plan<'_> {
    fn spawn(&self, port: u16) -> io::Result<ChildProcess> {
        let mut command = match self.launcher {
            Some(launcher) => {
                let mut shell = Command::new("sh");
                shell.arg(launcher);
                shell
            }
            None => Command::new(program()),
        };
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
        if self.launcher.is_none() && has_guarded_debug() {
            command.args(["--enable-debug-command", "yes"]);
        }
        command.arg("--dir").arg(self.folder).args(self.arguments);
        command.envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ChildProcess::spawn(command)
    }
}

fn answers(port: u16, child: &mut ChildProcess) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < GENEROUS {
        if let Some(status) = child.status()? {
            return Err(io::Error::other(format!("redis-server ended at once: {status}")));
        }
        // A server that asks for a password has answered, too.
        if let Ok(reply) = command(port, &["PING"])
            && (reply.contains("PONG") || reply.contains("NOAUTH"))
        {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// The environment variable that names the server to test with.
const CHOICE: &str = "TENURE_TEST_REDIS";

/// The server program that tests start.
pub(crate) fn program() -> OsString {
    std::env::var_os(CHOICE).unwrap_or_else(|| "redis-server".into())
}

/// Whether the server has the option that enables `DEBUG` (since 7.0). Older servers do not start with an
/// unknown option.
fn has_guarded_debug() -> bool {
    static GUARDED: LazyLock<bool> = LazyLock::new(|| {
        let said = Command::new(program()).arg("--version").output();
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        // "Redis server v=7.0.15 sha=…", "Valkey server v=9.0.0 sha=…"
        let major = said.ok().and_then(|said| {
            let version = said.split_once("v=")?.1.to_owned();
            version.split('.').next()?.parse::<u32>().ok()
        });
        major.is_none_or(|major| major >= 7)
    });
    *GUARDED
}

/// A port of the loopback address that is free at the moment.
pub(crate) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
