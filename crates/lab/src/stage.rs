//! The stage of an experiment: servers, client processes behind proxies, a resource, and the record of what happens.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use tenure_testkit::{Dice, FakeClock, Member, Process, Proxy, Way};

use crate::algorithms::Info;
use crate::client;
use crate::history::{Expectation, Fault, Grant, History, now};
use crate::observer::Observer;
use crate::part::{ClientProgram, Part};
use crate::resource::Resource;
use crate::servers::{Servers, Setup, Shared};

/// A TTL that no experiment outlasts.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// How long a process may take for what it does at once: a bound on a busy machine, not an expectation.
const AT_ONCE: Duration = Duration::from_secs(20);

/// How long a client tries for a lock that should be busy.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(300);

/// How long a lock may take to pass on without an expiry.
pub(crate) const SOON: Duration = Duration::from_secs(6);

/// By how many milliseconds a seed makes an order late, at the most.
const LATEST: u64 = 30;

/// The stage of one experiment.
pub(crate) struct Stage {
    pub(crate) info: &'static Info,
    pub(crate) servers: Servers,
    /// A TTL that ends soon.
    pub(crate) ttl: Duration,
    pub(crate) history: History,
    /// A name that no other experiment on the same servers has.
    pub(crate) lock: String,
    clients: BTreeMap<&'static str, Client>,
    observer: Option<Observer>,
    /// Draws the time by which each order is late, if the experiment has a seed.
    dice: Option<Dice>,
    resource: Resource,
    program: ClientProgram,
    setup: Setup,
}

/// A client process, and its proxies to the servers and to the resource.
pub(crate) struct Client {
    pub(crate) process: Process,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) resource: Proxy,
    invoked: BTreeMap<String, (u64, String)>,
}

/// How an acquire ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Held,
    Busy,
    Failed(String),
}

impl Stage {
    pub(crate) fn set(
        info: &'static Info,
        setup: Setup,
        program: &ClientProgram,
        shared: &Shared,
        number: u64,
        seed: Option<u64>,
    ) -> io::Result<Self> {
        let mut servers = Servers::start(info.family, &setup, shared)?;
        if info.waits_for_replicas() && setup.replicas == 0 {
            servers.add_replica()?;
        }
        let lock = format!("lab{number}");
        let options = client::Options { url: setup.url_options(info).into(), max_hold: None };
        // Where requests are counted, another client would be in the way.
        let observer = (!setup.alone)
            .then(|| Observer::start(info, servers.addresses(), lock.clone(), options));
        let history = History { begin: now(), ..History::default() };
        Ok(Self {
            info,
            servers,
            ttl: info.family.short_ttl(),
            history,
            lock,
            clients: BTreeMap::new(),
            observer,
            dice: seed.map(Dice::new),
            resource: Resource::start()?,
            program: program.clone(),
            setup,
        })
    }

    /// Starts a client with proxies of its own to the servers.
    pub(crate) async fn enter(&mut self, name: &'static str) -> io::Result<()> {
        self.enter_on_clock(name, None).await
    }

    /// Starts several clients.
    pub(crate) async fn enter_all(&mut self, names: &[&'static str]) -> io::Result<()> {
        for name in names {
            self.enter(name).await?;
        }
        Ok(())
    }

    /// As [`enter`](Self::enter), on a clock that can be set.
    pub(crate) async fn enter_on_clock(
        &mut self,
        name: &'static str,
        clock: Option<&FakeClock>,
    ) -> io::Result<()> {
        let proxies = self.servers.ports.iter().map(|&port| Proxy::start(port));
        let proxies = proxies.collect::<io::Result<Vec<_>>>()?;
        let resource = Proxy::start(self.resource.port())?;
        let mut addresses: Vec<String> = proxies.iter().map(Proxy::address).collect();
        if addresses.is_empty() {
            addresses = self.servers.addresses();
        }
        let url = self.setup.url_options(self.info);
        let mut command = self.program.command(&Part::Experiment(client::Part {
            name: name.into(),
            algorithm: self.info.id.into(),
            servers: addresses,
            resource: resource.address(),
            options: client::Options { url: url.into(), max_hold: self.setup.max_hold },
        }))?;
        if let Some(clock) = clock {
            command.envs(clock.environment());
        }
        let process = Process::spawn(command)?;
        self.clients.insert(name, Client { process, proxies, resource, invoked: BTreeMap::new() });
        match self.next(name, &["ready"], AT_ONCE).await? {
            Some(_) => Ok(()),
            None => Err(io::Error::other(format!("client {name} did not start"))),
        }
    }

    pub(crate) fn client(&mut self, name: &str) -> io::Result<&mut Client> {
        let unknown = || io::Error::other(format!("there is no client {name}"));
        self.clients.get_mut(name).ok_or_else(unknown)
    }

    pub(crate) fn tell(&mut self, name: &str, order: &str) -> io::Result<()> {
        if let Some(dice) = &mut self.dice {
            std::thread::sleep(dice.millis(0, LATEST));
        }
        self.client(name)?.process.send(order)
    }

    /// Records what a client says until it says one of these words, and returns that line's words. `None` if it
    /// does not within `limit`.
    pub(crate) async fn next(
        &mut self,
        name: &str,
        words: &[&str],
        limit: Duration,
    ) -> io::Result<Option<Vec<String>>> {
        let end = now() + limit.as_nanos() as u64;
        loop {
            let left = Duration::from_nanos(end.saturating_sub(now()));
            let Some(line) = self.client(name)?.process.line(left).await else { return Ok(None) };
            let said: Vec<String> = line.split(' ').map(str::to_owned).collect();
            self.record(name, &said);
            if said.get(1).is_some_and(|word| words.contains(&&**word)) {
                return Ok(Some(said));
            }
        }
    }

    fn record(&mut self, name: &str, said: &[String]) {
        let said: Vec<&str> = said.iter().map(String::as_str).collect();
        let [at, ref rest @ ..] = said[..] else { return };
        let at: u64 = at.parse().unwrap_or(0);
        match *rest {
            ["invoked", grant, lock] => {
                if let Ok(client) = self.client(name) {
                    client.invoked.insert(grant.to_owned(), (at, lock.to_owned()));
                }
            }
            ["held", grant, token, deadline] => {
                let invoked = self.client(name).ok().and_then(|it| it.invoked.remove(grant));
                let (invoked, lock) = invoked.unwrap_or_else(|| (at, self.lock.clone()));
                self.history.grants.push(Grant {
                    id: grant.to_owned(),
                    client: name.to_owned(),
                    lock,
                    invoked,
                    held: at,
                    token: token.parse().ok(),
                    deadline: deadline.parse().ok(),
                    released: None,
                    lost: None,
                });
            }
            ["until", grant, deadline] => {
                self.change(grant, |grant| grant.deadline = deadline.parse().ok());
            }
            ["releasing", grant] => self.change(grant, |grant| {
                grant.released.get_or_insert(at);
            }),
            ["lost", grant] => self.change(grant, |grant| {
                grant.lost.get_or_insert(at);
            }),
            _ => {}
        }
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut Grant)) {
        if let Some(grant) = self.history.grants.iter_mut().find(|grant| grant.id == id) {
            change(grant);
        }
    }

    /// Begins to acquire the experiment's lock.
    pub(crate) fn start_acquire(
        &mut self,
        name: &str,
        ttl: Duration,
        wait: Duration,
    ) -> io::Result<()> {
        let lock = self.lock.clone();
        self.start_acquire_of(name, &lock, ttl, wait)
    }

    pub(crate) fn start_acquire_of(
        &mut self,
        name: &str,
        lock: &str,
        ttl: Duration,
        wait: Duration,
    ) -> io::Result<()> {
        self.tell(name, &format!("acquire {lock} {} {}", ttl.as_millis(), wait.as_millis()))
    }

    /// Waits until the acquire has ended.
    pub(crate) async fn outcome(&mut self, name: &str, limit: Duration) -> io::Result<Outcome> {
        let said = self.next(name, &["held", "busy", "failed"], limit).await?;
        let said = said.unwrap_or_default();
        Ok(match said.get(1).map(String::as_str) {
            Some("held") => Outcome::Held,
            Some("failed") => Outcome::Failed(said[2..].join(" ")),
            _ => Outcome::Busy,
        })
    }

    /// Acquires the lock.
    pub(crate) async fn acquire(
        &mut self,
        name: &str,
        ttl: Duration,
        wait: Duration,
    ) -> io::Result<Outcome> {
        self.start_acquire(name, ttl, wait)?;
        self.outcome(name, wait + AT_ONCE).await
    }

    /// Acquires a free lock. The experiment shows nothing if this fails.
    pub(crate) async fn hold(&mut self, name: &str, ttl: Duration) -> io::Result<()> {
        match self.acquire(name, ttl, SOON).await? {
            Outcome::Held => Ok(()),
            other => Err(io::Error::other(format!("{name} does not get the free lock: {other:?}"))),
        }
    }

    /// Acquires the lock, which is expected to be granted within `limit`.
    pub(crate) async fn expect_hold(
        &mut self,
        name: &str,
        ttl: Duration,
        limit: Duration,
    ) -> io::Result<bool> {
        let outcome = self.acquire(name, ttl, limit).await?;
        self.expect(outcome, name, limit)
    }

    /// Acquires a free lock, and reads. The experiment shows nothing if this fails.
    pub(crate) async fn hold_and_read(&mut self, name: &str, ttl: Duration) -> io::Result<()> {
        self.hold(name, ttl).await?;
        self.must_read(name).await
    }

    /// Acquires the lock, which is expected to be granted within `limit`, and works.
    pub(crate) async fn expect_work(
        &mut self,
        name: &str,
        ttl: Duration,
        limit: Duration,
    ) -> io::Result<()> {
        match self.expect_hold(name, ttl, limit).await? {
            true => self.work(name).await,
            false => Ok(()),
        }
    }

    /// Waits for an acquire that was started before, which is expected to succeed within `limit`, and works.
    pub(crate) async fn expect_work_after_wait(
        &mut self,
        name: &str,
        limit: Duration,
    ) -> io::Result<()> {
        let outcome = self.outcome(name, limit).await?;
        match self.expect(outcome, name, limit)? {
            true => self.work(name).await,
            false => Ok(()),
        }
    }

    /// Reads and writes.
    async fn work(&mut self, name: &str) -> io::Result<()> {
        self.read(name).await?;
        self.write(name).await
    }

    /// Records whether an acquire that had to succeed did.
    pub(crate) fn expect(
        &mut self,
        outcome: Outcome,
        name: &str,
        limit: Duration,
    ) -> io::Result<bool> {
        let met = outcome == Outcome::Held;
        let why = match outcome {
            Outcome::Failed(why) => format!(" ({why})"),
            _ => String::new(),
        };
        let what = format!("{name} gets the lock within {limit:?}{why}");
        self.history.expectations.push(Expectation { what, at: now(), met });
        Ok(met)
    }

    pub(crate) async fn read(&mut self, name: &str) -> io::Result<()> {
        self.access(name, "read").await
    }

    pub(crate) async fn write(&mut self, name: &str) -> io::Result<()> {
        self.access(name, "write").await
    }

    async fn access(&mut self, name: &str, kind: &str) -> io::Result<()> {
        self.tell(name, kind)?;
        match self.next(name, &["accessed", "lost"], AT_ONCE).await? {
            Some(_) => Ok(()),
            None => Err(io::Error::other(format!("{name} gets no reply of the resource"))),
        }
    }

    /// Reads, which must reach the resource: else the experiment shows nothing.
    pub(crate) async fn must_read(&mut self, name: &str) -> io::Result<()> {
        self.tell(name, "read")?;
        match self.next(name, &["accessed", "lost"], AT_ONCE).await? {
            Some(said) if said[1] == "accessed" => Ok(()),
            _ => Err(io::Error::other(format!("{name} lost the lock too early"))),
        }
    }

    pub(crate) async fn release(&mut self, name: &str) -> io::Result<()> {
        self.tell(name, "release")?;
        self.next(name, &["released"], AT_ONCE).await.map(drop)
    }

    /// Records a fault, at the moment before it is injected.
    pub(crate) fn fault(&mut self, what: impl Into<String>) {
        self.history.faults.push(Fault { at: now(), what: what.into() });
    }

    pub(crate) fn pause(&mut self, name: &str) -> io::Result<()> {
        self.fault(format!("{name} is stopped"));
        self.client(name)?.process.stop()
    }

    pub(crate) fn resume(&mut self, name: &str) -> io::Result<()> {
        self.fault(format!("{name} goes on"));
        self.client(name)?.process.cont()
    }

    pub(crate) fn kill(&mut self, name: &str) -> io::Result<()> {
        self.fault(format!("{name} is killed"));
        self.client(name)?.process.kill9()?;
        // A dead process believes nothing.
        let (at, theirs) = (now(), |grant: &&mut Grant| grant.client == name);
        for grant in self.history.grants.iter_mut().filter(theirs) {
            grant.lost.get_or_insert(at);
        }
        Ok(())
    }

    /// Sets all proxies between a client and the servers.
    pub(crate) fn set_ways(&mut self, name: &str, way: Way) -> io::Result<()> {
        self.client(name)?.proxies.iter().for_each(|proxy| proxy.set(way));
        Ok(())
    }

    /// All proxies of a client carry new connections; existing ones end.
    pub(crate) fn heal(&mut self, name: &str) -> io::Result<()> {
        self.client(name)?.proxies.iter().for_each(Proxy::heal);
        Ok(())
    }

    /// Waits until a reply to the client has been lost: the servers have served its request.
    pub(crate) async fn until_reply_is_lost(&mut self, name: &str) -> io::Result<()> {
        let end = now() + AT_ONCE.as_nanos() as u64;
        while self.client(name)?.proxies.iter().all(|way| way.swallowed() == 0) {
            if now() > end {
                return Err(io::Error::other("no request reached the servers"));
            }
            // A stopped client would fill the pipe otherwise.
            self.next(name, &[], Duration::from_millis(5)).await?;
        }
        // The other servers of a quorum have been asked at the same time.
        self.next(name, &[], Duration::from_millis(50)).await.map(drop)
    }

    /// Waits, and records what clients say meanwhile.
    pub(crate) async fn wait(&mut self, time: Duration) -> io::Result<()> {
        let names: Vec<&'static str> = self.clients.keys().copied().collect();
        let end = now() + time.as_nanos() as u64;
        loop {
            for name in &names {
                self.next(name, &[], Duration::from_millis(1)).await?;
            }
            if now() >= end {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// How much has reached the resource.
    pub(crate) fn arrived(&self) -> usize {
        self.resource.accesses().len()
    }

    /// Waits until so much has reached the resource.
    pub(crate) async fn until_arrived(&mut self, count: usize) -> io::Result<()> {
        let end = now() + AT_ONCE.as_nanos() as u64;
        while self.arrived() < count {
            if now() > end {
                return Err(io::Error::other("a delayed write never arrived"));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// How many requests have reached the server, which no other experiment uses.
    pub(crate) fn requests(&self) -> io::Result<u64> {
        match (&self.servers.etcd, &self.servers.zookeeper, self.servers.redis.first()) {
            (Some(server), _, _) => Member::requests(server),
            (_, Some(server), _) => Member::requests(server),
            (_, _, Some(server)) => {
                // The server's own counter also counts the commands inside scripts.
                let figures = server.command(&["INFO", "commandstats"])?;
                let calls = figures.lines().filter_map(|line| {
                    let line = line.strip_prefix("cmdstat_eval")?;
                    line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()
                });
                Ok(calls.sum())
            }
            _ => Err(io::Error::other("no server counts requests")),
        }
    }

    /// Waits until so many requests have reached the server.
    pub(crate) async fn until_requests(&mut self, count: u64) -> io::Result<()> {
        let end = now() + AT_ONCE.as_nanos() as u64;
        while self.requests()? < count {
            if now() > end {
                return Err(io::Error::other("too few requests reached the server"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Lets all proxies of a client lead to this server.
    pub(crate) fn lead_to(&mut self, port: u16) {
        for client in self.clients.values() {
            client.proxies.iter().for_each(|way| way.lead_to(port));
        }
        if let Some(observer) = &self.observer {
            observer.lead_to(self.servers.addresses());
        }
    }

    /// Ends the experiment, and returns what happened.
    pub(crate) async fn end(mut self) -> io::Result<History> {
        // The last words of clients that still run.
        self.wait(Duration::from_millis(120)).await?;
        self.history.accesses = self.resource.accesses();
        self.history.truth = self.observer.take().map_or(Vec::new(), Observer::end);
        self.history.end = now();
        Ok(self.history)
    }
}
