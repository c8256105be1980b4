//! Repeats timing-dependent experiments that failed because the machine was starved of CPU time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs an experiment, and repeats it if it fails while the machine stalled for `stall` or longer.
///
/// A store is right to end a lease that is not renewed in time, so a failure on a starved machine
/// proves nothing. A failure without a stall panics.
pub(crate) async fn retry_if_starved<F, C>(stall: Duration, experiment: F)
where
    F: Fn() -> C,
    C: Future<Output = Result<(), String>>,
{
    let mut verdict = Ok(());
    for _ in 0..10 {
        let monitor = StallMonitor::start();
        verdict = experiment().await;
        match &verdict {
            Ok(()) => return,
            Err(why) if monitor.longest() < stall => panic!("{why}"),
            Err(_) => {}
        }
    }
    panic!("the machine stalled in every run; the last one ended with {verdict:?}")
}

/// Measures how late the runtime wakes a task that sleeps for a few milliseconds at a time.
struct StallMonitor {
    longest: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl StallMonitor {
    fn start() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let recorded = longest.clone();
        let task = tokio::spawn(async move {
            loop {
                let start = Instant::now();
                tokio::time::sleep(Duration::from_millis(5)).await;
                let gap = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                recorded.fetch_max(gap, Ordering::Relaxed);
            }
        });
        Self { longest, task }
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::Relaxed))
    }
}

impl Drop for StallMonitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}
