//! Dropping a future of the client or the store at any await leaves a consistent state.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::Mode;

use crate::Fixture;
use crate::fixture::{claim, client, long, name, raw};

/// More polls than any acquire needs until it is granted or queued.
pub(crate) const POLLS: u32 = 10;

/// An `acquire` on a free lock is dropped after 0, 1, 2 … polls.
pub async fn dropping_acquire_on_a_free_lock_leaves_the_lock_free(fixture: &dyn Fixture) {
    let name = name("cancel-free");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS {
        drop(drop_after_polls(mutex.acquire(), polls).await);
        client.close().await;
        raw.assert_free(&name).await;
    }
}

/// An `acquire` on a held lock is dropped after 0, 1, 2 … polls: the holder keeps the lock, and the
/// queue is empty.
pub async fn dropping_acquire_on_a_held_lock_leaves_no_waiter(fixture: &dyn Fixture) {
    let name = name("cancel-held");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS {
        assert!(drop_after_polls(mutex.acquire(), polls).await.is_none());
        client.close().await;
        raw.assert_owners(&name, &[&holder], &[]).await;
    }
}

/// A waiting `acquire` is dropped after the lock was handed to it, before or soon after it is notified.
pub async fn dropping_acquire_as_its_grant_arrives_leaves_the_lock_free(fixture: &dyn Fixture) {
    let name = name("cancel-granted");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS {
        let holder = claim(&name, Mode::Exclusive);
        raw.hold(&holder).await;
        let mut acquire = Box::pin(mutex.acquire());
        {
            let mut queued = pin!(raw.wait_for_waiters(&name, 1));
            poll_fn(|context| {
                assert!(acquire.as_mut().poll(context).is_pending(), "the lock is held");
                queued.as_mut().poll(context)
            })
            .await;
        }
        raw.release_held(&holder).await;
        drop(drop_after_polls(acquire, polls).await);
        client.close().await;
        raw.assert_free(&name).await;
    }
}

/// A waiting `acquire` is dropped while the holder's release is under way, at each await of either.
pub async fn dropping_acquire_during_a_release_leaves_the_lock_free(fixture: &dyn Fixture) {
    let name = name("cancel-race");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS * 2 {
        let holder = claim(&name, Mode::Exclusive);
        raw.hold(&holder).await;
        let acquire = drop_after_polls(mutex.acquire(), 1 + polls / 2);
        let release = raw.release_held(&holder);
        let (guard, ()) = tokio::join!(acquire, release);
        drop(guard);
        client.close().await;
        raw.assert_free(&name).await;
    }
}

/// A `try_acquire` and an `acquire_within` are dropped after 0, 1, 2 … polls.
pub async fn dropping_try_acquire_or_acquire_within_leaves_the_lock_free(fixture: &dyn Fixture) {
    let name = name("cancel-try");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS {
        drop(drop_after_polls(mutex.try_acquire(), polls).await);
        drop(drop_after_polls(mutex.acquire_within(crate::fixture::LONG), polls).await);
        client.close().await;
        raw.assert_free(&name).await;
    }
}

/// A `release` that is dropped after 0, 1, 2 … polls still frees the lock.
pub async fn a_dropped_release_completes_in_the_background(fixture: &dyn Fixture) {
    let name = name("cancel-release");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS {
        let guard = mutex.acquire().await.unwrap();
        let _outcome = drop_after_polls(guard.release(), polls).await;
        client.close().await;
        raw.assert_free(&name).await;
    }
}

/// A dropped call of `Store::wait` does not remove the claim from the queue.
pub async fn dropping_a_wait_call_keeps_the_queue_position(fixture: &dyn Fixture) {
    let name = name("cancel-wait");
    let raw = raw(fixture).await;
    let [holder, waiter] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    let ticket = raw.queue(&waiter, crate::raw::LONG_WAIT).await;
    for _ in 0..3 {
        let mut wait = Box::pin(raw.wait(&waiter, &ticket));
        poll_fn(|context| {
            let _hint = wait.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    }
    raw.assert_owners(&name, &[&holder], &[&waiter]).await;
}

/// Polls `future` at most `count` times, whenever it asks to be polled, and drops it: at a different
/// await for each count. Returns its output if it finished by then.
///
/// A future that does not ask to be polled again waits for an event that may never come; it is
/// dropped after 50 ms.
pub(crate) async fn drop_after_polls<F: Future>(future: F, count: u32) -> Option<F::Output> {
    let polls = PollLimit { future: Box::pin(future), left: count };
    let idle = Duration::from_millis(50);
    tokio::time::timeout(idle, polls).await.ok().flatten()
}

struct PollLimit<F> {
    future: Pin<Box<F>>,
    left: u32,
}

impl<F: Future> Future for PollLimit<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
