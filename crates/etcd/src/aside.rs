//! Work that others wait for.

use tenure_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

/// Goes on in a task of its own, so that nobody who waits for the same lease is held up by a caller
/// that is not driven on. It ends early if the caller is dropped.
pub(crate) async fn aside<T: Send + 'static>(
    operation: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    // It aborts its tasks when it is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(work);
    match tasks.join_next().await {
        Some(Ok(outcome)) => outcome,
        _ => {
            let why = "a task of the store ended before its time";
            Err(Error::new(ErrorKind::Internal, operation, why).with_unknown_effect())
        }
    }
}
