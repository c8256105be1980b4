//! The calls of a client and its locks, on the memory store.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::{Claim, Eviction, Store, WaitPolicy};
use tenure_core::{
    Chaos, Client, ErrorKind, Faults, Guard, LossReason, MemoryStore, Mode, Mutex, Options, Wait,
};

fn client() -> (MemoryStore, Client) {
    let store = MemoryStore::new();
    let client = Client::new(Arc::new(store.clone())).unwrap();
    (store, client)
}

fn chaotic() -> (Arc<Chaos>, Client) {
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
    let client = Client::new(chaos.clone()).unwrap();
    (chaos, client.with_call_timeout(Duration::from_millis(20)).unwrap())
}

#[tokio::test]
async fn a_wait_can_be_chosen_at_run_time() {
    let (_, client) = client();
    let mutex = client.mutex("a").unwrap();
    let guard = mutex.acquire_with(Wait::Forever).await.unwrap();
    for (wait, kind) in [
        (Wait::NoWait, ErrorKind::Busy),
        (Wait::AtMost(Duration::from_millis(5)), ErrorKind::TimedOut),
    ] {
        assert_eq!(mutex.acquire_with(wait).await.unwrap_err().kind(), kind, "{wait:?}");
    }
    guard.release().await.unwrap();
    assert_eq!(mutex.name().as_str(), "a");
}

#[tokio::test]
async fn run_holds_the_lock_while_the_work_runs_and_returns_its_result() {
    let (_, client) = client();
    let mutex = client.mutex("a").unwrap();
    let result: Result<u8, &str> = mutex
        .run(async |guard| {
            assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1);
            assert!(guard.is_valid());
            Err("the work failed")
        })
        .await
        .unwrap();
    assert_eq!(result, Err("the work failed"));
    assert!(client.inspect("a").await.unwrap().is_free());
}

#[tokio::test]
async fn run_can_be_spawned() {
    let (_, client) = client();
    let mutex = client.mutex("a").unwrap();
    let number = 40;
    let task = tokio::spawn(async move {
        mutex
            .run(async |guard| {
                tokio::task::yield_now().await;
                number + u64::from(guard.is_valid()) + 1
            })
            .await
    });
    assert_eq!(task.await.unwrap().unwrap(), 42);
}

#[tokio::test]
async fn run_stops_the_work_when_the_lock_is_lost() {
    let (_, client) = client();
    let mutex = client.mutex("a").unwrap();
    let error = mutex
        .run(async |guard| {
            let owner = guard.owner().to_string();
            client.evict("a", &owner, "test").await.unwrap();
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.loss_reason(), Some(LossReason::NotHeld));
    assert_eq!(error.lock().unwrap().as_str(), "a");
}

#[tokio::test]
async fn run_returns_the_result_of_work_whose_release_cannot_be_confirmed() {
    let (chaos, client) = chaotic();
    let mutex = client.mutex("a").unwrap();
    let result = mutex
        .run(async |_| {
            chaos.pause();
            7
        })
        .await;
    assert_eq!(result.unwrap(), 7);
    chaos.resume();
    client.close().await;
    assert!(client.inspect("a").await.unwrap().is_free(), "the lock is released in the background");
}

#[tokio::test]
async fn run_refuses_the_result_if_the_release_finds_that_the_lock_was_taken_away() {
    let (store, client) = client();
    let error = client
        .mutex("a")
        .unwrap()
        .run(async |guard| {
            // The store reports evictions, not releases: only the holder's own release can find out.
            let other = Claim::new(guard.name().clone(), Mode::Exclusive, Duration::from_secs(1));
            store.release(&other.with_owner(guard.owner())).await.unwrap();
        })
        .await
        .unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::NotHeld));
}

#[tokio::test]
async fn a_fenced_mutex_gives_guards_with_a_token() {
    let (_, client) = client();
    let mutex = client.mutex("a").unwrap().fenced().unwrap();
    let first = mutex.acquire().await.unwrap();
    assert_eq!(Some(first.token()), Guard::token(&first));
    let token = first.token();
    first.release().await.unwrap();
    let later = mutex.run(async |guard| guard.token()).await.unwrap();
    assert!(later > token);
}

#[tokio::test]
async fn readers_and_writers_have_guards_of_their_own() {
    let (_, client) = client();
    let lock = client.rw_lock("a").unwrap();
    let readers = [lock.read().await.unwrap(), lock.try_read().await.unwrap()];
    assert_eq!(readers[0].mode(), Mode::Shared);
    assert_eq!(lock.try_write().await.unwrap_err().kind(), ErrorKind::Busy);
    for reader in readers {
        reader.release().await.unwrap();
    }
    let writer = lock.write().await.unwrap();
    assert_eq!(writer.mode(), Mode::Exclusive);
    let guard: Guard = writer.into();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn many_permits_are_taken_at_once_or_not_at_all() {
    let (_, client) = client();
    let semaphore = client.semaphore("a", 3).unwrap();
    let two = semaphore.acquire_many(2).await.unwrap();
    assert_eq!(semaphore.try_acquire_many(2).await.unwrap_err().kind(), ErrorKind::Busy);
    semaphore.try_acquire().await.unwrap().release().await.unwrap();
    two.release().await.unwrap();
    semaphore.try_acquire_many(3).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_claim_of_which_only_the_owner_id_is_known_can_be_released() {
    let (store, client) = client();
    let name = "a".parse().unwrap();
    let claim = Claim::new(name, Mode::Exclusive, Duration::from_secs(60));
    store.claim(&claim, WaitPolicy::NoWait).await.unwrap();
    assert!(client.release("a", claim.owner).await.unwrap());
    assert!(!client.release("a", claim.owner).await.unwrap(), "the claim holds nothing any more");
    assert_eq!(client.release("", claim.owner).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn an_eviction_takes_the_lock_from_the_named_holder_alone_and_is_recorded() {
    let (store, client) = client();
    let guard = client.mutex("a").unwrap().acquire().await.unwrap();
    assert!(!client.evict("a", &"0".repeat(32), "wrong owner").await.unwrap());
    assert!(guard.is_valid());
    let owner = client.inspect("a").await.unwrap().holders[0].owner.clone();
    assert!(client.evict("a", &owner, "it hangs").await.unwrap());
    assert_eq!(guard.lost().await, LossReason::NotHeld);
    let records: Vec<Eviction> = store.evictions();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].reason, "it hangs");
    assert!(!client.diagnose().await.unwrap().is_empty());
}

#[tokio::test]
async fn calls_on_a_store_that_does_not_answer_end_with_the_call_timeout() {
    let (chaos, client) = chaotic();
    let guard = client.mutex("a").unwrap().acquire().await.unwrap();
    chaos.pause();
    let owner = guard.owner();
    for error in [
        client.release("a", owner).await.unwrap_err(),
        client.evict("a", &owner.to_string(), "").await.unwrap_err(),
        client.diagnose().await.unwrap_err(),
        client.inspect_all("").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
    chaos.resume();
}

#[tokio::test]
async fn a_loss_is_explained_in_words() {
    let (_, client) = client();
    let options = Options::new().max_hold(Duration::from_millis(5));
    let guard = client.mutex("a").unwrap().with(options).acquire().await.unwrap();
    let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
    let reason = error.loss_reason().unwrap();
    assert_eq!(reason, LossReason::MaxHold);
    assert!(error.to_string().contains(&reason.to_string()), "{error}");
    assert_eq!(client.mutex("").unwrap_err().loss_reason(), None);
}

/// Handles can be shared between tasks and threads, and their futures can be spawned.
#[test]
fn handles_and_futures_are_send_and_sync() {
    const fn shared<T: Send + Sync + 'static>() {}
    shared::<Client>();
    shared::<Mutex>();
    shared::<tenure_core::FencedMutex>();
    shared::<tenure_core::RwLock>();
    shared::<tenure_core::Semaphore>();
    shared::<Guard>();
    shared::<tenure_core::ReadGuard>();
    shared::<tenure_core::WriteGuard>();
    shared::<tenure_core::FencedGuard>();
    shared::<tenure_core::Validity>();
    shared::<tenure_core::Watch>();
    shared::<tenure_core::Error>();
    shared::<tenure_core::LockState>();
    shared::<MemoryStore>();
    shared::<Chaos>();
    fn sent<T: Send>(_: T) {}
    let (_, client) = client();
    let mutex = client.mutex("a").unwrap();
    sent(mutex.acquire());
    sent(mutex.run(async |_: &Guard| ()));
    sent(client.inspect_all(""));
    sent(client.evict("a", "b", "c"));
    sent(client.close());
}

#[tokio::test(start_paused = true)]
async fn a_test_can_lose_a_lock_at_once_while_time_is_paused() {
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
    let client = Client::new(chaos.clone()).unwrap();
    let begun = tokio::time::Instant::now();
    let lock = client.rw_lock("a").unwrap();
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    chaos.lose("a").await.unwrap();
    for reader in &readers {
        assert!(!reader.is_valid());
        assert_eq!(reader.lost().await, LossReason::NotHeld);
    }
    let writer = lock.try_write().await.expect("the lock is free again");
    assert_eq!(begun.elapsed(), Duration::ZERO, "nothing waited");
    writer.release().await.unwrap();
    assert_eq!(chaos.lose("a").await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn the_next_waiter_gets_a_lock_that_a_test_has_lost() {
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
    let client = Client::new(chaos.clone()).unwrap();
    let mutex = client.mutex("a").unwrap();
    let first = mutex.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire().await.unwrap() }
    });
    while client.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    chaos.lose("a").await.unwrap();
    assert!(!first.is_valid());
    assert!(waiting.await.unwrap().is_valid());
}
