//! One call at a time for each claim, in the order in which the calls were made.
//!
//! An engine may carry out requests side by side, so a release could overtake the claim that it is
//! to undo. Here each call on a claim begins when the one before it has ended, and a call whose
//! caller has gone away is carried out all the same, in a task of its own. A call that is awaited
//! needs no task: to wake another thread costs as much as a tenth of a transaction.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tenure_core::{OwnerId, Result};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

#[derive(Clone)]
pub(crate) struct CallOrder {
    last: Arc<Mutex<HashMap<OwnerId, Last>>>,
    /// Runs the calls whose callers were dropped.
    runtime: Handle,
}

/// The last call on a claim.
struct Last {
    number: u64,
    ended: oneshot::Receiver<()>,
}

impl CallOrder {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { last: Arc::default(), runtime }
    }

    /// Puts `call` behind the calls on this claim that were made before.
    pub(crate) fn queue<T: Send + 'static>(
        &self,
        owner: OwnerId,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Call<T> {
        let (ends, ended) = oneshot::channel();
        let (number, before) = {
            let mut last = self.last.lock();
            let before = last.remove(&owner);
            let number = before.as_ref().map_or(0, |before| before.number + 1);
            last.insert(owner, Last { number, ended });
            (number, before)
        };
        let turn = Turn { order: self.clone(), owner, number, _ends: ends };
        let call = Box::pin(async move {
            let _turn = turn;
            if let Some(before) = before {
                // An error says that it has ended, too.
                let _ = before.ended.await;
            }
            call.await
        });
        Call { left: Some(call), runtime: self.runtime.clone() }
    }
}

/// A call that was made. Dropped, it goes on by itself.
pub(crate) struct Call<T: Send + 'static> {
    left: Option<Pin<Box<dyn Future<Output = Result<T>> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> Future for Call<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let Some(left) = &mut self.left else { return Poll::Pending };
        let outcome = ready!(left.as_mut().poll(context));
        self.left = None;
        Poll::Ready(outcome)
    }
}

impl<T: Send + 'static> Drop for Call<T> {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            self.runtime.spawn(left);
        }
    }
}

/// Ends with its call, however that ends: the next call then begins.
struct Turn {
    order: CallOrder,
    owner: OwnerId,
    number: u64,
    _ends: oneshot::Sender<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut last = self.order.last.lock();
        if last.get(&self.owner).is_some_and(|last| last.number == self.number) {
            last.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_call_goes_on_and_the_next_one_waits_for_it() {
        let order = CallOrder::new(Handle::current());
        let owner = OwnerId::random();
        let (open, gate) = oneshot::channel::<()>();
        let log = Arc::new(Mutex::new(Vec::new()));
        let note = |word: &'static str| {
            let log = Arc::clone(&log);
            move || log.lock().push(word)
        };
        let first = note("first");
        drop(order.queue(owner, async move {
            let _ = gate.await;
            first();
            Ok(())
        }));
        let second = note("second");
        let after = order.queue(owner, async move {
            second();
            Ok(2)
        });
        let other = note("other");
        order
            .queue(OwnerId::random(), async move {
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
        assert!(order.last.lock().is_empty());
    }
}
