//! Updates that a paused holder destroys, counted on an unfenced and on a fenced resource.
//!
//! Processes take a lock, read a set, work for a moment, write the set back with one more element, and release.
//! Every few seconds the holder is stopped until its lock has expired and another process has written. It then
//! writes what it has read before, plus its element: whatever others have added meanwhile is lost. The fenced set
//! gets the same writes, and compares tokens.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure::{ErrorKind, Options};
use tenure_testkit::Process;

use crate::part::ClientProgram;
use crate::real::is_fault_of_servers;

/// How it is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The store.
    pub url: String,
    /// How many processes take the lock.
    pub processes: usize,
    /// The TTL.
    pub ttl: Duration,
    /// How often the holder is stopped.
    pub pause_every: Duration,
    /// How long it lasts.
    pub duration: Duration,
}

/// A process that takes the lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    number: usize,
    lock: String,
    resource: String,
    url: String,
    ttl: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// How often the holder was stopped.
    pub pauses: u64,
    /// Updates that the unfenced set has acknowledged, and how many of them are not in it.
    pub unfenced: Updates,
    /// The same of the fenced set.
    pub fenced: Updates,
    /// Updates that the fenced set has rejected.
    pub rejected: u64,
}

/// Updates of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Updates {
    /// How many were acknowledged.
    pub acknowledged: u64,
    /// How many of them are not in the set.
    pub lost: u64,
}

/// How long a holder works between reading and writing.
const WORK: Duration = Duration::from_millis(10);

/// The pause after an acquire that the store could not serve.
const RETRY: Duration = Duration::from_millis(20);

/// How long a stopped process waits for another one to write, before it goes on.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs it. `report` hears now and then how much of the time has passed.
///
/// # Errors
/// If a process cannot be started, or dies.
pub fn run(plan: &Plan, program: &ClientProgram, report: impl Fn(Duration)) -> io::Result<Tally> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?.to_string();
    let sets = Arc::<Mutex<Sets>>::default();
    let serving = Arc::clone(&sets);
    std::thread::spawn(move || serve_all(&listener, &serving));
    let lock = format!("lab/set/{:x}", crate::history::now());
    let start = |number: usize| {
        let (lock, resource) = (lock.clone(), address.clone());
        let part = Part { number, lock, resource, url: plan.url.clone(), ttl: plan.ttl };
        Process::spawn(program.command(&crate::part::Part::LockSet(part))?)
    };
    let mut processes = (0..plan.processes).map(start).collect::<io::Result<Vec<_>>>()?;
    let (begin, mut pauses) = (Instant::now(), 0);
    let mut next = plan.pause_every;
    while begin.elapsed() < plan.duration {
        report(begin.elapsed());
        std::thread::sleep(Duration::from_millis(20));
        for process in &mut processes {
            if let Some(status) = process.status()? {
                return Err(io::Error::other(format!("a process of the test ended: {status}")));
            }
        }
        if begin.elapsed() < next {
            continue;
        }
        next = begin.elapsed() + plan.pause_every;
        if pause_holder(&sets, &mut processes, plan.ttl * 2)? {
            pauses += 1;
        }
    }
    drop(processes);
    // What they have sent last has arrived, or never will.
    std::thread::sleep(Duration::from_millis(100));
    Ok(Tally { pauses, ..lock_of(&sets).tally() })
}

/// Stops the process that has read and not written yet, for this long at least, and until another one has
/// written. False if there is none.
fn pause_holder(
    sets: &Mutex<Sets>,
    processes: &mut [Process],
    pause: Duration,
) -> io::Result<bool> {
    let start = Instant::now();
    let holder = loop {
        match lock_of(sets).reader {
            Some(holder) => break holder,
            None if start.elapsed() > PATIENCE => return Ok(false),
            None => {}
        }
        std::thread::sleep(Duration::from_micros(200));
    };
    let process = processes.get_mut(holder).ok_or(io::ErrorKind::NotFound)?;
    process.stop()?;
    let written = lock_of(sets).unfenced.nodes.len();
    // If it had written already, the others go on, and this pause destroys nothing.
    let start = Instant::now();
    let others_wrote = || lock_of(sets).unfenced.nodes.len() > written;
    while start.elapsed() < pause || (!others_wrote() && start.elapsed() < PATIENCE) {
        std::thread::sleep(Duration::from_millis(5));
    }
    process.cont()?;
    Ok(true)
}

/// A process that takes the lock again and again, and writes without a look at its lease.
///
/// # Errors
/// If the store or the resource does not answer.
pub(crate) fn work(part: &Part) -> io::Result<()> {
    let Part { number, lock, resource, url, ttl } = part;
    end_with_input();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = tenure::connect(url).await.map_err(io::Error::other)?;
        let mutex = client.mutex(lock).map_err(io::Error::other)?.with(Options::new().ttl(*ttl));
        let mut stream = TcpStream::connect(resource)?;
        let mut replies = BufReader::new(stream.try_clone()?).lines();
        let mut ask = |request: String| -> io::Result<String> {
            stream.write_all(request.as_bytes())?;
            replies.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
        };
        loop {
            let guard = until_granted(async || mutex.acquire().await).await?;
            let token = guard.token().map_or_else(|| "-".into(), |token| token.get().to_string());
            let versions = ask(format!("read {number} {token}\n"))?;
            tokio::time::sleep(WORK).await;
            ask(format!("write {number} {token} {versions}\n"))?;
            match guard.release().await {
                Err(error) if error.kind() == ErrorKind::Internal => {
                    return Err(io::Error::other(error));
                }
                // It was lost, or goes on in the background.
                _ => {}
            }
        }
    })
}

/// Asks for the lock until it is granted, also while the store is away or too slow.
async fn until_granted<G>(mut acquire: impl AsyncFnMut() -> tenure::Result<G>) -> io::Result<G> {
    loop {
        match acquire().await {
            Ok(guard) => return Ok(guard),
            Err(error) if is_fault_of_servers(&error) => tokio::time::sleep(RETRY).await,
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Ends the process when the one that started it is gone.
fn end_with_input() {
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
}

/// A set that is read and written as a whole. Each write is a node with the version that it was based on.
#[derive(Debug, Default)]
struct Set {
    /// The version that each write was based on; version 0 is empty, and the first write makes version 1.
    nodes: Vec<usize>,
    current: usize,
}

impl Set {
    fn write(&mut self, based_on: usize) {
        self.nodes.push(based_on.min(self.nodes.len()));
        self.current = self.nodes.len();
    }

    fn updates(&self) -> Updates {
        let (mut kept, mut version) = (HashSet::new(), self.current);
        while let Some(before) = version.checked_sub(1) {
            kept.insert(version);
            version = self.nodes[before];
        }
        let acknowledged = self.nodes.len() as u64;
        Updates { acknowledged, lost: acknowledged - kept.len() as u64 }
    }
}

#[derive(Debug, Default)]
struct Sets {
    unfenced: Set,
    fenced: Set,
    greatest: u64,
    rejected: u64,
    /// The process that has read and not written yet.
    reader: Option<usize>,
}

impl Sets {
    fn tally(&self) -> Tally {
        let (unfenced, fenced) = (self.unfenced.updates(), self.fenced.updates());
        Tally { pauses: 0, unfenced, fenced, rejected: self.rejected }
    }

    fn passes(&mut self, token: &str) -> bool {
        let Ok(token) = token.parse::<u64>() else { return true };
        let passes = token >= self.greatest;
        self.greatest = self.greatest.max(token);
        passes
    }

    /// Replies to a request.
    fn arrive(&mut self, line: &str) -> Option<String> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["read", name, token] => {
                self.passes(token);
                self.reader = name.parse().ok();
                Some(format!("{} {}", self.unfenced.current, self.fenced.current))
            }
            ["write", _, token, unfenced, fenced] => {
                self.reader = None;
                self.unfenced.write(unfenced.parse().ok()?);
                match self.passes(token) {
                    true => self.fenced.write(fenced.parse().ok()?),
                    false => self.rejected += 1,
                }
                Some("done".into())
            }
            _ => None,
        }
    }
}

fn serve_all(listener: &TcpListener, sets: &Arc<Mutex<Sets>>) {
    for stream in listener.incoming().map_while(Result::ok) {
        let sets = Arc::clone(sets);
        std::thread::spawn(move || serve(stream, &sets));
    }
}

fn serve(stream: TcpStream, sets: &Mutex<Sets>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let reply = lock_of(sets).arrive(&line?);
        let Some(reply) = reply else { return Err(io::ErrorKind::InvalidData.into()) };
        out.write_all(format!("{reply}\n").as_bytes())?;
    }
    Ok(())
}

fn lock_of(sets: &Mutex<Sets>) -> MutexGuard<'_, Sets> {
    sets.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_write_destroys_updates_of_the_unfenced_set_alone() {
        let mut sets = Sets::default();
        let mut ask = |line: &str| sets.arrive(line).unwrap();
        assert_eq!(ask("read 0 1"), "0 0");
        // The first process is stopped; the second one adds two elements.
        assert_eq!(ask("read 1 2"), "0 0");
        ask("write 1 2 0 0");
        assert_eq!(ask("read 1 3"), "1 1");
        ask("write 1 3 1 1");
        ask("write 0 1 0 0");
        let tally = sets.tally();
        assert_eq!(tally.unfenced, Updates { acknowledged: 3, lost: 2 });
        assert_eq!(tally.fenced, Updates { acknowledged: 2, lost: 0 });
        assert_eq!(tally.rejected, 1);
    }

    #[tokio::test]
    async fn a_store_that_is_away_or_slow_is_asked_again_after_a_pause() {
        let mut kinds = vec![ErrorKind::LeaseTooShort, ErrorKind::Unreachable];
        let begin = Instant::now();
        let refused = |kind| tenure::Error::new(kind, "acquire", "refused");
        let granted = until_granted(async || kinds.pop().map_or(Ok(()), |kind| Err(refused(kind))));
        granted.await.expect("the third acquire succeeds");
        assert!(begin.elapsed() >= RETRY * 2, "{:?}", begin.elapsed());
        let failed = until_granted(async || Err::<(), _>(refused(ErrorKind::Invalid))).await;
        assert!(failed.is_err(), "no pause mends it");
    }

    #[test]
    fn without_tokens_the_fence_protects_nothing() {
        let mut sets = Sets::default();
        for line in ["read 0 -", "read 1 -", "write 1 - 0 0", "write 0 - 0 0"] {
            sets.arrive(line);
        }
        assert_eq!(sets.tally().fenced, Updates { acknowledged: 2, lost: 1 });
    }
}
