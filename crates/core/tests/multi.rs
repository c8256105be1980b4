//! Several locks that are held together or not at all.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::Store;
use tenure_core::{Chaos, Client, ErrorKind, Faults, MemoryStore, MultiLock};

const SOON: Duration = Duration::from_millis(50);

fn client() -> Client {
    Client::new(Arc::new(MemoryStore::new())).unwrap()
}

/// The locks that are held, or waited for.
async fn in_use(client: &Client) -> Vec<String> {
    client.list("").await.unwrap().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn all_locks_are_held_and_released_together() {
    let client = client();
    let locks = client.multi_lock(["b", "a", "c"]).unwrap();
    let names: Vec<_> = locks.names().map(ToString::to_string).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let guard = locks.acquire().await.unwrap();
    assert_eq!(in_use(&client).await, ["a", "b", "c"]);
    assert!(guard.is_valid() && !guard.remaining().is_zero());
    assert!(guard.guards().iter().all(|guard| guard.token().is_some()));
    guard.release().await.unwrap();
    assert!(in_use(&client).await.is_empty());
}

#[tokio::test]
async fn a_try_takes_nothing_if_one_lock_is_busy() {
    let client = client();
    let _busy = client.mutex("b").unwrap().acquire().await.unwrap();
    let error = client.multi_lock(["a", "b", "c"]).unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(error.lock().unwrap().as_str(), "b");
    assert_eq!(in_use(&client).await, ["b"]);
}

#[tokio::test]
async fn a_waiting_claim_holds_no_lock_behind_the_one_it_waits_for() {
    let client = client();
    let busy = client.mutex("b").unwrap().acquire().await.unwrap();
    let locks = client.multi_lock(["a", "b", "c"]).unwrap();
    let waiting = tokio::spawn(async move { locks.acquire().await });
    while client.inspect("b").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(in_use(&client).await, ["a", "b"]);
    busy.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(guard.guards().len(), 3);
}

#[tokio::test]
async fn a_time_limit_covers_all_locks_and_leaves_nothing_behind() {
    let client = client();
    let _busy = client.mutex("c").unwrap().acquire().await.unwrap();
    let locks = client.multi_lock(["a", "b", "c"]).unwrap();
    let error = locks.acquire_within(SOON).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    client.close().await;
    assert_eq!(in_use(&client).await, ["c"]);
}

#[tokio::test]
async fn a_cancelled_acquire_gives_all_locks_back() {
    let client = client();
    let _busy = client.mutex("c").unwrap().acquire().await.unwrap();
    let locks = client.multi_lock(["a", "b", "c"]).unwrap();
    assert!(tokio::time::timeout(SOON, locks.acquire()).await.is_err());
    client.close().await;
    assert_eq!(in_use(&client).await, ["c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_do_not_deadlock() {
    let client = client();
    let orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]];
    let tasks = orders.into_iter().cycle().take(30).map(|names| {
        let locks = client.multi_lock(names).unwrap();
        tokio::spawn(async move {
            for _ in 0..20 {
                let guard = locks.acquire().await.unwrap();
                guard.run(tokio::task::yield_now()).await.unwrap();
                guard.release().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert!(in_use(&client).await.is_empty());
}

#[tokio::test]
async fn the_loss_of_one_lock_ends_the_work_under_all() {
    let client = client();
    let guard = client.multi_lock(["a", "b"]).unwrap().acquire().await.unwrap();
    let owner = guard.guards()[1].owner().to_string();
    let work = guard.run(std::future::pending::<()>());
    let evict = client.evict("b", &owner, "a test");
    let (outcome, evicted) = tokio::join!(work, evict);
    assert!(evicted.unwrap());
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), error.lock().unwrap().as_str()), (ErrorKind::Lost, "b"));
    assert_eq!(guard.lost().await.0.as_str(), "b");
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert_eq!(guard.release().await.unwrap_err().lock().unwrap().as_str(), "b");
    client.close().await;
    assert!(in_use(&client).await.is_empty());
}

#[tokio::test]
async fn a_lock_named_twice_or_no_lock_is_refused() {
    let client = client();
    for names in [&["a", "b", "a"][..], &[], &["a", ""]] {
        let error = client.multi_lock(names.iter().copied()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{names:?}");
    }
    let clone = client.clone();
    let twice = [client.mutex("a").unwrap(), clone.mutex("a").unwrap()];
    assert_eq!(MultiLock::of(twice).unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn locks_of_two_stores_are_held_together() {
    let (one, other) = (client(), client());
    let locks = MultiLock::of([one.mutex("a").unwrap(), other.mutex("a").unwrap()]).unwrap();
    let guard = locks.acquire().await.unwrap();
    assert_eq!((in_use(&one).await, in_use(&other).await), (vec!["a".into()], vec!["a".into()]));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_fault_of_one_store_gives_back_the_locks_of_the_others() {
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
    let broken = Client::new(Arc::clone(&chaos) as Arc<dyn Store>).unwrap();
    let broken = broken.with_call_timeout(SOON).unwrap();
    let sound = client();
    chaos.pause();
    let locks = [sound.mutex("a").unwrap(), broken.mutex("b").unwrap()];
    let error = MultiLock::of(locks).unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    sound.close().await;
    assert!(in_use(&sound).await.is_empty());
}
