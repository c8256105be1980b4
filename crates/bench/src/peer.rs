//! The other process: this program again, in another role.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use tenure_core::Client;
use tenure_local::LocalStore;

use crate::{Outcome, handoff, redis_crowd, redis_line, waiters};

/// The first argument that makes this program a peer.
pub(crate) const ROLE: &str = "peer";

/// A peer process. It ends with its standard input, and is killed with its handle.
pub(crate) struct Peer {
    child: Child,
    orders: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(role: &str, place: impl AsRef<OsStr>) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([ROLE, role]).arg(place);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().ok_or("the peer has no standard input")?;
        let replies = BufReader::new(child.stdout.take().ok_or("the peer has no output")?);
        Ok(Self { child, orders, replies })
    }

    pub(crate) fn order(&mut self, line: &str) -> Outcome<()> {
        writeln!(self.orders, "{line}")?;
        Ok(self.orders.flush()?)
    }

    /// The peer's next line, as a number.
    pub(crate) fn reply(&mut self) -> Outcome<u64> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        Ok(line.trim().parse().map_err(|_| format!("the peer said {line:?}"))?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself already; either way it is gone after this.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the peer process does.
pub(crate) fn play(arguments: &[String]) -> Outcome<()> {
    let [role, place] = arguments else { return Err("a peer needs a role and a place".into()) };
    let folder = Path::new(place);
    match role.as_str() {
        "redis-line" => redis_line::serve(place),
        "redis-crowd" => redis_crowd::serve(place),
        "echo" => echo(folder),
        "handoff" => on_store(folder, handoff::serve),
        "waiters" => on_store(folder, waiters::serve),
        _ => Err(format!("no role {role}").into()),
    }
}

/// Sends back every byte that comes through a FIFO, by another.
fn echo(folder: &Path) -> Outcome<()> {
    let (mut there, mut back) = (open(&folder.join("there"))?, open(&folder.join("back"))?);
    let mut byte = [0];
    while there.read(&mut byte)? == 1 && byte[0] != 0 {
        back.write_all(&byte)?;
    }
    Ok(())
}

/// Both ends open it for reading and writing, so neither waits for the other.
pub(crate) fn open(fifo: &Path) -> Outcome<File> {
    Ok(OpenOptions::new().read(true).write(true).open(fifo)?)
}

/// Answers each order with a number, until there are no more.
fn on_store(
    folder: &Path,
    serve: fn(&tokio::runtime::Runtime, &Client, &str) -> Outcome<u64>,
) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = {
        let _inside = runtime.enter();
        Client::new(Arc::new(LocalStore::open(folder)?))?
    };
    for order in std::io::stdin().lines() {
        let reply = serve(&runtime, &client, &order?)?;
        println!("{reply}");
    }
    Ok(())
}
