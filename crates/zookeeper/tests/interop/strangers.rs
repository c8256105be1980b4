//! Who does not see whom, and must be told apart from who does.

use tenure_core::ErrorKind;
use tenure_testkit::ExternalClient;

use crate::scene::{NAME, Scene};

/// Whoever looks for other names than ours does not see us. We see them.
pub(crate) async fn without_the_option_only_ours_gives_way(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    let guard = scene.mutex().acquire().await.unwrap();
    assert!(theirs.try_hold().await, "they see us: then the option is not needed any more");
    guard.release().await.unwrap();
    let error = scene.mutex().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let waiter = scene.waiter(1).await;
    theirs.release().await;
    waiter.granted().await.release().await.unwrap();
}

/// Curator's semaphore keeps its leases one floor deeper, each in nobody's line.
pub(crate) async fn their_semaphore_and_ours_do_not_meet(scene: &Scene) {
    let (mut theirs, mut more) = (scene.theirs().await, scene.theirs().await);
    assert!(theirs.try_hold().await);
    assert!(!more.try_hold().await, "it has one permit");
    let guard = scene.ours.semaphore(NAME, 1).unwrap().try_acquire().await.unwrap();
    scene.assert_held_by(&guard).await;
    theirs.release().await;
    assert!(more.try_hold().await);
    guard.release().await.unwrap();
    scene.assert_free().await;
}

/// Curator and kazoo do not see each other. Each sees us, and we see both.
pub(crate) async fn ours_is_between_two_who_do_not_meet(scene: &Scene, other: &ExternalClient) {
    let mut curator = scene.theirs().await;
    let mut kazoo = scene.others(other, "exclusive").await;
    let guard = scene.mutex().acquire().await.unwrap();
    curator.want();
    scene.until_waiting(1).await;
    kazoo.want();
    scene.until_waiting(2).await;
    assert!(curator.is_silent().await && kazoo.is_silent().await);
    scene.assert_held_by(&guard).await;
    guard.release().await.unwrap();
    curator.held().await;
    kazoo.held().await;
    // By our own rule the second of them waits, too.
    let waiter = scene.waiter(2).await;
    kazoo.release().await;
    scene.until_waiting(1).await;
    assert!(waiter.waits(), "the first one holds");
    curator.release().await;
    let guard = waiter.granted().await;
    assert!(!curator.try_hold().await);
    assert!(!kazoo.try_hold().await);
    guard.release().await.unwrap();
}
