//! ZooKeeper: tenure beside Curator and kazoo, each on the same server in its own language.

use std::time::{Duration, Instant};

use tenure_core::Client;
use tenure_testkit::{Neighbour, Process, ZooKeeperServer};

use crate::Outcome;
use crate::redis::runtime;
use crate::table::{Row, median};
use crate::zookeeper::{SETTINGS, WAIT, connect, our_handoff};

const ROUNDS: usize = 9;
const PAIRS: usize = 100;
const HANDOFFS: usize = 12;
/// How often theirs runs before it is measured: Java compiles while it runs.
const WARM_UP: usize = 400;

/// The path of their lock; it is another one than tenure's.
const PATH: &str = "/clients/bench";

/// The free lock and the hand-off, against each client that is installed.
pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let needs = &["java"];
    let curators = [
        (Neighbour { name: "measure-curator-maven", needs }, "Curator's InterProcessMutex"),
        (
            Neighbour { name: "measure-curator-debian", needs },
            "Curator's InterProcessMutex, Debian's",
        ),
    ];
    let kazoo = (Neighbour { name: "measure-kazoo", needs: &["python3"] }, "kazoo's Lock");
    let mut rows = Vec::new();
    for (client, name) in curators.iter().chain([&kazoo]) {
        if !client.is_missing("zk-clients") {
            rows.extend(beside(client, name)?);
        }
    }
    Ok(rows)
}

fn beside(client: &Neighbour, name: &str) -> Outcome<[Row; 2]> {
    let server = ZooKeeperServer::start(SETTINGS)?;
    let runtime = runtime(2)?;
    let clients = [connect(&runtime, &server)?, connect(&runtime, &server)?];
    runtime.block_on(async {
        let mut theirs = client.start(&[&server.port().to_string(), PATH])?;
        ask(&mut theirs, &format!("free {WARM_UP}")).await?;
        ask(&mut theirs, &format!("handoff {HANDOFFS} 1")).await?;
        our_pairs(&clients[0], WARM_UP).await?;
        let (mut free, mut handoff) = (Sides::default(), Sides::default());
        for _ in 0..ROUNDS {
            free.ours.extend(our_pairs(&clients[0], PAIRS).await?);
            free.theirs.extend(ask(&mut theirs, &format!("free {PAIRS}")).await?);
            for _ in 0..HANDOFFS {
                handoff.ours.push(our_handoff(&clients).await?);
            }
            let order = format!("handoff {HANDOFFS} {}", WAIT.as_millis());
            handoff.theirs.extend(ask(&mut theirs, &order).await?);
        }
        Ok([
            free.row("zookeeper: acquire + release, free, one task", name),
            handoff.row("zookeeper: hand-off to another client", name),
        ])
    })
}

/// The times of ours and of theirs.
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

/// What theirs answers: a line of nanoseconds.
async fn ask(theirs: &mut Process, order: &str) -> Outcome<Vec<Duration>> {
    theirs.send(order)?;
    let line = theirs.line(Duration::from_secs(60)).await.ok_or("it does not answer")?;
    let times = line.split_whitespace().map(|word| word.parse().map(Duration::from_nanos));
    Ok(times.collect::<Result<_, _>>()?)
}
