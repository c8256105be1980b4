//! Waiting for a time, not at all, or for many locks at once.

use std::time::{Duration, Instant};

use tenure_core::{ErrorKind, Mode};
use tenure_testkit::GENEROUS;
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{claim, client, let_go, long, name, raw, try_acquire};

/// A bounded wait ends with `TimedOut`, never early, and the waiter has left the line.
pub async fn a_wait_that_times_out_leaves_the_line(fixture: &dyn Fixture) {
    let name = name("time-out");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let limit = Duration::from_millis(150);
    let start = Instant::now();
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let error = mutex.acquire_within(limit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(error.lock(), Some(&name));
    assert!(start.elapsed() >= limit, "gave up after {:?} already", start.elapsed());
    client.close().await;
    raw.assert_owners(&name, &[&holder], &[]).await;
    raw.give_up(&holder).await;
    raw.assert_free(&name).await;
}

/// Trying a held lock is `Busy` and leaves nothing in the store.
pub async fn trying_a_held_lock_is_busy_and_leaves_nothing(fixture: &dyn Fixture) {
    let name = name("busy");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let error = try_acquire(fixture, &client, &mutex).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    raw.assert_owners(&name, &[&holder], &[]).await;
    raw.give_up(&holder).await;
    let guard = try_acquire(fixture, &client, &mutex).await.unwrap();
    assert!(guard.is_valid());
    let_go(guard).await;
    client.close().await;
    raw.assert_free(&name).await;
}

/// Waiting for many held locks does not keep a client from taking and getting others.
pub async fn waiting_for_one_lock_does_not_hold_up_another(fixture: &dyn Fixture) {
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let held: Vec<_> = (0..20).map(|_| claim(&name("many"), Mode::Exclusive)).collect();
    let mut waiting = JoinSet::new();
    for holder in &held {
        raw.hold(holder).await;
        let mutex = client.mutex(holder.name.as_str()).unwrap().with(long());
        waiting.spawn(async move { mutex.acquire().await.unwrap() });
        raw.until_waiting(&holder.name, 1).await;
    }
    let free = name("free");
    let other = client.mutex(free.as_str()).unwrap().with(long());
    let_go(other.acquire_within(GENEROUS).await.unwrap()).await;
    // Released in an order that is not the order of the waiting.
    for turn in 0..held.len() {
        let holder = &held[(turn * 7 + 3) % held.len()];
        raw.give_up(holder).await;
        let guard = tokio::time::timeout(GENEROUS, waiting.join_next()).await.unwrap();
        let guard = guard.unwrap().unwrap();
        assert_eq!(guard.name(), &holder.name);
        let_go(guard).await;
    }
}

/// A wait that ends at the very moment of its grant either has the lock or has left no trace.
pub async fn a_time_out_at_the_moment_of_the_grant_leaves_nothing(fixture: &dyn Fixture) {
    let name = name("photo-finish");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let limit = Duration::from_millis(20);
    for round in 0..30 {
        let holder = claim(&name, Mode::Exclusive);
        raw.hold(&holder).await;
        let mutex = client.mutex(name.as_str()).unwrap().with(long());
        let release = async {
            // From a little before the end of the wait to a little after.
            tokio::time::sleep(Duration::from_micros(18_500 + round * 100)).await;
            raw.give_up(&holder).await;
        };
        match tokio::join!(mutex.acquire_within(limit), release) {
            (Ok(guard), ()) => {
                assert!(guard.is_valid());
                let_go(guard).await;
            }
            // Whose time is up in trouble is told of the trouble.
            (Err(error), ()) if error.is_transient() && !fixture.faithful() => {}
            (Err(error), ()) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
        }
        client.close().await;
        raw.assert_free(&name).await;
    }
}
