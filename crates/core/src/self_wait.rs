//! Notices an attempt that waits for a lock which its own task holds.
//!
//! A guard can be moved to another task, so that two acquires of one task are no proof. It is proven where
//! the second one is part of the work that [`Guard::run`](crate::Guard::run) drives: the guard is borrowed
//! until that work ends. Otherwise the attempt is suspected only after it has waited for a while, and only
//! if no other task has used the guard.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::Lease;
use crate::task::{CallSite, TaskKey, runs_under};
use crate::{Error, ErrorKind, Result};

/// How long a task waits for a lock that it acquired itself before it is warned.
const SUSPICIOUS: Duration = Duration::from_secs(1);

/// An attempt that may wait for its own task.
pub(crate) struct SelfWait {
    holds: Arc<Lease>,
    waits_at: CallSite,
    due: Instant,
    warned: bool,
}

impl SelfWait {
    /// Looks for a hold of this task among the holds of the client that are in the attempt's way.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], and a warning, if the attempt certainly waits for one of them.
    pub(crate) fn look(in_the_way: &[Arc<Lease>], waits_at: CallSite) -> Result<Option<Self>> {
        if let Some(lease) = in_the_way.iter().find(|lease| runs_under(lease.claim.owner)) {
            let (lock, held_at) = (&lease.claim.name, lease.acquired_by.at);
            tracing::warn!(
                %lock, %held_at, %waits_at,
                "would wait for itself: the work that acquires this lock runs under it. Acquire it once, \
                 or use a `ReentrantMutex`"
            );
            let why = format!(
                "the work that acquires it at {waits_at} runs under it, acquired at {held_at}, so it would wait \
                 for itself: acquire it once, or use a `ReentrantMutex`"
            );
            return Err(Error::new(ErrorKind::Invalid, "acquire", why));
        }
        let task = Some(TaskKey::current());
        let is_own = |lease: &&Arc<Lease>| !lease.is_kept && lease.acquired_by.home() == task;
        let Some(own) = in_the_way.iter().find(is_own) else { return Ok(None) };
        let due = Instant::now() + SUSPICIOUS;
        Ok(Some(Self { holds: Arc::clone(own), waits_at, due, warned: false }))
    }

    /// Warns when the attempt has waited for long, unless the hold has ended or its guard was moved. Never
    /// resolves.
    pub(crate) async fn warn(&mut self) -> std::convert::Infallible {
        if !self.warned {
            tokio::time::sleep_until(self.due).await;
            self.warned = true;
            let Self { holds, waits_at, .. } = self;
            if holds.is_valid() && holds.acquired_by.home().is_some() {
                let (lock, held_at) = (&holds.claim.name, holds.acquired_by.at);
                tracing::warn!(
                    %lock, %held_at, %waits_at,
                    "may wait for itself: this task acquired the lock and has not released it. If its \
                     guard was moved to another task, all is well; otherwise acquire it once, or use a \
                     `ReentrantMutex`"
                );
            }
        }
        std::future::pending().await
    }
}
