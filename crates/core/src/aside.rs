//! Work of a store that others wait for.

use tokio::task::JoinSet;

use crate::{Error, ErrorKind, Result};

/// Does a piece of a store's work in a task of its own.
///
/// For a store whose calls wait for each other, as for a session that they share: who has the turn
/// must be driven on, and a caller need not do that. It may have put its `acquire` aside to look at
/// something else first.
///
/// # Errors
/// Those of the work; [`ErrorKind::Internal`] if it panicked.
///
/// # Cancel safety
/// The work ends where it is when this is dropped.
pub async fn aside<T: Send + 'static>(
    operation: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    // It aborts its tasks when it is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(work);
    match tasks.join_next().await {
        Some(Ok(outcome)) => outcome,
        _ => {
            let why = "a task of the store ended before its time: ask again, and report it";
            Err(Error::new(ErrorKind::Internal, operation, why).with_unknown_effect())
        }
    }
}
