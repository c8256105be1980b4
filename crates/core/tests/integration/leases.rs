//! Renewal, danger and loss, as a guard's user sees them.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::{Released, Store, now};
use tenure_core::{Chaos, Client, ErrorKind, Faults, LossReason, MemoryStore, Options};

const TTL: Duration = Duration::from_millis(400);

fn options() -> Options {
    Options::new().ttl(TTL)
}

fn cuttable() -> (MemoryStore, Arc<Chaos>, Client) {
    let store = MemoryStore::new();
    let chaos = Arc::new(Chaos::new(Arc::new(store.clone()), Faults::new(1)));
    let client = Client::new(chaos.clone()).unwrap();
    (store, chaos, client)
}

#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_it_is_held() {
    let (store, _, client) = cuttable();
    let guard = client.mutex("a").unwrap().with(options()).acquire().await.unwrap();
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_valid());
    assert_eq!(store.inspect(guard.name()).await.unwrap().holders.len(), 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_hangs_ends_in_danger_and_then_in_loss() {
    let (store, chaos, client) = cuttable();
    let guard = client.mutex("a").unwrap().with(options()).acquire().await.unwrap();
    let acquired = now();
    chaos.pause();
    guard.danger().await;
    assert!(now().since(acquired) >= TTL / 2 - Duration::from_millis(20));
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    let work = guard.run(std::future::pending::<()>()).await;
    assert_eq!(work.unwrap_err().kind(), ErrorKind::Lost);

    let other = Client::new(Arc::new(store)).unwrap();
    other.mutex("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    chaos.resume();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn danger_passes_when_the_store_comes_back_in_time() {
    let (_, chaos, client) = cuttable();
    let ttl = Duration::from_secs(3);
    let mutex = client.mutex("a").unwrap().with(Options::new().ttl(ttl));
    let guard = mutex.acquire().await.unwrap();
    chaos.pause();
    guard.danger().await;
    chaos.resume();
    tokio::time::sleep(ttl).await;
    assert!(guard.is_valid(), "a renewal came through after the danger");
}

#[tokio::test]
async fn a_lease_that_hangs_does_not_keep_another_from_being_renewed() {
    let (_, chaos, client) = cuttable();
    let sound = Client::new(Arc::new(MemoryStore::new())).unwrap();
    let cut = client.mutex("a").unwrap().with(options()).acquire().await.unwrap();
    let kept = sound.mutex("b").unwrap().with(options()).acquire().await.unwrap();
    chaos.pause();
    cut.lost().await;
    assert!(kept.is_valid());
}

#[tokio::test]
async fn max_hold_ends_a_lease_that_is_renewed_and_its_release_frees_the_lock() {
    let (store, _, client) = cuttable();
    let options = options().max_hold(TTL * 2);
    let guard = client.mutex("a").unwrap().with(options).acquire().await.unwrap();
    let acquired = now();
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    assert!(now().since(acquired) >= TTL * 2 - Duration::from_millis(50));
    drop(guard);
    client.close().await;
    assert!(store.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_lock_that_was_taken_away_is_lost_at_the_next_renewal() {
    let (store, _, client) = cuttable();
    let guard = client.mutex("a").unwrap().with(options()).acquire().await.unwrap();
    let eviction = tenure_core::store::Eviction::new(guard.name().clone(), guard.owner(), "test");
    assert_eq!(store.evict(&eviction).await.unwrap(), Released::Released);
    assert_eq!(guard.lost().await, LossReason::NotHeld);
    assert_eq!(store.evictions(), [eviction]);
}

#[tokio::test]
async fn work_that_ends_in_time_keeps_its_result_and_the_lock() {
    let (_, _, client) = cuttable();
    let guard = client.mutex("a").unwrap().acquire().await.unwrap();
    assert_eq!(guard.run(async { 42 }).await.unwrap(), 42);
    assert!(guard.is_valid());
}

/// Blocks the only thread of the test's runtime past the deadline, while the store is cut off.
async fn outstay(guard: &tenure_core::Guard) {
    std::thread::sleep(TTL + Duration::from_millis(50));
    assert!(!guard.is_valid());
}

#[tokio::test(flavor = "current_thread")]
async fn a_step_after_the_deadline_is_not_taken_even_if_no_signal_came() {
    let (_, chaos, client) = cuttable();
    let guard = client.mutex("a").unwrap().with(options()).acquire().await.unwrap();
    chaos.pause();
    let mut steps = 0;
    let work = guard.run(async {
        loop {
            steps += 1;
            outstay(&guard).await;
            tokio::task::yield_now().await;
        }
    });
    let error = tokio::time::timeout(Duration::from_secs(20), work).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("stopped where it was"), "{error}");
    assert_eq!(steps, 1);
}

#[tokio::test(flavor = "current_thread")]
async fn work_whose_last_step_outlasts_the_lock_is_no_success() {
    let (_, chaos, client) = cuttable();
    let guard = client.mutex("a").unwrap().with(options()).acquire().await.unwrap();
    chaos.pause();
    let work = guard.run(async {
        outstay(&guard).await;
        "payout booked"
    });
    let error = work.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("ran to its end"), "{error}");
    chaos.resume();
}

#[tokio::test]
async fn spawned_tasks_are_notified_of_loss_and_of_release() {
    let (_, chaos, client) = cuttable();
    let mutex = client.mutex("a").unwrap().with(options());
    for lose in [false, true] {
        let guard = mutex.acquire().await.unwrap();
        let validity = guard.validity();
        let token = validity.cancellation_token();
        let work = tokio::spawn(async move { validity.run(std::future::pending::<()>()).await });
        let validity = guard.validity();
        let told = tokio::spawn(async move { (validity.lost().await, validity.is_valid()) });
        let reason = if lose {
            chaos.pause();
            LossReason::Expired
        } else {
            guard.release().await.unwrap();
            LossReason::GivenUp
        };
        token.cancelled().await;
        assert_eq!(told.await.unwrap(), (reason, false));
        assert_eq!(work.await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    }
    chaos.resume();
}

#[tokio::test]
async fn a_release_that_comes_after_the_loss_is_an_error() {
    let (store, _, client) = cuttable();
    let guard = client.mutex("a").unwrap().acquire().await.unwrap();
    let eviction = tenure_core::store::Eviction::new(guard.name().clone(), guard.owner(), "test");
    store.evict(&eviction).await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("may have overlapped"), "{error}");
}

#[tokio::test]
async fn a_release_that_fails_after_the_loss_reports_the_loss() {
    let (_, chaos, client) = cuttable();
    let client = client.with_call_timeout(Duration::from_millis(50)).unwrap();
    let guard = client.mutex("a").unwrap().with(options()).acquire().await.unwrap();
    chaos.pause();
    assert_eq!(guard.lost().await, LossReason::Expired);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("may have overlapped"), "{error}");
    assert!(std::error::Error::source(&error).is_some(), "why it was not released");
    chaos.resume();
}
