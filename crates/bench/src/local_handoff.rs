//! local: handing a lock to and fro between two processes, compared with a byte through a FIFO.
//!
//! Measured with both processes on one core, where a hand-off costs its computation, and on two, where it
//! costs a wake-up across cores. A holder releases the lock once the other process is in the queue: otherwise
//! the scheduler decides how often the lock changes hands at all. On one core that costs a second context
//! switch, which the byte does not need.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::thread::sched_yield;
use tenure_core::Client;
use tenure_local::LocalStore;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::figure::Samples;
use crate::machine::pin_to_core;
use crate::peer::{Peer, open};
use crate::scale::Scale;
use crate::table::Row;

const ROUNDS: usize = 9;
const HOPS: usize = 10_000;
const LOCK: &str = "handoff";
/// How often a holder looks for the other process in the queue before it releases the lock.
const LOOKS: u32 = 50_000;

pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
    let cores = std::thread::available_parallelism()?.get();
    let mut rows =
        vec![compare(scale, 0, "local: hand-off between two processes, one core", Some(2.5))?];
    if cores > 1 {
        let what = "local: hand-off between two processes, two cores";
        rows.push(compare(scale, 1, what, Some(3.0))?);
    }
    Ok(rows)
}

fn compare(scale: Scale, core: usize, what: &str, bound: Option<f64>) -> Outcome<Row> {
    let directory = tempfile::tempdir()?;
    let store = directory.path().join("store");
    for fifo in ["there", "back"] {
        mknodat(CWD, directory.path().join(fifo), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = {
        let _inside = runtime.enter();
        Client::new(Arc::new(LocalStore::open(&store)?))?
    };
    // The peers inherit the core.
    pin_to_core(core)?;
    let mut locker = Peer::start("handoff", &store)?;
    let _echo = Peer::start("echo", directory.path())?;
    pin_to_core(0)?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..scale.rounds(ROUNDS) {
        let hops = scale.count(HOPS);
        ours.push(locks(&runtime, &client, &mut locker, hops)?);
        theirs.push(bytes(directory.path(), hops)?);
    }
    let against = "a byte through a FIFO";
    let reason = "a holder waits until the other process is in the queue: on one core that is a second context switch, which \
         the byte does not need; and each hand-off has a claim and a change of the table on both sides";
    Ok(Row::of_times(what, &ours, against, &theirs, bound).because(reason))
}

fn locks(runtime: &Runtime, client: &Client, peer: &mut Peer, hops: usize) -> Outcome<Duration> {
    let turns = (hops / 2).to_string();
    let first = runtime.block_on(client.mutex(LOCK)?.acquire())?;
    peer.send(&turns)?;
    while runtime.block_on(client.inspect(LOCK))?.waiters.is_empty() {
        sched_yield();
    }
    let start = Instant::now();
    runtime.block_on(first.release())?;
    let handed = take_turns(runtime, client, &turns)? + peer.reply()?;
    let elapsed = start.elapsed();
    if handed < hops as u64 / 2 {
        return Err(format!("only {handed} of {hops} releases were hand-offs").into());
    }
    Ok(elapsed.div_f64(handed as f64))
}

/// Acquires and releases the lock as many times as the request says. Returns how often it was released to
/// a waiter.
pub(crate) fn take_turns(runtime: &Runtime, client: &Client, request: &str) -> Outcome<u64> {
    let turns: u64 = request.parse()?;
    runtime.block_on(async {
        let mutex = client.mutex(LOCK)?;
        let mut handed = 0;
        for _ in 0..turns {
            let guard = mutex.acquire().await?;
            // At the end of a round, the other process may be through.
            for _ in 0..LOOKS {
                if !client.inspect(LOCK).await?.waiters.is_empty() {
                    handed += 1;
                    break;
                }
                sched_yield();
            }
            guard.release().await?;
        }
        Ok(handed)
    })
}

fn bytes(directory: &Path, hops: usize) -> Outcome<Duration> {
    let (mut there, mut back) = (open(&directory.join("there"))?, open(&directory.join("back"))?);
    let mut byte = [1];
    let start = Instant::now();
    for _ in 0..hops / 2 {
        there.write_all(&byte)?;
        back.read_exact(&mut byte)?;
    }
    Ok(start.elapsed().div_f64(hops as f64))
}
