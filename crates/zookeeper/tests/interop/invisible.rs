//! Locks of other clients that ignore tenure's nodes, or that tenure ignores.

use tenure_core::ErrorKind;
use tenure_testkit::ExternalClient;

use crate::scene::{NAME, Scene};

/// A client that looks for other names ignores tenure's node. Tenure waits for its node.
pub(crate) async fn without_the_option_only_ours_gives_way(scene: &Scene) {
    let mut theirs = scene.theirs().await;
    let guard = scene.mutex().acquire().await.unwrap();
    assert!(
        theirs.try_hold().await,
        "the client waits for tenure: the option is not needed any more"
    );
    guard.release().await.unwrap();
    let error = scene.mutex().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let waiter = scene.waiter(1).await;
    theirs.release().await;
    waiter.granted().await.release().await.unwrap();
}

/// Curator's semaphore keeps its leases below a folder of the lock's node, so they are in no queue.
pub(crate) async fn their_semaphore_and_ours_do_not_exclude_each_other(scene: &Scene) {
    let (mut theirs, mut more) = (scene.theirs().await, scene.theirs().await);
    assert!(theirs.try_hold().await);
    assert!(!more.try_hold().await, "the semaphore has one permit");
    let guard = scene.ours.semaphore(NAME, 1).unwrap().try_acquire().await.unwrap();
    scene.assert_held_by(&guard).await;
    theirs.release().await;
    assert!(more.try_hold().await);
    guard.release().await.unwrap();
    scene.assert_free().await;
}

/// Curator and kazoo ignore each other. Each waits for tenure, and tenure for both.
pub(crate) async fn tenure_excludes_two_clients_that_ignore_each_other(
    scene: &Scene,
    other: &ExternalClient,
) {
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
    // Tenure counts the second of them as a waiter.
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
