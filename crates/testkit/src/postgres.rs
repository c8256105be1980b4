//! A PostgreSQL server for tests, on a free port of the loopback address.

use std::io;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::redis::free_port;
use crate::{ChildProcess, GENEROUS, temp_dir};

/// The user that the server runs as where the tests run as root: it refuses to be root.
const NOBODY: u32 = 65534;

/// A PostgreSQL server, killed by its pid when it is dropped, its files with it. The user is `tenure`, and
/// needs no password.
#[derive(Debug)]
pub struct PostgresServer {
    /// Killed before its folder is removed.
    _process: ChildProcess,
    port: u16,
    _folder: TempDir,
}

impl PostgresServer {
    /// Starts a server with an empty database, and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be started, or does not listen in time.
    pub fn start() -> io::Result<Self> {
        let folder = temp_dir();
        let program = |name| {
            let path = find(name).ok_or(io::ErrorKind::NotFound)?;
            let mut command = Command::new(path);
            command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
            if rustix::process::getuid().is_root() {
                command.uid(NOBODY).gid(NOBODY);
            }
            io::Result::Ok(command)
        };
        if rustix::process::getuid().is_root() {
            chown(folder.path(), Some(NOBODY), Some(NOBODY))?;
        }
        let mut initdb = program("initdb")?;
        initdb.args(["-D", "data", "-U", "tenure", "-A", "trust", "-E", "UTF8", "--locale=C"]);
        let status = initdb.arg("--no-sync").status()?;
        if !status.success() {
            return Err(io::Error::other(format!("initdb failed: {status}")));
        }
        let port = free_port()?;
        let mut postgres = program("postgres")?;
        postgres.args(["-D", "data", "-h", "127.0.0.1", "-k", "", "-F", "-p"]);
        let mut child = ChildProcess::spawn({
            postgres.arg(port.to_string());
            postgres
        })?;
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = child.status()? {
                return Err(io::Error::other(format!("postgres ended at once: {status}")));
            }
            if start.elapsed() > GENEROUS {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { _process: child, port, _folder: folder })
    }

    /// Whether the server's programs are on this machine.
    pub fn is_installed() -> bool {
        find("postgres").is_some()
    }

    /// How clients connect to it.
    pub fn settings(&self) -> String {
        format!("host=127.0.0.1 port={} user=tenure dbname=postgres", self.port)
    }
}

/// On the search path, or where Debian has it.
fn find(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let mut folders = std::env::split_paths(&paths).chain(debian);
    folders.find_map(|folder| Some(folder.join(program)).filter(|path| path.is_file()))
}
