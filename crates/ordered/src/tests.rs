//! The driver on an engine in memory, in histories that a real engine seldom produces.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tenure_core::store::{
    Claim, ClaimOutcome, Downgraded, Eviction, Grant, QueueTicket, Released, Renewal, Store,
    WaitPolicy, now,
};
use tenure_core::{LockName, Mode, OwnerId};
use tenure_proto::admitted;

use crate::claims::{State, Tracked};
use crate::engine::{Engine, Session};
use crate::fake::{FakeEngine, Point, World};
use crate::store::OrderedStore;

type FakeStore = OrderedStore<FakeEngine>;

async fn store(world: &Arc<World>) -> Arc<FakeStore> {
    Arc::new(FakeStore::connect(Arc::clone(world)).await.unwrap())
}

fn claim(mode: Mode, ttl: Duration) -> Claim {
    Claim::new(LockName::new("a").unwrap(), mode, ttl)
}

fn named(name: &str, ttl: Duration) -> Claim {
    Claim::new(LockName::new(name).unwrap(), Mode::Exclusive, ttl)
}

fn alone() -> Claim {
    claim(Mode::Exclusive, LONG)
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);
const QUEUE: WaitPolicy = WaitPolicy::queue(LONG);

fn granted(answer: ClaimOutcome) -> Grant {
    match answer {
        ClaimOutcome::Granted(grant) => grant,
        answer => panic!("{answer:?}"),
    }
}

/// Polls until `holds` returns true.
async fn until(mut holds: impl FnMut() -> bool) {
    let limit = LONG;
    let looks = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(limit, looks).await.expect("it never came to be");
}

#[tokio::test]
async fn a_lock_is_handed_over_in_order_within_and_between_clients() {
    let world = Arc::default();
    let (one, other) = (store(&world).await, store(&world).await);
    let claims: Vec<Claim> = (0..6).map(|_| alone()).collect();
    let of = |at: usize| if at.is_multiple_of(3) { &other } else { &one };
    let mut last = granted(of(0).claim(&claims[0], QUEUE).await.unwrap()).token;
    for (at, claim) in claims.iter().enumerate().skip(1) {
        let answer = of(at).claim(claim, QUEUE).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Queued(_)));
    }
    for (at, pair) in claims.windows(2).enumerate() {
        assert_eq!(of(at).release(&pair[0]).await.unwrap(), Released::Released);
        let grant = granted(of(at + 1).wait(&pair[1], &QueueTicket::default()).await.unwrap());
        assert!(grant.token > last);
        last = grant.token;
    }
}

/// A claim with an unknown outcome is given up by the expiry task while it is asked for again.
#[tokio::test]
async fn a_claim_that_is_made_again_while_it_expires_keeps_its_new_entry() {
    let world: Arc<World> = Arc::default();
    let store = store(&world).await;
    let lost = claim(Mode::Exclusive, SHORT);
    world.lose(Point::EnterSent);
    // The expiry task moves the fence, and its look for the entry is slow.
    let mut expiry = world.pause(Point::Fenced);
    let policy = WaitPolicy::queue(SHORT);
    assert!(store.claim(&lost, policy).await.is_err());
    expiry.arrived().await;
    let grant = granted(store.claim(&lost, policy).await.unwrap());
    expiry.go_on();
    // The end of the task cannot be observed: give it time to do harm.
    tokio::time::sleep(SHORT / 3).await;
    assert_eq!(world.entries(&lost.name).len(), 1, "the entry of {grant:?} was removed");
    assert_eq!(store.renew(&lost).await.unwrap(), Renewal::Renewed);
}

/// The request of a claim is sent so late that the claim has expired: its session lives on.
#[tokio::test]
async fn an_entry_that_is_added_after_its_claim_expired_does_not_stay() {
    for reply_is_lost in [true, false] {
        let world: Arc<World> = Arc::default();
        let store = store(&world).await;
        let late = claim(Mode::Exclusive, SHORT);
        let mut entering = world.pause(Point::EnterSent);
        if reply_is_lost {
            world.lose(Point::EnterReplied);
        }
        let asked = {
            let (store, late) = (Arc::clone(&store), late.clone());
            tokio::spawn(async move { store.claim(&late, WaitPolicy::queue(SHORT)).await })
        };
        entering.arrived().await;
        until(|| store.shared.claims.find(late.owner).is_none()).await;
        entering.go_on();
        let answer = asked.await.unwrap();
        if reply_is_lost {
            assert!(answer.is_err());
            until(|| world.entries(&late.name).is_empty()).await;
        } else {
            let grant = granted(answer.unwrap());
            let own = grant.token.map(|token| token.get().into());
            assert_eq!(world.entries(&late.name), Vec::from_iter(own), "only the entry that holds");
        }
    }
}

/// The session ends after its claim was queued, and before the claim is added to the followed queue.
#[tokio::test]
async fn a_waiter_of_an_ended_session_does_not_take_its_successor_along() {
    let world: Arc<World> = Arc::default();
    let (one, other) = (store(&world).await, store(&world).await);
    granted(other.claim(&alone(), QUEUE).await.unwrap());
    let (shared, waiter) = (&one.shared, alone());
    let session = shared.engine.session(LONG).await.unwrap();
    shared.claims.insert(Tracked::new(&waiter, &session), now() + LONG);
    let entered = shared.engine.enter(&session, &waiter, Vec::new(), true).await.unwrap();
    let old = entered.entry;
    assert!(shared.claims.wait(waiter.owner, LONG, Some((old.clone(), entered.token))));
    world.end_session(session.id());
    shared.claims.remove_all_on(&session);
    assert!(matches!(one.claim(&waiter, QUEUE).await.unwrap(), ClaimOutcome::Queued(_)));
    shared.join_queue(&waiter, &old, entered.listing);
    let followed = shared.followed(&waiter.name).unwrap();
    until(|| followed.waiting() == 1).await;
    let tracked = shared.claims.find(waiter.owner).map(|(tracked, _)| tracked.state);
    let Some(State::Waits(entry, _)) = tracked else { panic!("{tracked:?}") };
    assert!(entry.order > old.order);
}

#[tokio::test]
async fn a_holder_hears_of_its_eviction_although_idle_sessions_were_closed_while_it_claimed() {
    let world: Arc<World> = Arc::default();
    let (one, other) = (store(&world).await, store(&world).await);
    let holder = alone();
    let mut looking = world.pause(Point::IsFree);
    let asked = {
        let (one, holder) = (Arc::clone(&one), holder.clone());
        tokio::spawn(async move { one.claim(&holder, WaitPolicy::NoWait).await })
    };
    looking.arrived().await;
    one.close_idle().await;
    looking.go_on();
    granted(asked.await.unwrap().unwrap());
    let eviction = Eviction::new(holder.name.clone(), holder.owner, "a test");
    assert_eq!(other.evict(&eviction).await.unwrap(), Released::Released);
    until(|| one.shared.claims.find(holder.owner).is_none()).await;
}

/// A stream of claims of which each is polled until it has sent its request, and then no more, as by
/// a program that works with the first lock before it goes on with the others.
#[tokio::test]
async fn claims_that_are_not_polled_hold_up_no_other_claim() {
    let world: Arc<World> = Arc::default();
    let store = store(&world).await;
    let mut idle = Vec::new();
    for number in 0..100 {
        let entering = world.pause(Point::EnterSent);
        let (store, claim) = (Arc::clone(&store), named(&format!("idle {number}"), LONG));
        let mut asked = Box::pin(async move { store.claim(&claim, QUEUE).await });
        assert!(asked.as_mut().now_or_never().is_none());
        idle.push((asked, entering));
    }
    let other = named("other", LONG);
    for (_, entering) in &mut idle[..64] {
        entering.arrived().await;
    }
    let mut asked = Vec::new();
    for (claim, entering) in idle {
        entering.go_on();
        asked.push(claim);
    }
    let answer = tokio::time::timeout(LONG, store.claim(&other, QUEUE)).await;
    granted(answer.expect("the claim waits for claims that are not polled").unwrap());
    for claim in asked {
        granted(claim.await.unwrap());
    }
}

#[tokio::test]
async fn a_store_that_is_dropped_with_a_waiter_leaves_no_task_behind() {
    let world: Arc<World> = Arc::default();
    let (one, other) = (store(&world).await, store(&world).await);
    granted(other.claim(&alone(), QUEUE).await.unwrap());
    assert!(matches!(one.claim(&alone(), QUEUE).await.unwrap(), ClaimOutcome::Queued(_)));
    let shared = Arc::downgrade(&one.shared);
    drop(one);
    until(|| shared.upgrade().is_none()).await;
}

/// A claim that its caller has given up goes on by itself, and ends after the store is gone.
#[tokio::test]
async fn a_claim_that_ends_after_its_store_was_dropped_leaves_no_task_behind() {
    for point in [Point::IsFree, Point::EnterSent] {
        let world: Arc<World> = Arc::default();
        let (one, other) = (store(&world).await, store(&world).await);
        let mut asking = world.pause(point);
        let (late, policy) = match point {
            Point::IsFree => (named("free", LONG), WaitPolicy::NoWait),
            _ => (alone(), QUEUE),
        };
        let asked = {
            let one = Arc::clone(&one);
            tokio::spawn(async move { one.claim(&late, policy).await })
        };
        asking.arrived().await;
        asked.abort();
        let _ = asked.await;
        granted(other.claim(&alone(), QUEUE).await.unwrap());
        let shared = Arc::downgrade(&one.shared);
        drop(one);
        asking.go_on();
        until(|| shared.upgrade().is_none()).await;
    }
}

#[tokio::test]
async fn a_store_that_is_dropped_while_removals_fail_leaves_no_task_behind() {
    let world: Arc<World> = Arc::default();
    let store = store(&world).await;
    (0..10_000).for_each(|_| world.lose(Point::Removed));
    granted(store.claim(&named("a", SHORT), QUEUE).await.unwrap());
    until(|| world.most_removing.load(Ordering::Acquire) > 0).await;
    let shared = Arc::downgrade(&store.shared);
    drop(store);
    until(|| shared.upgrade().is_none()).await;
}

#[tokio::test]
async fn many_claims_that_expire_together_are_removed_a_few_at_a_time() {
    let world: Arc<World> = Arc::default();
    let store = store(&world).await;
    for number in 0..1_000 {
        granted(store.claim(&named(&format!("{number}"), SHORT), QUEUE).await.unwrap());
    }
    until(|| store.shared.claims.is_empty()).await;
    let most = world.most_removing.load(Ordering::Acquire);
    assert!((1..=64).contains(&most), "{most} at once");
}

/// The first waiter for a permit has to hear of each holder that leaves.
#[tokio::test]
async fn a_waiter_for_one_of_many_permits_sets_a_few_watches() {
    const PERMITS: u32 = 3_000;
    let world: Arc<World> = Arc::default();
    let (one, other) = (store(&world).await, store(&world).await);
    let permit = || claim(Mode::Permits { take: 1, of: PERMITS }, LONG);
    let holders: Vec<Claim> = (0..PERMITS).map(|_| permit()).collect();
    for holder in &holders {
        granted(other.claim(holder, QUEUE).await.unwrap());
    }
    let hand_offs = 10;
    for holder in holders.iter().rev().take(hand_offs) {
        let waiter = permit();
        assert!(matches!(one.claim(&waiter, QUEUE).await.unwrap(), ClaimOutcome::Queued(_)));
        other.release(holder).await.unwrap();
        granted(one.wait(&waiter, &QueueTicket::default()).await.unwrap());
    }
    let watches = world.watched.lock().len();
    assert!(watches <= 8 * hand_offs, "{watches} watches for {hand_offs} hand-offs");
}

/// The connection that all watches come over is lost: a server must not get them all back at once.
#[tokio::test]
async fn the_watches_of_many_queues_that_end_together_begin_again_spread_over_time() {
    const QUEUES: usize = 200;
    let world: Arc<World> = Arc::default();
    let (one, other) = (store(&world).await, store(&world).await);
    for number in 0..QUEUES {
        let name = number.to_string();
        granted(other.claim(&named(&name, LONG), QUEUE).await.unwrap());
        let outcome = one.claim(&named(&name, LONG), QUEUE).await.unwrap();
        assert!(matches!(outcome, ClaimOutcome::Queued(_)));
    }
    // The holder's entry, and the waiter's own.
    until(|| world.watched.lock().len() == 2 * QUEUES).await;
    world.watched.lock().clear();
    world.end_watches();
    until(|| world.watched.lock().len() == 2 * QUEUES).await;
    let watched = world.watched.lock();
    let spread = watched.last().unwrap().since(watched[0]);
    assert!(spread > Duration::from_secs(2), "within {spread:?}");
}

/// A listing of a long queue is expensive, and so is made seldom. Here it is never answered.
#[tokio::test]
async fn a_lost_notification_is_recovered_by_the_check_without_a_listing() {
    const CHECK: Duration = Duration::from_millis(200);
    let world: Arc<World> = Arc::default();
    let other = store(&world).await;
    let one = FakeStore::connect_checking(Arc::clone(&world), CHECK).await.unwrap();
    let (holder, waiter) = (alone(), alone());
    granted(other.claim(&holder, QUEUE).await.unwrap());
    assert!(matches!(one.claim(&waiter, QUEUE).await.unwrap(), ClaimOutcome::Queued(_)));
    // The holder's entry, and the waiter's own.
    until(|| world.watched.lock().len() >= 2).await;
    world.mute.store(true, Ordering::Release);
    other.release(&holder).await.unwrap();
    let ticket = QueueTicket::default();
    let waiting = one.wait(&waiter, &ticket);
    granted(tokio::time::timeout(LONG, waiting).await.expect("no notification came").unwrap());
}

/// The first waiter for a permit watches each holder.
#[tokio::test]
async fn the_cost_of_a_waiter_for_a_permit_grows_no_faster_than_the_holders() {
    let mut seen = Vec::new();
    // A busy machine may disturb some attempts; a cost that grows with the square fails them all.
    for _ in 0..5 {
        let (few, many) = (cost_of_waiters(300).await, cost_of_waiters(3_000).await);
        if many < 30 * few {
            return;
        }
        seen.push((few, many));
    }
    panic!("with ten times as many holders it takes more than thirty times as long: {seen:?}");
}

/// How long it takes some waiters to get a permit each, as holders leave one by one.
async fn cost_of_waiters(holders: u32) -> Duration {
    let world: Arc<World> = Arc::default();
    let (one, other) = (store(&world).await, store(&world).await);
    let permit = || claim(Mode::Permits { take: 1, of: holders }, LONG);
    let holders: Vec<Claim> = (0..holders).map(|_| permit()).collect();
    for holder in &holders {
        granted(other.claim(holder, QUEUE).await.unwrap());
    }
    let began = now();
    // The last ones, so that all are watched before they leave.
    for holder in holders.iter().rev().take(10) {
        let waiter = permit();
        assert!(matches!(one.claim(&waiter, QUEUE).await.unwrap(), ClaimOutcome::Queued(_)));
        other.release(holder).await.unwrap();
        granted(one.wait(&waiter, &QueueTicket::default()).await.unwrap());
    }
    now().since(began)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_claims_and_lost_replies_leaves_nothing_behind() {
    storm(&Arc::default(), true).await;
}

/// Entries are evicted and sessions end: holders hear of it late, but no claim hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_evictions_and_lost_sessions_leaves_nothing_behind() {
    let world: Arc<World> = Arc::default();
    let enemy = {
        let (world, store) = (Arc::clone(&world), store(&world).await);
        tokio::spawn(async move {
            let name = alone().name;
            loop {
                tokio::time::sleep(Duration::from_millis(2)).await;
                let chance = usize::from(OwnerId::random().as_bytes()[0]);
                let (owners, sessions) = (world.owners(&name), world.sessions());
                if chance % 8 == 0 && !sessions.is_empty() {
                    world.end_session(sessions[chance % sessions.len()]);
                } else if !owners.is_empty() {
                    let owner = owners[chance % owners.len()];
                    let _ = store.evict(&Eviction::new(name.clone(), owner, "a test")).await;
                }
            }
        })
    };
    storm(&world, false).await;
    enemy.abort();
}

/// Claims come, wait, give up, hold and leave, and replies are lost: at no time do two claims hold that
/// exclude each other, and in the end no entry is left.
async fn storm(world: &Arc<World>, exclusive: bool) {
    const MODES: [Mode; 4] =
        [Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 2 }];
    const LOSSES: [Point; 4] =
        [Point::EnterUnderWay, Point::EnterReplied, Point::Fenced, Point::Removed];
    let inside: Arc<Mutex<Vec<(OwnerId, Mode)>>> = Arc::default();
    let mut stores = Vec::new();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let store = store(world).await;
        for _ in 0..4 {
            let (world, store) = (Arc::clone(world), Arc::clone(&store));
            let inside = Arc::clone(&inside);
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let chance = OwnerId::random().as_bytes().map(usize::from);
                    let claim = claim(MODES[chance[0] % 4], LONG);
                    if chance[1] % 4 == 0 {
                        world.lose(LOSSES[chance[2] % 4]);
                    }
                    if come_and_go(&store, &claim, &inside, exclusive, chance[3]).await {
                        continue;
                    }
                    while store.release(&claim).await.is_err() {}
                }
            }));
        }
        stores.push(store);
    }
    for task in tasks {
        tokio::time::timeout(LONG, task).await.expect("a claim hangs").unwrap();
    }
    let name = alone().name;
    // A request that was lost takes effect by then, or never.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(world.entries(&name), [], "no entry is left");
    for store in stores {
        until(|| store.shared.queues.lock().is_empty()).await;
        assert!(store.shared.claims.is_empty());
    }
}

const ROUNDS: usize = 150;

/// One claim, from its arrival to its release. False: it gave up.
async fn come_and_go(
    store: &FakeStore,
    claim: &Claim,
    inside: &Mutex<Vec<(OwnerId, Mode)>>,
    exclusive: bool,
    chance: usize,
) -> bool {
    loop {
        let Ok(answer) = store.claim(claim, QUEUE).await else { continue };
        let answer = match answer {
            ClaimOutcome::Queued(place) => {
                let gives_up = chance.is_multiple_of(4);
                let limit = if gives_up { Duration::from_millis(2) } else { LONG / 3 };
                match tokio::time::timeout(limit, store.wait(claim, &place)).await {
                    Ok(answer) => answer.unwrap(),
                    Err(_) => {
                        assert!(gives_up, "a waiter hangs");
                        return false;
                    }
                }
            }
            answer => answer,
        };
        match answer {
            ClaimOutcome::Granted(_) => break,
            _ => continue,
        }
    }
    {
        let mut inside = inside.lock();
        inside.push((claim.owner, claim.mode));
        let modes = inside.iter().map(|(_, mode)| *mode);
        assert!(!exclusive || admitted(modes) == inside.len(), "{inside:?}");
    }
    tokio::time::sleep(Duration::from_micros(chance as u64 * 4)).await;
    inside.lock().retain(|(owner, _)| *owner != claim.owner);
    let mut released = store.release(claim).await;
    while released.is_err() {
        released = store.release(claim).await;
    }
    true
}

fn shared(downgraded: Downgraded) -> Grant {
    match downgraded {
        Downgraded::Shared(grant) => grant,
        Downgraded::Lost => panic!("the claim holds"),
    }
}

#[tokio::test]
async fn a_waiter_that_its_own_client_evicts_joins_again_with_its_next_claim() {
    let world: Arc<World> = Arc::default();
    let store = store(&world).await;
    let holder = alone();
    granted(store.claim(&holder, QUEUE).await.unwrap());
    for round in 0..50 {
        let waiter = alone();
        assert!(matches!(store.claim(&waiter, QUEUE).await.unwrap(), ClaimOutcome::Queued(_)));
        let eviction = Eviction::new(waiter.name.clone(), waiter.owner, "test");
        store.evict(&eviction).await.unwrap();
        // At once: the notification of the eviction may still be on its way.
        assert!(matches!(store.claim(&waiter, QUEUE).await.unwrap(), ClaimOutcome::Queued(_)));
        assert_eq!(world.entries(&waiter.name).len(), 2, "round {round}");
        store.release(&waiter).await.unwrap();
    }
}

#[tokio::test]
async fn a_downgrade_admits_waiting_readers_of_all_clients_and_no_writer() {
    let world: Arc<World> = Arc::default();
    let (one, other) = (store(&world).await, store(&world).await);
    let (writer, next) = (alone(), alone());
    let readers = [(); 3].map(|()| claim(Mode::Shared, LONG));
    let before = granted(one.claim(&writer, QUEUE).await.unwrap());
    for (store, waiter) in
        [(&one, &readers[0]), (&other, &readers[1]), (&other, &next), (&one, &readers[2])]
    {
        let answer = store.claim(waiter, QUEUE).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Queued(_)));
    }
    assert_eq!(shared(one.downgrade(&writer).await.unwrap()).token, before.token);
    for (store, reader) in [(&one, &readers[0]), (&other, &readers[1])] {
        granted(store.wait(reader, &QueueTicket::default()).await.unwrap());
    }
    for (store, waiter) in [(&other, &next), (&one, &readers[2])] {
        let answer = store.claim(waiter, QUEUE).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Queued(_)), "{answer:?}");
    }
    for (store, holder) in [(&one, &readers[0]), (&other, &readers[1]), (&one, &writer)] {
        assert_eq!(store.release(holder).await.unwrap(), Released::Released);
    }
    granted(other.wait(&next, &QueueTicket::default()).await.unwrap());
}

#[tokio::test]
async fn a_downgrade_whose_reply_is_lost_is_repaired_by_asking_again() {
    for lost in [Point::DowngradeSent, Point::Downgraded] {
        let world: Arc<World> = Arc::default();
        let (store, writer) = (store(&world).await, alone());
        let before = granted(store.claim(&writer, QUEUE).await.unwrap());
        world.lose(lost);
        assert!(store.downgrade(&writer).await.is_err());
        assert_eq!(
            store.renew(&writer).await.unwrap(),
            Renewal::Renewed,
            "the claim holds all the time"
        );
        assert_eq!(shared(store.downgrade(&writer).await.unwrap()).token, before.token);
        granted(store.claim(&claim(Mode::Shared, LONG), WaitPolicy::NoWait).await.unwrap());
    }
}

#[tokio::test]
async fn a_release_behind_a_downgrade_that_was_given_up_leaves_nothing() {
    let world: Arc<World> = Arc::default();
    let (store, writer) = (store(&world).await, alone());
    granted(store.claim(&writer, QUEUE).await.unwrap());
    let mut downgrade = world.pause(Point::DowngradeSent);
    let dropped = {
        let (store, writer) = (Arc::clone(&store), writer.clone());
        tokio::spawn(async move { store.downgrade(&writer).await })
    };
    downgrade.arrived().await;
    dropped.abort();
    let mut release = store.release(&writer);
    assert!((&mut release).now_or_never().is_none(), "the release overtakes the downgrade");
    downgrade.go_on();
    assert_eq!(release.await.unwrap(), Released::Released);
    assert!(world.entries(&writer.name).is_empty());
}
