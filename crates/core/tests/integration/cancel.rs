//! Dropping an attempt at any await leaves nothing behind.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::store::Store;
use tenure_core::{Chaos, Client, ErrorKind, Faults, MemoryStore, Options};

/// Polls `attempt` at most `polls` times, letting everything else run in between, and drops it.
/// True if it came to its end before that, so that more polls would show nothing new.
async fn dropped_after(polls: usize, attempt: impl Future) -> bool {
    let mut attempt = pin!(attempt);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(outcome) = attempt.as_mut().poll(&mut context) {
            drop(outcome);
            return true;
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    false
}

/// A store whose every call takes several polls.
fn slow(store: &MemoryStore) -> Client {
    let faults = Faults::new(1).delay(Duration::from_millis(1)..Duration::from_millis(4));
    Client::new(Arc::new(Chaos::new(Arc::new(store.clone()), faults))).unwrap()
}

async fn assert_free(store: &MemoryStore, client: &Client, when: usize) {
    client.close().await;
    let names = store.list("").await.unwrap();
    assert!(names.is_empty(), "dropped after {when} polls, {names:?} is still taken");
}

#[tokio::test]
async fn an_attempt_on_a_free_lock_dropped_after_any_poll_leaves_nothing() {
    let store = MemoryStore::new();
    let client = slow(&store);
    let mutex = client.mutex("a").unwrap();
    let mut polls = 0;
    while !dropped_after(polls, mutex.acquire()).await {
        assert_free(&store, &client, polls).await;
        polls += 1;
    }
    assert_free(&store, &client, polls).await;
    assert!(polls >= 3, "the attempt was dropped at several awaits");
}

#[tokio::test]
async fn a_waiter_dropped_after_any_poll_leaves_the_queue() {
    let store = MemoryStore::new();
    let client = slow(&store);
    let mutex = client.mutex("a").unwrap();
    let poll_cap = Options::new().poll_cap(Duration::from_millis(3));
    for polls in 0..40 {
        let guard = mutex.acquire().await.unwrap();
        let ended = dropped_after(polls, mutex.clone().with(poll_cap.clone()).acquire()).await;
        assert!(!ended, "the lock is held");
        client.close().await;
        assert_eq!(store.inspect(guard.name()).await.unwrap().waiters, []);
        guard.release().await.unwrap();
        assert_free(&store, &client, polls).await;
    }
}

#[tokio::test]
async fn an_attempt_dropped_around_its_grant_leaves_nothing() {
    let store = MemoryStore::new();
    let client = slow(&store);
    let mutex = client.mutex("a").unwrap();
    for polls in 0..40 {
        let guard = mutex.acquire().await.unwrap();
        // The holder goes away while the attempt is under way, a little later each time.
        let holder = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_micros(300) * polls as u32 / 2).await;
            guard.release().await
        });
        dropped_after(polls, mutex.acquire()).await;
        holder.await.unwrap().unwrap();
        assert_free(&store, &client, polls).await;
    }
}

#[tokio::test]
async fn a_release_dropped_after_any_poll_still_happens() {
    let store = MemoryStore::new();
    let client = slow(&store);
    let mutex = client.mutex("a").unwrap();
    for polls in 0..10 {
        let guard = mutex.acquire().await.unwrap();
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            if release.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        drop(release);
        assert_free(&store, &client, polls).await;
    }
}

#[tokio::test]
async fn a_panic_under_the_guard_gives_the_lock_back() {
    let store = MemoryStore::new();
    let client = Client::new(Arc::new(store.clone())).unwrap();
    let mutex = client.mutex("a").unwrap();
    let work = tokio::spawn(async move {
        let _guard = mutex.acquire().await.unwrap();
        panic!("the work failed");
    });
    assert!(work.await.unwrap_err().is_panic());
    assert_free(&store, &client, 0).await;
}

#[tokio::test]
async fn a_party_of_a_latch_that_is_dropped_while_it_counts_has_counted_or_breaks_it() {
    let store = MemoryStore::new();
    let client = slow(&store);
    let (mut polls, mut counted) = (0, [false, false]);
    loop {
        let latch = client.latch(&format!("latch/{polls}"), 2).unwrap();
        let party = latch.join().await.unwrap();
        let ended = dropped_after(polls, party.count_down()).await;
        client.close().await;
        let has_counted = latch.count().await.unwrap() == 1;
        counted[usize::from(has_counted)] = true;
        if has_counted {
            assert_eq!(latch.count_down().await.unwrap(), 0);
            latch.wait().await.unwrap_or_else(|error| panic!("after {polls} polls: {error}"));
        } else {
            assert_eq!(latch.wait().await.unwrap_err().kind(), ErrorKind::Broken);
        }
        if ended {
            break;
        }
        polls += 1;
    }
    assert_eq!(counted, [true, true], "it was dropped before and after its count");
}
