//! Cases of one kind of lock, with the current release.

use std::time::Instant;

use tenure_core::Options;
use tenure_testkit::GENEROUS;
use tokio::time::timeout;

use super::{CURRENT, Duration, LONG, NAME, Scene, long};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_java_program_is_followed_by_ours_after_its_watchdog_term() {
    if CURRENT.is_missing("a killed Java program") {
        return;
    }
    let (scene, watchdog) = (Scene::set().await, Duration::from_secs(4));
    let mut theirs = scene.theirs_renewing(&CURRENT, "lock", watchdog).await;
    assert!(theirs.try_hold(None).await);
    let mutex = scene.ours.mutex(NAME).unwrap().with(long());
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    tokio::time::sleep(2 * watchdog).await;
    assert!(!waiter.is_finished(), "its watchdog renews");
    let killed = Instant::now();
    theirs.kill9();
    let guard = timeout(GENEROUS, waiter).await.expect("ours takes over").unwrap();
    println!("taken over {:?} after the kill, watchdog {watchdog:?}", killed.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_watchdogs_keep_their_locks_for_several_terms() {
    if CURRENT.is_missing("both watchdogs") {
        return;
    }
    let (scene, term) = (Scene::set().await, Duration::from_secs(3));
    let mut theirs = scene.theirs_renewing(&CURRENT, "lock", term).await;
    assert!(theirs.try_hold(None).await);
    let end = Instant::now() + 3 * term;
    while Instant::now() < end {
        assert!(scene.is_busy(false).await, "their watchdog lost the lock");
        tokio::time::sleep(term / 10).await;
    }
    theirs.release().await;
    let options = Options::new().ttl(term);
    let guard = scene.ours.mutex(NAME).unwrap().with(options).acquire().await.unwrap();
    let end = Instant::now() + 3 * term;
    while Instant::now() < end && guard.is_valid() {
        assert!(!theirs.try_hold(None).await || !guard.is_valid(), "two hold");
        tokio::time::sleep(term / 10).await;
    }
    assert!(guard.is_valid(), "our keeper lost the lock");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_both_rise_in_one_order() {
    if CURRENT.is_missing("tokens of both") {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(&CURRENT, "fenced").await;
    let mut last = 0;
    for _ in 0..5 {
        let guard = scene.ours.mutex(NAME).unwrap().with(long()).acquire().await.unwrap();
        let ours = guard.token().unwrap().get();
        assert_eq!(theirs.answer("token").await, ours.to_string(), "Java reads our token");
        guard.release().await.unwrap();
        let their: u64 = theirs.answer("fence").await.parse().unwrap();
        theirs.release().await;
        assert!(last < ours && ours < their, "{last} {ours} {their}");
        last = their;
    }
}

/// Our release wakes the head of their queue, and no claim of ours overtakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_fair_lock_come_in_their_order_before_later_claims_of_ours() {
    if CURRENT.is_missing("waiters of a fair lock") {
        return;
    }
    let scene = Scene::set().await;
    let (mut first, mut second) =
        (scene.theirs(&CURRENT, "fair").await, scene.theirs(&CURRENT, "fair").await);
    let guard = scene.ours.mutex(NAME).unwrap().with(long()).acquire().await.unwrap();
    let waiting = |count: &'static str| {
        let server = &scene.server;
        move || async move {
            server.command(&["LLEN", "redisson_lock_queue:{orders}"]).unwrap() == count
        }
    };
    first.want(Some(LONG));
    assert!(tenure_testkit::eventually(GENEROUS, waiting("1")).await);
    second.want(Some(LONG));
    assert!(tenure_testkit::eventually(GENEROUS, waiting("2")).await);
    let mutex = scene.ours.mutex(NAME).unwrap().with(long());
    let ours = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    guard.release().await.unwrap();
    first.held().await;
    assert!(scene.is_busy(false).await);
    first.release().await;
    second.held().await;
    assert!(!ours.is_finished());
    second.release().await;
    timeout(GENEROUS, ours).await.expect("ours comes last").unwrap().release().await.unwrap();
}

/// A writer of ours that becomes a reader lets their readers in, and no writer of theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_downgrade_lets_their_readers_in_and_no_writer() {
    if CURRENT.is_missing("our downgrade") {
        return;
    }
    let scene = Scene::set().await;
    let mut reader = scene.theirs(&CURRENT, "read").await;
    let mut writer = scene.theirs(&CURRENT, "write").await;
    let guard = scene.ours.rw_lock(NAME).unwrap().with(long()).write().await.unwrap();
    reader.want(None);
    assert!(reader.is_silent().await);
    let guard = guard.downgrade().await.unwrap();
    reader.held().await;
    assert!(!writer.try_hold(None).await);
    guard.release().await.unwrap();
    writer.want(None);
    assert!(writer.is_silent().await);
    reader.release().await;
    writer.held().await;
    writer.release().await;
    assert!(scene.state().await.is_free());
}
