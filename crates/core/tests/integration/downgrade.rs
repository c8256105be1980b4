//! A writer becomes a reader while the store fails, loses the lock, or cannot do it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{
    Capabilities, Claim, ClaimOutcome, Eviction, QueueTicket, Released, Renewal, Store, WaitPolicy,
};
use tenure_core::{
    Chaos, Client, ErrorKind, Faults, Finding, LockName, LockState, LossReason, MemoryStore, Mode,
    Options, Result,
};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(60);

fn chaotic() -> (Arc<Chaos>, Client, MemoryStore) {
    let store = MemoryStore::new();
    let chaos = Arc::new(Chaos::new(Arc::new(store.clone()), Faults::new(1)));
    let client = Client::new(chaos.clone()).unwrap().with_call_timeout(SHORT).unwrap();
    (chaos, client, store)
}

async fn state(store: &MemoryStore) -> LockState {
    store.inspect(&LockName::new("a").unwrap()).await.unwrap()
}

#[tokio::test]
async fn work_under_the_write_guard_is_stopped_before_the_downgrade_is_sent() {
    let (chaos, client, store) = chaotic();
    let lock = client.rw_lock("a").unwrap().with(Options::new().ttl(LONG));
    let writer = lock.write().await.unwrap();
    let validity = writer.validity();
    let cancelled = validity.cancellation_token();
    chaos.pause();
    let downgrade = tokio::spawn(writer.downgrade());
    assert_eq!(validity.lost().await, LossReason::GivenUp);
    assert!(cancelled.is_cancelled() && !validity.is_valid());
    assert_eq!(state(&store).await.holders[0].mode, Mode::Exclusive, "not yet");
    chaos.resume();
    let reader = downgrade.await.unwrap().unwrap();
    assert!(reader.is_valid() && !validity.is_valid());
    assert_eq!(state(&store).await.holders[0].mode, Mode::Shared);
    assert_eq!(reader.run(async { 7 }).await.unwrap(), 7);
    reader.release().await.unwrap();
    assert!(state(&store).await.is_free());
}

#[tokio::test]
async fn an_outage_that_lasts_ends_the_downgrade_and_the_lock_is_given_back() {
    let (chaos, client, store) = chaotic();
    let lock = client.rw_lock("a").unwrap().with(Options::new().ttl(LONG));
    let writer = lock.write().await.unwrap();
    chaos.pause();
    let error = writer.downgrade().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(error.lock().unwrap().as_str(), "a");
    chaos.resume();
    client.close().await;
    assert!(state(&store).await.is_free());
}

#[tokio::test]
async fn a_hold_that_is_taken_away_during_a_downgrade_is_lost() {
    let (chaos, client, store) = chaotic();
    let lock = client.rw_lock("a").unwrap().with(Options::new().ttl(LONG));
    let writer = lock.write().await.unwrap();
    let validity = writer.validity();
    chaos.pause();
    let downgrade = tokio::spawn(writer.downgrade());
    validity.lost().await;
    chaos.lose("a").await.unwrap();
    let error = downgrade.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.loss_reason()), (ErrorKind::Lost, Some(LossReason::NotHeld)));
    chaos.resume();
    // A downgrade after the loss is not even sent.
    let writer = lock.write().await.unwrap();
    chaos.lose("a").await.unwrap();
    let error = writer.downgrade().await.unwrap_err();
    assert_eq!((error.kind(), error.loss_reason()), (ErrorKind::Lost, Some(LossReason::NotHeld)));
    // A loss after the downgrade is reported to the reader.
    let reader = lock.write().await.unwrap().downgrade().await.unwrap();
    chaos.lose("a").await.unwrap();
    assert_eq!(reader.lost().await, LossReason::NotHeld);
    drop(reader);
    client.close().await;
    assert!(state(&store).await.is_free());
}

#[tokio::test]
async fn a_limit_on_the_hold_counts_from_the_beginning_of_the_write_hold() {
    let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
    let limit = Duration::from_millis(300);
    let lock = client.rw_lock("a").unwrap().with(Options::new().ttl(LONG).max_hold(limit));
    let reader = lock.write().await.unwrap().downgrade().await.unwrap();
    assert!(reader.remaining() <= limit, "{reader:?}");
    assert_eq!(reader.lost().await, LossReason::MaxHold);
}

#[tokio::test]
async fn an_upgrade_is_refused_and_the_reader_keeps_its_hold() {
    let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
    let lock = client.rw_lock("a").unwrap();
    let reader = lock.read().await.unwrap();
    let (reader, refusal) = reader.upgrade().unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Unsupported);
    let text = refusal.to_string();
    assert!(text.contains("wait for each other") && text.contains("release"), "{text}");
    assert!(reader.is_valid());
    reader.release().await.unwrap();
}

/// A store that does not know downgrades, such as one that was written before there were any.
#[derive(Debug)]
struct Plain(MemoryStore);

#[async_trait]
impl Store for Plain {
    fn capabilities(&self) -> Capabilities {
        Capabilities::none().shared()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        self.0.claim(claim, policy).await
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        self.0.wait(claim, ticket).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        self.0.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.0.release(claim).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.0.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.0.list(prefix).await
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.0.evict(eviction).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.0.diagnose().await
    }
}

#[tokio::test]
async fn a_store_without_downgrades_refuses_with_the_reason_and_the_lock_is_given_back() {
    let store = MemoryStore::new();
    let client = Client::new(Arc::new(Plain(store.clone()))).unwrap();
    let writer = client.rw_lock("a").unwrap().write().await.unwrap();
    let error = writer.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("release the lock and acquire it for reading"), "{error}");
    client.close().await;
    assert!(state(&store).await.is_free());
}
