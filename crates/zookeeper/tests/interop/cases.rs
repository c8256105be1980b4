//! One client of tenure and one of another project.

use std::time::Instant;

use tenure_core::ErrorKind;

use crate::scene::{NAME, PATH, Scene, connect};
use tenure_testkit::{GENEROUS, eventually};
use tenure_zookeeper::Compat;
use tenure_zookeeper::testing::Bare;

pub(crate) async fn their_hold_keeps_ours_out(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    assert!(theirs.try_hold().await);
    let error = scene.mutex().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let error = scene.ours.rw_lock(NAME).unwrap().try_read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let error = scene.ours.semaphore(NAME, 2).unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let state = scene.state().await;
    let [holder] = &state.holders[..] else { panic!("one claim holds: {state:?}") };
    assert_eq!(
        (holder.pid, &holder.host),
        (None, &None),
        "the other client does not record its process"
    );
    assert!(state.waiters.is_empty(), "a try leaves no entry: {state:?}");
    theirs.release().await;
    scene.assert_free().await;
}

pub(crate) async fn our_hold_keeps_theirs_out(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    let guard = scene.mutex().acquire().await.unwrap();
    assert!(!theirs.try_hold().await);
    scene.assert_held_by(&guard).await;
    guard.release().await.unwrap();
    assert!(theirs.try_hold().await);
    theirs.release().await;
    scene.assert_free().await;
}

pub(crate) async fn their_release_wakes_our_waiter(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    // A client that used the lock alone for a while notices theirs all the same.
    for _ in 0..5 {
        scene.mutex().acquire().await.unwrap().release().await.unwrap();
    }
    assert!(theirs.try_hold().await);
    let waiter = scene.waiter(1).await;
    theirs.release().await;
    let guard = waiter.granted().await;
    scene.assert_held_by(&guard).await;
    assert!(!theirs.try_hold().await);
    guard.release().await.unwrap();
}

pub(crate) async fn our_release_lets_theirs_in(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    let guard = scene.mutex().acquire().await.unwrap();
    theirs.want();
    scene.until_waiting(1).await;
    assert!(theirs.is_silent().await);
    scene.assert_held_by(&guard).await;
    guard.release().await.unwrap();
    theirs.held().await;
    let error = scene.mutex().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    theirs.release().await;
    scene.assert_free().await;
}

/// A row of docs/neighbours.md.
pub(crate) async fn the_lock_is_handed_over_both_ways(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    theirs.hold().await;
    let waiter = scene.waiter(1).await;
    let start = Instant::now();
    theirs.release().await;
    let guard = waiter.granted().await;
    let to_ours = start.elapsed();
    theirs.want();
    scene.until_waiting(1).await;
    let start = Instant::now();
    guard.release().await.unwrap();
    theirs.held().await;
    scene.report(to_ours, start.elapsed());
    theirs.release().await;
}

pub(crate) async fn their_death_lets_ours_in(scene: &Scene) {
    let mut theirs = scene.mortal().await;
    assert!(theirs.try_hold().await);
    let waiter = scene.waiter(1).await;
    theirs.kill9();
    let guard = waiter.granted().await;
    scene.assert_held_by(&guard).await;
    guard.release().await.unwrap();
}

/// The server numbers all nodes, so all clients are served in the order of their arrival.
pub(crate) async fn ours_and_theirs_are_served_in_one_order(scene: &Scene) {
    let (mut first, mut third) = (scene.theirs().await, scene.theirs().await);
    assert!(first.try_hold().await);
    let second = scene.waiter(1).await;
    third.want();
    scene.until_waiting(2).await;
    let fourth = scene.waiter(3).await;
    first.release().await;
    let guard = second.granted().await;
    scene.assert_held_by(&guard).await;
    scene.until_waiting(2).await;
    assert!(third.is_silent().await);
    guard.release().await.unwrap();
    third.held().await;
    scene.until_waiting(1).await;
    assert!(fourth.waits());
    third.release().await;
    let guard = fourth.granted().await;
    scene.assert_held_by(&guard).await;
    guard.release().await.unwrap();
    scene.assert_free().await;
}

/// The first client creates the parent node. Tenure's parent is deleted when it is empty, unless the
/// other client could not cope with that.
pub(crate) async fn a_deleted_parent_of_ours_stops_no_client(scene: &Scene) {
    // The other clients ignore a permit, so they can hold the lock once while tenure's parent node
    // exists.
    let permit = scene.ours.semaphore(NAME, 1).unwrap().acquire().await.unwrap();
    let mut theirs = scene.theirs().await;
    permit.release().await.unwrap();
    // When this one has been deleted, so has the other, if it is a container.
    let others = connect(scene.ports[0], Compat::default()).await;
    others.mutex("another").unwrap().acquire().await.unwrap().release().await.unwrap();
    let looks = Bare::connect(scene.ports[0]).await.unwrap();
    let another = PATH.replace("orders", "another");
    let gone = || async { looks.state(&another).await.is_ok_and(|stat| stat.is_none()) };
    assert!(eventually(GENEROUS, gone).await, "{another} stays");
    assert!(theirs.try_hold().await);
    let waiter = scene.waiter(1).await;
    theirs.release().await;
    waiter.granted().await.release().await.unwrap();
}
