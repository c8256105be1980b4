//! Notifications of a hand-off reach the waiter that they are for, and no other.

use std::time::Duration;

use tenure_core::store::{ClaimOutcome, QueueTicket, Store, WaitPolicy};
use tenure_core::{Client, Guard, Options};
use tenure_testkit::GENEROUS;
use tokio::task::JoinSet;

use crate::claim;

/// Options of a waiter that no poll and no expiry wakes: only a notification does.
pub fn deaf() -> Options {
    Options::new().ttl(Duration::from_secs(500)).poll_cap(Duration::from_secs(3600))
}

/// A release at any moment while a waiter joins, also between its look and its watch, wakes the waiter.
///
/// # Panics
/// If one does not.
pub async fn a_release_while_a_waiter_joins_is_heard(client: &Client) {
    let mutex = client.mutex("a").unwrap().with(deaf());
    for round in 0..200 {
        let guard = mutex.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.acquire().await.unwrap() }
        });
        tokio::time::sleep(Duration::from_micros(round * 40)).await;
        guard.release().await.unwrap();
        let next = tokio::time::timeout(GENEROUS, waiting).await;
        let next = next.unwrap_or_else(|_| panic!("round {round}: no notification came")).unwrap();
        next.release().await.unwrap();
    }
}

/// When a waiter gives up, the waiter behind it is not admitted beside the holder, but after it.
///
/// # Panics
/// If not.
pub async fn a_waiter_that_gives_up_admits_no_other_early(store: &dyn Store) {
    let long = Duration::from_secs(60);
    let [holder, first, second] = [(); 3].map(|()| claim("a", long));
    let policy = WaitPolicy::queue(long);
    let granted = |answer: &ClaimOutcome| matches!(answer, ClaimOutcome::Granted(_));
    assert!(granted(&store.claim(&holder, policy).await.unwrap()));
    for waiter in [&first, &second] {
        assert!(!granted(&store.claim(waiter, policy).await.unwrap()));
    }
    // Time to set its watch, so that the release below is noticed.
    tokio::time::sleep(Duration::from_millis(300)).await;
    store.release(&first).await.unwrap();
    let place = QueueTicket::default();
    let early = tokio::time::timeout(Duration::from_millis(700), store.wait(&second, &place));
    assert!(early.await.is_err(), "the waiter was admitted beside the holder");
    store.release(&holder).await.unwrap();
    let woken = tokio::time::timeout(GENEROUS, store.wait(&second, &place)).await;
    assert!(granted(&woken.expect("no notification came").unwrap()));
}

/// Writers, readers and claims for permits, of two clients, all get the lock.
///
/// # Panics
/// If one is not.
pub async fn every_kind_of_waiter_is_woken(clients: [Client; 2]) {
    let mut tasks = JoinSet::new();
    for number in 0..60_u32 {
        let client = clients[number as usize % 2].clone();
        tasks.spawn(async move {
            let rw_lock = client.rw_lock("a").unwrap().with(deaf());
            let semaphore = client.semaphore("a", 4).unwrap().with(deaf());
            let guard = match number % 5 {
                0 => rw_lock.write().await.map(Guard::from),
                1 | 2 => rw_lock.read().await.map(Guard::from),
                _ => semaphore.acquire_many(1 + number % 3).await,
            };
            let guard = guard.unwrap();
            tokio::time::sleep(Duration::from_millis(u64::from(number % 7))).await;
            guard.release().await.unwrap();
        });
    }
    let all = tokio::time::timeout(3 * GENEROUS, async {
        while let Some(served) = tasks.join_next().await {
            served.unwrap();
        }
    });
    let left = all.await;
    let state = clients[0].inspect("a").await.unwrap();
    assert!(
        left.is_ok(),
        "{} waiters were not woken, holders: {:?}",
        state.waiters.len(),
        state.holders
    );
    assert!(state.is_free(), "{state:?}");
}
