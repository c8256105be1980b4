//! What is done once, for all who wait for it.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tenure_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

/// Something that a task does, on the runtime on which it was begun.
pub(crate) struct Errand<T> {
    begun: Instant,
    outcome: Outcome<T>,
}

pub(crate) type Outcome<T> = Shared<BoxFuture<'static, Result<T>>>;

impl<T: Clone + Send + Sync + 'static> Errand<T> {
    /// Begins it. `operation` completes "could not …".
    pub(crate) fn begin(
        operation: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Self {
        let gone = move || Error::new(ErrorKind::Unreachable, operation, "its runtime has ended");
        let done = tokio::spawn(work).map(move |done| done.unwrap_or_else(|_| Err(gone())));
        Self { begun: Instant::now(), outcome: done.boxed().shared() }
    }

    /// Whether it is worth waiting for, if it waits for a server for no longer than `limit`. It is
    /// not if its runtime has ended, or stands still: then another has to do it.
    pub(crate) fn is_under_way(&self, limit: Duration) -> bool {
        // Before it begins, it may wait for its turn.
        const TURN: Duration = Duration::from_secs(1);
        self.outcome.peek().is_none() && self.begun.elapsed() < 2 * limit + TURN
    }

    pub(crate) fn outcome(&self) -> Outcome<T> {
        self.outcome.clone()
    }
}
