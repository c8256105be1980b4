//! One client of tenure and one of another project.

use std::time::{Duration, Instant};

use tenure_core::store::{Claim, ClaimOutcome, Released, Renewal, WaitPolicy};
use tenure_core::{ErrorKind, LockName, Mode};
use tenure_testkit::GENEROUS;
use tokio::time::timeout;

use crate::scene::{NAME, Scene};
use crate::theirs::LONG;

/// A term that a test waits out.
const SHORT: Duration = Duration::from_secs(1);

pub(crate) async fn their_hold_keeps_ours_out(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    assert!(theirs.try_hold(LONG).await);
    let written = scene.written();
    let error = scene.ours.mutex(NAME).unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let error = scene.ours.rw_lock(NAME).unwrap().try_read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let state = scene.state().await;
    let [holder] = &state.holders[..] else { panic!("one claim holds: {state:?}") };
    // A value that is no text is shown in digits.
    assert!(holder.owner == written || holder.owner.starts_with("0x"), "{}", holder.owner);
    assert_eq!((holder.token, holder.age, holder.pid, &holder.host), (None, None, None, &None));
    assert!(holder.expires_in.unwrap() > LONG / 2);
    assert_eq!(scene.written(), written, "looking and trying changes nothing");
    theirs.release().await;
    assert!(scene.state().await.is_free());
}

pub(crate) async fn our_hold_keeps_theirs_out(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    let writer = scene.ours.mutex(NAME).unwrap().acquire().await.unwrap();
    assert!(!theirs.try_hold(LONG).await);
    scene.assert_held_by(&writer).await;
    writer.release().await.unwrap();
    let reader = scene.ours.rw_lock(NAME).unwrap().read().await.unwrap();
    assert!(!theirs.try_hold(LONG).await);
    scene.assert_held_by(&reader).await;
    reader.release().await.unwrap();
    let permit = scene.ours.semaphore(NAME, 2).unwrap().acquire().await.unwrap();
    assert!(!theirs.try_hold(LONG).await);
    scene.assert_held_by(&permit).await;
    permit.release().await.unwrap();
}

/// Their term is longer than the bound, so only the release can wake the waiter.
pub(crate) async fn their_release_wakes_our_waiter(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    assert!(theirs.try_hold(LONG).await);
    let mutex = scene.ours.mutex(NAME).unwrap();
    let waiter = tokio::spawn(async move { mutex.acquire().await });
    scene.until_waiting(1).await;
    assert!(!waiter.is_finished());
    theirs.release().await;
    let guard = timeout(GENEROUS, waiter).await.expect("the waiter wakes").unwrap().unwrap();
    scene.assert_held_by(&guard).await;
    assert!(!theirs.try_hold(LONG).await);
    guard.release().await.unwrap();
}

pub(crate) async fn our_release_lets_theirs_in(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    let guard = scene.ours.mutex(NAME).unwrap().acquire().await.unwrap();
    theirs.want(LONG);
    assert!(theirs.is_silent().await);
    guard.release().await.unwrap();
    theirs.held().await;
    let error = scene.ours.mutex(NAME).unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    theirs.release().await;
    assert!(scene.state().await.is_free());
}

pub(crate) async fn their_late_release_leaves_our_lock_alone(scene: &Scene) {
    let (mut late, mut other) = (scene.theirs().await, scene.theirs().await);
    late.hold(SHORT).await;
    let mutex = scene.ours.mutex(NAME).unwrap();
    let guard = mutex.acquire_within(GENEROUS).await.unwrap();
    late.release_late().await;
    scene.assert_held_by(&guard).await;
    assert!(!other.try_hold(LONG).await);
    guard.release().await.unwrap();
}

/// A claim that is not renewed ends, for instance while its owner is suspended.
pub(crate) async fn our_late_calls_leave_their_lock_alone(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    let store = scene.ours.store();
    let claim = Claim::new(LockName::new(NAME).unwrap(), Mode::Exclusive, SHORT);
    let answer = store.claim(&claim, WaitPolicy::NoWait).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
    theirs.hold(LONG).await;
    let written = scene.written();
    assert_eq!(store.renew(&claim).await.unwrap(), Renewal::Lost);
    assert_eq!(store.claim(&claim, WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
    assert_eq!(store.release(&claim).await.unwrap(), Released::NotHeld);
    assert_eq!(scene.written(), written);
    let left = scene.state().await.holders[0].expires_in.unwrap();
    assert!(left > LONG / 2, "their term is theirs: {left:?}");
    theirs.release().await;
    assert!(scene.state().await.is_free());
}

/// A row of docs/neighbours.md. The poll interval bounds the one way, their own retries the other.
pub(crate) async fn the_lock_is_handed_over_both_ways(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    assert!(theirs.try_hold(LONG).await);
    let mutex = scene.ours.mutex(NAME).unwrap();
    let waiter = tokio::spawn(async move { (mutex.acquire().await.unwrap(), Instant::now()) });
    scene.until_waiting(1).await;
    let released = Instant::now();
    theirs.release().await;
    let (guard, held) = timeout(GENEROUS, waiter).await.expect("the waiter wakes").unwrap();
    theirs.want(LONG);
    assert!(theirs.is_silent().await);
    let to_ours = held - released;
    let released = Instant::now();
    guard.release().await.unwrap();
    theirs.held().await;
    scene.foreign.row.report(to_ours, released.elapsed());
    theirs.release().await;
}
