//! local: a hand-off among many waiters, compared with one among few. The waiters are in two
//! processes, so that half the hand-offs cross between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_core::Client;
use tenure_local::LocalStore;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::figure::Samples;
use crate::peer::Peer;
use crate::scale::Scale;
use crate::table::Row;

const ROUNDS: usize = 3;
const FEW: usize = 10;
const MANY: usize = 10_000;
const WINDOW: Duration = Duration::from_secs(2);

pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
    let directory = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = {
        let _inside = runtime.enter();
        Client::new(Arc::new(LocalStore::open(directory.path())?))?
    };
    let mut peer = Peer::start("waiters", directory.path())?;
    let (mut many, mut few) = (Samples::default(), Samples::default());
    for _ in 0..scale.rounds(ROUNDS) {
        many.push(hand_off(&runtime, &client, &mut peer, scale.count(MANY))?);
        few.push(hand_off(&runtime, &client, &mut peer, FEW)?);
    }
    Ok(vec![Row::of_times(
        format!("local: hand-off among {} waiters", scale.count(MANY)),
        &many,
        "the same among 10",
        &few,
        Some(2.0),
    )])
}

fn hand_off(
    runtime: &Runtime,
    client: &Client,
    peer: &mut Peer,
    waiters: usize,
) -> Outcome<Duration> {
    // The peer starts to count when the gate opens, after all waiters of both processes are queued.
    let gate = runtime.block_on(async { client.mutex("gate")?.acquire().await })?;
    peer.send(&(waiters / 2).to_string())?;
    let handed = runtime.block_on(run(client, waiters / 2, Some((gate, waiters))))?;
    let handed = handed + peer.reply()?;
    Ok(WINDOW.div_f64(handed as f64))
}

/// Runs as many waiting tasks as the request says for the length of the window. Returns how often
/// they acquired the lock.
pub(crate) fn run_waiters(runtime: &Runtime, client: &Client, request: &str) -> Outcome<u64> {
    runtime.block_on(run(client, request.parse()?, None))
}

async fn run(
    client: &Client,
    tasks: usize,
    leader: Option<(tenure_core::Guard, usize)>,
) -> Outcome<u64> {
    let handed = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let lead = match leader {
        Some((gate, waiters)) => {
            let first = client.mutex("crowd")?.acquire().await?;
            Some((gate, waiters, first))
        }
        None => None,
    };
    let tasks: Vec<_> = (0..tasks)
        .map(|_| tokio::spawn(acquire_repeatedly(client.clone(), handed.clone(), over.clone())))
        .collect();
    if let Some((gate, waiters, first)) = lead {
        while client.inspect("crowd").await?.waiters.len() < waiters {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        first.release().await?;
        gate.release().await?;
    } else {
        client.mutex("gate")?.acquire().await?.release().await?;
    }
    handed.store(0, Ordering::Relaxed);
    let start = Instant::now();
    tokio::time::sleep(WINDOW).await;
    let count = handed.load(Ordering::Relaxed);
    let measured = start.elapsed();
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await?.map_err(|error| error.to_string())?;
    }
    Ok((count as f64 * WINDOW.as_secs_f64() / measured.as_secs_f64()) as u64)
}

async fn acquire_repeatedly(
    client: Client,
    handed: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
) -> tenure_core::Result<()> {
    let mutex = client.mutex("crowd")?;
    while !over.load(Ordering::Relaxed) {
        let guard = mutex.acquire().await?;
        handed.fetch_add(1, Ordering::Relaxed);
        guard.release().await?;
    }
    Ok(())
}
