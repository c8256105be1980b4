//! Load from many processes on one store, with random faults, judged as it goes.
//!
//! The faults are those of clients: processes are stopped for a moment, stopped for longer than the TTL, and killed;
//! acquires are given up, and some writes are sent without a look at the lease. A seed replays the faults, though not
//! the scheduling of the machine.

mod tally;
mod worker;

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure_testkit::Process;

use crate::history::now;
use crate::resource::Resource;
use crate::stage::ClientProgram;

pub use tally::Tally;
pub use worker::work;

/// How it is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The store.
    pub url: String,
    /// How many processes take locks.
    pub processes: usize,
    /// The TTL.
    pub ttl: Duration,
    /// How long it lasts.
    pub duration: Duration,
    /// Chooses the faults.
    pub seed: u64,
}

/// How often what has happened is judged.
const WINDOW: Duration = Duration::from_secs(5);

/// How long the processes may take to give back their locks at the end.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// Pseudo-random numbers, the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below this one.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }
}

/// What can happen to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    Hiccup,
    Pause,
    Kill,
}

struct Storm<'a> {
    plan: &'a Plan,
    program: &'a ClientProgram,
    prefix: String,
    resource: Resource,
    processes: Vec<(String, Process)>,
    /// Processes that were stopped, and until when.
    stopped: Vec<(usize, Instant)>,
    started: usize,
    tally: Tally,
}

/// Runs it. `report` hears now and then how much of the time has passed.
///
/// # Errors
/// If a process cannot be started, or ends by itself.
pub fn run(plan: &Plan, program: &ClientProgram, report: impl Fn(Duration)) -> io::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut storm = Storm {
        plan,
        program,
        prefix: format!("lab/soak/{:x}/", now()),
        resource: Resource::start()?,
        processes: Vec::new(),
        stopped: Vec::new(),
        started: 0,
        tally: Tally::new(plan.ttl),
    };
    runtime.block_on(async {
        for _ in 0..plan.processes {
            let fresh = storm.start()?;
            storm.processes.push(fresh);
        }
        storm.rage(report).await?;
        storm.end().await
    })
}

impl Storm<'_> {
    fn start(&mut self) -> io::Result<(String, Process)> {
        self.started += 1;
        let name = format!("p{}", self.started);
        let mut command = Command::new(&self.program.program);
        command.args(&self.program.arguments).args([&name, "soak", &self.prefix]);
        command.arg(format!("127.0.0.1:{}", self.resource.port()));
        command.args(["--url", &self.plan.url, "--ttl", &self.plan.ttl.as_millis().to_string()]);
        Ok((name, Process::spawn(command)?))
    }

    async fn rage(&mut self, report: impl Fn(Duration)) -> io::Result<()> {
        let mut dice = Dice::new(self.plan.seed);
        let begin = Instant::now();
        let (mut blow, mut window) = (Duration::from_secs(1), WINDOW);
        while begin.elapsed() < self.plan.duration {
            report(begin.elapsed());
            self.resume(false)?;
            self.listen().await?;
            if begin.elapsed() > blow {
                self.strike(&mut dice)?;
                blow = begin.elapsed() + Duration::from_millis(1_500 + dice.below(4_000));
            }
            if begin.elapsed() > window {
                self.judge().await?;
                window = begin.elapsed() + WINDOW;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Something happens to one process.
    fn strike(&mut self, dice: &mut Dice) -> io::Result<()> {
        let place = dice.below(self.processes.len() as u64) as usize;
        let blow = [Blow::Hiccup, Blow::Hiccup, Blow::Pause, Blow::Kill][dice.below(4) as usize];
        let hiccup = Duration::from_millis(20 + dice.below(300));
        if self.stopped.iter().any(|(stopped, _)| *stopped == place) {
            return Ok(());
        }
        let process = &mut self.processes[place].1;
        match blow {
            Blow::Hiccup | Blow::Pause => {
                process.stop()?;
                let pause = if blow == Blow::Pause { self.plan.ttl * 3 / 2 } else { hiccup };
                self.stopped.push((place, Instant::now() + pause));
                self.tally.fault(if blow == Blow::Pause {
                    "paused past the TTL"
                } else {
                    "paused"
                });
            }
            Blow::Kill => {
                // It believes nothing from now on, though it may go on for a moment.
                let at = now();
                process.kill9()?;
                self.tally.fault("killed");
                let fresh = self.start()?;
                let (name, dead) = std::mem::replace(&mut self.processes[place], fresh);
                // What it said last is still in the pipe.
                self.tally.died(name, at, dead);
            }
        }
        Ok(())
    }

    /// Lets processes go on whose time is up, or all.
    fn resume(&mut self, all: bool) -> io::Result<()> {
        let (over, still): (Vec<_>, Vec<_>) =
            self.stopped.drain(..).partition(|(_, until)| all || *until <= Instant::now());
        self.stopped = still;
        over.into_iter().try_for_each(|(place, _)| self.processes[place].1.cont())
    }

    /// Records what the processes say.
    async fn listen(&mut self) -> io::Result<()> {
        for (name, process) in &mut self.processes {
            while let Some(line) = process.line(Duration::ZERO).await {
                self.tally.hear(&line);
            }
            if let Some(status) = process.status()? {
                return Err(io::Error::other(format!("process {name} ended by itself: {status}")));
            }
        }
        self.tally.listen_to_the_dead().await;
        Ok(())
    }

    async fn judge(&mut self) -> io::Result<()> {
        // A process reports a grant before it uses it, and its end before it releases. So the reports of all that was
        // granted up to now, and of what ended before such a grant, are on their way at least.
        let until = now();
        let accesses = self.resource.take_accesses();
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.listen().await?;
        self.tally.judge(accesses, until);
        Ok(())
    }

    /// Ends all processes in peace, and looks for what they have left.
    async fn end(mut self) -> io::Result<Tally> {
        self.resume(true)?;
        for (_, process) in &mut self.processes {
            process.send("quit")?;
        }
        for (name, process) in &mut self.processes {
            let end = Instant::now() + LAST_WORDS;
            loop {
                let left = end.saturating_duration_since(Instant::now());
                match process.line(left).await {
                    Some(line) => self.tally.hear(&line),
                    None if left.is_zero() => {
                        self.tally.violation(format!("process {name} does not end"));
                        break;
                    }
                    None => break,
                }
            }
        }
        self.tally.listen_to_the_dead().await;
        let accesses = self.resource.take_accesses();
        self.tally.judge(accesses, now());
        self.tally.orphans = self.orphans().await?;
        Ok(self.tally)
    }

    /// Locks that are still taken when every TTL has passed.
    async fn orphans(&self) -> io::Result<u64> {
        let client = tenure::connect(&self.plan.url).await.map_err(io::Error::other)?;
        // Some stores free a lock a while after its TTL.
        let end = Instant::now() + self.plan.ttl * 2 + LAST_WORDS;
        let mut left = 0;
        while Instant::now() < end {
            left = client.list(&self.prefix).await.map_err(io::Error::other)?.len() as u64;
            if left == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        client.close().await;
        Ok(left)
    }
}
