//! Ours and other clients side by side: each is a process of its own, on the same core, that times itself
//! ([`drive`](crate::drive)); the server is on another core.

use std::time::Duration;

use tenure_testkit::{EtcdServer, ExternalClient, Process, RedisServer, ZooKeeperServer};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::figure::{Figure, Samples, micros};
use crate::machine::{cpu_of, pin_to_core, runtime, unpin};
use crate::peer::ARGUMENT;
use crate::scale::Scale;
use crate::table::Row;

/// An engine, and its clients. The first client is ours.
pub(crate) struct Contest {
    pub(crate) engine: &'static str,
    server: fn() -> Outcome<Server>,
    clients: &'static [Contestant],
    /// Pairs and hand-offs in each round.
    pairs: usize,
    handoffs: usize,
    /// The most that medians of ours may cost, against the best of the others.
    bound: Option<f64>,
}

struct Contestant {
    name: &'static str,
    program: Program,
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

pub(crate) const LOCAL: Contest = Contest {
    engine: "local",
    server: || Ok(Server::None(tempfile::tempdir()?)),
    clients: &[
        own("tenure", "drive-tenure", "local:"),
        own("flock, a file for each lock", "drive-flock", ""),
    ],
    pairs: 20_000,
    handoffs: 20,
    bound: None,
};

pub(crate) const REDIS: Contest = Contest {
    engine: "redis",
    server: || Ok(Server::Redis(RedisServer::start(&[])?)),
    clients: &[
        own("tenure", "drive-tenure", "redis://127.0.0.1:"),
        own("rslock", "drive-rslock", ""),
        other("redsync", "measure-redis-clients", &[], 200, true),
        other("redis-py", "measure-redis-py", &["python3"], 10, true),
        other("node-redlock 5", "measure-node-redlock-5", &["node"], 1_000, false),
        other("Redisson's RLock", "measure-redisson-4.7.0", &["java"], 4_000, false),
    ],
    pairs: 2_000,
    handoffs: 20,
    bound: None,
};

pub(crate) const ETCD: Contest = Contest {
    engine: "etcd",
    server: || Ok(Server::Etcd(EtcdServer::start(&[])?)),
    clients: &[
        own("tenure", "drive-tenure", "etcd://127.0.0.1:"),
        // Two claims with one lease hold the same lock. A crowd would need a lease for each worker.
        Contestant { has_crowds: false, ..own("etcd's Lock RPC", "drive-etcd-lock-rpc", "") },
        other("etcd's concurrency package", "measure-etcd-go", &[], 50, true),
    ],
    pairs: 100,
    handoffs: 10,
    bound: None,
};

pub(crate) const ZOOKEEPER: Contest = Contest {
    engine: "zookeeper",
    server: || Ok(Server::ZooKeeper(ZooKeeperServer::start(crate::zookeeper::SETTINGS)?)),
    clients: &[
        own("tenure", "drive-tenure", "zk://127.0.0.1:"),
        other("Curator's InterProcessMutex", "measure-curator-maven", &["java"], 400, false),
        other("kazoo", "measure-kazoo", &["python3"], 20, false),
    ],
    pairs: 100,
    handoffs: 10,
    bound: None,
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
            ..own("tenure", "", "")
        },
        other("Redisson's RLock", "measure-redisson-4.7.0", &["java"], 4_000, false),
    ],
    pairs: 500,
    handoffs: 20,
    bound: Some(1.0),
};

const fn own(name: &'static str, role: &'static str, target: &'static str) -> Contestant {
    Contestant { name, program: Program::Own { role, target }, warm_up: 50, has_crowds: true }
}

const fn other(
    name: &'static str,
    launcher: &'static str,
    needs: &'static [&'static str],
    warm_up: usize,
    has_crowds: bool,
) -> Contestant {
    let program = Program::Other(ExternalClient { name: launcher, needs });
    Contestant { name, program, warm_up, has_crowds }
}

pub(crate) enum Server {
    None(tempfile::TempDir),
    Redis(RedisServer),
    Etcd(EtcdServer),
    ZooKeeper(ZooKeeperServer),
}

impl Server {
    pub(crate) fn target(&self) -> String {
        match self {
            Self::None(folder) => folder.path().display().to_string(),
            Self::Redis(server) => server.port().to_string(),
            Self::Etcd(server) => server.port().to_string(),
            Self::ZooKeeper(server) => server.port().to_string(),
        }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::None(_) => None,
            Self::Redis(server) => Some(server.pid()),
            Self::Etcd(server) => Some(server.pid()),
            Self::ZooKeeper(server) => Some(server.pid()),
        }
    }
}

/// A running client.
struct Running {
    name: &'static str,
    process: Process,
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
                Program::Other(client) if client.is_missing(contest.engine) => continue,
                Program::Other(client) => client.start(&[&target, &key])?,
            };
            running.push(Self { name: client.name, process });
        }
        Ok(running)
    }

    /// Sends a request. The reply is a line of times in nanoseconds.
    fn ask(&mut self, runtime: &Runtime, request: &str) -> Outcome<Vec<Duration>> {
        const LIMIT: Duration = Duration::from_secs(120);
        let failed = |why| format!("{} {why} {request:?}", self.name);
        self.process.send(request).map_err(|_| failed("does not take"))?;
        let line = runtime.block_on(self.process.line(LIMIT));
        let line = line.ok_or_else(|| failed("does not answer"))?;
        let times = line.split_whitespace().map(|word| word.parse().map(Duration::from_nanos));
        Ok(times.collect::<Result<_, _>>().map_err(|_| failed("answers nonsense to"))?)
    }
}

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
        const ROUNDS: usize = 7;
        const WAIT: Duration = Duration::from_millis(30);
        let (server, mut clients, runtime) = self.start(false)?;
        for client in &mut clients {
            let warm_up = self.clients.iter().find(|it| it.name == client.name);
            client.ask(&runtime, &format!("free {}", warm_up.map_or(0, |it| it.warm_up)))?;
            client.ask(&runtime, "handoff 2 1")?;
        }
        let (pairs, handoffs) = (scale.count(self.pairs), scale.count(self.handoffs));
        let mut results: Vec<Pairs> = clients.iter().map(|_| Pairs::default()).collect();
        for _ in 0..scale.rounds(ROUNDS) {
            for (client, result) in clients.iter_mut().zip(&mut results) {
                let processes = [Some(client.process.pid()), server.pid()];
                let before = used(processes)?;
                result.free.add(client.ask(&runtime, &format!("free {pairs}"))?);
                let after = used(processes)?;
                for (side, cpu) in result.cpu.iter_mut().enumerate() {
                    cpu.push(micros(after[side].saturating_sub(before[side])) / pairs as f64);
                }
                let request = format!("handoff {handoffs} {}", WAIT.as_millis());
                result.handoff.add(client.ask(&runtime, &request)?);
            }
        }
        let names: Vec<&str> = clients.iter().map(|client| client.name).collect();
        let row = |what: &str, figure: &dyn Fn(&Pairs) -> Figure| {
            self.row(what, &names, results.iter().map(figure))
        };
        let mut rows = vec![
            row("acquire + release, median", &|it| it.free.median()),
            row("acquire + release, 99 of 100", &|it| it.free.percentile(99.0)),
            row("acquire + release, 999 of 1,000", &|it| it.free.percentile(99.9)),
            row("acquire + release, client CPU", &|it| Figure::of_rounds(it.cpu[0].clone())),
        ];
        if server.pid().is_some() {
            rows.push(row("acquire + release, server CPU", &|it| {
                Figure::of_rounds(it.cpu[1].clone())
            }));
        }
        rows.push(row("release to the next holder, median", &|it| it.handoff.median()));
        if let Some(bound) = self.bound {
            let bounded =
                |row: Row| if row.what.ends_with(", median") { row.at_most(bound) } else { row };
            rows = rows.into_iter().map(bounded).collect();
        }
        Ok(rows)
    }

    /// 64 workers on 4 names, with a millisecond of work in each hold.
    pub(crate) fn hot(&self, scale: Scale) -> Outcome<Vec<Row>> {
        self.crowd(scale, "64 workers on 4 names, 1 ms of work", "64 4 0 0 1000")
    }

    /// 64 workers on 100,000 names of which few are popular.
    pub(crate) fn zipf(&self, scale: Scale) -> Outcome<Vec<Row>> {
        let mut rows =
            self.crowd(scale, "64 workers, Zipf 0.99 over 100,000 names", "64 100000 0.99 0 0")?;
        for readers in [50, 95] {
            let what = format!("64 workers, Zipf 0.99 over 100,000 names, {readers} % readers");
            let ours = Contest { clients: &self.clients[..1], ..*self };
            rows.extend(ours.crowd(scale, &what, &format!("64 100000 0.99 {readers} 0"))?);
        }
        Ok(rows)
    }

    fn crowd(&self, scale: Scale, what: &str, crowd: &str) -> Outcome<Vec<Row>> {
        const ROUNDS: usize = 5;
        const TIME: Duration = Duration::from_secs(4);
        const FIGURES: [&str; 5] = [
            "time per hold of all",
            "wait, mean",
            "wait, 95 of 100",
            "wait, 99 of 100",
            "wait, longest",
        ];
        let (_server, mut clients, runtime) = self.start(true)?;
        let time = scale.time(TIME).as_millis();
        let mut rounds = vec![[const { Vec::new() }; FIGURES.len()]; clients.len()];
        for round in 0..=scale.rounds(ROUNDS) {
            for (client, rounds) in clients.iter_mut().zip(&mut rounds) {
                let times = client.ask(&runtime, &format!("crowd {crowd} {time}"))?;
                // The first round is a warm-up.
                if round > 0 {
                    rounds.iter_mut().zip(times).for_each(|(all, time)| all.push(micros(time)));
                }
            }
        }
        let names: Vec<&str> = clients.iter().map(|client| client.name).collect();
        let row = |(at, figure): (usize, &&str)| {
            let figures = rounds.iter().map(|rounds| Figure::of_rounds(rounds[at].clone()));
            self.row(&format!("{what}, {figure}"), &names, figures)
        };
        Ok(FIGURES.iter().enumerate().map(row).collect())
    }

    /// A row of the figures of all clients, of which the first is ours.
    fn row(&self, what: &str, names: &[&str], figures: impl Iterator<Item = Figure>) -> Row {
        let mut figures = names.iter().zip(figures);
        let ours = figures.next().map_or(Figure::once(0.0), |(_, figure)| figure);
        let row = Row::time(format!("{}: {what}", self.engine), ours);
        figures.fold(row, |row, (name, figure)| row.peer(*name, figure))
    }
}

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
