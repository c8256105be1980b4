//! Readers and writers of ours and of theirs.

use tenure_core::{ErrorKind, RwLock};

use crate::scene::{NAME, Scene};

fn ours(scene: &Scene) -> RwLock {
    scene.ours.rw_lock(NAME).unwrap()
}

pub(crate) async fn readers_of_ours_and_of_theirs_read_together(scene: &Scene) {
    let mut theirs = scene.theirs_that("read").await;
    assert!(theirs.try_hold().await);
    let reader = ours(scene).try_read().await.unwrap();
    assert_eq!(scene.state().await.holders.len(), 2);
    theirs.release().await;
    assert!(theirs.try_hold().await, "ours reads, too");
    reader.release().await.unwrap();
    theirs.release().await;
    scene.assert_free().await;
}

pub(crate) async fn their_reader_keeps_our_writer_out_until_it_leaves(scene: &Scene) {
    let mut theirs = scene.theirs_that("read").await;
    assert!(theirs.try_hold().await);
    let error = ours(scene).try_write().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let writer = scene.waiter(1).await;
    theirs.release().await;
    let writer = writer.granted().await;
    scene.assert_held_by(&writer).await;
    writer.release().await.unwrap();
}

pub(crate) async fn our_reader_keeps_their_writer_out_until_it_leaves(scene: &Scene) {
    let mut theirs = scene.theirs_that("write").await;
    let reader = ours(scene).read().await.unwrap();
    assert!(!theirs.try_hold().await);
    theirs.want();
    scene.until_waiting(1).await;
    assert!(theirs.is_silent().await);
    scene.assert_held_by(&reader).await;
    reader.release().await.unwrap();
    theirs.held().await;
    let error = ours(scene).try_read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    theirs.release().await;
    scene.assert_free().await;
}

pub(crate) async fn our_writer_keeps_their_readers_out_until_it_leaves(scene: &Scene) {
    let (mut one, mut other) = (scene.theirs_that("read").await, scene.theirs_that("read").await);
    let writer = ours(scene).write().await.unwrap();
    assert!(!one.try_hold().await);
    one.want();
    scene.until_waiting(1).await;
    other.want();
    scene.until_waiting(2).await;
    assert!(one.is_silent().await && other.is_silent().await);
    scene.assert_held_by(&writer).await;
    writer.release().await.unwrap();
    one.held().await;
    other.held().await;
    one.release().await;
    other.release().await;
    scene.assert_free().await;
}

pub(crate) async fn writers_of_ours_and_of_theirs_take_turns(scene: &Scene) {
    let mut theirs = scene.theirs_that("write").await;
    let writer = ours(scene).write().await.unwrap();
    assert!(!theirs.try_hold().await);
    theirs.want();
    scene.until_waiting(1).await;
    assert!(theirs.is_silent().await);
    let last = scene.waiter(2).await;
    writer.release().await.unwrap();
    theirs.held().await;
    scene.until_waiting(1).await;
    assert!(last.waits());
    theirs.release().await;
    let last = last.granted().await;
    scene.assert_held_by(&last).await;
    last.release().await.unwrap();
}
