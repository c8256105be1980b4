//! A lock that goes to and fro between two processes, against a byte that does.
//!
//! Once with both processes on one core, where a hand-off costs what it computes; once on two,
//! where it costs a wake-up across cores. A holder yields the core once before it lets go, so that
//! the other can stand in line again (otherwise the scheduler decides how often the lock changes
//! hands at all); only acquisitions that had to wait are counted. On one core that yield is a second
//! switch, which the byte does not need: that figure is for information.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::path::Path;
use std::pin::pin;
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
    let mut rows = vec![compare(0, "local: hand-off between two processes, one core", None)?];
    if cores > 1 {
        let what = "local: hand-off between two processes, two cores";
        rows.push(compare(1, what, Some(3.0))?);
    }
    Ok(rows)
}

fn compare(core: usize, what: &str, bound: Option<f64>) -> Outcome<Row> {
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("store");
    for fifo in ["there", "back"] {
        mknodat(CWD, folder.path().join(fifo), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = {
        let _inside = runtime.enter();
        Client::new(Arc::new(LocalStore::open(&store)?))?
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
    Ok(Row::of_times(what, median(ours), against, median(theirs), bound))
}

pub(crate) fn stay_on(core: usize) -> Outcome<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Takes back what [`stay_on`] did in a scenario before this one.
pub(crate) fn roam() -> Outcome<()> {
    let mut cores = CpuSet::new();
    // The kernel leaves out those that there are not.
    (0..CpuSet::MAX_CPU).for_each(|core| cores.set(core));
    Ok(sched_setaffinity(None, &cores)?)
}

fn locks(runtime: &Runtime, client: &Client, peer: &mut Peer) -> Outcome<Duration> {
    let turns = (HOPS / 2).to_string();
    let first = runtime.block_on(client.mutex(LOCK)?.acquire())?;
    peer.order(&turns)?;
    while runtime.block_on(client.inspect(LOCK))?.waiters.is_empty() {
        sched_yield();
    }
    let start = Instant::now();
    runtime.block_on(first.release())?;
    let handed = serve(runtime, client, &turns)? + peer.reply()?;
    let elapsed = start.elapsed();
    if handed < u64::from(HOPS) / 2 {
        return Err(format!("only {handed} of {HOPS} acquisitions were hand-offs").into());
    }
    Ok(elapsed.div_f64(handed as f64))
}

/// Takes and hands on the lock so many times; answers how often it had to wait for it.
pub(crate) fn serve(runtime: &Runtime, client: &Client, order: &str) -> Outcome<u64> {
    let turns: u64 = order.parse()?;
    runtime.block_on(async {
        let mutex = client.mutex(LOCK)?;
        let mut handed = 0;
        for _ in 0..turns {
            let mut polls = 0;
            let mut acquire = pin!(mutex.acquire());
            let guard = poll_fn(|context| {
                polls += 1;
                acquire.as_mut().poll(context)
            });
            let guard = guard.await?;
            handed += u64::from(polls > 1);
            sched_yield();
            guard.release().await?;
        }
        Ok(handed)
    })
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
