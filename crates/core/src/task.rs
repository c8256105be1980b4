//! Which task runs now, and what it has begun.

use std::cell::RefCell;
use std::panic::Location;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use crate::OwnerId;

/// The source location of a call.
pub(crate) type CallSite = &'static Location<'static>;

/// The task that runs now; outside a task, as in `block_on`, the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TaskKey {
    Task(tokio::task::Id),
    Thread(ThreadId),
}

impl TaskKey {
    pub(crate) fn current() -> Self {
        match tokio::task::try_id() {
            Some(id) => Self::Task(id),
            None => Self::Thread(thread::current().id()),
        }
    }
}

/// Where, and by which task, a lock was acquired.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) at: CallSite,
    pub(crate) by: TaskKey,
    /// Another task has used the guard: it was moved there.
    moved: AtomicBool,
}

impl Acquired {
    /// Acquired by the task that runs now.
    pub(crate) fn now(at: CallSite) -> Self {
        Self { at, by: TaskKey::current(), moved: AtomicBool::new(false) }
    }

    /// The guard is used by the task that runs now.
    pub(crate) fn note_use(&self) {
        if !self.moved.load(Ordering::Relaxed) && TaskKey::current() != self.by {
            self.moved.store(true, Ordering::Relaxed);
        }
    }

    /// The task that acquired the lock, unless its guard is known to be in another one.
    pub(crate) fn home(&self) -> Option<TaskKey> {
        (!self.moved.load(Ordering::Relaxed)).then_some(self.by)
    }
}

impl Clone for Acquired {
    fn clone(&self) -> Self {
        let moved = AtomicBool::new(self.moved.load(Ordering::Relaxed));
        Self { at: self.at, by: self.by, moved }
    }
}

thread_local! {
    /// The holds whose guards are borrowed by the work that this thread polls now.
    static RUNNING: RefCell<Vec<OwnerId>> = const { RefCell::new(Vec::new()) };
}

/// Runs work that borrows the guard of `owner`'s hold until it ends: what the work waits for cannot depend on
/// the release of that guard.
pub(crate) async fn run_under<F: Future>(owner: OwnerId, work: F) -> F::Output {
    struct Polling;
    impl Drop for Polling {
        fn drop(&mut self) {
            let _ = RUNNING.with_borrow_mut(Vec::pop);
        }
    }
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        RUNNING.with_borrow_mut(|running| running.push(owner));
        let _polling = Polling;
        work.as_mut().poll(context)
    })
    .await
}

/// Whether the code that runs now is part of the work under this owner's hold.
pub(crate) fn runs_under(owner: OwnerId) -> bool {
    RUNNING.with_borrow(|running| running.contains(&owner))
}
