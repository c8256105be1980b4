//! Times of single operations.

use std::time::{Duration, Instant};

use tenure_core::Mutex;

use crate::Outcome;

/// The time of each of so many acquisitions, with the release. Can run in a task of its own.
pub(crate) async fn pairs(mutex: &Mutex, count: usize) -> tenure_core::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        mutex.acquire().await?.release().await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// The time of each of so many calls.
pub(crate) async fn each(
    count: usize,
    mut call: impl AsyncFnMut() -> Outcome<()>,
) -> Outcome<Vec<Duration>> {
    reported(count, async || {
        let start = Instant::now();
        call().await?;
        Ok(start.elapsed())
    })
    .await
}

/// The time that each of so many calls reports.
pub(crate) async fn reported(
    count: usize,
    mut call: impl AsyncFnMut() -> Outcome<Duration>,
) -> Outcome<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        times.push(call().await?);
    }
    Ok(times)
}

/// The mean time of one of so many calls, where a clock that is read for each would be in the way.
pub(crate) async fn mean(
    count: usize,
    mut call: impl AsyncFnMut() -> Outcome<()>,
) -> Outcome<Duration> {
    let start = Instant::now();
    for _ in 0..count {
        call().await?;
    }
    Ok(start.elapsed().div_f64(count as f64))
}
