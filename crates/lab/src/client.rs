//! A client process of an experiment: it does what it is told line by line, and says what happened and when.
//!
//! | in | out, after the time |
//! |---|---|
//! | | `ready` |
//! | `acquire LOCK TTL WAIT` (milliseconds) | `invoked GRANT LOCK`; then `held GRANT TOKEN DEADLINE`, `busy GRANT` or `failed GRANT WHY` |
//! | `cancel`, while it acquires | `cancelled GRANT` |
//! | `read`, `write` | `sent GRANT`, then `accessed accepted` or `rejected`; or `lost GRANT` without asking the resource |
//! | `done` | `releasing GRANT`: its work is done, and it is about to release |
//! | `release` | `releasing GRANT`; then `released GRANT` and whether it was still held |
//! | `arm POINT`; `go` | `at POINT`, when the algorithm has come to the point |
//! | `crowd N LOCK TTL` | `held …` for each of N more clients of this process that gets the lock, and keeps it |
//! | | `until GRANT DEADLINE` now and then, and `lost GRANT` |

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};

use crate::algorithms::{self, Info};
use crate::specimens::{Algorithm, Bench, Hold};
use crate::steps::Steps;

/// How often a client says until when it holds the lock.
const TICK: Duration = Duration::from_millis(50);

/// A client of an experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Its name.
    pub(crate) name: String,
    /// The algorithm.
    pub(crate) algorithm: String,
    /// Addresses of the servers, or the directory of a local store.
    pub(crate) servers: Vec<String>,
    /// Address of the resource.
    pub(crate) resource: String,
    /// Options of the algorithm: what is appended to the URL of a store, and how long a hold may last.
    pub(crate) options: Options,
}

/// Options of an algorithm.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Options {
    /// What is appended to the URL of a store, as in `timeout=1s`.
    pub(crate) url: String,
    /// How long a hold may last, in milliseconds.
    pub(crate) max_hold: Option<u64>,
}

/// Plays a part until standard input ends.
///
/// # Errors
/// If the algorithm is unknown, or its servers do not answer.
pub(crate) fn play(part: &Part) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let played = LocalSet::new().block_on(&runtime, Client::play(part.clone()));
    runtime.shutdown_background();
    played
}

struct Client {
    info: &'static Info,
    part: Part,
    steps: Rc<Steps>,
    algorithm: Rc<dyn Algorithm>,
    held: RefCell<Option<(String, String, Hold)>>,
}

impl Client {
    async fn play(part: Part) -> io::Result<()> {
        let unknown = || io::Error::other(format!("there is no algorithm {}", part.algorithm));
        let info = algorithms::find(&part.algorithm).ok_or_else(unknown)?;
        let steps = Rc::new(Steps::new(part.name.clone()));
        let bench = Bench { servers: part.servers.clone(), steps: Rc::clone(&steps) };
        let algorithm: Rc<dyn Algorithm> = info.client(&bench, &part.options).await?.into();
        let client = Rc::new(Self { info, part, steps, algorithm, held: RefCell::new(None) });
        client.steps.say("ready");
        tokio::task::spawn_local(Rc::clone(&client).tick());
        let mut lines = standard_input();
        let (mut acquiring, mut number): (Option<(JoinHandle<()>, String)>, u32) = (None, 0);
        while let Some(line) = lines.recv().await {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["acquire", lock, ttl, wait] => {
                    number += 1;
                    let grant = format!("{}{number}", client.part.name);
                    let (ttl, wait) = (millis(ttl)?, millis(wait)?);
                    client.steps.say(format_args!("invoked {grant} {lock}"));
                    let task =
                        Rc::clone(&client).acquire(grant.clone(), lock.to_owned(), ttl, wait);
                    acquiring = Some((tokio::task::spawn_local(task), grant));
                }
                ["cancel"] => {
                    if let Some((task, grant)) = acquiring.take() {
                        task.abort();
                        let _ = task.await;
                        client.steps.say(format_args!("cancelled {grant}"));
                    }
                }
                [kind @ ("read" | "write")] => client.access(kind),
                ["done"] => client.finish(),
                ["release"] => drop(tokio::task::spawn_local(Rc::clone(&client).release())),
                ["arm", point] => client.steps.arm(point),
                ["go"] => client.steps.go(),
                ["crowd", count, lock, ttl] => {
                    let count = count.parse().map_err(io::Error::other)?;
                    Rc::clone(&client).crowd(count, lock, millis(ttl)?).await?;
                }
                ["quit"] => break,
                _ => return Err(io::Error::other(format!("{line:?} is no order"))),
            }
        }
        Ok(())
    }

    async fn acquire(self: Rc<Self>, grant: String, lock: String, ttl: Duration, wait: Duration) {
        match self.algorithm.acquire(&lock, ttl, wait).await {
            Ok(Some(hold)) => {
                self.say_held(&grant, &hold);
                *self.held.borrow_mut() = Some((grant, lock, hold));
            }
            Ok(None) => self.steps.say(format_args!("busy {grant}")),
            Err(error) => self.steps.say(format_args!("failed {grant} {error}")),
        }
    }

    fn say_held(&self, grant: &str, hold: &Hold) {
        let number =
            |value: Option<u64>| value.map_or_else(|| "-".into(), |value| value.to_string());
        let (token, deadline) = (number(hold.token()), number(hold.deadline()));
        self.steps.say(format_args!("held {grant} {token} {deadline}"));
    }

    /// Sends something to the resource, if the lock is held as far as the algorithm knows.
    fn access(self: &Rc<Self>, kind: &str) {
        let held = self.held.borrow();
        let Some((grant, lock, hold)) = &*held else { return self.steps.say("lost -") };
        if !hold.is_valid() {
            return self.steps.say(format_args!("lost {grant}"));
        }
        let token = hold.token().map_or_else(|| "-".into(), |token| token.to_string());
        let request = format!("{kind} {lock} {grant} {token}\n");
        let (this, grant) = (Rc::clone(self), grant.clone());
        tokio::task::spawn_local(async move {
            match this.ask_resource(&request, &grant).await {
                Ok(reply) => this.steps.say(format_args!("accessed {reply}")),
                Err(error) => this.steps.say(format_args!("accessed {error}")),
            }
        });
    }

    async fn ask_resource(&self, request: &str, grant: &str) -> io::Result<String> {
        let mut stream = BufReader::new(TcpStream::connect(&self.part.resource).await?);
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        self.steps.say(format_args!("sent {grant}"));
        let mut reply = String::new();
        stream.read_line(&mut reply).await?;
        Ok(reply.trim_end().to_owned())
    }

    /// The work under the lock is done: the client needs it no longer.
    fn finish(&self) {
        if let Some((grant, ..)) = &*self.held.borrow() {
            self.steps.say(format_args!("releasing {grant}"));
        }
    }

    async fn release(self: Rc<Self>) {
        let Some((grant, _, hold)) = self.held.borrow_mut().take() else {
            return self.steps.say("released - false");
        };
        self.steps.say(format_args!("releasing {grant}"));
        match hold.release().await {
            Ok(was_held) => self.steps.say(format_args!("released {grant} {was_held}")),
            Err(error) => self.steps.say(format_args!("released {grant} {error}")),
        }
    }

    /// More clients, which all wait for the lock. A client that gets it keeps it.
    async fn crowd(self: Rc<Self>, count: usize, lock: &str, ttl: Duration) -> io::Result<()> {
        let bench = Bench { servers: self.part.servers.clone(), steps: Rc::clone(&self.steps) };
        for number in 0..count {
            let algorithm = self.info.client(&bench, &self.part.options).await?;
            let (client, lock) = (Rc::clone(&self), lock.to_owned());
            tokio::task::spawn_local(async move {
                let held = algorithm.acquire(&lock, ttl, ttl).await;
                if let Ok(Some(hold)) = held {
                    client.say_held(&format!("{}-{number}", client.part.name), &hold);
                    std::future::pending::<()>().await;
                }
            });
        }
        self.steps.say("gathered");
        Ok(())
    }

    /// Reports how long the lock is held, and its loss.
    async fn tick(self: Rc<Self>) {
        let mut lost = String::new();
        loop {
            tokio::time::sleep(TICK).await;
            let held = self.held.borrow();
            let Some((grant, _, hold)) = &*held else { continue };
            match (hold.is_valid(), hold.deadline()) {
                (true, Some(deadline)) => self.steps.say(format_args!("until {grant} {deadline}")),
                (false, _) if lost != *grant => {
                    lost.clone_from(grant);
                    self.steps.say(format_args!("lost {grant}"));
                }
                _ => {}
            }
        }
    }
}

fn millis(text: &str) -> io::Result<Duration> {
    text.parse().map(Duration::from_millis).map_err(io::Error::other)
}

/// The lines of standard input. At its end the process ends, whatever its tasks do: then the experiment is over.
pub(crate) fn standard_input() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        std::process::exit(0);
    });
    lines
}
