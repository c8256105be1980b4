//! Dropping an acquire at any await leaves no trace.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tenure_core::Mode;

use crate::Fixture;
use crate::fixture::{claim, client, long, name, raw};
use crate::polls::drop_after_polls;

/// More polls than any acquire needs on the way to its grant or its place in line.
const POLLS: u32 = 10;

/// On a free lock: dropped before the first poll, after it, and so on up to the guard.
pub async fn an_acquire_dropped_on_a_free_lock_leaves_no_trace(fixture: &dyn Fixture) {
    let name = name("cancel-free");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS {
        drop(drop_after_polls(mutex.acquire(), polls).await);
        client.close().await;
        raw.assert_free(&name).await;
    }
}

/// On a held lock: the holder is untouched, and nobody waits.
pub async fn an_acquire_dropped_on_a_held_lock_leaves_no_trace(fixture: &dyn Fixture) {
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

/// A waiter that was handed the lock and is dropped before it, or soon after it, heard of that.
pub async fn an_acquire_dropped_as_its_grant_arrives_leaves_no_trace(fixture: &dyn Fixture) {
    let name = name("cancel-granted");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS {
        let holder = claim(&name, Mode::Exclusive);
        raw.hold(&holder).await;
        let mut acquire = Box::pin(mutex.acquire());
        {
            let mut queued = pin!(raw.until_waiting(&name, 1));
            poll_fn(|context| {
                assert!(acquire.as_mut().poll(context).is_pending(), "the lock is held");
                queued.as_mut().poll(context)
            })
            .await;
        }
        raw.give_up(&holder).await;
        drop(drop_after_polls(acquire, polls).await);
        client.close().await;
        raw.assert_free(&name).await;
    }
}

/// A waiter that is dropped while the lock is being released, at whatever await each of them is.
pub async fn an_acquire_dropped_during_the_release_leaves_no_trace(fixture: &dyn Fixture) {
    let name = name("cancel-race");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS * 2 {
        let holder = claim(&name, Mode::Exclusive);
        raw.hold(&holder).await;
        let acquire = drop_after_polls(mutex.acquire(), 1 + polls / 2);
        let release = raw.give_up(&holder);
        let (guard, ()) = tokio::join!(acquire, release);
        drop(guard);
        client.close().await;
        raw.assert_free(&name).await;
    }
}

/// A bounded wait and a try that are dropped leave nothing either.
pub async fn a_dropped_try_or_bounded_wait_leaves_no_trace(fixture: &dyn Fixture) {
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

/// A release that is dropped at any await still happens.
pub async fn a_release_dropped_halfway_still_happens(fixture: &dyn Fixture) {
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

/// A wait that the store's caller drops keeps the place in line.
pub async fn a_dropped_wait_keeps_the_place_in_line(fixture: &dyn Fixture) {
    let name = name("cancel-wait");
    let raw = raw(fixture).await;
    let [holder, waiter] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    let place = raw.queue(&waiter, crate::raw::PATIENT).await;
    for _ in 0..3 {
        let mut wait = Box::pin(raw.wait(&waiter, &place));
        poll_fn(|context| {
            let _hint = wait.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    }
    raw.assert_owners(&name, &[&holder], &[&waiter]).await;
}
