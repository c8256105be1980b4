//! Load from many processes on one store, with random faults, judged as it goes.
//!
//! Processes are stopped for a moment, stopped for longer than the TTL, and killed; acquires are given up, and some
//! writes are sent without a look at the lease. Where the soak starts the servers itself, they are stopped, killed
//! and restarted, and the connections of processes lose, delay or end what they carry. A seed replays the faults and
//! the choices of the tasks, though not the scheduling of the machine.

mod gaps;
mod schedule;
mod servers;
mod tally;
mod worker;

use std::io;
use std::time::{Duration, Instant};

use tenure_testkit::{Process, Proxy, Way};

use crate::algorithms::Info;
use crate::history::now;
use crate::part;
use crate::part::ClientProgram;
use crate::resource::Resource;

use schedule::{Fault, Kind, Schedule, Scope};
use servers::PrivateServers;
use worker::Subject;

pub use tally::Tally;
pub(crate) use worker::{Part, work};

/// How it is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What takes the locks.
    pub target: Target,
    /// How many processes take locks.
    pub processes: usize,
    /// The TTL.
    pub ttl: Duration,
    /// How long it lasts.
    pub duration: Duration,
    /// Chooses the faults.
    pub seed: u64,
    /// How many acquires all processes together try in a second, at the most.
    pub rate: Option<u32>,
}

/// What takes the locks of a soak.
#[derive(Clone, Debug)]
pub enum Target {
    /// tenure, on the store of this URL, whose servers are left alone.
    Store(String),
    /// An algorithm, on private servers, which have faults too.
    Algorithm(&'static Info),
}

/// How often what has happened is judged.
const WINDOW: Duration = Duration::from_secs(5);

/// How long a process that is to be stopped may take to get a lock.
const UNTIL_IT_HOLDS: Duration = Duration::from_secs(1);

/// How long the processes may take to give back their locks at the end.
const LAST_RELEASES: Duration = Duration::from_secs(45);

struct Soak<'a> {
    plan: &'a Plan,
    program: &'a ClientProgram,
    prefix: String,
    resource: Resource,
    servers: Option<PrivateServers>,
    slots: Vec<Slot>,
    /// Processes that are to be stopped while they hold a lock, until when they may take to get one, and for how long.
    pauses: Vec<(usize, Instant, Duration)>,
    /// What ends a fault, and when.
    recoveries: Vec<(Instant, Recovery)>,
    /// Processes that were started so far.
    started: u64,
    tally: Tally,
}

/// The place of a process. When it is killed, another one takes its place.
struct Slot {
    name: String,
    process: Process,
    /// Its proxies to the private servers.
    proxies: Vec<Proxy>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Recovery {
    ResumeProcess(usize),
    ResumeServer(usize),
    RestartServer(usize),
    /// What has waited arrives.
    Deliver(usize),
    /// New connections work.
    Reconnect(usize),
}

/// Runs it. `report` hears now and then how much of the time has passed.
///
/// # Errors
/// If a server or process cannot be started. What fails later is a violation.
pub fn run(plan: &Plan, program: &ClientProgram, report: impl Fn(Duration)) -> io::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let servers = match plan.target {
        Target::Store(_) => None,
        Target::Algorithm(info) => Some(PrivateServers::start(info)?),
    };
    let mut soak = Soak {
        plan,
        program,
        prefix: format!("lab/soak/{:x}/", now()),
        resource: Resource::start()?,
        servers,
        slots: Vec::new(),
        pauses: Vec::new(),
        recoveries: Vec::new(),
        started: 0,
        tally: Tally::new(plan.ttl, Duration::ZERO),
    };
    let scope = soak.scope();
    if scope.servers > 0 {
        soak.tally = Tally::new(plan.ttl, scope.longest_outage());
    }
    runtime.block_on(async {
        for _ in 0..plan.processes {
            let proxies = soak.servers.as_ref().map_or(Ok(Vec::new()), PrivateServers::proxies)?;
            let (name, process) = soak.start(&proxies)?;
            soak.slots.push(Slot { name, process, proxies });
        }
        // The figures are worth having, whatever stops it.
        let loaded = soak.load(Schedule::new(plan.seed, scope), report).await;
        soak.note_failure("it ended early", loaded);
        Ok(soak.end().await)
    })
}

impl Soak<'_> {
    fn scope(&self) -> Scope {
        let Plan { ref target, processes, ttl, .. } = *self.plan;
        let servers = self.servers.as_ref().map_or(0, PrivateServers::count);
        let longest_stall = match target {
            Target::Store(_) => Duration::ZERO,
            Target::Algorithm(info) => servers::longest_stall(info, ttl),
        };
        Scope { processes, servers, ttl, longest_stall }
    }

    fn subject(&self, proxies: &[Proxy]) -> Subject {
        match (&self.plan.target, &self.servers) {
            (Target::Algorithm(info), Some(servers)) => Subject::Algorithm {
                id: info.id.into(),
                servers: match proxies {
                    [] => servers.addresses(),
                    proxies => proxies.iter().map(Proxy::address).collect(),
                },
                url_options: servers::url_options(info, self.plan.ttl),
            },
            (Target::Store(url), _) => Subject::Store(url.clone()),
            (Target::Algorithm(_), None) => Subject::Store(String::new()),
        }
    }

    fn start(&mut self, proxies: &[Proxy]) -> io::Result<(String, Process)> {
        self.started += 1;
        let name = format!("p{}", self.started);
        let tasks = worker::TASKS as f64 * self.plan.processes as f64;
        let interval = self.plan.rate.map_or(0.0, |rate| tasks / f64::from(rate.max(1)));
        let part = Part {
            name: name.clone(),
            prefix: self.prefix.clone(),
            resource: format!("127.0.0.1:{}", self.resource.port()),
            subject: self.subject(proxies),
            ttl: self.plan.ttl,
            seed: self.plan.seed.wrapping_mul(1_000_003).wrapping_add(self.started * worker::TASKS),
            interval: Duration::from_secs_f64(interval),
        };
        Ok((name, Process::spawn(self.program.command(&part::Part::Soak(part))?)?))
    }

    /// Lets the processes work, and injects faults, until the time is up.
    async fn load(&mut self, schedule: Schedule, report: impl Fn(Duration)) -> io::Result<()> {
        let mut faults = schedule.peekable();
        let begin = Instant::now();
        let mut window = WINDOW;
        while begin.elapsed() < self.plan.duration {
            report(begin.elapsed());
            self.recover(false)?;
            self.listen().await?;
            while let Some(fault) = faults.next_if(|fault| fault.at <= begin.elapsed()) {
                self.inject(fault)?;
            }
            if begin.elapsed() > window {
                self.judge().await?;
                window = begin.elapsed() + WINDOW;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn inject(&mut self, Fault { kind, target, lasts, .. }: Fault) -> io::Result<()> {
        let set_proxies = |slot: &Slot, way| slot.proxies.iter().for_each(|proxy| proxy.set(way));
        let slot = target.min(self.slots.len() - 1);
        // On a machine that is too busy, the last fault of the server may not be over.
        let is_too_early = kind.hits_server() && self.is_server_in_fault(target);
        let recovery = match (kind, &mut self.servers) {
            _ if is_too_early => return Ok(()),
            (Kind::Hiccup, _) => {
                self.slots[slot].process.stop()?;
                Some(Recovery::ResumeProcess(slot))
            }
            (Kind::Pause, _) => {
                self.slots[slot].process.send("be careless")?;
                self.pauses.push((slot, Instant::now() + UNTIL_IT_HOLDS, lasts));
                None
            }
            (Kind::Kill, _) => {
                self.kill(slot)?;
                None
            }
            (Kind::StopServer, Some(servers)) => {
                servers.stop(target)?;
                Some(Recovery::ResumeServer(target))
            }
            (Kind::KillServer, Some(servers)) => {
                servers.kill(target)?;
                Some(Recovery::RestartServer(target))
            }
            (Kind::BlackHole | Kind::LoseReplies, _) => {
                let way = if kind == Kind::BlackHole { Way::Black } else { Way::Deaf };
                set_proxies(&self.slots[slot], way);
                Some(Recovery::Reconnect(slot))
            }
            (Kind::Delay, _) => {
                set_proxies(&self.slots[slot], Way::Shut);
                Some(Recovery::Deliver(slot))
            }
            (Kind::Reset, _) => {
                self.slots[slot].proxies.iter().for_each(Proxy::heal);
                None
            }
            (Kind::StopServer | Kind::KillServer, None) => return Ok(()),
        };
        self.tally.fault(kind.describe());
        self.recoveries.extend(recovery.map(|recovery| (Instant::now() + lasts, recovery)));
        Ok(())
    }

    fn is_server_in_fault(&self, number: usize) -> bool {
        let of_server = [Recovery::ResumeServer(number), Recovery::RestartServer(number)];
        self.recoveries.iter().any(|(_, recovery)| of_server.contains(recovery))
    }

    /// Stops the processes that are to be stopped, once they hold a lock or have taken too long.
    fn pause(&mut self, holders: &[usize]) -> io::Result<()> {
        let (ready, waiting): (Vec<_>, Vec<_>) = self
            .pauses
            .drain(..)
            .partition(|(slot, limit, _)| holders.contains(slot) || *limit <= Instant::now());
        self.pauses = waiting;
        for (slot, _, lasts) in ready {
            self.slots[slot].process.stop()?;
            self.recoveries.push((Instant::now() + lasts, Recovery::ResumeProcess(slot)));
        }
        Ok(())
    }

    /// Kills a process, and starts another one in its place.
    fn kill(&mut self, slot: usize) -> io::Result<()> {
        // It believes nothing from now on, though it may go on for a moment.
        let at = now();
        self.slots[slot].process.kill9()?;
        let proxies = std::mem::take(&mut self.slots[slot].proxies);
        let (name, process) = self.start(&proxies)?;
        let killed = std::mem::replace(&mut self.slots[slot], Slot { name, process, proxies });
        self.tally.died(killed.name, at, killed.process);
        Ok(())
    }

    /// Ends the faults whose time is up, or all.
    fn recover(&mut self, all: bool) -> io::Result<()> {
        let (over, lasting): (Vec<_>, Vec<_>) =
            self.recoveries.drain(..).partition(|(until, _)| all || *until <= Instant::now());
        self.recoveries = lasting;
        // The first failure is reported when all others have had their turn.
        let ended: Vec<io::Result<()>> =
            over.into_iter().map(|(_, recovery)| self.end_fault(recovery)).collect();
        ended.into_iter().collect()
    }

    fn end_fault(&mut self, recovery: Recovery) -> io::Result<()> {
        match (recovery, &mut self.servers) {
            (Recovery::ResumeProcess(slot), _) => return self.slots[slot].process.cont(),
            (Recovery::ResumeServer(number), Some(servers)) => return servers.resume(number),
            (Recovery::RestartServer(number), Some(servers)) => return servers.restart(number),
            (Recovery::ResumeServer(_) | Recovery::RestartServer(_), None) => {}
            (Recovery::Deliver(slot), _) => {
                self.slots[slot].proxies.iter().for_each(|proxy| proxy.set(Way::Open));
            }
            (Recovery::Reconnect(slot), _) => self.slots[slot].proxies.iter().for_each(Proxy::heal),
        }
        Ok(())
    }

    /// Records what the processes report, and stops those that wait for it.
    async fn listen(&mut self) -> io::Result<()> {
        let mut holders = Vec::new();
        for (number, Slot { name, process, .. }) in self.slots.iter_mut().enumerate() {
            while let Some(line) = process.line(Duration::ZERO).await {
                if line.starts_with("careless") {
                    holders.push(number);
                }
                self.tally.hear(&line);
            }
            if let Some(status) = process.status()? {
                return Err(io::Error::other(format!("process {name} ended by itself: {status}")));
            }
        }
        self.tally.drain_killed().await;
        self.pause(&holders)
    }

    async fn judge(&mut self) -> io::Result<()> {
        if let Some(servers) = &mut self.servers {
            servers.revive()?;
        }
        // A process reports a grant before it uses it, and its end before it releases. So the reports of all that was
        // granted up to now, and of what ended before such a grant, are on their way at least.
        let until = now();
        let accesses = self.resource.take_accesses();
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.listen().await?;
        self.tally.judge(accesses, until);
        Ok(())
    }

    /// Ends all faults and then all processes, and looks for what they have left.
    async fn end(mut self) -> Tally {
        self.pauses.clear();
        let recovered = self.recover(true);
        self.note_failure("faults cannot be ended", recovered);
        let serving = self.servers.as_mut().map_or(Ok(()), PrivateServers::until_all_serve);
        self.note_failure("the servers do not serve again", serving);
        for slot in &mut self.slots {
            // A process that has ended is noticed below, or was before.
            let _ended = slot.process.send("quit");
        }
        let end = Instant::now() + LAST_RELEASES;
        for Slot { name, process, .. } in &mut self.slots {
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
        self.tally.drain_killed().await;
        let accesses = self.resource.take_accesses();
        self.tally.judge(accesses, now());
        self.tally.find_unknown_accesses();
        match self.orphans().await {
            Ok(orphans) => self.tally.orphans = orphans,
            Err(error) => self.note_failure("what is left cannot be listed", Err(error)),
        }
        self.tally
    }

    fn note_failure(&mut self, what: &str, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.tally.violation(format!("{what}: {error}"));
        }
    }

    /// The URL of the store, if the locks are tenure's.
    fn url(&self) -> Option<String> {
        match self.subject(&[]) {
            Subject::Store(url) => Some(url),
            Subject::Algorithm { id, servers, url_options } => {
                crate::algorithms::find(&id)?.url(&servers, &url_options)
            }
        }
    }

    /// How many locks are still taken when every TTL has passed.
    async fn orphans(&self) -> io::Result<u64> {
        let Some(url) = self.url() else { return Ok(0) };
        let client = tenure::connect(&url).await.map_err(io::Error::other)?;
        // Some stores free a lock a while after its TTL.
        let end = Instant::now() + self.plan.ttl * 2 + LAST_RELEASES;
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
