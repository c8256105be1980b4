//! ZooKeeper: tenure compared with Curator (Java) and kazoo (Python) on the same server.

use std::time::{Duration, Instant};

use tenure_core::Client;
use tenure_testkit::{ExternalClient, Process, ZooKeeperServer};

use crate::Outcome;
use crate::machine::runtime;
use crate::table::{Row, median};
use crate::zookeeper::{SETTINGS, WAIT, connect, our_handoff};

const ROUNDS: usize = 9;
const PAIRS: usize = 100;
const HANDOFFS: usize = 12;
/// Acquisitions before the measurement, for the just-in-time compiler of the Java client.
const WARM_UP: usize = 400;

/// The path of the other client's lock, which tenure does not use.
const PATH: &str = "/clients/bench";

/// A free lock and a hand-off, compared with each client that is installed.
pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let needs = &["java"];
    let curators = [
        (ExternalClient { name: "measure-curator-maven", needs }, "Curator's InterProcessMutex"),
        (
            ExternalClient { name: "measure-curator-debian", needs },
            "Curator's InterProcessMutex, Debian's",
        ),
    ];
    let kazoo = (ExternalClient { name: "measure-kazoo", needs: &["python3"] }, "kazoo's Lock");
    let mut rows = Vec::new();
    for (client, name) in curators.iter().chain([&kazoo]) {
        if !client.is_missing("zk-clients") {
            rows.extend(compare(client, name)?);
        }
    }
    Ok(rows)
}

fn compare(external: &ExternalClient, name: &str) -> Outcome<[Row; 2]> {
    let server = ZooKeeperServer::start(SETTINGS)?;
    let runtime = runtime(2)?;
    let clients = [connect(&runtime, &server)?, connect(&runtime, &server)?];
    runtime.block_on(async {
        let mut theirs = external.start(&[&server.port().to_string(), PATH])?;
        request(&mut theirs, &format!("free {WARM_UP}")).await?;
        request(&mut theirs, &format!("handoff {HANDOFFS} 1")).await?;
        our_pairs(&clients[0], WARM_UP).await?;
        let (mut free, mut handoff) = (Sides::default(), Sides::default());
        for _ in 0..ROUNDS {
            free.ours.extend(our_pairs(&clients[0], PAIRS).await?);
            free.theirs.extend(request(&mut theirs, &format!("free {PAIRS}")).await?);
            for _ in 0..HANDOFFS {
                handoff.ours.push(our_handoff(&clients).await?);
            }
            let line = format!("handoff {HANDOFFS} {}", WAIT.as_millis());
            handoff.theirs.extend(request(&mut theirs, &line).await?);
        }
        Ok([
            free.row("zookeeper: acquire + release, free, one task", name),
            handoff.row("zookeeper: hand-off to another client", name),
        ])
    })
}

/// The times of tenure and of the other client.
#[derive(Default)]
struct Sides {
    ours: Vec<Duration>,
    theirs: Vec<Duration>,
}

impl Sides {
    fn row(self, what: &str, against: &str) -> Row {
        Row::of_times(what, median(self.ours), against, median(self.theirs), Some(1.0))
    }
}

async fn our_pairs(client: &Client, count: usize) -> Outcome<Vec<Duration>> {
    let mutex = client.mutex("bench")?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        mutex.acquire().await?.release().await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// Sends a request to the other client. Its reply is a line of times in nanoseconds.
async fn request(theirs: &mut Process, request: &str) -> Outcome<Vec<Duration>> {
    theirs.send(request)?;
    let line = theirs.line(Duration::from_secs(60)).await;
    let line = line.ok_or("the other client does not answer")?;
    let times = line.split_whitespace().map(|word| word.parse().map(Duration::from_nanos));
    Ok(times.collect::<Result<_, _>>()?)
}
