//! A process that takes locks by command, to be stopped and killed by the cases of
//! [`processes`](crate::cases::processes).
//!
//! The crate of an engine has a program named `holder` that calls [`main`] with a registry in which the
//! engine is: an example (`examples/holder.rs`), which `cargo test` builds and which may use
//! dev-dependencies, or a binary. The suite finds it beside the test program.
//!
//! ```no_run
//! # use tenure::store::MemoryFactory as MyFactory;
//! fn main() {
//!     tenure_conformance::holder::main(tenure::Registry::default().with(MyFactory));
//! }
//! ```
//!
//! Usage: `holder URL`. It says `ready`, then reads commands, one a line, until its input ends:
//!
//! | command | what it says |
//! |---|---|
//! | `acquire NAME [shared\|permits K N] TTL_MS` | `waiting`, then `held TOKEN` (`held -` without) |
//! | `release` | `released` or `not held`; a claim that waits is given up: `gave up` |
//! | `status` | `free`, `waiting`, `valid` or `invalid` |
//! | `count NAME FILE ROUNDS TTL_MS` | takes the lock so often, each time reads the file and writes it back with its token added; then `counted` |
//!
//! A lock that is lost is told at once: `lost expired`, `lost not-held` or `lost max-hold`. Faults
//! are told as `error …`. At the end of its input it gives back what it holds, and ends.

use std::time::Duration;

use tenure::{Client, Guard, LossReason, Mutex, Options, Registry, Result};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::task::JoinHandle;

/// The holder process, for the engines of this registry. It serves its standard input to the end.
///
/// # Panics
/// If it cannot connect to the store: a case that waits for it fails then.
pub fn main(registry: Registry) {
    let url = std::env::args().nth(1).expect("usage: holder URL");
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(serve(&registry, &url));
}

async fn serve(registry: &Registry, url: &str) {
    let client = registry.connect(url).await.unwrap();
    println!("ready");
    let mut desk = Desk {
        client: client.clone(),
        hold: Hold::None,
        lines: BufReader::new(tokio::io::stdin()).lines(),
    };
    while desk.serve().await {}
    drop(desk.hold);
    client.close().await;
}

struct Desk {
    client: Client,
    hold: Hold,
    lines: Lines<BufReader<Stdin>>,
}

enum Hold {
    None,
    Waiting(JoinHandle<Result<Guard>>),
    Held { guard: Guard, told: bool },
}

impl Desk {
    /// Waits for the next event: a command, a grant, or a loss. False when the input has ended.
    async fn serve(&mut self) -> bool {
        tokio::select! {
            line = self.lines.next_line() => match line.unwrap() {
                Some(line) => self.obey(&line).await,
                None => {
                    if let Hold::Waiting(waiting) = &self.hold {
                        waiting.abort();
                    }
                    return false;
                }
            },
            event = news(&mut self.hold) => self.tell(event),
        }
        true
    }

    async fn obey(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["acquire", name, .., ttl] => {
                println!("waiting");
                let acquire = acquire(self.client.clone(), name, &words[2..words.len() - 1], ttl);
                self.hold = Hold::Waiting(tokio::spawn(acquire));
            }
            ["release"] => self.release().await,
            ["status"] => println!("{}", self.status()),
            ["count", name, file, rounds, ttl] => {
                let mutex = self.client.mutex(name).unwrap().with(options(ttl));
                for _ in 0..rounds.parse().unwrap() {
                    count(&mutex, file).await.unwrap();
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
                // A grant that came first is dropped, and so given back.
                drop(waiting.await);
                self.client.close().await;
                println!("gave up");
            }
            Hold::Held { guard, .. } => match guard.release().await {
                Ok(()) => println!("released"),
                Err(error) if error.kind() == tenure::ErrorKind::Lost => println!("not held"),
                Err(error) => println!("error {error}"),
            },
        }
    }

    fn tell(&mut self, event: Event) {
        match (event, &mut self.hold) {
            (Event::Granted(Ok(guard)), hold) => {
                match guard.token() {
                    Some(token) => println!("held {token}"),
                    None => println!("held -"),
                }
                *hold = Hold::Held { guard, told: false };
            }
            (Event::Granted(Err(error)), hold) => {
                println!("error {error}");
                *hold = Hold::None;
            }
            (Event::Lost(reason), Hold::Held { told, .. }) => {
                *told = true;
                println!("lost {}", spell(reason));
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
    Granted(Result<Guard>),
    Lost(LossReason),
}

/// The next thing that happens to the hold by itself.
async fn news(hold: &mut Hold) -> Event {
    match hold {
        Hold::Waiting(waiting) => Event::Granted(waiting.await.unwrap()),
        Hold::Held { guard, told: false } => Event::Lost(guard.lost().await),
        Hold::None | Hold::Held { told: true, .. } => std::future::pending().await,
    }
}

fn acquire(
    client: Client,
    name: &str,
    mode: &[&str],
    ttl: &str,
) -> impl Future<Output = Result<Guard>> + use<> {
    let (name, options) = (name.to_owned(), options(ttl));
    let mode: Vec<String> = mode.iter().map(|word| (*word).to_owned()).collect();
    async move {
        let mode: Vec<&str> = mode.iter().map(String::as_str).collect();
        match mode[..] {
            [] => client.mutex(&name)?.with(options).acquire().await,
            ["shared"] => client.rw_lock(&name)?.with(options).read().await,
            ["permits", take, of] => {
                let semaphore = client.semaphore(&name, of.parse().unwrap())?.with(options);
                semaphore.taking(take.parse().unwrap()).acquire().await
            }
            _ => panic!("unknown mode {mode:?}"),
        }
    }
}

/// One unprotected read, change and write of a file, under the lock.
async fn count(mutex: &Mutex, file: &str) -> Result<()> {
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

fn spell(reason: LossReason) -> &'static str {
    match reason {
        LossReason::NotHeld => "not-held",
        LossReason::MaxHold => "max-hold",
        _ => "expired",
    }
}
