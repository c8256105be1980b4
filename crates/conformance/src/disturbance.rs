//! Experiments that only count on a machine that keeps up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs an experiment that must succeed unless the machine stood still for `pause` meanwhile.
///
/// A lease that is not renewed in time is rightly lost: on a starved machine that says nothing
/// about the store, so such a run is void and made again. Runs that count must succeed.
pub(crate) async fn undisturbed<F, C>(pause: Duration, experiment: F)
where
    F: Fn() -> C,
    C: Future<Output = Result<(), String>>,
{
    let mut verdict = Ok(());
    for _ in 0..10 {
        let observer = Observer::start();
        verdict = experiment().await;
        match &verdict {
            Ok(()) => return,
            Err(why) if observer.longest() < pause => panic!("{why}"),
            Err(_) => {}
        }
    }
    panic!("the machine never kept up: {verdict:?}")
}

/// Notes how late a task is woken that wants to run every few milliseconds.
struct Observer {
    longest: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Observer {
    fn start() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let noted = longest.clone();
        let task = tokio::spawn(async move {
            loop {
                let start = Instant::now();
                tokio::time::sleep(Duration::from_millis(5)).await;
                let gap = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                noted.fetch_max(gap, Ordering::Relaxed);
            }
        });
        Self { longest, task }
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::Relaxed))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
