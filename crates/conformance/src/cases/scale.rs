//! Thousands of locks and hundreds of waiters.

use std::sync::{Arc, Mutex};

use tenure_core::Mode;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{claim, client, long, name, raw, release_guard};
use crate::raw::LONG_WAIT;

const LOCKS: usize = 2_000;
const WAITERS: usize = 500;
/// How many calls are under way at once: few enough that a slow machine answers each in time.
const AT_ONCE: usize = 64;

/// One client holds thousands of locks at once, and releases all of them.
pub async fn one_client_holds_thousands_of_locks(fixture: &dyn Fixture) {
    let prefix = name("many-locks");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for number in 0..LOCKS {
        let mutex = client.mutex(&format!("{prefix}/{number:04}")).unwrap().with(long());
        let turns = Arc::clone(&turns);
        tasks.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            mutex.acquire().await.unwrap()
        });
    }
    let guards = tasks.join_all().await;
    assert!(guards.iter().all(tenure_core::Guard::is_valid));
    assert_eq!(raw.list(prefix.as_str()).await.len(), LOCKS);
    let mut tasks = JoinSet::new();
    for guard in guards {
        let turns = Arc::clone(&turns);
        tasks.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            release_guard(guard).await;
        });
    }
    tasks.join_all().await;
    client.close().await;
    assert_eq!(raw.list(prefix.as_str()).await, []);
}

/// Hundreds of waiters on several connections are all granted the lock, in the order of arrival.
pub async fn hundreds_of_waiters_are_granted_in_arrival_order(fixture: &dyn Fixture) {
    let name = name("many-waiters");
    let connections = [raw(fixture).await, raw(fixture).await, raw(fixture).await];
    let holder = claim(&name, Mode::Exclusive);
    connections[0].hold(&holder).await;
    let granted = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for position in 0..WAITERS {
        let (raw, waiter) = (connections[position % 3].clone(), claim(&name, Mode::Exclusive));
        raw.queue(&waiter, LONG_WAIT).await;
        let granted = Arc::clone(&granted);
        tasks.spawn(async move {
            raw.acquire(&waiter).await;
            granted.lock().unwrap().push(position);
            raw.release_held(&waiter).await;
        });
    }
    let shown = if connections[0].capabilities().waiters { WAITERS } else { 0 };
    assert_eq!(connections[0].inspect(&name).await.waiters.len(), shown);
    connections[0].release_held(&holder).await;
    tasks.join_all().await;
    let mut granted = std::mem::take(&mut *granted.lock().unwrap());
    if !connections[0].capabilities().fifo {
        granted.sort_unstable();
    }
    assert_eq!(granted, (0..WAITERS).collect::<Vec<_>>());
    connections[0].assert_free(&name).await;
}

/// Hundreds of tasks of one client that acquire at the same time are each granted the lock once.
pub async fn concurrent_tasks_of_one_client_are_all_granted(fixture: &dyn Fixture) {
    let name = name("crowd");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mut tasks = JoinSet::new();
    for _ in 0..WAITERS / 2 {
        let mutex = client.mutex(name.as_str()).unwrap().with(long());
        tasks.spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            let token = guard.token();
            release_guard(guard).await;
            token
        });
    }
    let mut tokens = tasks.join_all().await;
    assert_eq!(tokens.len(), WAITERS / 2);
    tokens.sort_unstable();
    tokens.dedup();
    assert!(tokens == [None] || tokens.len() == WAITERS / 2, "tokens repeat");
    client.close().await;
    raw.assert_free(&name).await;
}
