//! Which errors a user gets when the store fails, and what is cleaned up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::layer::{Layer, Layered};
use async_trait::async_trait;
use tenure_core::store::{
    Capabilities, Claim, ClaimOutcome, Eviction, Grant, Moment, QueueTicket, Released, Renewal,
    Store, WaitPolicy, step_limit,
};
use tenure_core::{
    Chaos, Client, Effect, Error, ErrorKind, Faults, Finding, Guard, LockName, LockState,
    LossReason, MemoryStore, Options, Result,
};
use tokio::task::JoinHandle;

const CALL_TIMEOUT: Duration = Duration::from_millis(100);

fn through(store: &MemoryStore, faults: Faults) -> (Arc<Chaos>, Client) {
    let chaos = Arc::new(Chaos::new(Arc::new(store.clone()), faults));
    let client = Client::new(chaos.clone()).unwrap().with_call_timeout(CALL_TIMEOUT).unwrap();
    (chaos, client)
}

#[tokio::test]
async fn a_lost_reply_costs_a_retry_and_neither_a_second_hold_nor_an_orphan() {
    let store = MemoryStore::new();
    let (_, client) = through(&store, Faults::new(3).lose_replies(0.4).lose_requests(0.2));
    let mutex = client.mutex("a").unwrap();
    let mut last = None;
    for _ in 0..60 {
        let Ok(guard) = mutex.acquire().await else { continue };
        assert!(last < guard.token(), "tokens increase");
        last = guard.token();
        assert_eq!(store.inspect(guard.name()).await.unwrap().holders.len(), 1);
        drop(guard);
        client.close().await;
        assert!(store.list("").await.unwrap().is_empty());
    }
    assert!(last.is_some());
}

#[tokio::test]
async fn a_store_that_never_answers_is_unreachable_with_unknown_effect_and_in_bounded_time() {
    let store = MemoryStore::new();
    let (chaos, client) = through(&store, Faults::new(1));
    chaos.pause();
    let error = client.mutex("a").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(error.effect(), Effect::Unknown);
    assert!(error.to_string().contains("did not answer within 100ms"), "{error}");
    chaos.resume();
    client.close().await;
    assert!(store.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn an_unanswered_inspect_has_no_effect_and_names_its_lock() {
    let store = MemoryStore::new();
    let (_, client) = through(&store, Faults::new(1).lose_replies(1.0));
    let error = client.inspect("a").await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unreachable, Effect::None), "{error}");
    assert_eq!(error.lock().map(LockName::as_str), Some("a"));
    let error = client.list("").await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unreachable, Effect::None), "{error}");
}

#[tokio::test]
async fn a_bounded_wait_that_ends_in_an_outage_returns_the_error_of_the_store() {
    let store = MemoryStore::new();
    let (_, client) = through(&store, Faults::new(1).lose_requests(1.0));
    let limit = Duration::from_millis(150);
    let error = client.mutex("a").unwrap().acquire_within(limit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn a_time_limit_holds_though_the_store_hangs() {
    let store = MemoryStore::new();
    let (chaos, client) = through(&store, Faults::new(1));
    chaos.pause();
    let limit = Duration::from_millis(30);
    let error = client.mutex("a").unwrap().acquire_within(limit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

/// A waiter behind a holder, on a connection to the store that can be cut.
async fn queued_waiter(
    store: &MemoryStore,
    limit: Option<Duration>,
) -> (Arc<Chaos>, Guard, JoinHandle<Result<Guard>>) {
    let (chaos, client) = through(store, Faults::new(1));
    let holder = Client::new(Arc::new(store.clone())).unwrap();
    let guard = holder.mutex("a").unwrap().acquire().await.unwrap();
    let mutex = client.mutex("a").unwrap();
    let mutex = mutex.with(Options::new().poll_cap(Duration::from_millis(20)));
    let waiter = tokio::spawn(async move {
        match limit {
            Some(limit) => mutex.acquire_within(limit).await,
            None => mutex.acquire().await,
        }
    });
    while store.inspect(guard.name()).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    (chaos, guard, waiter)
}

#[tokio::test]
async fn a_queued_claim_outlasts_an_outage_of_twenty_call_timeouts() {
    let store = MemoryStore::new();
    let (chaos, guard, waiter) = queued_waiter(&store, None).await;
    chaos.pause();
    tokio::time::sleep(CALL_TIMEOUT * 20).await;
    chaos.resume();
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_bounded_wait_in_the_queue_goes_on_through_an_outage_until_its_limit() {
    let store = MemoryStore::new();
    let (start, limit) = (Instant::now(), CALL_TIMEOUT * 12);
    let (chaos, _guard, waiter) = queued_waiter(&store, Some(limit)).await;
    chaos.pause();
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "the store's error is reported: {error}");
    assert!(start.elapsed() >= limit, "it gave up after {:?}", start.elapsed());
}

#[tokio::test]
async fn an_acquire_that_begins_in_an_outage_goes_on_for_five_call_timeouts() {
    let store = MemoryStore::new();
    let (chaos, client) = through(&store, Faults::new(1));
    let mutex = client.mutex("a").unwrap();
    chaos.pause();
    let start = Instant::now();
    let error = mutex.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() >= CALL_TIMEOUT * 5, "it gave up after {:?}", start.elapsed());

    let acquiring = tokio::spawn(async move { mutex.acquire().await });
    tokio::time::sleep(CALL_TIMEOUT * 3).await;
    chaos.resume();
    acquiring.await.unwrap().unwrap().release().await.unwrap();
}

/// Serves one claim at a time. A claim that is given up loses its turn.
#[derive(Debug)]
struct OneAtATime(tokio::sync::Semaphore);

#[async_trait]
impl Layer for OneAtATime {
    async fn claim(
        &self,
        memory: &MemoryStore,
        claim: &Claim,
        policy: WaitPolicy,
    ) -> Result<ClaimOutcome> {
        let _turn = self.0.acquire().await.unwrap();
        tokio::time::sleep(CALL_TIMEOUT / 5).await;
        memory.claim(claim, policy).await
    }
}

#[tokio::test]
async fn a_crowd_that_keeps_the_store_busy_for_more_than_five_call_timeouts_is_served() {
    let store = Layered::new(&MemoryStore::new(), OneAtATime(tokio::sync::Semaphore::new(1)));
    let client = Client::new(store).unwrap().with_call_timeout(CALL_TIMEOUT).unwrap();
    let crowd = (0..60).map(|number| {
        let mutex = client.mutex(&format!("a{number}")).unwrap();
        tokio::spawn(async move { mutex.acquire().await })
    });
    for acquiring in crowd.collect::<Vec<_>>() {
        drop(acquiring.await.unwrap().unwrap());
    }
    client.close().await;
}

#[tokio::test]
async fn a_release_that_gets_no_answer_is_finished_in_the_background() {
    let store = MemoryStore::new();
    let (chaos, client) = through(&store, Faults::new(1));
    let guard = client.mutex("a").unwrap().acquire().await.unwrap();
    chaos.pause();
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unreachable, Effect::Unknown));
    chaos.resume();
    client.close().await;
    assert!(store.list("").await.unwrap().is_empty());
}

/// A store that answers claims as the test says, refuses everything else, and records both.
#[derive(Debug, Default)]
struct Scripted {
    /// How claims are answered.
    script: parking_lot::Mutex<Script>,
    /// The calls that were refused.
    refused: parking_lot::Mutex<Vec<&'static str>>,
    /// What each claim asked for.
    claims: parking_lot::Mutex<Vec<WaitPolicy>>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Script {
    /// With an error that no retry heals.
    #[default]
    Refuse,
    /// Never.
    Hang,
    /// As an engine does that cannot reach its server: it gives up after its step limit, and has sent
    /// nothing.
    GiveUp,
    /// With a queue ticket. The wait takes this long, and ends without a grant.
    Queue { news_after: Duration },
}

impl Scripted {
    fn new(script: Script) -> Arc<Self> {
        Arc::new(Self { script: parking_lot::Mutex::new(script), ..Self::default() })
    }

    fn refuse<T>(&self, what: &'static str) -> Result<T> {
        self.refused.lock().push(what);
        Err(Error::new(ErrorKind::Denied, what, "not allowed"))
    }
}

#[async_trait]
impl Store for Scripted {
    fn capabilities(&self) -> Capabilities {
        MemoryStore::new().capabilities()
    }
    async fn claim(&self, _: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        self.claims.lock().push(policy);
        let script = *self.script.lock();
        match script {
            Script::Refuse => self.refuse("claim"),
            Script::Hang => std::future::pending().await,
            Script::GiveUp => {
                tokio::time::sleep(step_limit(CALL_TIMEOUT)).await;
                Err(Error::new(ErrorKind::Unreachable, "acquire", "no answer from cache:6379"))
            }
            Script::Queue { .. } => Ok(ClaimOutcome::Queued(QueueTicket::default())),
        }
    }
    async fn wait(&self, _: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        let script = *self.script.lock();
        if let Script::Queue { news_after } = script {
            tokio::time::sleep(news_after).await;
        }
        Ok(ClaimOutcome::Queued(*ticket))
    }
    async fn renew(&self, _: &Claim) -> Result<Renewal> {
        self.refuse("renew")
    }
    async fn release(&self, _: &Claim) -> Result<Released> {
        self.refuse("release")
    }
    async fn inspect(&self, _: &LockName) -> Result<LockState> {
        self.refuse("inspect")
    }
    async fn list(&self, _: &str) -> Result<Vec<LockName>> {
        self.refuse("list")
    }
    async fn evict(&self, _: &Eviction) -> Result<Released> {
        self.refuse("evict")
    }
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.refuse("diagnose")
    }
}

#[tokio::test]
async fn a_refusal_without_effect_is_neither_repeated_nor_undone() {
    let store = Scripted::new(Script::Refuse);
    let client = Client::new(store.clone()).unwrap();
    let error = client.mutex("a").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    client.close().await;
    assert_eq!(*store.refused.lock(), ["claim"]);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_gives_up_ends_the_call_before_the_clients_clock_does() {
    let store = Scripted::new(Script::GiveUp);
    let client = Client::new(store.clone()).unwrap().with_call_timeout(CALL_TIMEOUT).unwrap();
    let error = client.mutex("a").unwrap().try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("no answer from cache:6379"), "{error}");
    assert_eq!(error.effect(), Effect::None);
    client.close().await;
    assert_eq!(*store.refused.lock(), [""; 0], "nothing was sent, so there is nothing to release");
}

#[tokio::test]
async fn a_refusal_ends_a_wait_in_the_queue_at_once() {
    let store = Scripted::new(Script::Queue { news_after: Duration::from_millis(10) });
    let client = Client::new(store.clone()).unwrap();
    let mutex = client.mutex("a").unwrap();
    let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap_err() });
    while store.claims.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    *store.script.lock() = Script::Refuse;
    assert_eq!(waiting.await.unwrap().kind(), ErrorKind::Denied);
    assert_eq!(store.refused.lock().iter().filter(|call| **call == "claim").count(), 1);
}

#[tokio::test]
async fn a_store_that_wakes_its_waiters_for_nothing_is_not_asked_as_fast_as_it_answers() {
    for news_after in [Duration::ZERO, Duration::from_millis(5)] {
        let store = Scripted::new(Script::Queue { news_after });
        let client = Client::new(store.clone()).unwrap();
        let limit = Duration::from_secs(2);
        let error = client.mutex("a").unwrap().acquire_within(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let asked = store.claims.lock().len();
        assert!(
            asked < 40,
            "the store was asked {asked} times in {limit:?}, each wait {news_after:?}"
        );
    }
}

#[tokio::test]
async fn try_acquire_makes_one_call_and_never_retries() {
    let timeout = Duration::from_millis(100);
    let hanging = Scripted::new(Script::Hang);
    let client = Client::new(hanging.clone()).unwrap().with_call_timeout(timeout).unwrap();
    let error = client.mutex("a").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(hanging.claims.lock().len(), 1);

    // A fault that is reported at once leaves time for another call: none is made.
    let failing = Scripted::new(Script::Queue { news_after: timeout });
    let chaos = Chaos::new(failing.clone(), Faults::new(1).lose_replies(1.0));
    let client = Client::new(Arc::new(chaos)).unwrap();
    let error = client.mutex("a").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(failing.claims.lock().len(), 1);
}

#[tokio::test]
async fn bad_requests_are_refused_before_the_store_is_asked() {
    let store = Scripted::new(Script::Refuse);
    let client = Client::new(store.clone()).unwrap();
    let mutex = client.mutex("a").unwrap();
    for ttl in [Duration::ZERO, Duration::from_secs(86_401)] {
        let error = mutex.clone().with(Options::new().ttl(ttl)).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let semaphore = client.semaphore("s", 3).unwrap();
    for take in [0, 4] {
        let error = semaphore.try_acquire_many(take).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert_eq!(client.mutex(&"x".repeat(201)).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(store.claims.lock().is_empty() && store.refused.lock().is_empty());
}

#[tokio::test]
async fn a_queue_entry_lasts_for_a_few_polls_and_a_try_makes_none() {
    let store = Scripted::new(Script::Refuse);
    let client =
        Client::new(store.clone()).unwrap().with_call_timeout(Duration::from_secs(2)).unwrap();
    let options = Options::new().poll_cap(Duration::from_secs(5));
    let mutex = client.mutex("a").unwrap().with(options);
    assert!(mutex.acquire().await.is_err());
    assert!(mutex.acquire_within(Duration::from_secs(9)).await.is_err());
    assert!(mutex.try_acquire().await.is_err());
    let (lease, poll) = (Duration::from_secs(17), Duration::from_secs(5));
    let place = WaitPolicy::Queue { lease, poll };
    assert_eq!(*store.claims.lock(), [place, place, WaitPolicy::NoWait]);
}

#[tokio::test]
async fn a_queue_entry_outlives_its_waiter_by_the_ttl_or_half_a_minute_whatever_the_poll_cap() {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    for (ttl, longest) in [(second, 30 * second), (60 * second, 60 * second)] {
        for call_timeout in [second, hour] {
            let store = Scripted::new(Script::Refuse);
            let client = Client::new(store.clone()).unwrap();
            let client = client.with_call_timeout(call_timeout).unwrap();
            let options = Options::new().ttl(ttl).poll_cap(hour);
            client.mutex("a").unwrap().with(options).acquire().await.unwrap_err();
            let WaitPolicy::Queue { lease, poll } = store.claims.lock()[0] else {
                panic!("not queued")
            };
            assert!(lease <= longest, "{lease:?} for a TTL of {ttl:?}");
            assert!(poll * 3 < lease, "two lost polls of {poll:?} end a lease of {lease:?}");
        }
    }
}

/// A limit on TTLs.
#[derive(Debug)]
struct Limited;

impl Limited {
    const LONGEST: Duration = Duration::from_secs(8);
}

#[async_trait]
impl Layer for Limited {
    fn longest_ttl(&self) -> Option<Duration> {
        Some(Self::LONGEST)
    }

    async fn claim(
        &self,
        memory: &MemoryStore,
        claim: &Claim,
        policy: WaitPolicy,
    ) -> Result<ClaimOutcome> {
        if claim.ttl > Self::LONGEST {
            let why = format!("ask for at most {:?}", Self::LONGEST);
            return Err(Error::new(ErrorKind::Invalid, "acquire", why));
        }
        memory.claim(claim, policy).await
    }
}

#[tokio::test]
async fn a_store_refuses_a_chosen_ttl_above_its_limit_and_never_the_default() {
    let limited = Layered::new(&MemoryStore::new(), Limited);
    let chaos = Arc::new(Chaos::new(limited.clone(), Faults::new(1)));
    for store in [limited as Arc<dyn Store>, chaos] {
        let client = Client::new(store).unwrap();
        let mutex = client.mutex("a").unwrap();
        let guard = mutex.acquire().await.unwrap();
        assert_eq!(guard.ttl(), Limited::LONGEST);
        assert!(guard.remaining() <= Limited::LONGEST, "{:?}", guard.remaining());
        let held = client.inspect("a").await.unwrap().holders.remove(0);
        assert!(held.expires_in <= Some(Limited::LONGEST), "{held:?}");
        guard.release().await.unwrap();

        let chosen = mutex.with(Options::new().ttl(Duration::from_secs(30)));
        let error = chosen.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("at most 8s"), "{error}");
    }
}

#[tokio::test]
async fn a_grant_that_took_longer_than_its_term_is_given_back() {
    let store = MemoryStore::new();
    let slow = Duration::from_millis(300);
    let (_, client) = through(&store, Faults::new(1).delay(slow..slow));
    let client = client.with_call_timeout(Duration::from_secs(20)).unwrap();
    let options = Options::new().ttl(Duration::from_millis(400));
    let error = client.mutex("a").unwrap().with(options).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseTooShort);
    client.close().await;
    assert!(store.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_wait_that_timed_out_has_left_the_queue_when_the_error_is_returned() {
    let store = MemoryStore::new();
    let client = Client::new(Arc::new(store.clone())).unwrap();
    let guard = client.mutex("a").unwrap().acquire().await.unwrap();
    let waiting = client.mutex("a").unwrap();
    let error = waiting.acquire_within(Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(store.inspect(guard.name()).await.unwrap().waiters, []);
}

#[tokio::test]
async fn a_reported_loss_arrives_when_the_network_is_back() {
    let store = MemoryStore::new();
    let (chaos, client) = through(&store, Faults::new(1));
    // No renewal falls into this test.
    let options = Options::new().ttl(Duration::from_secs(3600));
    let guard = client.mutex("a").unwrap().with(options).acquire().await.unwrap();
    chaos.pause();
    store.evict(&Eviction::new(guard.name().clone(), guard.owner(), "test")).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(50), guard.lost()).await;
    assert!(early.is_err() && guard.is_valid(), "no report gets through while the network is cut");
    chaos.resume();
    assert_eq!(guard.lost().await, LossReason::NotHeld);
    assert!(!guard.is_valid());
}

/// Answers every renewal with the loss of the lock, and so many grants with a term that is over.
#[derive(Debug)]
struct Forgetful(AtomicU32);

impl Forgetful {
    /// A client of a store that grants this many expired terms.
    fn client(memory: &MemoryStore, late: u32) -> Client {
        Client::new(Layered::new(memory, Self(AtomicU32::new(late)))).unwrap()
    }
}

#[async_trait]
impl Layer for Forgetful {
    async fn claim(
        &self,
        memory: &MemoryStore,
        claim: &Claim,
        policy: WaitPolicy,
    ) -> Result<ClaimOutcome> {
        let answer = memory.claim(claim, policy).await?;
        let late = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        match answer {
            ClaimOutcome::Granted(grant) if late => {
                Ok(ClaimOutcome::Granted(Grant::new(grant.token, Some(Moment::default()))))
            }
            answer => Ok(answer),
        }
    }

    async fn renew(&self, _: &MemoryStore, _: &Claim) -> Result<Renewal> {
        Err(Error::new(ErrorKind::Lost, "renew", "the table was deleted"))
    }
}

#[tokio::test]
async fn a_grant_of_which_too_little_is_left_is_asked_for_again_a_few_times() {
    for (late, granted) in [(1, true), (2, true), (3, false)] {
        let store = MemoryStore::new();
        let client = Forgetful::client(&store, late);
        match client.mutex("a").unwrap().acquire().await {
            Ok(guard) => assert!(granted && guard.is_valid()),
            Err(error) => {
                assert!(!granted, "{error}");
                assert_eq!(error.kind(), ErrorKind::LeaseTooShort);
            }
        }
        client.close().await;
        assert!(store.list("").await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_renewal_that_reports_the_loss_ends_the_lease_at_once() {
    let client = Forgetful::client(&MemoryStore::new(), 0);
    let options = Options::new().ttl(Duration::from_secs(3));
    let guard = client.mutex("a").unwrap().with(options).acquire().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::NotHeld);
}
