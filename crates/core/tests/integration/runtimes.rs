//! Locks outlive the runtimes that took them: leases are kept by a thread of the client's own.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::Store;
use tenure_core::{Client, ErrorKind, Guard, LossReason, MemoryStore, Options};
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = Duration::from_millis(400);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn client(store: &MemoryStore) -> Client {
    Client::new(Arc::new(store.clone())).unwrap()
}

async fn hold(client: &Client) -> Guard {
    client.mutex("a").unwrap().with(Options::new().ttl(TTL)).acquire().await.unwrap()
}

/// The number of holders, as the store sees it.
fn holders(store: &MemoryStore) -> usize {
    let name = tenure_core::LockName::new("a").unwrap();
    runtime().block_on(store.inspect(&name)).unwrap().holders.len()
}

#[test]
fn a_lock_is_renewed_while_the_only_thread_of_the_runtime_is_blocked() {
    let store = MemoryStore::new();
    runtime().block_on(async {
        let client = client(&store);
        let guard = hold(&client).await;
        std::thread::sleep(TTL * 3);
        assert!(guard.is_valid());
        guard.release().await.unwrap();
    });
}

#[test]
fn a_lock_is_renewed_while_no_runtime_is_polled() {
    let store = MemoryStore::new();
    let runtime = runtime();
    let (client, guard) = runtime.block_on(async {
        let client = client(&store);
        let guard = hold(&client).await;
        (client, guard)
    });
    std::thread::sleep(TTL * 3);
    assert!(guard.is_valid());
    assert_eq!(holders(&store), 1);
    runtime.block_on(guard.release()).unwrap();
    drop(client);
}

#[test]
fn a_lock_is_renewed_and_its_loss_reported_after_the_runtime_that_took_it_has_ended() {
    let store = MemoryStore::new();
    let (client, guard) = runtime().block_on(async {
        let client = client(&store);
        let guard = hold(&client).await;
        (client, guard)
    });
    std::thread::sleep(TTL * 3);
    assert!(guard.is_valid());

    let eviction = tenure_core::store::Eviction::new(guard.name().clone(), guard.owner(), "test");
    let other = runtime();
    other.block_on(store.evict(&eviction)).unwrap();
    let lost = async { tokio::time::timeout(Duration::from_secs(20), guard.lost()).await };
    assert_eq!(other.block_on(lost).unwrap(), LossReason::NotHeld);
    drop(client);
}

#[test]
fn a_client_serves_one_runtime_after_another() {
    let store = MemoryStore::new();
    let client = client(&store);
    for _ in 0..3 {
        runtime().block_on(async { hold(&client).await.release().await.unwrap() });
    }
}

#[test]
fn a_guard_that_is_dropped_without_a_runtime_is_released() {
    let store = MemoryStore::new();
    let client = client(&store);
    let guard = runtime().block_on(hold(&client));
    drop(guard);
    runtime().block_on(client.close());
    assert_eq!(holders(&store), 0);
}

#[test]
fn closing_returns_after_the_runtime_ended_with_releases_queued() {
    let store = MemoryStore::new();
    let first = runtime();
    let client = first.block_on(async { client(&store) });
    let guards: Vec<Guard> = (0..100)
        .map(|n| first.block_on(client.mutex(&format!("{n}")).unwrap().acquire()).unwrap())
        .collect();
    drop(guards);
    drop(first);
    let closing = async { tokio::time::timeout(Duration::from_secs(20), client.close()).await };
    runtime().block_on(closing).expect("close returns");
    assert!(runtime().block_on(store.list("")).unwrap().is_empty());
}

#[test]
fn a_dropped_guard_is_released_although_the_client_is_dropped_too() {
    let store = MemoryStore::new();
    let client = client(&store);
    let guards: Vec<Guard> = (0..100)
        .map(|n| runtime().block_on(client.mutex(&format!("{n}")).unwrap().acquire()).unwrap())
        .collect();
    drop((guards, client));
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !runtime().block_on(store.list("")).unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "the locks stay until their TTL");
        std::thread::yield_now();
    }
}

#[test]
fn waiting_for_a_loss_needs_no_tokio_runtime() {
    let store = MemoryStore::new();
    let client = client(&store);
    let options = Options::new().ttl(TTL).max_hold(TTL);
    let mutex = client.mutex("a").unwrap().with(options);
    let guard = runtime().block_on(mutex.acquire()).unwrap();
    assert_eq!(futures_executor::block_on(guard.lost()), LossReason::MaxHold);
}

#[test]
fn a_call_timeout_of_any_length_works_and_zero_is_refused() {
    let store = MemoryStore::new();
    runtime().block_on(async {
        let patient = client(&store).with_call_timeout(Duration::MAX).unwrap();
        let guard = hold(&patient).await;
        let mutex = patient.mutex("a").unwrap();
        let busy = mutex.acquire_within(Duration::from_millis(10)).await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::TimedOut);
        assert_eq!(patient.list("").await.unwrap().len(), 1);
        guard.release().await.unwrap();
        let error = client(&store).with_call_timeout(Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    });
}

#[test]
fn waiting_outside_tokio_ends_when_guard_and_client_are_dropped() {
    for _ in 0..200 {
        let client = client(&MemoryStore::new());
        let guard = runtime().block_on(hold(&client));
        let validity = guard.validity();
        let waiting = std::thread::spawn(move || futures_executor::block_on(validity.lost()));
        std::thread::sleep(Duration::from_millis(1));
        drop((guard, client));
        assert_eq!(waiting.join().unwrap(), LossReason::GivenUp);
    }
}

#[test]
fn calls_outside_a_tokio_runtime_are_refused_and_do_not_panic() {
    use futures_executor::block_on;
    let client = client(&MemoryStore::new());
    let mutex = client.mutex("a").unwrap();
    let guard = runtime().block_on(mutex.acquire()).unwrap();
    let limit = Duration::from_secs(1);
    for error in [
        block_on(mutex.acquire()).unwrap_err(),
        block_on(mutex.acquire_within(limit)).unwrap_err(),
        block_on(client.inspect("a")).unwrap_err(),
        block_on(client.list("")).unwrap_err(),
        block_on(client.diagnose()).unwrap_err(),
        block_on(client.watch("").next()).unwrap_err(),
        block_on(guard.release()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("Tokio runtime"), "{error}");
    }
    // What was not released by the call is released in the background.
    block_on(client.close());
    assert!(runtime().block_on(client.inspect("a")).unwrap().is_free());
}
