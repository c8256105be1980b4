//! Whether a case fails on a faulty store.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// When the cases of a test, which run together, must have ended.
pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Whether the case panics, or has not ended at the deadline: then it waits for something that the faulty
/// store never does, and would fail when its own, generous time limit has passed.
pub(crate) async fn fails(mut case: JoinHandle<()>, deadline: Instant) -> bool {
    match timeout_at(deadline, &mut case).await {
        Ok(outcome) => outcome.is_err_and(|error| error.is_panic()),
        Err(_) => {
            case.abort();
            true
        }
    }
}
