//! local: acquiring and releasing a free lock in one process, compared with two `flock` system calls.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use tenure_core::Client;
use tenure_local::LocalStore;

use crate::Outcome;
use crate::table::{Row, median};

const ROUNDS: usize = 15;
const PAIRS: u32 = 20_000;

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let directory = tempfile::tempdir()?;
    let file = File::create(directory.path().join("flock"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::new(Arc::new(LocalStore::open(directory.path().join("store"))?))?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(locks(&client).await?);
            theirs.push(flocks(&file)?);
        }
        Ok(vec![Row::of_times(
            "local: acquire + release, free, one process",
            median(ours),
            "flock(LOCK_EX) + flock(LOCK_UN)",
            median(theirs),
            Some(3.0),
        )])
    })
}

async fn locks(client: &Client) -> Outcome<Duration> {
    let mutex = client.mutex("bench")?;
    let start = Instant::now();
    for _ in 0..PAIRS {
        mutex.acquire().await?.release().await?;
    }
    Ok(start.elapsed() / PAIRS)
}

fn flocks(file: &File) -> Outcome<Duration> {
    let start = Instant::now();
    for _ in 0..PAIRS {
        flock(file, FlockOperation::LockExclusive)?;
        flock(file, FlockOperation::Unlock)?;
    }
    Ok(start.elapsed() / PAIRS)
}
