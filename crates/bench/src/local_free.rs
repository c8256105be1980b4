//! local: acquiring and releasing a free lock in one process, compared with two `flock` system calls.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use tenure_core::Client;
use tenure_local::LocalStore;

use crate::Outcome;
use crate::figure::Samples;
use crate::scale::Scale;
use crate::table::Row;
use crate::timing::mean;

const ROUNDS: usize = 15;
const PAIRS: usize = 20_000;

/// Why a free lock may cost more than two system calls.
pub(crate) const MORE: &str = "beside the change of the table, a hold has an owner id, a token, a term with two reads of the clock, and an \
     entry with the thread that watches it; flock has none of them";

pub(crate) fn measure(scale: Scale) -> Outcome<Vec<Row>> {
    let directory = tempfile::tempdir()?;
    let file = File::create(directory.path().join("flock"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::new(Arc::new(LocalStore::open(directory.path().join("store"))?))?;
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        for _ in 0..scale.rounds(ROUNDS) {
            let mutex = client.mutex("bench")?;
            let pair = async || Ok(mutex.acquire().await?.release().await?);
            ours.push(mean(scale.count(PAIRS), pair).await?);
            theirs.push(mean(scale.count(PAIRS), async || flocks(&file)).await?);
        }
        let row = Row::time("local: acquire + release, free, one process", ours.median());
        let row = row.peer("flock(LOCK_EX) + flock(LOCK_UN)", theirs.median()).at_most(1.0);
        Ok(vec![row.because(MORE)])
    })
}

fn flocks(file: &File) -> Outcome<()> {
    flock(file, FlockOperation::LockExclusive)?;
    Ok(flock(file, FlockOperation::Unlock)?)
}
