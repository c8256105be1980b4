//! A mutex that its holder may acquire again.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::Store;
use tenure_core::{Chaos, Client, ErrorKind, Faults, MemoryStore, Options};

const SOON: Duration = Duration::from_millis(50);

fn client() -> Client {
    Client::new(Arc::new(MemoryStore::new())).unwrap()
}

#[tokio::test]
async fn clones_of_a_handle_share_one_hold_and_its_token() {
    let client = client();
    let one = client.reentrant_mutex("a").unwrap();
    let other = one.clone();
    let first = one.acquire().await.unwrap();
    let second = other.try_acquire().await.unwrap();
    assert_eq!(first.token(), second.token());
    assert_eq!((first.entries(), second.entries()), (2, 2));
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1);
}

#[tokio::test]
async fn two_handles_exclude_each_other_in_one_task() {
    let client = client();
    let _guard = client.reentrant_mutex("a").unwrap().acquire().await.unwrap();
    let other = client.reentrant_mutex("a").unwrap();
    assert_eq!(other.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(other.acquire_within(SOON).await.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[tokio::test]
async fn the_lock_is_released_with_the_last_guard_in_any_order() {
    let client = client();
    let (handle, plain) = (client.reentrant_mutex("a").unwrap(), client.mutex("a").unwrap());
    let outer = handle.acquire().await.unwrap();
    let inner = handle.acquire().await.unwrap();
    outer.release().await.unwrap();
    assert_eq!(plain.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    inner.release().await.unwrap();
    plain.try_acquire().await.unwrap().release().await.unwrap();

    let (outer, inner) = (handle.acquire().await.unwrap(), handle.acquire().await.unwrap());
    drop(inner);
    assert_eq!(plain.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    drop(outer);
    plain.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn entering_again_makes_no_call_to_the_store() {
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
    let client = Client::new(Arc::clone(&chaos) as Arc<dyn Store>).unwrap();
    let handle = client.reentrant_mutex("a").unwrap();
    let _outer = handle.acquire().await.unwrap();
    chaos.pause();
    let inner = handle.try_acquire().await.expect("the store answers no call, and none is needed");
    inner.release().await.unwrap();
    chaos.resume();
}

#[tokio::test]
async fn clones_that_ask_at_the_same_time_get_one_hold() {
    let client = client();
    let blocker = client.mutex("a").unwrap().acquire().await.unwrap();
    let handle = client.reentrant_mutex("a").unwrap();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let handle = handle.clone();
            tokio::spawn(async move { handle.acquire().await.unwrap() })
        })
        .collect();
    while client.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(handle.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(handle.acquire_within(SOON).await.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(client.inspect("a").await.unwrap().waiters.len(), 1);
    blocker.release().await.unwrap();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap());
    }
    assert_eq!(guards[0].entries(), 20);
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
}

#[tokio::test]
async fn a_hold_that_was_lost_is_not_entered_until_its_guards_are_gone() {
    let store = Arc::new(MemoryStore::new());
    let client = Client::new(Arc::clone(&store) as Arc<dyn Store>).unwrap();
    let handle = client.reentrant_mutex("a").unwrap();
    let (outer, inner) = (handle.acquire().await.unwrap(), handle.acquire().await.unwrap());
    assert!(client.evict("a", &outer.owner().to_string(), "a test").await.unwrap());
    outer.lost().await;
    assert_eq!(handle.acquire().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(inner.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
    handle.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_acquire_leaves_nothing_behind() {
    let client = client();
    let blocker = client.mutex("a").unwrap().acquire().await.unwrap();
    let handle = client.reentrant_mutex("a").unwrap();
    assert!(tokio::time::timeout(SOON, handle.acquire()).await.is_err());
    blocker.release().await.unwrap();
    client.close().await;
    assert!(client.inspect("a").await.unwrap().is_free());
    handle.try_acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn options_make_a_new_handle() {
    let client = client();
    let handle = client.reentrant_mutex("a").unwrap();
    let _guard = handle.acquire().await.unwrap();
    let other = handle.clone().with(Options::new().ttl(Duration::from_secs(5)));
    assert_eq!(other.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
}
