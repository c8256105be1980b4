//! The dialect of Redisson: tenure compared with Redisson (Java) on the same server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::Client;
use tenure_redis::{RedisConfig, RedissonStore, Topology};
use tenure_testkit::{ExternalClient, Process, RedisServer};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::machine::runtime;
use crate::table::{Row, median};

const ROUNDS: usize = 9;
const PAIRS: usize = 500;
const HANDOFFS: usize = 12;
/// How long a waiter waits before the release.
const WAIT: Duration = Duration::from_millis(50);
/// Acquisitions before the measurement, for the just-in-time compiler.
const WARM_UP: usize = 4_000;
const NAME: &str = "Redisson 4.7.0's RLock";

/// A free lock and a hand-off, with the processor time of client and server.
pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let redisson = ExternalClient { name: "measure-redisson-4.7.0", needs: &["java"] };
    if redisson.is_missing("redisson-clients") {
        return Ok(Vec::new());
    }
    let server = RedisServer::start(&[])?;
    let runtime = runtime(2)?;
    let clients = [connect(&runtime, server.port())?, connect(&runtime, server.port())?];
    runtime.block_on(async {
        let mut theirs = redisson.start(&[&server.port().to_string(), "their-bench"])?;
        request(&mut theirs, &format!("free {WARM_UP}")).await?;
        request(&mut theirs, &format!("handoff {HANDOFFS} 1")).await?;
        our_pairs(&clients[0], WARM_UP / 4).await?;
        let own = std::process::id();
        let (mut free, mut handoff) = (Sides::default(), Sides::default());
        for _ in 0..ROUNDS {
            let before = Used::of(&server, own)?;
            free.ours.extend(our_pairs(&clients[0], PAIRS).await?);
            free.our_cpu.add(&before, &Used::of(&server, own)?);
            let before = Used::of(&server, theirs.pid())?;
            free.theirs.extend(request(&mut theirs, &format!("free {PAIRS}")).await?);
            free.their_cpu.add(&before, &Used::of(&server, theirs.pid())?);
            for _ in 0..HANDOFFS {
                handoff.ours.push(our_handoff(&clients).await?);
            }
            let line = format!("handoff {HANDOFFS} {}", WAIT.as_millis());
            handoff.theirs.extend(request(&mut theirs, &line).await?);
        }
        let each = |time: Duration| time / u32::try_from(ROUNDS * PAIRS).unwrap_or(u32::MAX);
        let cpu = |of: &str, ours, theirs| {
            let what = format!("redisson dialect: processor time of the {of} for a free pair");
            Row::of_times(what, each(ours), NAME, each(theirs), Some(1.0))
        };
        Ok(vec![
            cpu("client", free.our_cpu.client, free.their_cpu.client),
            cpu("server", free.our_cpu.server, free.their_cpu.server),
            free.row("redisson dialect: acquire + release, free, one task"),
            handoff.row("redisson dialect: hand-off to another client"),
        ])
    })
}

/// The times of tenure and of Redisson.
#[derive(Default)]
struct Sides {
    ours: Vec<Duration>,
    theirs: Vec<Duration>,
    our_cpu: Used,
    their_cpu: Used,
}

impl Sides {
    fn row(self, what: &str) -> Row {
        Row::of_times(what, median(self.ours), NAME, median(self.theirs), Some(1.0))
    }
}

/// Processor time of a client and of the server.
#[derive(Default)]
struct Used {
    client: Duration,
    server: Duration,
}

impl Used {
    fn of(server: &RedisServer, client: u32) -> Outcome<Self> {
        let info = server.command(&["INFO", "cpu"])?;
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).map(Duration::from_secs_f64)
        };
        let fields = [field("used_cpu_user:"), field("used_cpu_sys:")];
        let [Some(user), Some(system)] = fields else {
            return Err("the server does not report its processor time".into());
        };
        // The numbers behind the command's name: utime and stime are the 12th and 13th, in ticks of 10 ms.
        let stat = std::fs::read_to_string(format!("/proc/{client}/stat"))?;
        let behind = stat.rsplit_once(") ").ok_or("no numbers in /proc/…/stat")?.1;
        let ticks = behind.split(' ').skip(11).take(2).map(str::parse::<u64>);
        let ticks: u64 = ticks.sum::<Result<u64, _>>()?;
        Ok(Self { client: Duration::from_millis(10 * ticks), server: user + system })
    }

    fn add(&mut self, before: &Self, after: &Self) {
        self.client += after.client.saturating_sub(before.client);
        self.server += after.server.saturating_sub(before.server);
    }
}

fn connect(runtime: &Runtime, port: u16) -> Outcome<Client> {
    let mut config = RedisConfig::new(Topology::Single { server: ("127.0.0.1".into(), port) });
    config.prefix.clear();
    // An RLock has no tokens either.
    config.fencing = false;
    let store = runtime.block_on(RedissonStore::connect(config))?;
    Ok(Client::new(Arc::new(store))?)
}

async fn our_pairs(client: &Client, count: usize) -> Outcome<Vec<Duration>> {
    let mutex = client.mutex("our-bench")?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        mutex.acquire().await?.release().await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// From the release to the moment in which a waiter of another client holds.
async fn our_handoff(clients: &[Client; 2]) -> Outcome<Duration> {
    let [held, wanted] = clients.each_ref().map(|client| client.mutex("our-bench"));
    let (held, wanted) = (held?.acquire().await?, wanted?);
    let waiter = tokio::spawn(async move {
        let guard = wanted.acquire().await?;
        let granted = Instant::now();
        guard.release().await?;
        Ok::<_, tenure_core::Error>(granted)
    });
    tokio::time::sleep(WAIT).await;
    let start = Instant::now();
    held.release().await?;
    Ok(waiter.await?? - start)
}

/// Sends a request to Redisson. Its reply is a line of times in nanoseconds.
async fn request(theirs: &mut Process, request: &str) -> Outcome<Vec<Duration>> {
    theirs.send(request)?;
    let line = theirs.line(Duration::from_secs(60)).await;
    let line = line.ok_or("the other client does not answer")?;
    let times = line.split_whitespace().map(|word| word.parse().map(Duration::from_nanos));
    Ok(times.collect::<Result<_, _>>()?)
}
