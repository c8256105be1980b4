//! One client of tenure and one of Redisson, for each kind of Redisson's locks.

use std::time::Instant;

use tenure_core::store::{Claim, ClaimOutcome, Released, Renewal, WaitPolicy};
use tenure_core::{Guard, LockName, LossReason, Mode, Options};
use tenure_testkit::{ExternalClient, GENEROUS};
use tokio::time::timeout;

use super::{Duration, Java, LONG, NAME, Scene, long};

/// All cases, with one Java program: it takes seconds to start.
pub(super) async fn all(version: &ExternalClient, kind: &str) {
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(version, kind).await;
    their_hold_keeps_ours_out(&scene, &mut theirs, kind).await;
    our_hold_keeps_theirs_out(&scene, &mut theirs, kind).await;
    if kind != "non-reentrant" {
        they_enter_again_while_ours_waits(&scene, &mut theirs, kind).await;
    }
    let to_ours = their_release_wakes_ours(&scene, &mut theirs, kind).await;
    let to_theirs = our_release_wakes_theirs(&scene, &mut theirs).await;
    our_abandoned_hold_is_theirs_after_its_term(&scene, &mut theirs).await;
    ours_evicts_theirs(&scene, &mut theirs, kind).await;
    our_eviction_wakes_theirs(&scene, &mut theirs).await;
    theirs_force_unlocks_ours(&scene, &mut theirs, kind).await;
    their_forced_unlock_wakes_ours(&scene, &mut theirs, kind).await;
    super::report(version, kind, "", [to_ours, to_theirs]);
}

/// Options of a waiter that is woken by nothing but a message, where one comes: a spin lock publishes none, and a fair
/// lock only to its own queue.
fn deaf(kind: &str) -> Options {
    long().poll_cap(if matches!(kind, "spin" | "fair") { Duration::from_secs(5) } else { LONG })
}

async fn their_hold_keeps_ours_out(scene: &Scene, theirs: &mut Java, kind: &str) {
    for term in [None, Some(LONG)] {
        assert!(theirs.try_hold(term).await);
        assert!(scene.is_busy(false).await, "a writer of ours came in");
        assert_eq!(scene.is_busy(true).await, kind != "read", "a reader of ours");
        let state = scene.state().await;
        let [holder] = &state.holders[..] else { panic!("one claim holds: {state:?}") };
        let expected = if kind == "read" { Mode::Shared } else { Mode::Exclusive };
        assert_eq!((holder.mode, &*holder.label), (expected, "Redisson"));
        assert!(holder.expires_in.unwrap() > Duration::from_secs(5), "{holder:?}");
        assert_eq!(holder.owner.ends_with(":write"), kind == "write", "{holder:?}");
        theirs.release().await;
        assert!(scene.state().await.is_free());
    }
}

async fn our_hold_keeps_theirs_out(scene: &Scene, theirs: &mut Java, kind: &str) {
    let writer = scene.ours.mutex(NAME).unwrap().with(long()).acquire().await.unwrap();
    assert!(!theirs.try_hold(None).await, "{kind} beside our writer");
    assert_eq!(theirs.answer("count").await.split(' ').nth(1), Some("0"));
    writer.release().await.unwrap();
    let reader = scene.ours.rw_lock(NAME).unwrap().with(long()).read().await.unwrap();
    let joins = theirs.try_hold(None).await;
    assert_eq!(joins, kind == "read", "{kind} beside our reader");
    if joins {
        assert_eq!(scene.state().await.holders.len(), 2);
        reader.release().await.unwrap();
        assert!(scene.is_busy(false).await, "their reader holds still");
        theirs.release().await;
    } else {
        reader.release().await.unwrap();
    }
    assert!(theirs.try_hold(None).await);
    theirs.release().await;
}

async fn they_enter_again_while_ours_waits(scene: &Scene, theirs: &mut Java, kind: &str) {
    assert!(theirs.try_hold(Some(LONG)).await);
    let mutex = scene.ours.mutex(NAME).unwrap().with(deaf(kind));
    let mut waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    assert!(timeout(Duration::from_millis(200), &mut waiter).await.is_err());
    assert!(theirs.try_hold(Some(LONG)).await, "the same thread enters again");
    let holder = scene.state().await.holders[0].clone();
    assert_eq!((&*holder.label, holder.entered), ("Redisson, entered 2 times", Some(2)));
    theirs.release().await;
    assert!(timeout(Duration::from_millis(200), &mut waiter).await.is_err());
    theirs.release().await;
    let guard = timeout(GENEROUS, waiter).await.expect("ours holds at last").unwrap();
    guard.release().await.unwrap();
}

/// Returns how long it takes. Their term is longer than the bound, so only the release can wake the
/// waiter.
async fn their_release_wakes_ours(scene: &Scene, theirs: &mut Java, kind: &str) -> Duration {
    assert!(theirs.try_hold(Some(LONG)).await);
    let mutex = scene.ours.mutex(NAME).unwrap().with(deaf(kind));
    let waiter = tokio::spawn(async move {
        let guard = mutex.acquire().await.unwrap();
        (guard, Instant::now())
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = Instant::now();
    theirs.send("release");
    let (guard, held) = timeout(GENEROUS, waiter).await.expect("ours wakes").unwrap();
    assert_eq!(theirs.line().await, "released");
    assert!(!theirs.try_hold(None).await);
    guard.release().await.unwrap();
    held - start
}

async fn our_release_wakes_theirs(scene: &Scene, theirs: &mut Java) -> Duration {
    let guard = scene.ours.mutex(NAME).unwrap().with(long()).acquire().await.unwrap();
    theirs.want(None);
    assert!(theirs.is_silent().await);
    let start = Instant::now();
    guard.release().await.unwrap();
    theirs.held().await;
    let time = start.elapsed();
    assert!(scene.is_busy(false).await);
    theirs.release().await;
    time
}

/// A hold of ours that is not renewed, as after a crash, ends with its term; late calls about it change
/// nothing.
async fn our_abandoned_hold_is_theirs_after_its_term(scene: &Scene, theirs: &mut Java) {
    let store = scene.ours.store();
    let claim = Claim::new(LockName::new(NAME).unwrap(), Mode::Exclusive, Duration::from_secs(2));
    let sent = Instant::now();
    let answer = store.claim(&claim, WaitPolicy::NoWait).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
    theirs.want(Some(LONG));
    theirs.held().await;
    assert!(
        sent.elapsed() >= Duration::from_millis(1_900),
        "before its term: {:?}",
        sent.elapsed()
    );
    assert_eq!(store.renew(&claim).await.unwrap(), Renewal::Lost);
    assert_eq!(store.release(&claim).await.unwrap(), Released::NotHeld);
    assert_eq!(store.claim(&claim, WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
    let left = scene.state().await.holders[0].expires_in.unwrap();
    assert!(left > LONG / 2, "their term is theirs: {left:?}");
    theirs.release().await;
}

/// The next waiter of tenure is woken, and the late release of the evicted client finds nothing.
async fn ours_evicts_theirs(scene: &Scene, theirs: &mut Java, kind: &str) {
    assert!(theirs.try_hold(Some(LONG)).await);
    let owner = scene.state().await.holders[0].owner.clone();
    assert!(!scene.ours.evict(NAME, &format!("{owner}1"), "test").await.unwrap());
    let mutex = scene.ours.mutex(NAME).unwrap().with(long().poll_cap(LONG));
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(scene.ours.evict(NAME, &owner, "stuck").await.unwrap());
    let guard = timeout(GENEROUS, waiter).await.expect("ours is woken").unwrap();
    let answer = theirs.answer("release").await;
    assert_eq!(answer, "not held", "{kind}");
    assert_eq!(scene.state().await.holders[0].owner, guard.owner().to_string());
    assert_eq!(scene.ours.audit(NAME).await.unwrap()[0].owner, owner);
    guard.release().await.unwrap();
}

/// As `forceUnlock` does: their waiter would sleep until the end of the term.
async fn our_eviction_wakes_theirs(scene: &Scene, theirs: &mut Java) {
    let guard = scene.ours.mutex(NAME).unwrap().with(long()).acquire().await.unwrap();
    theirs.want(Some(LONG));
    assert!(theirs.is_silent().await);
    assert!(scene.ours.evict(NAME, &guard.owner().to_string(), "stuck").await.unwrap());
    theirs.held().await;
    assert!(guard.release().await.is_err());
    assert!(scene.is_busy(false).await);
    theirs.release().await;
}

/// A waiter of ours behind a hold of ours, which a Java program takes by force.
async fn their_forced_unlock_wakes_ours(scene: &Scene, theirs: &mut Java, kind: &str) {
    let lock = scene.ours.rw_lock(NAME).unwrap().with(long());
    let guard: Guard = match kind {
        "read" => lock.read().await.unwrap().into(),
        _ => lock.write().await.unwrap().into(),
    };
    let mutex = scene.ours.mutex(NAME).unwrap().with(deaf(kind));
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished());
    assert_eq!(theirs.answer("force").await, "released");
    let next = timeout(GENEROUS, waiter).await.expect("our waiter hears of it").unwrap();
    assert!(guard.release().await.is_err());
    next.release().await.unwrap();
}

async fn theirs_force_unlocks_ours(scene: &Scene, theirs: &mut Java, kind: &str) {
    let options = Options::new().ttl(Duration::from_secs(3));
    let lock = scene.ours.rw_lock(NAME).unwrap().with(options);
    // Redisson's read lock unlocks readers only, by force.
    let (guard, shared) = match kind {
        "read" => (lock.read().await.unwrap().into(), true),
        _ => (Guard::from(lock.write().await.unwrap()), false),
    };
    assert_eq!(theirs.answer("force").await, "released");
    let lost =
        timeout(GENEROUS, guard.lost()).await.expect("the holder is notified at its next renewal");
    assert!(matches!(lost, LossReason::NotHeld | LossReason::Expired), "{lost:?}");
    assert!(guard.release().await.is_err());
    assert!(!scene.is_busy(shared).await);
}
