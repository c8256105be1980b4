//! A process that takes locks on command. The fault cases stop and kill it.
//!
//! The crate of an engine has a program named `holder` that calls [`main`] with a registry that knows the
//! engine: an example (`examples/holder.rs`), which may use dev-dependencies and which `cargo test`
//! builds, or a binary. The suite finds it next to the test program.
//!
//! ```no_run
//! # use tenure::store::MemoryFactory as MyFactory;
//! let registry = tenure::Registry::default().with(MyFactory);
//! tenure_conformance::holder::main(&registry);
//! ```
//!
//! Usage: `holder URL`. It prints `ready`, then reads commands, one per line, until its input ends:
//!
//! | command | output |
//! |---|---|
//! | `acquire NAME [shared\|downgraded\|permits K N] TTL_MS` | `waiting`, then `held TOKEN`, or `held -` if there is no token |
//! | `release` | `released` or `not held`; for a waiting claim, cancels it and prints `gave up` |
//! | `status` | `free`, `waiting`, `valid` or `invalid` |
//! | `campaign NAME VALUE TTL_MS` | as `acquire`, with the leadership of an election |
//! | `once KEY VALUE TTL_MS` | `running` if it does the work, which lasts until `finish`; then `ran`, `replayed VALUE`, or `lost` for a late result |
//! | `barrier NAME PARTIES TTL_MS` | `waiting`, then `passed` or `broken`; it stays a party until it exits |
//! | `latch NAME COUNT TTL_MS` | `joined`; it stays a party, and never counts down |
//! | `count NAME FILE ROUNDS TTL_MS` | takes the lock ROUNDS times and appends its token to FILE each time, by reading and rewriting the file; then `counted` |
//!
//! When the lock is lost it prints `lost expired`, `lost not-held` or `lost max-hold` at once, and on
//! an error `error …`. At the end of its input it releases the lock and exits.

use std::time::Duration;

use std::ops::Deref;
use std::sync::Arc;

use tenure::{
    Client, Error, ErrorKind, Guard, Leadership, LossReason, Mutex, OnceOutcome, Options, Registry,
    Result,
};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// The holder process, for the engines of this registry. Executes commands until its input ends.
///
/// # Panics
/// If it cannot connect to the store, or does not understand a command: the case that waits for its
/// output fails then.
pub fn main(registry: &Registry) {
    let url = std::env::args().nth(1).expect("usage: holder URL");
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(registry, &url));
}

async fn run(registry: &Registry, url: &str) {
    let client = registry.connect(url).await.unwrap();
    println!("ready");
    let mut commands = CommandLoop {
        client: client.clone(),
        hold: Hold::None,
        lines: BufReader::new(tokio::io::stdin()).lines(),
        finish: Arc::default(),
    };
    while commands.step().await {}
    drop(commands.hold);
    client.close().await;
}

/// Executes commands, and reports what happens to the lock in the meantime.
struct CommandLoop {
    client: Client,
    hold: Hold,
    lines: Lines<BufReader<Stdin>>,
    /// Ends the work of `once`.
    finish: Arc<Notify>,
}

enum Hold {
    None,
    Waiting(JoinHandle<Result<Held>>),
    Held { guard: Held, loss_reported: bool },
}

enum Held {
    Lock(Guard),
    Leadership(Box<Leadership<String>>),
}

impl Deref for Held {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        match self {
            Self::Lock(guard) => guard,
            Self::Leadership(leadership) => leadership,
        }
    }
}

impl CommandLoop {
    /// Waits for a command, a grant or a loss, and handles it. Returns `false` at the end of the
    /// input.
    async fn step(&mut self) -> bool {
        tokio::select! {
            line = self.lines.next_line() => match line.unwrap() {
                Some(line) => self.execute(&line).await,
                None => {
                    if let Hold::Waiting(waiting) = &self.hold {
                        waiting.abort();
                    }
                    return false;
                }
            },
            event = next_event(&mut self.hold) => self.report(event),
        }
        true
    }

    async fn execute(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["acquire", name, .., ttl] => {
                println!("waiting");
                let acquire = acquire(self.client.clone(), name, &words[2..words.len() - 1], ttl);
                self.hold = Hold::Waiting(tokio::spawn(acquire));
            }
            ["campaign", name, value, ttl] => {
                println!("waiting");
                let election = self.client.election(name).unwrap().with(options(ttl));
                let value = value.to_owned();
                let campaign = async move {
                    let leadership = election.campaign(&value).await;
                    leadership.map(|leadership| Held::Leadership(Box::new(leadership)))
                };
                self.hold = Hold::Waiting(tokio::spawn(campaign));
            }
            ["once", key, value, ttl] => {
                let once = self.client.once::<String>(key).unwrap().with(options(ttl));
                let (value, finish) = (value.to_owned(), Arc::clone(&self.finish));
                tokio::spawn(async move {
                    let work = async |_: &Guard| {
                        println!("running");
                        finish.notified().await;
                        Ok::<_, Error>(value)
                    };
                    match once.run(work).await {
                        Ok(OnceOutcome::Replayed(value)) => println!("replayed {value}"),
                        Ok(_) => println!("ran"),
                        Err(error) if error.kind() == ErrorKind::Lost => println!("lost"),
                        Err(error) => println!("error {error}"),
                    }
                });
            }
            ["finish"] => self.finish.notify_one(),
            ["barrier", name, parties, ttl] => {
                println!("waiting");
                let barrier = self.client.barrier(name, parties.parse().unwrap()).unwrap();
                let mut barrier = barrier.with(options(ttl));
                tokio::spawn(async move {
                    match barrier.wait().await {
                        Ok(_) => println!("passed"),
                        Err(error) if error.kind() == ErrorKind::Broken => println!("broken"),
                        Err(error) => println!("error {error}"),
                    }
                    // Stays a party.
                    std::future::pending::<()>().await;
                });
            }
            ["latch", name, count, ttl] => {
                let latch = self.client.latch(name, count.parse().unwrap()).unwrap();
                let party = latch.with(options(ttl)).join().await.unwrap();
                println!("joined");
                tokio::spawn(async move {
                    let _stays = party;
                    std::future::pending::<()>().await;
                });
            }
            ["release"] => self.release().await,
            ["status"] => println!("{}", self.status()),
            ["count", name, file, rounds, ttl] => {
                let mutex = self.client.mutex(name).unwrap().with(options(ttl));
                for _ in 0..rounds.parse().unwrap() {
                    append_token(&mutex, file).await.unwrap();
                }
                println!("counted");
            }
            _ => println!("error unknown command {line:?}"),
        }
    }

    async fn release(&mut self) {
        match std::mem::replace(&mut self.hold, Hold::None) {
            Hold::None => println!("not held"),
            Hold::Waiting(waiting) => {
                waiting.abort();
                // If the grant came first, dropping its guard releases the lock.
                drop(waiting.await);
                self.client.close().await;
                println!("gave up");
            }
            Hold::Held { guard, .. } => {
                let released = match guard {
                    Held::Lock(guard) => guard.release().await,
                    Held::Leadership(leadership) => leadership.resign().await,
                };
                match released {
                    Ok(()) => println!("released"),
                    Err(error) if error.kind() == ErrorKind::Lost => println!("not held"),
                    Err(error) => println!("error {error}"),
                }
            }
        }
    }

    fn report(&mut self, event: Event) {
        match (event, &mut self.hold) {
            (Event::Granted(Ok(guard)), hold) => {
                match guard.token() {
                    Some(token) => println!("held {token}"),
                    None => println!("held -"),
                }
                *hold = Hold::Held { guard, loss_reported: false };
            }
            (Event::Granted(Err(error)), hold) => {
                println!("error {error}");
                *hold = Hold::None;
            }
            (Event::Lost(reason), Hold::Held { loss_reported, .. }) => {
                *loss_reported = true;
                println!("lost {}", reason_name(reason));
            }
            (Event::Lost(_), _) => {}
        }
    }

    fn status(&self) -> &'static str {
        match &self.hold {
            Hold::None => "free",
            Hold::Waiting(_) => "waiting",
            Hold::Held { guard, .. } if guard.is_valid() => "valid",
            Hold::Held { .. } => "invalid",
        }
    }
}

enum Event {
    Granted(Result<Held>),
    Lost(LossReason),
}

/// The next event that no command caused: a grant or a loss.
async fn next_event(hold: &mut Hold) -> Event {
    match hold {
        Hold::Waiting(waiting) => Event::Granted(waiting.await.unwrap()),
        Hold::Held { guard, loss_reported: false } => Event::Lost(guard.lost().await),
        Hold::None | Hold::Held { loss_reported: true, .. } => std::future::pending().await,
    }
}

fn acquire(
    client: Client,
    name: &str,
    mode: &[&str],
    ttl: &str,
) -> impl Future<Output = Result<Held>> + use<> {
    let (name, options) = (name.to_owned(), options(ttl));
    let mode: Vec<String> = mode.iter().map(|word| (*word).to_owned()).collect();
    async move {
        let mode: Vec<&str> = mode.iter().map(String::as_str).collect();
        let guard = match mode[..] {
            [] => client.mutex(&name)?.with(options).acquire().await,
            ["shared"] => client.rw_lock(&name)?.with(options).read().await.map(Guard::from),
            ["downgraded"] => {
                let writer = client.rw_lock(&name)?.with(options).write().await?;
                writer.downgrade().await.map(Guard::from)
            }
            ["permits", take, of] => {
                let semaphore = client.semaphore(&name, of.parse().unwrap())?.with(options);
                semaphore.acquire_many(take.parse().unwrap()).await
            }
            _ => panic!("unknown mode {mode:?}"),
        };
        guard.map(Held::Lock)
    }
}

/// Appends the token to a file by reading and rewriting it: only the lock prevents lost updates.
async fn append_token(mutex: &Mutex, file: &str) -> Result<()> {
    let guard = mutex.acquire().await?;
    let mut text = std::fs::read_to_string(file).unwrap();
    text += &guard.token().map_or("-".to_owned(), |token| token.to_string());
    text += "\n";
    std::fs::write(file, text).unwrap();
    guard.release().await?;
    Ok(())
}

fn options(ttl_ms: &str) -> Options {
    Options::new().ttl(Duration::from_millis(ttl_ms.parse().unwrap()))
}

fn reason_name(reason: LossReason) -> &'static str {
    match reason {
        LossReason::NotHeld => "not-held",
        LossReason::MaxHold => "max-hold",
        _ => "expired",
    }
}
