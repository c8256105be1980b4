//! A process of a soak: tasks that take locks, use the resource, and let go in every way.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tenure::{Client, Guard, Options};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

use super::Dice;
use crate::history::{Stamp, now};
use crate::steps::write_line;

/// Tasks in a process.
const TASKS: u64 = 6;

/// Locks that all of them share.
const LOCKS: u64 = 16;

/// How long a task waits for a lock.
const WAIT: Duration = Duration::from_secs(30);

/// Takes locks below `prefix` until it is told to quit. Each grant is reported before it is used.
///
/// # Errors
/// If the store or the resource does not answer at the start.
pub fn work(name: &str, prefix: &str, resource: &str, url: &str, ttl: Duration) -> io::Result<()> {
    let over = Rc::new(Cell::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worked = LocalSet::new().block_on(&runtime, async {
        let client = tenure::connect(url).await.map_err(io::Error::other)?;
        let mut tasks = JoinSet::new();
        for number in 0..TASKS {
            let task = Task {
                client: client.clone(),
                name: format!("{name}.{number}"),
                prefix: prefix.to_owned(),
                resource: BufReader::new(TcpStream::connect(resource).await?),
                ttl,
                dice: Dice::new(now() ^ number),
                over: Rc::clone(&over),
                careless: now(),
            };
            tasks.spawn_local(task.run());
        }
        let mut orders = crate::client::standard_input();
        orders.recv().await;
        over.set(true);
        while tasks.join_next().await.is_some() {}
        client.close().await;
        Ok(())
    });
    runtime.shutdown_background();
    worked
}

struct Task {
    client: Client,
    name: String,
    prefix: String,
    resource: BufReader<TcpStream>,
    ttl: Duration,
    dice: Dice,
    over: Rc<Cell<bool>>,
    /// When it next works for long, and writes without a look at its lease.
    careless: Stamp,
}

impl Task {
    async fn run(mut self) {
        let mut number = 0_u64;
        while !self.over.get() {
            let lock = format!("{}{}", self.prefix, self.dice.below(LOCKS));
            number += 1;
            let grant = format!("{}.{number}", self.name);
            let invoked = now();
            let guard = match self.acquire(&lock).await {
                Ok(Some(guard)) => guard,
                Ok(None) => continue,
                Err(error) if error.is_transient() || self.over.get() => continue,
                Err(error) => return write_line(&format!("failed {grant} {error}")),
            };
            let held = now();
            let deadline = held + guard.remaining().as_nanos() as u64;
            let token = token_of(&guard);
            write_line(&format!("held {grant} {lock} {invoked} {held} {token} {deadline}"));
            if let Err(error) = self.use_resource(&guard, &grant, &lock).await {
                write_line(&format!("failed {grant} {error}"));
            }
            write_line(&format!("done {grant} {}", now()));
            match self.dice.below(5) {
                0 => drop(guard),
                // It was lost, or goes on in the background.
                _ => drop(guard.release().await),
            }
        }
    }

    /// Waits, or only tries, or gives up in the middle.
    async fn acquire(&mut self, lock: &str) -> tenure::Result<Option<Guard>> {
        let mutex = self.client.mutex(lock)?.with(Options::new().ttl(self.ttl));
        match self.dice.below(20) {
            0 => {
                let limit = Duration::from_micros(self.dice.below(10_000));
                tokio::time::timeout(limit, mutex.acquire()).await.ok().transpose()
            }
            1 | 2 => match mutex.try_acquire().await {
                Err(error) if error.kind() == tenure::ErrorKind::Busy => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    Ok(None)
                }
                tried => tried.map(Some),
            },
            _ => match mutex.acquire_within(WAIT).await {
                Err(error) if error.kind() == tenure::ErrorKind::TimedOut => Ok(None),
                acquired => acquired.map(Some),
            },
        }
    }

    /// Reads and writes. Now and then it works for long and does not look at its lease, so that stale writes are
    /// sent.
    async fn use_resource(&mut self, guard: &Guard, grant: &str, lock: &str) -> io::Result<()> {
        let is_naive = now() > self.careless;
        if is_naive {
            self.careless = now() + (10 + self.dice.below(20)) * 1_000_000_000;
        }
        for kind in ["read", "write"] {
            if !is_naive && !guard.is_valid() {
                return Ok(());
            }
            let request = format!("{kind} {lock} {grant} {}\n", token_of(guard));
            self.resource.write_all(request.as_bytes()).await?;
            let mut reply = String::new();
            self.resource.read_line(&mut reply).await?;
            if is_naive && kind == "read" {
                tokio::time::sleep(Duration::from_millis(300 + self.dice.below(500))).await;
            } else if self.dice.below(20) == 0 {
                tokio::time::sleep(Duration::from_millis(self.dice.below(20))).await;
            }
        }
        Ok(())
    }
}

fn token_of(guard: &Guard) -> String {
    guard.token().map_or_else(|| "-".into(), |token| token.get().to_string())
}
