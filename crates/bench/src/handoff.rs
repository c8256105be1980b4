//! A lock that goes to and fro between two processes, against a byte that does.
//!
//! Once with both processes on one core, where a hand-off costs what it computes; once on two,
//! where it costs a wake-up across cores. The holder lets go only when the other stands in line
//! (otherwise the scheduler decides how often the lock changes hands at all), and looking whether
//! it does is counted against us.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::thread::{CpuSet, sched_setaffinity, sched_yield};
use tenure_core::Client;
use tenure_local::LocalStore;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::peer::{Peer, open};
use crate::table::{Row, median};

const ROUNDS: usize = 9;
const HOPS: u32 = 10_000;
const LOCK: &str = "handoff";

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let cores = std::thread::available_parallelism()?.get();
    let mut rows = vec![compare(0, "local: hand-off between two processes, one core")?];
    if cores > 1 {
        rows.push(compare(1, "local: hand-off between two processes, two cores")?);
    }
    Ok(rows)
}

fn compare(core: usize, what: &'static str) -> Outcome<Row> {
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("store");
    for fifo in ["there", "back"] {
        mknodat(CWD, folder.path().join(fifo), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = {
        let _inside = runtime.enter();
        Client::new(Arc::new(LocalStore::open(&store)?))
    };
    // What is started inherits where it may run.
    stay_on(core)?;
    let mut locker = Peer::start("handoff", &store)?;
    let _echo = Peer::start("echo", folder.path())?;
    stay_on(0)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(locks(&runtime, &client, &mut locker)?);
        theirs.push(bytes(folder.path())?);
    }
    let against = "a byte through a FIFO, alike";
    Ok(Row { what, ours: median(ours), against, theirs: median(theirs), bound: 3.0 })
}

fn stay_on(core: usize) -> Outcome<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

fn locks(runtime: &Runtime, client: &Client, peer: &mut Peer) -> Outcome<Duration> {
    let mutex = client.mutex(LOCK)?;
    let mut guard = runtime.block_on(mutex.acquire())?;
    peer.order(&(HOPS / 2).to_string())?;
    let start = Instant::now();
    runtime.block_on(async {
        for _ in 0..HOPS / 2 {
            somebody_waits(client).await?;
            guard.release().await?;
            guard = mutex.acquire().await?;
        }
        guard.release().await
    })?;
    peer.reply()?;
    Ok(start.elapsed() / HOPS)
}

/// The peer's part: takes and hands on the lock so many times.
pub(crate) fn serve(runtime: &Runtime, client: &Client, order: &str) -> Outcome<u64> {
    let hops: u64 = order.parse()?;
    runtime.block_on(async {
        let mutex = client.mutex(LOCK)?;
        for _ in 0..hops {
            let guard = mutex.acquire().await?;
            somebody_waits(client).await?;
            guard.release().await?;
        }
        Ok(hops)
    })
}

async fn somebody_waits(client: &Client) -> tenure_core::Result<()> {
    while client.inspect(LOCK).await?.waiters.is_empty() {
        sched_yield();
    }
    Ok(())
}

fn bytes(folder: &Path) -> Outcome<Duration> {
    let (mut there, mut back) = (open(&folder.join("there"))?, open(&folder.join("back"))?);
    let mut byte = [1];
    let start = Instant::now();
    for _ in 0..HOPS / 2 {
        there.write_all(&byte)?;
        back.read_exact(&mut byte)?;
    }
    Ok(start.elapsed() / HOPS)
}
