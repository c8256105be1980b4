//! etcd servers for tests, on free ports of the loopback address.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::redis::free_port;
use crate::{ChildProcess, Ensemble, GENEROUS, temp_dir};

/// A member of an etcd cluster, which may be the only one. Dropping it kills its process by its pid and
/// removes its files.
#[derive(Debug)]
pub struct EtcdServer {
    child: ChildProcess,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

impl EtcdServer {
    /// Starts a cluster of one member, with these additional arguments, and waits until it serves.
    ///
    /// # Errors
    /// If it cannot be started, or does not serve in time.
    pub fn start(arguments: &[&str]) -> io::Result<Self> {
        let mut last = io::Error::other("no port was free");
        // Another process may take a port before the server does: then try others.
        for _ in 0..5 {
            let (port, peer) = (free_port()?, free_port()?);
            let cluster = format!("m0=http://127.0.0.1:{peer}");
            match Self::spawn("m0", port, peer, &cluster, arguments).and_then(Self::once_it_serves)
            {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn spawn(
        name: &str,
        port: u16,
        peer: u16,
        cluster: &str,
        arguments: &[&str],
    ) -> io::Result<Self> {
        let folder = temp_dir();
        let scheme = match arguments.iter().any(|argument| argument.starts_with("--cert-file")) {
            true => "https",
            false => "http",
        };
        let (ours, peers) =
            (format!("{scheme}://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
        let mut all: Vec<String> = [
            ("name", name),
            ("listen-client-urls", &ours),
            ("advertise-client-urls", &ours),
            ("listen-peer-urls", &peers),
            ("initial-advertise-peer-urls", &peers),
            ("initial-cluster", cluster),
            ("initial-cluster-state", "new"),
            ("log-level", "error"),
            ("logger", "zap"),
        ]
        .map(|(option, value)| format!("--{option}={value}"))
        .into();
        all.extend(arguments.iter().map(ToString::to_string));
        let child = run(folder.path(), &all)?;
        Ok(Self { child, port, arguments: all, folder })
    }

    /// Starts another member of the cluster as a learner, and waits until it knows that it is one.
    ///
    /// # Errors
    /// If it cannot be added or started, or does not answer in time.
    pub fn add_learner(&self) -> io::Result<Self> {
        let (port, peer) = (free_port()?, free_port()?);
        let peers = format!("--peer-urls=http://127.0.0.1:{peer}");
        self.control(&["member", "add", "learner", "--learner", &peers])?;
        let known = self.arguments.iter().find_map(|it| it.strip_prefix("--initial-cluster="));
        let cluster = format!("{},learner=http://127.0.0.1:{peer}", known.unwrap_or_default());
        let state = "--initial-cluster-state=existing";
        let learner = Self::spawn("learner", port, peer, &cluster, &[state])?;
        let start = Instant::now();
        while start.elapsed() < GENEROUS {
            if learner.control(&["endpoint", "status"]).is_ok_and(|said| said.contains("true")) {
                return Ok(learner);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Makes a learner of this member's cluster a voting member, once it has caught up.
    ///
    /// # Errors
    /// If it cannot be promoted in time.
    pub fn promote(&self, learner: &Self) -> io::Result<()> {
        let said = learner.control(&["endpoint", "status"])?;
        let id = said.split(", ").nth(1).unwrap_or_default().to_owned();
        let start = Instant::now();
        loop {
            match self.control(&["member", "promote", &id]) {
                Ok(_) => return Ok(()),
                Err(error) if start.elapsed() > GENEROUS => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn once_it_serves(mut self) -> io::Result<Self> {
        self.until_it_serves()?;
        Ok(self)
    }

    /// Whether the installed version is 3.4.31, 3.5.13 or later: earlier leaders revoke leases that their
    /// successors have renewed (etcd issue 15247).
    pub fn keeps_renewed_leases() -> bool {
        let said = Command::new("etcd").arg("--version").output();
        let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
        let said = said.unwrap_or_default();
        let version = said.lines().find_map(|line| line.strip_prefix("etcd Version: "));
        let mut numbers = version.unwrap_or_default().split('.').map(|part| part.parse::<u32>());
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or_default();
        match (next(), next(), next()) {
            (3, 4, patch) => patch >= 31,
            (3, 5, patch) => patch >= 13,
            newer => newer > (3, 5, 0),
        }
    }

    /// Waits until it reports to be healthy, which means that there is a leader.
    fn until_it_serves(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < GENEROUS {
            if let Some(status) = self.child.status()? {
                return Err(io::Error::other(format!("etcd ended at once: {status}")));
            }
            // A server with TLS cannot be asked here, so it is enough that it listens.
            let closed = self.arguments.iter().any(|argument| argument.starts_with("--cert-file"));
            let serves = match closed {
                true => TcpStream::connect(("127.0.0.1", self.port)).is_ok(),
                false => self.page("/health").is_ok_and(|health| health.contains("\"true\"")),
            };
            if serves {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Its port for clients on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Restarts it with the data it has on disk. Does not wait until it serves, because it may need other
    /// members for that.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill9()?;
        self.child = run(self.folder.path(), &self.arguments)?;
        Ok(())
    }

    /// Whether it believes to be the leader.
    fn leads(&self) -> bool {
        // id, version, size, whether it leads, …
        let status = self.control(&["endpoint", "status", "--write-out=simple"]);
        status.is_ok_and(|status| status.split(", ").nth(4) == Some("true"))
    }

    fn requests(&self) -> io::Result<u64> {
        self.metric("grpc_server_msg_received_total", "")
    }

    /// Its own view of its state, keys and leases.
    fn account(&self) -> String {
        let keys = ["get", "", "--prefix", "--consistency=s", "--write-out=json"];
        let said = [&["endpoint", "status"][..], &keys, &["lease", "list"]]
            .map(|words| self.control(words).unwrap_or_else(|error| error.to_string()));
        said.join("\n")
    }

    /// Its reply to an HTTP request, for its health and metrics.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn page(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(GENEROUS))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    /// The sum of its metrics of this name whose labels contain `label`.
    ///
    /// # Errors
    /// If it does not answer, or has no such metric.
    pub fn metric(&self, name: &str, label: &str) -> io::Result<u64> {
        let page = self.page("/metrics")?;
        let figures = page.lines().filter_map(|line| {
            let (metric, figure) = line.rsplit_once(' ')?;
            let labels = metric.strip_prefix(name)?;
            let matches = (labels.is_empty() || labels.starts_with('{')) && labels.contains(label);
            if matches { figure.parse::<f64>().ok() } else { None }
        });
        let sum = figures.reduce(|sum, figure| sum + figure);
        sum.map(|sum| sum as u64).ok_or_else(|| io::Error::other(format!("no metric {name}")))
    }

    /// Runs `etcdctl` with these arguments and returns what it prints.
    ///
    /// # Errors
    /// If it fails, with its message.
    pub fn control(&self, words: &[&str]) -> io::Result<String> {
        let output = self.controller(words).stdin(Stdio::null()).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    /// An `etcdctl` command for this member.
    pub fn controller(&self, words: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(words);
        command.env("ETCDCTL_ENDPOINTS", format!("http://127.0.0.1:{}", self.port));
        command.env("ETCDCTL_COMMAND_TIMEOUT", "5s").env("ETCDCTL_DIAL_TIMEOUT", "5s");
        command
    }
}

crate::child_process::deref_to_child!(EtcdServer);
crate::ensemble::is_a_member!(EtcdServer);

fn run(folder: &Path, arguments: &[String]) -> io::Result<ChildProcess> {
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(folder.join("data")).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ChildProcess::spawn(command)
}

/// Three members of one cluster.
pub type EtcdCluster = Ensemble<EtcdServer>;

impl EtcdCluster {
    /// Starts a cluster, and waits until every member serves.
    ///
    /// # Errors
    /// If it cannot be started, or does not serve in time.
    pub fn start() -> io::Result<Self> {
        Self::start_with(|| {
            let peers = (0..3).map(|_| free_port()).collect::<io::Result<Vec<_>>>()?;
            let named = peers.iter().enumerate();
            let named: Vec<_> =
                named.map(|(place, peer)| format!("m{place}=http://127.0.0.1:{peer}")).collect();
            let cluster = named.join(",");
            let member = |(place, peer): (usize, u16)| {
                EtcdServer::spawn(&format!("m{place}"), free_port()?, peer, &cluster, &[])
            };
            peers.into_iter().enumerate().map(member).collect()
        })
    }
}
