//! One thing at a time for each claim, in the order it was asked for.
//!
//! Members handle calls side by side, so a release could overtake the claim it is to undo. Here
//! each call on a claim begins when the one before it has ended, and goes on to its end even if
//! nobody waits for it any more: in a task of its own then. While somebody waits for it, it has
//! none: to wake another thread costs as much as a tenth of a transaction.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tenure_core::{OwnerId, Result};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

#[derive(Clone)]
pub(crate) struct Desk {
    last: Arc<Mutex<HashMap<OwnerId, Last>>>,
    /// Where work goes on that was dropped.
    runtime: Handle,
}

/// The last thing that was asked for, and the news that it has ended.
struct Last {
    number: u64,
    ended: oneshot::Receiver<()>,
}

impl Desk {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { last: Arc::default(), runtime }
    }

    /// Queues `work` at once, and answers how it went.
    pub(crate) fn queue<T: Send + 'static>(
        &self,
        owner: OwnerId,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Work<T> {
        let (ends, ended) = oneshot::channel();
        let (number, before) = {
            let mut last = self.last.lock();
            let before = last.remove(&owner);
            let number = before.as_ref().map_or(0, |before| before.number + 1);
            last.insert(owner, Last { number, ended });
            (number, before)
        };
        let turn = Turn { desk: self.clone(), owner, number, _ends: ends };
        let work = Box::pin(async move {
            let _turn = turn;
            if let Some(before) = before {
                // An error says that it has ended, which is all we wait for.
                let _ = before.ended.await;
            }
            work.await
        });
        Work { left: Some(work), runtime: self.runtime.clone() }
    }
}

/// Something that was asked for. Dropped, it goes on by itself.
pub(crate) struct Work<T: Send + 'static> {
    left: Option<Pin<Box<dyn Future<Output = Result<T>> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> Future for Work<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let Some(left) = &mut self.left else { return Poll::Pending };
        let outcome = ready!(left.as_mut().poll(context));
        self.left = None;
        Poll::Ready(outcome)
    }
}

impl<T: Send + 'static> Drop for Work<T> {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            self.runtime.spawn(left);
        }
    }
}

/// Ends whichever way its task ends: the next one then begins.
struct Turn {
    desk: Desk,
    owner: OwnerId,
    number: u64,
    _ends: oneshot::Sender<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut last = self.desk.last.lock();
        if last.get(&self.owner).is_some_and(|last| last.number == self.number) {
            last.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_dropped_goes_on_and_what_comes_after_it_waits() {
        let desk = Desk::new(Handle::current());
        let owner = OwnerId::random();
        let (open, gate) = oneshot::channel::<()>();
        let log = Arc::new(Mutex::new(Vec::new()));
        let note = |word: &'static str| {
            let log = Arc::clone(&log);
            move || log.lock().push(word)
        };
        let first = note("first");
        drop(desk.queue(owner, async move {
            let _ = gate.await;
            first();
            Ok(())
        }));
        let second = note("second");
        let after = desk.queue(owner, async move {
            second();
            Ok(2)
        });
        let other = note("other");
        desk.queue(OwnerId::random(), async move {
            other();
            Ok(())
        })
        .await
        .unwrap();
        assert_eq!(*log.lock(), ["other"]);
        open.send(()).unwrap();
        assert_eq!(after.await.unwrap(), 2);
        assert_eq!(*log.lock(), ["other", "first", "second"]);
        tokio::task::yield_now().await;
        assert!(desk.last.lock().is_empty());
    }
}
