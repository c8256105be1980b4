//! A second process for scenarios that need one: this program with a role as its argument.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use tenure_core::Client;
use tenure_local::LocalStore;

use crate::{
    Outcome, apart, drive, etcd, held, local_handoff, local_waiters, queue, redis_readers, watch,
};

/// The first argument that makes this program a peer.
pub(crate) const ARGUMENT: &str = "peer";

/// A peer process. It ends with its standard input, and is killed when its handle is dropped.
pub(crate) struct Peer {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a peer for `target`: the directory of a store, or the port of a server.
    pub(crate) fn start(role: &str, target: impl AsRef<OsStr>) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([ARGUMENT, role]).arg(target);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = child.stdin.take().ok_or("the peer has no standard input")?;
        let replies = BufReader::new(child.stdout.take().ok_or("the peer has no output")?);
        Ok(Self { child, requests, replies })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&mut self, request: &str) -> Outcome<()> {
        writeln!(self.requests, "{request}")?;
        Ok(self.requests.flush()?)
    }

    /// The peer's next line, as a number.
    pub(crate) fn reply(&mut self) -> Outcome<u64> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        Ok(line.trim().parse().map_err(|_| format!("the peer replied {line:?}"))?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails if the process has exited by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The main function of a peer process.
pub(crate) fn run(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [apart::ROLE, scenario, kind] => apart::measure(scenario, kind),
        ["holder", url] => held::run_peer(url),
        ["watcher", url] => watch::run_peer(url),
        ["queue", url] => queue::run_peer(url),
        ["redis-readers", port] => redis_readers::run_peer(port),
        ["echo", folder] => echo(Path::new(folder)),
        ["handoff", folder] => on_store(Path::new(folder), local_handoff::take_turns),
        ["waiters", folder] => on_store(Path::new(folder), local_waiters::run_waiters),
        ["drive-tenure", url, key] => drive::serve::<drive::Tenure>(url, key),
        ["drive-rslock", port, key] => drive::serve::<drive::Rslock>(port, key),
        ["drive-flock", folder, key] => drive::serve::<drive::Flock>(folder, key),
        ["drive-etcd-lock-rpc", port, key] => drive::serve::<etcd::Bare>(port, key),
        ["clock"] => {
            println!("{}", queue::clock());
            Ok(())
        }
        _ => Err(format!("no role {words:?}").into()),
    }
}

/// Sends every byte that comes through one FIFO back through another.
fn echo(directory: &Path) -> Outcome<()> {
    let (mut there, mut back) = (open(&directory.join("there"))?, open(&directory.join("back"))?);
    let mut byte = [0];
    while there.read(&mut byte)? == 1 && byte[0] != 0 {
        back.write_all(&byte)?;
    }
    Ok(())
}

/// Opens a FIFO for reading and writing, so that neither end waits for the other.
pub(crate) fn open(fifo: &Path) -> Outcome<File> {
    Ok(OpenOptions::new().read(true).write(true).open(fifo)?)
}

/// Answers each request with a number until the input ends.
fn on_store(
    directory: &Path,
    serve: fn(&tokio::runtime::Runtime, &Client, &str) -> Outcome<u64>,
) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = {
        let _inside = runtime.enter();
        Client::new(Arc::new(LocalStore::open(directory)?))?
    };
    for request in std::io::stdin().lines() {
        let reply = serve(&runtime, &client, &request?)?;
        println!("{reply}");
    }
    Ok(())
}
