//! A process of a soak: tasks that take locks, use the resource, and let go in every way.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_testkit::{Dice, GENEROUS};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

use crate::client::Options;
use crate::history::{Stamp, now};
use crate::real::Tenure;
use crate::specimens::{Algorithm, Bench, Hold};
use crate::steps::{Steps, write_line};

/// Tasks in a process.
pub(super) const TASKS: u64 = 6;

/// Locks that all of them share.
const LOCKS: u64 = 64;

/// Locks that a quarter of the acquires are for.
const BUSY_LOCKS: u64 = 8;

/// How long a task waits for a lock now and then.
const LONG_WAIT: Duration = Duration::from_secs(30);

/// How long a task waits for a lock mostly, so that a dead holder does not stop all others.
const SHORT_WAIT: Duration = Duration::from_millis(50);

/// A process of a soak.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// A name that no other process of the soak has had.
    pub(crate) name: String,
    /// What the names of its locks begin with.
    pub(crate) prefix: String,
    /// Address of the resource.
    pub(crate) resource: String,
    pub(crate) subject: Subject,
    pub(crate) ttl: Duration,
    /// Chooses what its tasks do.
    pub(crate) seed: u64,
    /// The time between two acquires of a task.
    pub(crate) interval: Duration,
}

/// What takes the locks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Subject {
    /// tenure, on the store of this URL.
    Store(String),
    /// An algorithm of the laboratory, on these servers.
    Algorithm { id: String, servers: Vec<String>, url_options: String },
}

/// Takes locks until it is told to `quit`; told to `be careless`, one of its tasks says `careless GRANT` when it is in
/// the middle of its work. Each grant is reported before it is used.
///
/// # Errors
/// If the store or the resource does not answer at the start.
pub(crate) fn work(part: Part) -> io::Result<()> {
    let (over, careless) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worked = LocalSet::new().block_on(&runtime, async {
        let shared: Rc<dyn Algorithm> = part.subject.connect(&part.name).await?;
        let part = Rc::new(part);
        let mut tasks = JoinSet::new();
        for number in 0..TASKS {
            let task = Task {
                algorithm: match part.subject.is_specimen() {
                    true => part.subject.connect(&part.name).await?,
                    false => Rc::clone(&shared),
                },
                name: format!("{}.{number}", part.name),
                part: Rc::clone(&part),
                resource: BufReader::new(TcpStream::connect(&part.resource).await?),
                dice: Dice::new(part.seed.wrapping_add(number)),
                over: Rc::clone(&over),
                careless: Rc::clone(&careless),
                next: now(),
            };
            tasks.spawn_local(task.run());
        }
        let mut orders = crate::client::standard_input();
        while orders.recv().await.is_some_and(|order| order == "be careless") {
            careless.set(true);
        }
        over.set(true);
        while tasks.join_next().await.is_some() {}
        shared.close().await;
        Ok(())
    });
    runtime.shutdown_background();
    worked
}

impl Subject {
    fn is_specimen(&self) -> bool {
        match self {
            Self::Store(_) => false,
            Self::Algorithm { id, .. } => {
                crate::algorithms::find(id).is_some_and(|info| info.is_specimen)
            }
        }
    }

    /// Connects, also to servers that are down for a moment.
    async fn connect(&self, name: &str) -> io::Result<Rc<dyn Algorithm>> {
        let end = now() + GENEROUS.as_nanos() as u64;
        loop {
            match self.try_connect(name).await {
                Err(error) if now() > end => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                connected => return connected,
            }
        }
    }

    async fn try_connect(&self, name: &str) -> io::Result<Rc<dyn Algorithm>> {
        match self {
            Self::Store(url) => Ok(Rc::new(Tenure::connect(url, true, name).await?)),
            Self::Algorithm { id, servers, url_options } => {
                let unknown = || io::Error::other(format!("there is no algorithm {id}"));
                let info = crate::algorithms::find(id).ok_or_else(unknown)?;
                let steps = Rc::new(Steps::new(name.to_owned()));
                let bench = Bench { servers: servers.clone(), steps };
                let options = Options { url: url_options.clone(), max_hold: None };
                Ok(info.client(&bench, &options).await?.into())
            }
        }
    }
}

struct Task {
    algorithm: Rc<dyn Algorithm>,
    name: String,
    part: Rc<Part>,
    resource: BufReader<TcpStream>,
    dice: Dice,
    over: Rc<Cell<bool>>,
    /// Whether the next task that gets a lock works for a while, and writes without a look at its lease.
    careless: Rc<Cell<bool>>,
    /// When it next acquires.
    next: Stamp,
}

impl Task {
    async fn run(mut self) {
        let mut number = 0_u64;
        while !self.over.get() {
            self.pace().await;
            let locks = if self.dice.below(4) == 0 { BUSY_LOCKS } else { LOCKS };
            let lock = format!("{}{}", self.part.prefix, self.dice.below(locks));
            number += 1;
            let grant = format!("{}.{number}", self.name);
            let invoked = now();
            let hold = match self.acquire(&lock).await {
                Ok(Some(hold)) => hold,
                Ok(None) => {
                    write_line(&format!("refused {lock} {invoked} {}", now()));
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    continue;
                }
                Err(error) if is_fault_of_servers(&error) || self.over.get() => {
                    write_line(&format!("refused {lock} {invoked} {}", now()));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
                Err(error) => return write_line(&format!("failed {grant} {error}")),
            };
            let (held, token) = (now(), or_dash(hold.token()));
            let deadline = or_dash(hold.deadline());
            // The process may have been stopped since the store granted the lock. The client knows it.
            if hold.is_valid() {
                write_line(&format!("held {grant} {lock} {invoked} {held} {token} {deadline}"));
                if let Err(error) = self.use_resource(&*hold, &grant, &lock).await {
                    write_line(&format!("failed {grant} {error}"));
                }
                write_line(&format!("done {grant} {}", now()));
            } else {
                write_line(&format!("refused {lock} {invoked} {held}"));
            }
            match self.dice.below(5) {
                0 => drop(hold),
                // It was lost, or goes on in the background.
                _ => drop(hold.release().await),
            }
        }
    }

    /// Waits for the time of the next acquire. What an outage has held up is made up for.
    async fn pace(&mut self) {
        self.next += self.part.interval.as_nanos() as u64;
        let wait = Duration::from_nanos(self.next.saturating_sub(now()));
        if wait.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(wait).await;
        }
    }

    /// Waits, or only tries, or gives up in the middle.
    async fn acquire(&mut self, lock: &str) -> io::Result<Option<Hold>> {
        let ttl = self.part.ttl;
        match self.dice.below(20) {
            0 => {
                let limit = Duration::from_micros(self.dice.below(10_000));
                let acquiring = self.algorithm.acquire(lock, ttl, LONG_WAIT);
                tokio::time::timeout(limit, acquiring).await.unwrap_or(Ok(None))
            }
            1 | 2 => self.algorithm.acquire(lock, ttl, Duration::ZERO).await,
            3 => self.algorithm.acquire(lock, ttl, LONG_WAIT).await,
            _ => self.algorithm.acquire(lock, ttl, SHORT_WAIT).await,
        }
    }

    /// Reads and writes. A careless task works for a while, in which the process is stopped, and does not look at its
    /// lease before it writes. Now and then the work takes longer than the TTL, so that the lease has to be renewed.
    async fn use_resource(
        &mut self,
        hold: &dyn crate::specimens::Held,
        grant: &str,
        lock: &str,
    ) -> io::Result<()> {
        let is_careless = self.careless.replace(false);
        let work = match self.dice.below(2_000) {
            _ if is_careless => self.dice.millis(300, 800),
            0 => self.part.ttl * 3 / 2,
            1..50 => self.dice.millis(0, 20),
            _ => Duration::ZERO,
        };
        for kind in ["read", "write"] {
            if !is_careless && !hold.is_valid() {
                return Ok(());
            }
            let request = format!("{kind} {lock} {grant} {}\n", or_dash(hold.token()));
            self.resource.write_all(request.as_bytes()).await?;
            let mut reply = String::new();
            self.resource.read_line(&mut reply).await?;
            if kind == "read" && is_careless {
                write_line(&format!("careless {grant}"));
            }
            if kind == "read" && !work.is_zero() {
                self.work(hold, grant, work).await;
            }
        }
        Ok(())
    }

    /// Works, and reports until when the lock is held.
    async fn work(&self, hold: &dyn crate::specimens::Held, grant: &str, time: Duration) {
        let end = now() + time.as_nanos() as u64;
        loop {
            let left = Duration::from_nanos(end.saturating_sub(now()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(Duration::from_millis(100))).await;
            if let Some(deadline) = hold.deadline().filter(|_| hold.is_valid()) {
                write_line(&format!("until {grant} {deadline}"));
            }
        }
    }
}

/// Whether an acquire may succeed later. Errors of specimens are not told apart.
fn is_fault_of_servers(error: &io::Error) -> bool {
    let tenure = error.get_ref().and_then(|error| error.downcast_ref::<tenure::Error>());
    tenure.is_none_or(crate::real::is_fault_of_servers)
}

fn or_dash(number: Option<u64>) -> String {
    number.map_or_else(|| "-".into(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tenure::{Error, ErrorKind};

    use super::*;

    /// Refuses acquires with these kinds of errors, one after the other, and then ends the soak.
    struct Refuses {
        kinds: Vec<ErrorKind>,
        asked: Cell<usize>,
        over: Rc<Cell<bool>>,
    }

    #[async_trait(?Send)]
    impl Algorithm for Refuses {
        async fn acquire(&self, _: &str, _: Duration, _: Duration) -> io::Result<Option<Hold>> {
            let number = self.asked.replace(self.asked.get() + 1);
            let Some(kind) = self.kinds.get(number) else {
                self.over.set(true);
                return Ok(None);
            };
            Err(io::Error::other(Error::new(*kind, "acquire", "refused")))
        }

        async fn holder(&self, _: &str) -> io::Result<Option<String>> {
            Ok(None)
        }
    }

    /// How often a task asks for a lock when its first acquires fail with these errors.
    async fn asks(kinds: &[ErrorKind]) -> usize {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let resource = listener.local_addr().expect("it is bound").to_string();
        let over = Rc::new(Cell::new(false));
        let refuses =
            Rc::new(Refuses { kinds: kinds.to_vec(), asked: Cell::new(0), over: Rc::clone(&over) });
        let connection = TcpStream::connect(&resource).await.expect("it listens");
        let part = Part {
            name: "p".into(),
            prefix: String::new(),
            resource,
            subject: Subject::Store(String::new()),
            ttl: Duration::from_secs(3),
            seed: 1,
            interval: Duration::ZERO,
        };
        let task = Task {
            algorithm: Rc::clone(&refuses) as Rc<dyn Algorithm>,
            name: "p.0".into(),
            part: Rc::new(part),
            resource: BufReader::new(connection),
            dice: Dice::new(1),
            over,
            careless: Rc::new(Cell::new(false)),
            next: now(),
        };
        tokio::time::timeout(GENEROUS, task.run()).await.expect("it ends");
        refuses.asked.get()
    }

    #[tokio::test]
    async fn a_task_goes_on_after_what_slow_or_absent_servers_cause() {
        let faults = [ErrorKind::Unreachable, ErrorKind::QuorumLost, ErrorKind::LeaseTooShort];
        assert_eq!(asks(&faults).await, faults.len() + 1);
    }

    #[tokio::test]
    async fn a_task_ends_after_what_no_fault_explains() {
        assert_eq!(asks(&[ErrorKind::Invalid]).await, 1);
    }
}
