//! Ours and other clients side by side: each is a process of its own, on the same core, that times itself
//! ([`drive`](crate::drive)); the server is on another core.

use std::time::Duration;

use tenure_testkit::{EtcdServer, ExternalClient, Process, RedisServer, ZooKeeperServer};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::etcd::RECORD;
use crate::figure::{Figure, Samples, micros};
use crate::machine::{cpu_of, pin_to_core, runtime, unpin};
use crate::peer::ARGUMENT;
use crate::redis_tasks::TOKEN;
use crate::scale::Scale;
use crate::server::Server;
use crate::table::Row;
use crate::zookeeper::FENCE;

/// An engine, and its clients. The first client is ours.
pub(crate) struct Contest {
    pub(crate) engine: &'static str,
    server: fn() -> Outcome<Server>,
    clients: &'static [Contestant],
    /// Pairs and hand-offs in each round.
    pairs: usize,
    handoffs: usize,
    /// Why ours may be behind, by what a row measures.
    reasons: &'static [(&'static str, &'static str)],
    /// Why held locks may cost more than their bound.
    pub(crate) held: &'static str,
}

struct Contestant {
    name: &'static str,
    program: Program,
    /// What its driver is told behind the server and the key.
    words: &'static [&'static str],
    /// Pairs before the measurement, for a just-in-time compiler.
    warm_up: usize,
    /// Whether its driver plays crowds.
    has_crowds: bool,
}

enum Program {
    /// This program, with a role and the beginning of what it connects to.
    Own {
        role: &'static str,
        target: &'static str,
    },
    Other(ExternalClient),
}

/// Why a client may use more of its own CPU than others.
const ACTIVE: &str = "with one task, tenure polls its socket for a short time before it sleeps: that takes CPU time, and spares the \
     wake-up";

pub(crate) const LOCAL: Contest = Contest {
    engine: "local",
    server: || Ok(Server::None(tempfile::tempdir()?)),
    clients: &[
        own(OURS, "drive-tenure", "local:"),
        own("flock, a file for each lock", "drive-flock", ""),
    ],
    pairs: 20_000,
    handoffs: 20,
    reasons: &[],
    held: "",
};

pub(crate) const REDIS: Contest = Contest {
    engine: "redis",
    server: || Ok(Server::Redis(RedisServer::start(&[])?)),
    clients: &[
        own(OURS, "drive-tenure", "redis://127.0.0.1:"),
        own("rslock", "drive-rslock", ""),
        other("redsync", "measure-redis-clients", &[], 200, true),
        Contestant {
            words: &["redislock"],
            ..other("bsm/redislock", "measure-redis-clients", &[], 200, true)
        },
        other("redis-py", "measure-redis-py", &["python3"], 10, true),
        other("python-redis-lock", "measure-python-redis-lock", &["python3"], 10, true),
        other("node-redlock 5", "measure-node-redlock-5", &["node"], 1_000, true),
        redisson("Redisson's RLock", &["lock"]),
        redisson("Redisson's fair lock", &["fair"]),
        redisson("Redisson's fenced lock", &["fenced"]),
    ],
    pairs: 2_000,
    handoffs: 20,
    reasons: &[
        ("acquire + release, median", TOKEN),
        ("acquire + release, 99 of 100", TOKEN),
        ("acquire + release, client CPU", ACTIVE),
        ("acquire + release, server CPU", TOKEN),
        ("1 task on 100,000 names, time per hold of all", TOKEN),
        ("64 tasks on 100,000 names, time per hold of all", TOKEN),
        ("1,024 tasks on 100,000 names, time per hold of all", TOKEN),
    ],
    held: "",
};

pub(crate) const ETCD: Contest = Contest {
    engine: "etcd",
    server: || Ok(Server::Etcd(EtcdServer::start(&[])?)),
    clients: &[
        own(OURS, "drive-tenure", "etcd://127.0.0.1:"),
        // Two claims with one lease hold the same lock. A crowd would need a lease for each worker.
        Contestant { has_crowds: false, ..own("etcd's Lock RPC", "drive-etcd-lock-rpc", "") },
        other("etcd's concurrency package", "measure-etcd-go", &[], 50, true),
    ],
    pairs: 100,
    handoffs: 10,
    reasons: &[
        ("acquire + release, median", RECORD),
        ("acquire + release, server CPU", RECORD),
        ("1 task on 100,000 names, time per hold of all", RECORD),
        ("release to the next holder, median", crate::etcd::WAKE_UP),
    ],
    held: "",
};

pub(crate) const ZOOKEEPER: Contest = Contest {
    engine: "zookeeper",
    server: || Ok(Server::ZooKeeper(ZooKeeperServer::start(crate::zookeeper::SETTINGS)?)),
    clients: &[
        own(OURS, "drive-tenure", "zk://127.0.0.1:"),
        other("Curator's InterProcessMutex", "measure-curator-maven", &["java"], 400, true),
        other("kazoo", "measure-kazoo", &["python3"], 20, true),
    ],
    pairs: 100,
    handoffs: 10,
    reasons: &[
        ("acquire + release, median", FENCE),
        ("acquire + release, server CPU", FENCE),
        ("1 task on 100,000 names, time per hold of all", FENCE),
    ],
    held: "",
};

/// The dialect of Redisson, where both take the same locks.
pub(crate) const REDISSON: Contest = Contest {
    engine: "redisson dialect",
    server: || Ok(Server::Redis(RedisServer::start(&[])?)),
    clients: &[
        Contestant {
            program: Program::Own {
                role: "drive-tenure",
                target: "redis://127.0.0.1:{}?dialect=redisson&fencing=off",
            },
            ..own(OURS, "", "")
        },
        redisson("Redisson's RLock", &["lock"]),
    ],
    pairs: 500,
    handoffs: 20,
    reasons: &[],
    held: "",
};

const fn own(name: &'static str, role: &'static str, target: &'static str) -> Contestant {
    let program = Program::Own { role, target };
    Contestant { name, program, words: &[], warm_up: 50, has_crowds: true }
}

/// The release of Redisson that is measured.
pub(crate) const REDISSON_DRIVER: &str = "measure-redisson-4.7.0";

const fn redisson(name: &'static str, words: &'static [&'static str]) -> Contestant {
    Contestant { words, ..other(name, REDISSON_DRIVER, &["java"], 4_000, true) }
}

const fn other(
    name: &'static str,
    launcher: &'static str,
    needs: &'static [&'static str],
    warm_up: usize,
    has_crowds: bool,
) -> Contestant {
    let program = Program::Other(ExternalClient { name: launcher, needs });
    Contestant { name, program, words: &[], warm_up, has_crowds }
}

/// A running client.
struct Running {
    name: &'static str,
    warm_up: usize,
    process: Process,
    has_failed: bool,
}

impl Running {
    /// Starts those of the clients that are installed.
    fn start_all(contest: &Contest, server: &Server, crowds: bool) -> Outcome<Vec<Self>> {
        let mut running = Vec::new();
        for client in contest.clients.iter().filter(|client| client.has_crowds || !crowds) {
            let (target, key) = (server.target(), key_of(contest.engine, client.name));
            let process = match &client.program {
                Program::Own { role, target: begin } => {
                    let target = inserted(begin, &target);
                    let program = std::env::current_exe()?;
                    Process::start(&program, &[ARGUMENT, role, &target, &key])?
                }
                Program::Other(other) if other.is_missing(contest.engine) => continue,
                Program::Other(other) => {
                    other.start(&[&[&*target, &*key][..], client.words].concat())?
                }
            };
            let Contestant { name, warm_up, .. } = *client;
            running.push(Self { name, warm_up, process, has_failed: false });
        }
        Ok(running)
    }

    /// Sends a request. The reply is a line of times in nanoseconds. Other clients may fail, and are then left
    /// out of the rows: the reply has no times.
    ///
    /// # Errors
    /// If our own client fails.
    fn ask(&mut self, runtime: &Runtime, request: &str) -> Outcome<Vec<Duration>> {
        if self.has_failed {
            return Ok(Vec::new());
        }
        self.reply(runtime, request).or_else(|error| match self.name {
            OURS => Err(error),
            name => {
                tenure_testkit::skip(name, &error.to_string());
                self.has_failed = true;
                Ok(Vec::new())
            }
        })
    }

    fn reply(&mut self, runtime: &Runtime, request: &str) -> Outcome<Vec<Duration>> {
        const LIMIT: Duration = Duration::from_secs(60);
        let failed = |why| format!("{} {why} {request:?}", self.name);
        self.process.send(request).map_err(|_| failed("does not take"))?;
        let line = runtime.block_on(self.process.line(LIMIT));
        let line = line.ok_or_else(|| failed("does not answer"))?;
        let times = line.split_whitespace().map(|word| word.parse().map(Duration::from_nanos));
        let times: Vec<Duration> =
            times.collect::<Result<_, _>>().map_err(|_| failed("answers nonsense to"))?;
        if times.is_empty() {
            return Err(failed("answers nothing to").into());
        }
        Ok(times)
    }
}

/// The name of our own client.
const OURS: &str = "tenure";

/// The address of a server in a URL: at its mark, or at its end.
fn inserted(url: &str, address: &str) -> String {
    match url.split_once("{}") {
        Some((begin, end)) => format!("{begin}{address}{end}"),
        None => format!("{url}{address}"),
    }
}

/// The lock of a client. Paths are for ZooKeeper's.
fn key_of(engine: &str, client: &str) -> String {
    let client: String = client.chars().filter(char::is_ascii_alphanumeric).collect();
    match (engine, client.as_str()) {
        ("zookeeper", "tenure") => "bench".into(),
        ("zookeeper", _) => format!("/clients/{client}"),
        _ => format!("bench-{client}"),
    }
}

impl Contest {
    pub(crate) fn start_server(&self) -> Outcome<Server> {
        (self.server)()
    }

    /// What our client connects to.
    pub(crate) fn url(&self, server: &Server) -> String {
        match self.clients[0].program {
            Program::Own { target, .. } => inserted(target, &server.target()),
            Program::Other(_) => server.target(),
        }
    }

    /// Starts the server and the clients, each on its core.
    fn start(&self, crowds: bool) -> Outcome<(Server, Vec<Running>, Runtime)> {
        let cores = std::thread::available_parallelism()?.get();
        pin_to_core(0)?;
        let server = (self.server)()?;
        if cores > 1 && server.pid().is_some() {
            pin_to_core(1)?;
        }
        let clients = Running::start_all(self, &server, crowds);
        unpin()?;
        Ok((server, clients?, runtime(1)?))
    }

    /// A free lock and a hand-off to one waiter, with the CPU time of both sides.
    pub(crate) fn pairs(&self, scale: Scale) -> Outcome<Vec<Row>> {
        const ROUNDS: usize = 5;
        const WAIT: Duration = Duration::from_millis(30);
        let (server, mut clients, runtime) = self.start(false)?;
        for client in &mut clients {
            client.ask(&runtime, &format!("free {}", client.warm_up))?;
            client.ask(&runtime, "handoff 2 1")?;
        }
        let (pairs, handoffs) = (scale.count(self.pairs), scale.count(self.handoffs));
        let mut results: Vec<Pairs> = clients.iter().map(|_| Pairs::default()).collect();
        for _ in 0..scale.rounds(ROUNDS) {
            for (client, result) in clients.iter_mut().zip(&mut results) {
                if client.has_failed {
                    continue;
                }
                let processes = [Some(client.process.pid()), server.pid()];
                let before = used(processes)?;
                result.free.add(client.ask(&runtime, &format!("free {pairs}"))?);
                if client.has_failed {
                    continue;
                }
                let after = used(processes)?;
                for (side, cpu) in result.cpu.iter_mut().enumerate() {
                    cpu.push(micros(after[side].saturating_sub(before[side])) / pairs as f64);
                }
                let request = format!("handoff {handoffs} {}", WAIT.as_millis());
                result.handoff.add(client.ask(&runtime, &request)?);
            }
        }
        let figures: [fn(&Pairs) -> Figure; PAIR.len()] = [
            |it| it.free.median(),
            |it| it.free.percentile(99.0),
            |it| it.free.percentile(99.9),
            |it| Figure::of_rounds(it.cpu[0].clone()),
            |it| it.handoff.median(),
            |it| Figure::of_rounds(it.cpu[1].clone()),
        ];
        // Without a server, there is no row of its CPU time, the last one.
        let count = PAIR.len() - usize::from(server.pid().is_none());
        let rows = PAIR.iter().zip(figures).take(count);
        Ok(rows
            .map(|((what, is_bound), figure)| {
                self.row(what, *is_bound, &clients, results.iter().map(figure))
            })
            .collect())
    }

    /// 64 workers on 4 names, with a millisecond of work in each hold.
    pub(crate) fn hot(&self, scale: Scale) -> Outcome<Vec<Row>> {
        self.crowd(scale, &HOT, CROWD.len())
    }

    /// Many tasks, of which two hardly ever take the same name.
    pub(crate) fn tasks(&self, scale: Scale) -> Outcome<Vec<Row>> {
        let mut rows = Vec::new();
        for crowd in &TASKS {
            // The waits are those for a free lock.
            rows.extend(self.crowd(scale, crowd, 1)?);
        }
        Ok(rows)
    }

    /// 64 workers on 100,000 names of which few are popular.
    pub(crate) fn zipf(&self, scale: Scale) -> Outcome<Vec<Row>> {
        let mut rows = self.crowd(scale, &ZIPF, CROWD.len())?;
        let ours = Contest { clients: &self.clients[..1], ..*self };
        for crowd in &READERS {
            rows.extend(ours.crowd(scale, crowd, CROWD.len())?);
        }
        Ok(rows)
    }

    /// The first figures of a crowd.
    fn crowd(&self, scale: Scale, crowd: &Crowd, figures: usize) -> Outcome<Vec<Row>> {
        const ROUNDS: usize = 3;
        const TIME: Duration = Duration::from_millis(1_500);
        let (_server, mut clients, runtime) = self.start(true)?;
        let time = scale.time(TIME).as_millis();
        let mut rounds = vec![[const { Vec::new() }; CROWD.len()]; clients.len()];
        for round in 0..=scale.rounds(ROUNDS) {
            for (client, rounds) in clients.iter_mut().zip(&mut rounds) {
                let times = client.ask(&runtime, &format!("crowd {} {time}", crowd.request))?;
                // The first round is a warm-up.
                if round > 0 {
                    rounds.iter_mut().zip(times).for_each(|(all, time)| all.push(micros(time)));
                }
            }
        }
        let row = |(at, (figure, is_bound)): (usize, &(&str, bool))| {
            let figures = rounds.iter().map(|rounds| Figure::of_rounds(rounds[at].clone()));
            self.row(&format!("{}, {figure}", crowd.what), *is_bound, &clients, figures)
        };
        Ok(CROWD.iter().enumerate().take(figures).map(row).collect())
    }

    /// A row of the figures of all clients that did not fail, of which the first is ours.
    fn row(
        &self,
        what: &str,
        is_bound: bool,
        clients: &[Running],
        figures: impl Iterator<Item = Figure>,
    ) -> Row {
        let mut figures = clients.iter().zip(figures).filter(|(client, _)| !client.has_failed);
        let ours = figures.next().map_or(Figure::once(0.0), |(_, figure)| figure);
        let row = Row::time(format!("{}: {what}", self.engine), ours);
        // A driver of an earlier version of this program reports less.
        let row = figures
            .filter(|(_, figure)| figure.value > 0.0)
            .fold(row, |row, (client, figure)| row.peer(client.name, figure));
        let reason = self.reasons.iter().find(|(row, _)| *row == what);
        let row = row.because(reason.map_or("", |(_, reason)| *reason));
        if is_bound && !row.peers.is_empty() { row.at_most(1.0) } else { row }
    }
}

/// What is measured of pairs, and whether ours may cost at most as much as the best peer. The last one is that
/// of the server.
const PAIR: [(&str, bool); 6] = [
    ("acquire + release, median", true),
    ("acquire + release, 99 of 100", true),
    ("acquire + release, 999 of 1,000", false),
    ("acquire + release, client CPU", false),
    ("release to the next holder, median", true),
    ("acquire + release, server CPU", false),
];

/// The same of crowds.
const CROWD: [(&str, bool); 6] = [
    ("time per hold of all", true),
    ("wait, mean", true),
    ("wait, 95 of 100", true),
    ("wait, 99 of 100", true),
    ("wait, longest", true),
    ("time per hold that waits at most 10 ms", true),
];

struct Crowd {
    what: &'static str,
    /// Workers, names, skew, readers of a hundred, and microseconds of work.
    request: &'static str,
}

const HOT: Crowd = Crowd { what: "64 workers on 4 names, 1 ms of work", request: "64 4 0 0 1000" };
const ZIPF: Crowd =
    Crowd { what: "64 workers, Zipf 0.99 over 100,000 names", request: "64 100000 0.99 0 0" };
const TASKS: [Crowd; 3] = [
    Crowd { what: "1 task on 100,000 names", request: "1 100000 0 0 0" },
    Crowd { what: "64 tasks on 100,000 names", request: "64 100000 0 0 0" },
    Crowd { what: "1,024 tasks on 100,000 names", request: "1024 100000 0 0 0" },
];
/// Ours alone: few other clients have readers. The last one is TATP's mix: four of five transactions read, and half
/// of them are those of a few subscribers.
const READERS: [Crowd; 3] = [
    Crowd {
        what: "64 workers, Zipf 0.99 over 100,000 names, 50 % readers",
        request: "64 100000 0.99 50 0",
    },
    Crowd {
        what: "64 workers, Zipf 0.99 over 100,000 names, 95 % readers",
        request: "64 100000 0.99 95 0",
    },
    Crowd {
        what: "64 workers, TATP's mix over 100,000 names, half on 2,500",
        request: "64 100000 half:2500 80 0",
    },
];

#[derive(Default)]
struct Pairs {
    free: Samples,
    handoff: Samples,
    /// Of the client and of the server, for a pair of each round.
    cpu: [Vec<f64>; 2],
}

/// The CPU time of both sides.
fn used(processes: [Option<u32>; 2]) -> Outcome<[Duration; 2]> {
    let [client, server] = processes.map(|pid| pid.map_or(Ok(Duration::ZERO), cpu_of));
    Ok([client?, server?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_fits_a_row_and_no_row_has_two() {
        let mut whats: Vec<String> = PAIR.iter().map(|(what, _)| (*what).to_owned()).collect();
        for crowd in [&HOT, &ZIPF].into_iter().chain(&TASKS) {
            whats.extend(CROWD.iter().map(|(figure, _)| format!("{}, {figure}", crowd.what)));
        }
        for Contest { engine, reasons, .. } in [LOCAL, REDIS, ETCD, ZOOKEEPER, REDISSON] {
            for (at, (what, _)) in reasons.iter().enumerate() {
                assert!(whats.iter().any(|it| it == what), "{engine}: no row {what:?}");
                assert!(
                    reasons[..at].iter().all(|(earlier, _)| earlier != what),
                    "{engine}: {what}"
                );
            }
        }
    }
}
