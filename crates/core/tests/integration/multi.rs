//! Several locks that are held together or not at all.

use std::sync::Arc;
use std::time::Duration;

use std::pin::pin;

use crate::layer::{Layer, Layered};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::task::{Context, Waker};
use tenure_core::store::{
    Claim, ClaimOutcome, Connecting, Grant, Released, Scheme, Store, StoreFactory, StoreUrl,
    UrlOption, WaitPolicy,
};
use tenure_core::{
    Chaos, Client, Error, ErrorKind, Faults, MemoryStore, MultiLock, Options, Result,
};

const SOON: Duration = Duration::from_millis(50);
/// For what a faulty lock would wait for without end.
const GENEROUS: Duration = Duration::from_secs(20);

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
async fn options_that_keep_a_lock_taken_are_refused_of_each_lock() {
    let client = client();
    let kept = client.mutex("b").unwrap().with(Options::new().at_least(Duration::from_secs(3600)));
    let locks = MultiLock::of([client.mutex("a").unwrap(), kept]).unwrap();
    let attempts = async { [locks.try_acquire().await, locks.acquire().await] };
    let attempts =
        tokio::time::timeout(GENEROUS, attempts).await.expect("no wait for its own lock");
    for attempt in attempts {
        let error = attempt.unwrap_err();
        assert_eq!((error.kind(), error.lock().unwrap().as_str()), (ErrorKind::Invalid, "b"));
    }
    client.close().await;
    assert!(in_use(&client).await.is_empty(), "nothing stays taken");
}

/// The URL of a server that some tests name in several ways.
fn at(url: &str) -> Client {
    let url = StoreUrl::parse(url, &[Arc::new(Somewhere)]).unwrap();
    Client::at(&url, Arc::new(MemoryStore::new())).unwrap()
}

#[derive(Debug)]
struct Somewhere;

#[async_trait]
impl StoreFactory for Somewhere {
    fn name(&self) -> &'static str {
        "Somewhere"
    }
    fn schemes(&self) -> &'static [Scheme] {
        const { &[Scheme::servers("some", "HOST[:PORT],…", "a server", 7)] }
    }
    fn options(&self) -> &'static [UrlOption] {
        const { &[UrlOption::PREFIX.defaults_to("tenure"), UrlOption::PASSWORD_FILE] }
    }
    async fn connect(&self, _: &StoreUrl, _: &Connecting) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(MemoryStore::new()))
    }
}

#[tokio::test]
async fn a_lock_named_twice_through_two_clients_of_one_server_is_refused() {
    let one = at("some://a,b");
    let same = [
        "some://b:7,a",
        "some://me:secret@a,b?timeout=9s",
        "some://a,b?prefix=tenure&password-file=/x",
    ];
    for url in same {
        let locks = [one.mutex("x").unwrap(), at(url).mutex("x").unwrap()];
        let error = MultiLock::of(locks).unwrap_err();
        assert_eq!(
            (error.kind(), error.lock().unwrap().as_str()),
            (ErrorKind::Invalid, "x"),
            "{url}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    for url in ["some://a", "some://a,b?prefix=other", "some://a,b/1"] {
        assert!(
            MultiLock::of([one.mutex("x").unwrap(), at(url).mutex("x").unwrap()]).is_ok(),
            "{url}"
        );
    }
    let longer = one.clone().with_call_timeout(SOON).unwrap().mutex("x").unwrap();
    assert!(MultiLock::of([one.mutex("x").unwrap(), longer]).is_err(), "it is the same store");
}

/// Two claims of the same two locks, of one name on two stores, given in opposite orders.
#[tokio::test]
async fn locks_of_one_name_on_two_stores_have_one_order() {
    let (one, other) = (at("some://a"), at("some://b"));
    let lock = |client: &Client| client.mutex("x").unwrap();
    let (held, waits) =
        (lock(&one).acquire().await.unwrap(), lock(&other).acquire().await.unwrap());
    for locks in [[lock(&one), lock(&other)], [lock(&other), lock(&one)]] {
        let attempt = tokio::spawn(async move { MultiLock::of(locks).unwrap().acquire().await });
        let waits_for_the_first = async {
            while one.inspect("x").await.unwrap().waiters.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(GENEROUS, waits_for_the_first)
            .await
            .expect("the first one comes first");
        assert!(other.inspect("x").await.unwrap().waiters.is_empty(), "the first one comes first");
        attempt.abort();
        let _ = attempt.await;
        one.close().await;
    }
    drop((held, waits));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_silent_does_not_prolong_a_bounded_wait() {
    for answer in [Answer::Late, Answer::SilentOneByOne] {
        let (_memory, client, _calls) = Together::client(answer);
        let locks = client.multi_lock(["a", "b"]).unwrap();
        let begun = tokio::time::Instant::now();
        let error = locks.acquire_within(SOON).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut), "{error}");
        // Claims are given back for a tenth of a second, and then in the background.
        assert!(begun.elapsed() < Duration::from_millis(500), "{answer:?}: {:?}", begun.elapsed());
    }
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

/// What a store with a call for several locks does when it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    AtOnce,
    /// Carries the call out, and then is slow to say so.
    Late,
    /// Carries the call out, and fails to say so.
    Lost,
    /// Carries nothing out.
    Refused,
    /// Has no call for several locks, and does not answer the others.
    SilentOneByOne,
}

/// Takes and releases several locks in one call, and records all calls.
#[derive(Debug)]
struct Together {
    answer: Answer,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Together {
    fn client(answer: Answer) -> (MemoryStore, Client, Arc<Mutex<Vec<&'static str>>>) {
        let (memory, calls) = (MemoryStore::new(), Arc::default());
        let layer = Self { answer, calls: Arc::clone(&calls) };
        let client = Client::new(Layered::new(&memory, layer)).unwrap();
        (memory, client, calls)
    }

    async fn answer(&self) -> Result<()> {
        let fault = || Error::new(ErrorKind::Unreachable, "call", "the reply is lost");
        match self.answer {
            Answer::AtOnce => Ok(()),
            Answer::Late | Answer::SilentOneByOne => std::future::pending().await,
            Answer::Lost => Err(fault().with_unknown_effect()),
            Answer::Refused => Err(fault()),
        }
    }
}

#[async_trait]
impl Layer for Together {
    async fn claim(
        &self,
        memory: &MemoryStore,
        claim: &Claim,
        policy: WaitPolicy,
    ) -> Result<ClaimOutcome> {
        self.calls.lock().push("claim");
        if self.answer == Answer::SilentOneByOne {
            return std::future::pending().await;
        }
        memory.claim(claim, policy).await
    }

    async fn release(&self, memory: &MemoryStore, claim: &Claim) -> Result<Released> {
        self.calls.lock().push("release");
        memory.release(claim).await
    }

    async fn claim_together(
        &self,
        memory: &MemoryStore,
        claims: &[Claim],
    ) -> Result<Option<Vec<Grant>>> {
        self.calls.lock().push("claim together");
        if self.answer == Answer::SilentOneByOne {
            return Ok(None);
        }
        let mut grants = Vec::new();
        for claim in claims.iter().filter(|_| self.answer != Answer::Refused) {
            match memory.claim(claim, WaitPolicy::NoWait).await? {
                ClaimOutcome::Granted(grant) => grants.push(grant),
                _ => {
                    for claim in claims {
                        memory.release(claim).await?;
                    }
                    return Ok(None);
                }
            }
        }
        self.answer().await.map(|()| Some(grants))
    }

    async fn release_together(&self, memory: &MemoryStore, claims: &[Claim]) -> Result<bool> {
        self.calls.lock().push("release together");
        for claim in claims {
            let holders = memory.inspect(&claim.name).await?.holders;
            if holders.iter().all(|holder| holder.owner != claim.owner.to_string()) {
                return Ok(false);
            }
        }
        for claim in claims.iter().filter(|_| self.answer != Answer::Refused) {
            memory.release(claim).await?;
        }
        self.answer().await.map(|()| true)
    }
}

#[tokio::test]
async fn free_locks_are_taken_in_one_call_and_released_in_one() {
    let (_memory, client, calls) = Together::client(Answer::AtOnce);
    let locks = client.multi_lock(["a", "b", "c"]).unwrap();
    let guard = locks.acquire().await.unwrap();
    assert_eq!(in_use(&client).await, ["a", "b", "c"]);
    guard.release().await.unwrap();
    assert!(in_use(&client).await.is_empty());
    assert_eq!(*calls.lock(), ["claim together", "release together"]);
    drop(locks.acquire().await.unwrap());
    client.close().await;
    assert!(in_use(&client).await.is_empty());
}

#[tokio::test]
async fn locks_that_are_not_all_free_are_claimed_one_by_one() {
    let (_memory, client, calls) = Together::client(Answer::AtOnce);
    let busy = client.mutex("b").unwrap().acquire().await.unwrap();
    let locks = client.multi_lock(["a", "b", "c"]).unwrap();
    let error = locks.try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.lock().unwrap().as_str()), (ErrorKind::Busy, "b"));
    assert_eq!(in_use(&client).await, ["b"]);
    let waiting = tokio::spawn(async move { locks.acquire().await });
    while client.inspect("b").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(in_use(&client).await, ["a", "b"]);
    busy.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    // One that is lost meanwhile is no reason to keep the others.
    let owner = guard.guards()[0].owner().to_string();
    assert!(client.evict("a", &owner, "a test").await.unwrap());
    calls.lock().clear();
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.lock().unwrap().as_str()), (ErrorKind::Lost, "a"));
    assert_eq!(*calls.lock(), ["release together", "release", "release", "release"]);
    assert!(in_use(&client).await.is_empty());
}

#[tokio::test]
async fn a_call_for_several_locks_that_is_dropped_leaves_none_of_them() {
    let (memory, client, _calls) = Together::client(Answer::Late);
    let locks = client.multi_lock(["a", "b"]).unwrap();
    {
        let mut attempt = pin!(locks.acquire());
        let mut context = Context::from_waker(Waker::noop());
        assert!(attempt.as_mut().poll(&mut context).is_pending());
        assert_eq!(memory.list("").await.unwrap().len(), 2, "it was carried out");
    }
    client.close().await;
    assert!(in_use(&client).await.is_empty());
}

#[tokio::test]
async fn a_fault_of_a_call_for_several_locks_leaves_none_of_them() {
    for answer in [Answer::Lost, Answer::Refused] {
        let (_memory, client, _calls) = Together::client(answer);
        let locks = client.multi_lock(["a", "b"]).unwrap();
        let error = locks.try_acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.lock().unwrap().as_str()), (ErrorKind::Unreachable, "a"));
        assert!(in_use(&client).await.is_empty(), "{answer:?}");
        // A caller that waits is served all the same, one lock at a time.
        let guard = locks.acquire().await.unwrap();
        assert_eq!(in_use(&client).await, ["a", "b"]);
        // The outcome of the release is not known: the background goes on.
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Unreachable);
        client.close().await;
        assert!(in_use(&client).await.is_empty(), "{answer:?}");
    }
}
