//! Many locks, many waiters.

use std::sync::{Arc, Mutex};

use tenure_core::Mode;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{claim, client, let_go, long, name, raw};
use crate::raw::PATIENT;

const LOCKS: usize = 2_000;
const WAITERS: usize = 500;
/// How many calls are under way at once: a slow machine must answer each in time.
const AT_ONCE: usize = 64;

/// One client holds thousands of locks at once, and gives them all back.
pub async fn thousands_of_locks_are_held_at_once(fixture: &dyn Fixture) {
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
            let_go(guard).await;
        });
    }
    tasks.join_all().await;
    client.close().await;
    assert_eq!(raw.list(prefix.as_str()).await, []);
}

/// Hundreds of waiters of several connections are all served, in the order they came.
pub async fn hundreds_of_waiters_are_served_in_order(fixture: &dyn Fixture) {
    let name = name("many-waiters");
    let connections = [raw(fixture).await, raw(fixture).await, raw(fixture).await];
    let holder = claim(&name, Mode::Exclusive);
    connections[0].hold(&holder).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for place in 0..WAITERS {
        let (raw, waiter) = (connections[place % 3].clone(), claim(&name, Mode::Exclusive));
        raw.queue(&waiter, PATIENT).await;
        let served = Arc::clone(&served);
        tasks.spawn(async move {
            raw.acquire(&waiter).await;
            served.lock().unwrap().push(place);
            raw.give_up(&waiter).await;
        });
    }
    assert_eq!(connections[0].inspect(&name).await.waiters.len(), WAITERS);
    connections[0].give_up(&holder).await;
    tasks.join_all().await;
    let mut served = std::mem::take(&mut *served.lock().unwrap());
    if !connections[0].capabilities().fifo {
        served.sort_unstable();
    }
    assert_eq!(served, (0..WAITERS).collect::<Vec<_>>());
    connections[0].assert_free(&name).await;
}

/// Hundreds of tasks of one client that come all at once are each served once.
pub async fn a_crowd_of_one_client_is_served_to_the_last(fixture: &dyn Fixture) {
    let name = name("crowd");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mut tasks = JoinSet::new();
    for _ in 0..WAITERS / 2 {
        let mutex = client.mutex(name.as_str()).unwrap().with(long());
        tasks.spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            let token = guard.token();
            let_go(guard).await;
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
