//! Bounded waits, `try_acquire`, and waiting for many locks at once.

use std::time::{Duration, Instant};

use tenure_core::{ErrorKind, Mode};
use tenure_testkit::GENEROUS;
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{claim, client, long, name, raw, release_guard, try_acquire};

/// A bounded wait ends with `TimedOut`, never early, and removes its claim from the queue.
pub async fn a_wait_that_times_out_leaves_the_queue(fixture: &dyn Fixture) {
    let name = name("timeout");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let limit = Duration::from_millis(150);
    let start = Instant::now();
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let error = mutex.acquire_within(limit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(error.lock(), Some(&name));
    assert!(start.elapsed() >= limit, "timed out after {:?} already", start.elapsed());
    client.close().await;
    raw.assert_owners(&name, &[&holder], &[]).await;
    raw.release_held(&holder).await;
    raw.assert_free(&name).await;
}

/// `try_acquire` on a held lock returns `Busy` and leaves no claim in the store.
pub async fn try_acquire_on_a_held_lock_is_busy_and_leaves_no_waiter(fixture: &dyn Fixture) {
    let name = name("busy");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let error = try_acquire(fixture, &client, &mutex).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    raw.assert_owners(&name, &[&holder], &[]).await;
    raw.release_held(&holder).await;
    let guard = try_acquire(fixture, &client, &mutex).await.unwrap();
    assert!(guard.is_valid());
    release_guard(guard).await;
    client.close().await;
    raw.assert_free(&name).await;
}

/// A client that waits for many held locks can take other locks meanwhile, and gets each lock when it
/// is released.
pub async fn waiting_for_one_lock_does_not_block_another(fixture: &dyn Fixture) {
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let held: Vec<_> = (0..20).map(|_| claim(&name("many"), Mode::Exclusive)).collect();
    let mut waiting = JoinSet::new();
    for holder in &held {
        raw.hold(holder).await;
        let mutex = client.mutex(holder.name.as_str()).unwrap().with(long());
        waiting.spawn(async move { mutex.acquire().await.unwrap() });
        raw.wait_for_waiters(&holder.name, 1).await;
    }
    let free = name("free");
    let other = client.mutex(free.as_str()).unwrap().with(long());
    release_guard(other.acquire_within(GENEROUS).await.unwrap()).await;
    // Released in another order than the waits began.
    for turn in 0..held.len() {
        let holder = &held[(turn * 7 + 3) % held.len()];
        raw.release_held(holder).await;
        let guard = tokio::time::timeout(GENEROUS, waiting.join_next()).await.unwrap();
        let guard = guard.unwrap().unwrap();
        assert_eq!(guard.name(), &holder.name);
        release_guard(guard).await;
    }
}

/// A wait that times out while its grant is under way either returns the lock or leaves it free.
pub async fn a_timeout_during_the_grant_leaves_the_lock_free(fixture: &dyn Fixture) {
    let name = name("timeout-and-grant");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let limit = Duration::from_millis(20);
    for round in 0..30 {
        let holder = claim(&name, Mode::Exclusive);
        raw.hold(&holder).await;
        let mutex = client.mutex(name.as_str()).unwrap().with(long());
        let release = async {
            // From shortly before the end of the wait to shortly after it.
            tokio::time::sleep(Duration::from_micros(18_500 + round * 100)).await;
            raw.release_held(&holder).await;
        };
        match tokio::join!(mutex.acquire_within(limit), release) {
            (Ok(guard), ()) => {
                assert!(guard.is_valid());
                release_guard(guard).await;
            }
            // A bounded wait that ends during an outage reports the store's error.
            (Err(error), ()) if error.is_transient() && fixture.injects_faults() => {}
            (Err(error), ()) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
        }
        client.close().await;
        raw.assert_free(&name).await;
    }
}
