//! How a client dates grants by the server's clock, and knows its place in the queue, when replies are
//! late or lost.

use std::sync::Arc;
use std::time::Duration;

use crate::servers::single;
use tenure_core::store::{Claim, ClaimOutcome, QueueTicket, Store, WaitPolicy, now};
use tenure_redis::RedisStore;
use tenure_testkit::{FakeClock, GENEROUS, Proxy, RedisServer, Way, eventually};
use tenure_trials::claim;

const TTL: Duration = Duration::from_secs(600);
const PATIENT: WaitPolicy = WaitPolicy::Queue { lease: TTL, poll: Duration::from_millis(100) };
const WAITERS: &str = "tenure:{tenure:a}:w";

async fn held(store: &RedisStore) -> Claim {
    let holder = claim("a", TTL);
    assert!(matches!(
        store.claim(&holder, WaitPolicy::NoWait).await.unwrap(),
        ClaimOutcome::Granted(_)
    ));
    holder
}

async fn queued(store: &RedisStore, claim: &Claim) -> QueueTicket {
    match store.claim(claim, PATIENT).await.unwrap() {
        ClaimOutcome::Queued(place) => place,
        answer => panic!("the claim should wait: {answer:?}"),
    }
}

/// The end of a waiter's place, on the server's clock.
fn place_ends(server: &RedisServer, waiter: &Claim) -> u64 {
    let record = server.command(&["HGET", WAITERS, &waiter.owner.to_string()]).unwrap();
    record.split(' ').next().unwrap().parse().unwrap()
}

/// A grant is dated by the time that has passed on the server's clock since the client compared it
/// with its own. The longer ago that was, the more the clocks may have drifted apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_refresh_of_a_waiter_compares_the_clocks_anew() {
    const TEST: &str = "each_refresh_of_a_waiter_compares_the_clocks_anew";
    if tenure_testkit::lacks("redis-server", TEST) || tenure_testkit::lacks("cc", TEST) {
        return;
    }
    let clock = FakeClock::new().unwrap();
    let server = RedisServer::start_on_clock(&[], &clock).unwrap();
    let store = Arc::new(RedisStore::connect(single(server.port())).await.unwrap());
    let (holder, waiter) = (held(&store).await, claim("a", TTL));
    let place = queued(&store, &waiter).await;
    let before = place_ends(&server, &waiter);
    // By now the server's clock is far ahead of what the client saw when it queued.
    const AHEAD: Duration = Duration::from_secs(60);
    clock.set_ahead(AHEAD).unwrap();
    let waiting = tokio::spawn({
        let (store, waiter) = (Arc::clone(&store), waiter.clone());
        async move { store.wait(&waiter, &place).await }
    });
    // Two refreshes: the reply to the first has been read when the second is sent.
    let mut ends = before + AHEAD.as_millis() as u64;
    for _ in 0..2 {
        let refreshed = || async { place_ends(&server, &waiter) > ends };
        assert!(eventually(GENEROUS, refreshed).await);
        ends = place_ends(&server, &waiter);
    }
    waiting.abort();
    let _aborted = waiting.await;
    store.release(&holder).await.unwrap();
    let granted_by = now();
    let outcome = tokio::time::timeout(GENEROUS, store.wait(&waiter, &place)).await.unwrap();
    let ClaimOutcome::Granted(grant) = outcome.unwrap() else { panic!("the lock was released") };
    assert!(grant.since.unwrap() <= granted_by, "the grant was dated after it was made");
}

/// Core drops a call that takes too long. The claim may be queued all the same, and the next call must
/// not lose its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_was_dropped_while_it_queued_keeps_its_place() {
    if tenure_testkit::lacks("redis-server", "a claim that was dropped") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let direct = RedisStore::connect(single(server.port())).await.unwrap();
    let store = Arc::new(RedisStore::connect(single(proxy.port())).await.unwrap());
    let holder = held(&direct).await;
    // While another claim of this store waits, the store is subscribed, and the first call queues a
    // claim.
    let first = claim("a", TTL);
    let place = queued(&store, &first).await;
    let ends = place_ends(&server, &first);
    let waiting = tokio::spawn({
        let (store, first) = (Arc::clone(&store), first.clone());
        async move { store.wait(&first, &place).await }
    });
    let refreshed = || async { place_ends(&server, &first) > ends };
    assert!(eventually(GENEROUS, refreshed).await);

    let [dropped, behind] = [(); 2].map(|()| claim("a", TTL));
    proxy.set(Way::Deaf);
    let owner = dropped.owner.to_string();
    let arrived = eventually(GENEROUS, || async {
        server.command(&["HEXISTS", WAITERS, &owner]).unwrap() == "1"
    });
    tokio::select! {
        answer = store.claim(&dropped, PATIENT) => panic!("nothing comes back: {answer:?}"),
        arrived = arrived => assert!(arrived),
    }
    queued(&direct, &behind).await;
    // The next call goes over another connection, on which the store is not subscribed yet.
    proxy.heal();
    let asked = || async { store.claim(&dropped, PATIENT).await.is_ok() };
    assert!(eventually(GENEROUS, asked).await);
    let line = direct.inspect(&dropped.name).await.unwrap().waiters;
    let line: Vec<&str> = line.iter().map(|waiter| &*waiter.owner).collect();
    assert_eq!(line, [first.owner.to_string(), owner, behind.owner.to_string()]);
    waiting.abort();
    direct.release(&holder).await.unwrap();
}

/// By the server's clock, which was set back, the grant is older than the claim's place in the queue. It
/// counts all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_back_delays_no_hand_off() {
    const TEST: &str = "a_clock_that_is_set_back_delays_no_hand_off";
    if tenure_testkit::lacks("redis-server", TEST) || tenure_testkit::lacks("cc", TEST) {
        return;
    }
    const RARELY: WaitPolicy = WaitPolicy::Queue { lease: TTL, poll: Duration::from_secs(150) };
    let clock = FakeClock::new().unwrap();
    let server = RedisServer::start_on_clock(&[], &clock).unwrap();
    clock.set_ahead(Duration::from_secs(60)).unwrap();
    let store = Arc::new(RedisStore::connect(single(server.port())).await.unwrap());
    let (holder, waiter) = (held(&store).await, claim("a", TTL));
    let ClaimOutcome::Queued(place) = store.claim(&waiter, RARELY).await.unwrap() else {
        panic!("the claim should wait")
    };
    let waiting = tokio::spawn({
        let (store, waiter) = (Arc::clone(&store), waiter.clone());
        async move {
            store.wait(&waiter, &place).await?;
            // The waiter may ask again, whatever message it received.
            store.claim(&waiter, RARELY).await
        }
    });
    clock.set_ahead(Duration::ZERO).unwrap();
    store.release(&holder).await.unwrap();
    let granted =
        tokio::time::timeout(GENEROUS, waiting).await.expect("the waiter was not notified");
    assert!(matches!(granted.unwrap().unwrap(), ClaimOutcome::Granted(_)));
}

/// The server's clock was set forward since the client last read it, so it cannot date the grant. Nor may
/// the arrival of the message date it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_not_dated_by_its_arrival_when_the_clock_was_set_forward() {
    const TEST: &str = "a_grant_is_not_dated_by_its_arrival_when_the_clock_was_set_forward";
    if tenure_testkit::lacks("redis-server", TEST) || tenure_testkit::lacks("cc", TEST) {
        return;
    }
    let clock = FakeClock::new().unwrap();
    let server = RedisServer::start_on_clock(&[], &clock).unwrap();
    let store = RedisStore::connect(single(server.port())).await.unwrap();
    let (holder, waiter) = (held(&store).await, claim("a", TTL));
    let place = queued(&store, &waiter).await;
    clock.set_ahead(Duration::from_secs(60)).unwrap();
    store.release(&holder).await.unwrap();
    let granted_by = now();
    // This process stands still for a while.
    tokio::time::sleep(Duration::from_millis(50)).await;
    match tokio::time::timeout(GENEROUS, store.wait(&waiter, &place)).await.unwrap().unwrap() {
        ClaimOutcome::Granted(grant) => {
            assert!(grant.since.unwrap() <= granted_by, "dated too late")
        }
        answer => assert!(matches!(answer, ClaimOutcome::Queued(_)), "{answer:?}"),
    }
    // The repeated claim dates the grant.
    let answer = store.claim(&waiter, PATIENT).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
}
