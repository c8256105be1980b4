//! Waiting for a condition, within a bound.

use std::time::{Duration, Instant};

/// A limit for what should happen soon: long enough for a busy machine, short enough for a test.
pub const GENEROUS: Duration = Duration::from_secs(20);

/// Polls until `condition` is true, for at most `limit`, with growing pauses of at most 50 ms. Returns
/// whether it came true.
///
/// The condition is evaluated at least once, and once more when the time is up.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use tenure_testkit::{GENEROUS, eventually};
///
/// let asked = AtomicU32::new(0);
/// assert!(eventually(GENEROUS, || async { asked.fetch_add(1, Ordering::Relaxed) == 3 }).await);
/// # }
/// ```
#[must_use = "whether the condition came true is the verdict"]
pub async fn eventually<F, C>(limit: Duration, mut condition: F) -> bool
where
    F: FnMut() -> C,
    C: Future<Output = bool>,
{
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    while start.elapsed() < limit {
        if condition().await {
            return true;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    condition().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_wait_ends_if_the_condition_never_comes_true() {
        let start = Instant::now();
        assert!(!eventually(Duration::from_millis(30), || async { false }).await);
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
