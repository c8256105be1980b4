//! Many tasks of one process that wait for one lock.
//!
//! Each scenario takes the servers and a function that connects a client to their addresses, or a
//! client. The environment variable `CROWD` sets the number of waiting tasks, where the scenario does
//! not need a certain number.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::store::{ClaimOutcome, WaitPolicy};
use tenure_core::{Client, Error, ErrorKind, Guard, Mode, Options, Result};
use tenure_testkit::{Ensemble, GENEROUS, Member, Proxy, eventually};
use tokio::task::JoinSet;

use crate::{ELECTION, claim, setting, until_all_serve, until_one_leads, until_waiting};

/// The lock that all wait for.
const NAME: &str = "crowded";

/// What idle waiters may cost: at most so many requests in this time, keep-alives included.
const IDLE: (u64, Duration) = (60, Duration::from_secs(10));

/// How long a server stands still: longer than a call may take.
const STANDSTILL: Duration = Duration::from_secs(3);

/// No outage here lasts as long as this TTL.
fn patient() -> Options {
    Options::new().ttl(patient_ttl())
}

/// No outage here lasts as long as this TTL.
const fn patient_ttl() -> Duration {
    Duration::from_secs(60)
}

/// Each server stands still for a while; of several servers, the leader dies, and then the first one. No
/// waiter fails, and all are served in the order of the queue.
///
/// # Panics
/// If not.
pub async fn waiters_outlast_server_faults_and_are_served_in_order(
    mut ensemble: Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) {
    let client = connect(&ensemble.addresses()).await;
    let observer = connect(&ensemble.addresses()).await.with_call_timeout(ELECTION).unwrap();
    let holder = hold(&client, Mode::Exclusive).await;
    let crowd = Crowd::gather(&client, Mode::Exclusive, setting("CROWD", 5_000) as usize);
    let queue = crowd.until_in_queue(&observer).await;
    stand_still(&mut ensemble).await;
    if ensemble.members().len() > 1 {
        let leader = until_one_leads(&ensemble).await;
        die(&mut ensemble, leader).await;
        ensemble.members()[leader].restart().unwrap();
        until_all_serve(&mut ensemble).await;
        die(&mut ensemble, 0).await;
    }
    assert_eq!(crowd.counts(), (0, 0), "served and failed before the holder released the lock");
    assert!(holder.is_valid(), "the holder lost the lock");
    let token = holder.token().unwrap().get();
    // If it fails, the release goes on in the background.
    drop(holder.release().await);
    let served = crowd.until_all_are_served().await;
    let owners: Vec<&str> = served.iter().map(|one| one.owner.as_str()).collect();
    let misplaced = queue.iter().zip(&owners).position(|(before, now)| before != now);
    assert_eq!(misplaced, None, "not served in the order of the queue");
    let tokens: Vec<u64> = [token].into_iter().chain(served.iter().map(|one| one.token)).collect();
    assert!(tokens.is_sorted_by(|one, next| one < next), "tokens did not rise");
}

/// Stops each server in turn for a while.
async fn stand_still(ensemble: &mut Ensemble<impl Member>) {
    for member in 0..ensemble.members().len() {
        ensemble.members()[member].stop().unwrap();
        tokio::time::sleep(STANDSTILL).await;
        ensemble.members()[member].cont().unwrap();
        until_all_serve(ensemble).await;
    }
}

/// Kills a server. Returns when another one leads.
async fn die(ensemble: &mut Ensemble<impl Member>, member: usize) {
    ensemble.members()[member].kill9().unwrap();
    until_one_leads(ensemble).await;
}

/// One client holds many locks and waits for each of them once more. Its server stands still. No
/// holder loses its lock, and every waiter gets its lock when the holder releases it.
///
/// # Panics
/// If not.
pub async fn waiters_for_many_locks_outlast_a_standstill(
    server: &mut impl Member,
    client: &Client,
    count: usize,
) {
    let names: Vec<String> = (0..count).map(|number| format!("lock-{number}")).collect();
    let mutex = |name: &String| client.mutex(name).unwrap().with(patient());
    let acquire = |name: &String| {
        let mutex = mutex(name);
        async move { mutex.acquire().await }
    };
    let mut holders = Vec::new();
    for name in &names {
        holders.push(acquire(name).await.unwrap());
    }
    let mut waiting = JoinSet::new();
    for name in &names {
        waiting.spawn(acquire(name));
    }
    for name in &names {
        until_waiting(client, name, 1).await;
    }
    server.stop().unwrap();
    // Long enough for a keep-alive of the session to fail, and with it the stream of watches.
    tokio::time::sleep(Duration::from_secs(10)).await;
    server.cont().unwrap();
    assert!(waiting.try_join_next().is_none(), "a waiter did not outlast the standstill");
    let lost = holders.iter().filter(|holder| !holder.is_valid()).count();
    assert_eq!(lost, 0, "holders lost their locks");
    // If it fails, the release goes on in the background.
    for holder in holders {
        drop(holder);
    }
    for served in 0..count {
        let next = tokio::time::timeout(ELECTION, waiting.join_next()).await;
        let next = next.unwrap_or_else(|_| panic!("{served} of {count} are served"));
        drop(next.unwrap().unwrap().unwrap());
    }
}

/// Tasks that arrive at once all get the lock, while others still arrive.
///
/// # Panics
/// If not.
pub async fn all_tasks_that_arrive_at_once_are_served(client: &Client, count: usize) {
    let crowd = Crowd::gather(client, Mode::Exclusive, count);
    crowd.until_all_are_served().await;
    let free = || async { client.inspect(NAME).await.is_ok_and(|state| state.is_free()) };
    assert!(eventually(ELECTION, free).await, "an entry is left behind");
}

/// Three hundred waiters behind holders that stay send next to nothing, and all get the lock when the
/// holders release it one by one.
///
/// # Panics
/// If not.
pub async fn idle_waiters_cost_next_to_nothing(server: &impl Member, client: &Client, mode: Mode) {
    let mut holders = Vec::new();
    match mode {
        Mode::Permits { of, .. } => {
            for _ in 0..of {
                holders.push(hold(client, mode).await);
            }
        }
        _ => holders.push(hold(client, Mode::Exclusive).await),
    }
    let crowd = Crowd::gather(client, mode, setting("CROWD", 300) as usize);
    let observer = client.clone().with_call_timeout(ELECTION).unwrap();
    crowd.until_in_queue(&observer).await;
    until_idle(server).await;
    assert_eq!(crowd.counts(), (0, 0), "served and failed beside the holders");
    for holder in holders {
        holder.release().await.unwrap();
    }
    crowd.until_all_are_served().await;
}

/// What one more waiter costs the server does not depend on how many waiters of the same client are in
/// the queue, or arrive at the same moment: neither the number of requests, nor the size of the replies.
/// Counts, unlike times, are the same on a busy machine.
///
/// `connect` is given the address of a proxy to `server`.
///
/// # Panics
/// If it does.
pub async fn an_arrival_costs_the_same_in_a_long_queue(
    server: &impl Member,
    connect: impl AsyncFn(&str) -> Client,
) {
    const FEW: usize = 10;
    const MANY: usize = 2_000;
    const MORE: usize = 100;
    /// The most bytes of replies for an arrival: no reply contains a part of the queue.
    const MOST_BYTES: f64 = 600.0;
    let proxy = Proxy::start(server.port()).unwrap();
    let client = connect(&proxy.address()).await;
    // Requests and bytes of replies for each arrival.
    let measure = async |name: &str, count: usize| {
        // The work that earlier arrivals left is done.
        let (requests, replied) = until_quiet(server, &proxy).await;
        arrive(&client, name, count).await;
        let (requests_then, replied_then) = until_quiet(server, &proxy).await;
        let cost = ((requests_then - requests) as f64, (replied_then - replied) as f64);
        let cost = (cost.0 / count as f64, cost.1 / count as f64);
        println!("{count} arrivals at {name}: {:.2} requests, {:.0} bytes each", cost.0, cost.1);
        cost
    };
    let hold =
        async |name: &str| client.mutex(name).unwrap().with(patient()).acquire().await.unwrap();
    let _holders = [hold("short").await, hold("long").await];
    arrive(&client, "short", FEW).await;
    let (requests, bytes) = measure("short", MORE).await;
    assert!(bytes <= MOST_BYTES, "{bytes} bytes for an arrival");
    for count in [MANY, MORE] {
        let (requests_there, bytes_there) = measure("long", count).await;
        // Keep-alives may fall into any measurement, and one task of the client lists the queue.
        assert!(requests_there <= 1.2 * requests, "{requests_there} requests, not {requests}");
        assert!(
            bytes_there <= (2.0 * bytes + 100.0).min(MOST_BYTES),
            "{bytes_there} bytes, not {bytes}"
        );
    }
}

/// What it costs to find the holder behind ten waiters and behind two thousand: requests, and bytes of
/// replies. Each of many waiting processes asks for the holder now and then.
///
/// `connect` is given the address of a proxy to `server`.
///
/// # Panics
/// If another holder is found, or a call fails.
pub async fn costs_to_find_the_holder(
    server: &impl Member,
    connect: impl AsyncFn(&str) -> Client,
) -> [(f64, f64); 2] {
    const LOOKS: u32 = 20;
    let proxy = Proxy::start(server.port()).unwrap();
    let client = connect(&proxy.address()).await;
    let mut costs = [(0.0, 0.0); 2];
    for (count, cost) in [10, 2_000].into_iter().zip(&mut costs) {
        let name = format!("behind-{count}");
        let mutex = client.mutex(&name).unwrap().with(patient());
        let holder = mutex.acquire().await.unwrap();
        arrive(&client, &name, count).await;
        let (requests, replied) = until_quiet(server, &proxy).await;
        for _ in 0..LOOKS {
            let seen = client.store().holders(mutex.name()).await.unwrap();
            let owners: Vec<&str> = seen.iter().map(|one| one.owner.as_str()).collect();
            assert_eq!(owners, [holder.owner().to_string()]);
        }
        let (requests_then, replied_then) = until_quiet(server, &proxy).await;
        let each = |sum: f64| sum / f64::from(LOOKS);
        *cost = (each((requests_then - requests) as f64), each((replied_then - replied) as f64));
        println!("the holder before {count} waiters: {:.2} requests, {:.0} bytes", cost.0, cost.1);
        drop(holder.release().await);
    }
    costs
}

/// Adds this many claims to the queue.
async fn arrive(client: &Client, name: &str, count: usize) {
    let policy = WaitPolicy::queue(patient_ttl());
    let mut arriving = JoinSet::new();
    for _ in 0..count {
        let (store, claim) = (Arc::clone(client.store()), claim(name, patient_ttl()));
        arriving.spawn(async move { store.claim(&claim, policy).await });
    }
    for outcome in arriving.join_all().await {
        assert!(matches!(outcome.unwrap(), ClaimOutcome::Queued(_)));
    }
}

/// Returns when nothing has been sent for a while, how many requests reached the server, and how many
/// bytes of replies passed the proxy.
async fn until_quiet(server: &impl Member, proxy: &Proxy) -> (u64, usize) {
    let quiet = async {
        loop {
            let before = proxy.replied();
            tokio::time::sleep(Duration::from_millis(300)).await;
            if proxy.replied() == before {
                return (server.requests().unwrap(), before);
            }
        }
    };
    tokio::time::timeout(GENEROUS, quiet).await.expect("requests reach the server all the time")
}

/// Returns when few requests reach the server for a while. Earlier calls may have left some work.
async fn until_idle(server: &impl Member) {
    let (most, long) = IDLE;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let before = server.requests().unwrap();
        tokio::time::sleep(long).await;
        seen.push(server.requests().unwrap() - before);
        if seen.last() <= Some(&most) {
            return;
        }
    }
    panic!("requests in {long:?} each, at most {most} wanted: {seen:?}");
}

async fn hold(client: &Client, mode: Mode) -> Guard {
    acquire(client, mode).await.unwrap()
}

async fn acquire(client: &Client, mode: Mode) -> Result<Guard> {
    match mode {
        Mode::Shared => client.rw_lock(NAME)?.with(patient()).read().await.map(Guard::from),
        Mode::Permits { take, of } => {
            client.semaphore(NAME, of)?.with(patient()).acquire_many(take).await
        }
        _ => client.mutex(NAME)?.with(patient()).acquire().await,
    }
}

/// Tasks that each take the lock once, and release it as soon as they have it.
struct Crowd {
    count: usize,
    tally: Arc<Mutex<Tally>>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Tally {
    served: Vec<Served>,
    failed: Vec<Error>,
}

struct Served {
    owner: String,
    token: u64,
}

impl Crowd {
    fn gather(client: &Client, mode: Mode, count: usize) -> Self {
        let tally = Arc::<Mutex<Tally>>::default();
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let (client, tally) = (client.clone(), Arc::clone(&tally));
            tasks.spawn(async move {
                let guard = match acquire(&client, mode).await {
                    Ok(guard) => guard,
                    Err(error) => return lock(&tally).failed.push(error),
                };
                let token = guard.token().map_or(0, |token| token.get());
                lock(&tally).served.push(Served { owner: guard.owner().to_string(), token });
                match guard.release().await {
                    Err(error) if error.kind() == ErrorKind::Lost => {
                        lock(&tally).failed.push(error)
                    }
                    // If it fails, the release goes on in the background.
                    _ => {}
                }
            });
        }
        Self { count, tally, _tasks: tasks }
    }

    /// How many tasks were served, and how many failed.
    fn counts(&self) -> (usize, usize) {
        let tally = lock(&self.tally);
        (tally.served.len(), tally.failed.len())
    }

    /// The owners in the queue, as soon as all tasks are in it. Reading the queue is expensive, so it is
    /// read twice a second.
    async fn until_in_queue(&self, observer: &Client) -> Vec<String> {
        let start = Instant::now();
        let mut seen = 0;
        while start.elapsed() < 4 * ELECTION {
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.check_that_none_failed();
            // A store that is busy with arrivals may be late.
            let Ok(state) = observer.inspect(NAME).await else { continue };
            seen = state.waiters.len();
            if seen == self.count {
                return state.waiters.into_iter().map(|waiter| waiter.owner).collect();
            }
        }
        panic!("{seen} of {} are in the queue", self.count);
    }

    /// The tasks in the order in which they were served.
    async fn until_all_are_served(self) -> Vec<Served> {
        let (mut before, mut since) = (0, Instant::now());
        loop {
            self.check_that_none_failed();
            let served = self.counts().0;
            if served == self.count {
                return std::mem::take(&mut lock(&self.tally).served);
            }
            if served > before {
                (before, since) = (served, Instant::now());
            }
            assert!(since.elapsed() < ELECTION, "{served} of {} are served", self.count);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn check_that_none_failed(&self) {
        let tally = lock(&self.tally);
        if let Some(error) = tally.failed.first() {
            let (failed, served, all) = (tally.failed.len(), tally.served.len(), self.count);
            panic!("{failed} failed by now, and {served} were served, of {all}: {error}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
