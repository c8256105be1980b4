//! One thing at a time for each claim, in the order it was asked for.
//!
//! Members handle calls side by side, so a release could overtake the claim it is to undo. Here
//! each call on a claim begins when the one before it has ended, and goes on to its end even if
//! nobody waits for it any more.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::{Error, ErrorKind, OwnerId, Result};
use tokio::sync::oneshot;

#[derive(Clone, Default)]
pub(crate) struct Desk {
    last: Arc<Mutex<HashMap<OwnerId, Last>>>,
}

/// The last thing that was asked for, and the news that it has ended.
struct Last {
    number: u64,
    ended: oneshot::Receiver<()>,
}

impl Desk {
    /// Queues `work` at once, and answers how it went.
    pub(crate) fn queue<T, W>(
        &self,
        owner: OwnerId,
        work: W,
    ) -> impl Future<Output = Result<T>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let (ends, ended) = oneshot::channel();
        let (number, before) = {
            let mut last = self.last.lock();
            let before = last.remove(&owner);
            let number = before.as_ref().map_or(0, |before| before.number + 1);
            last.insert(owner, Last { number, ended });
            (number, before)
        };
        let turn = Turn { desk: self.clone(), owner, number, _ends: ends };
        let task = tokio::spawn(async move {
            let _turn = turn;
            if let Some(before) = before {
                // An error says that it has ended, which is all we wait for.
                let _ = before.ended.await;
            }
            work.await
        });
        async move {
            task.await.unwrap_or_else(|error| {
                let why = format!("its task ended early: {error}");
                Err(Error::new(ErrorKind::Internal, "use the store", why).with_unknown_effect())
            })
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
        let desk = Desk::default();
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
