//! Semaphores that Java programs and ours share.

use std::time::Instant;

use tenure_core::store::{Claim, ClaimOutcome, Released, Renewal, WaitPolicy};
use tenure_core::{ErrorKind, LockName, Mode, Semaphore};
use tenure_testkit::{ExternalClient, GENEROUS};
use tokio::time::timeout;

use super::{CURRENT, Duration, Java, LONG, NAME, Scene, long, redisson_3_22, report};

/// The permits that there are.
const SIZE: u32 = 2;

fn ours(scene: &Scene) -> Semaphore {
    // Longer than the bounds below: only messages can be what is heard.
    let options = long().poll_cap(Duration::from_secs(600));
    scene.ours.semaphore(NAME, SIZE).unwrap().with(options)
}

async fn share(version: &ExternalClient, kind: &str) {
    if version.is_missing(kind) {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(version, kind).await;
    assert_eq!(theirs.answer(&format!("size {SIZE}")).await, "true");
    let semaphore = ours(&scene);
    // One of each kind, and none is left.
    assert!(theirs.try_hold(Some(LONG)).await);
    let guard = semaphore.try_acquire().await.unwrap();
    assert_eq!(semaphore.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(theirs.answer("count").await, "0 0");
    // Theirs to ours.
    let waiter = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { (semaphore.acquire().await.unwrap(), Instant::now()) }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished());
    let released = Instant::now();
    theirs.release().await;
    let (second, held) = timeout(GENEROUS, waiter).await.expect("ours hears of it").unwrap();
    let to_ours = held - released;
    assert!(!theirs.try_hold(Some(LONG)).await, "ours holds both");
    // Ours to theirs.
    theirs.want(Some(LONG));
    assert!(theirs.is_silent().await);
    let released = Instant::now();
    second.release().await.unwrap();
    theirs.held().await;
    report(version, kind, "", [to_ours, released.elapsed()]);
    guard.release().await.unwrap();
    theirs.release().await;
    assert_eq!(theirs.answer("count").await, format!("{SIZE} 0"), "none is lost");
    our_abandoned_permit_comes_back(&scene, &mut theirs).await;
}

/// A permit that is not renewed, as after a crash, comes back when its term ends; late calls change nothing.
async fn our_abandoned_permit_comes_back(scene: &Scene, theirs: &mut Java) {
    let store = scene.ours.store();
    let mode = Mode::Permits { take: SIZE, of: SIZE };
    let claim = Claim::new(LockName::new(NAME).unwrap(), mode, Duration::from_secs(1));
    let answer = store.claim(&claim, WaitPolicy::NoWait).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
    assert!(!theirs.try_hold(Some(LONG)).await);
    let semaphore = ours(scene);
    let guard = timeout(GENEROUS, semaphore.acquire()).await.expect("its term ends").unwrap();
    assert_eq!(store.renew(&claim).await.unwrap(), Renewal::Lost);
    assert_eq!(store.release(&claim).await.unwrap(), Released::NotHeld);
    assert!(theirs.try_hold(Some(LONG)).await);
    assert_eq!(theirs.answer("count").await, "0 0");
    theirs.release().await;
    guard.release().await.unwrap();
    assert_eq!(theirs.answer("count").await, format!("{SIZE} 0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_with_leases_are_shared() {
    share(&CURRENT, "permits").await;
    share(&redisson_3_22::RELEASE, "permits").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_without_owners_are_shared() {
    share(&CURRENT, "semaphore").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_of_theirs_is_shown_ends_with_its_lease_and_can_be_evicted() {
    if CURRENT.is_missing("a permit of theirs") {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(&CURRENT, "permits").await;
    let semaphore = scene.ours.semaphore(NAME, 1).unwrap().with(long());
    // Ours comes first: the size is that of ours.
    semaphore.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(theirs.answer("size 7").await, "false");
    assert!(theirs.try_hold(Some(Duration::from_secs(2))).await);
    let holder = scene.state().await.holders[0].clone();
    assert_eq!((holder.mode, &*holder.label), (Mode::Permits { take: 1, of: 1 }, "Redisson"));
    assert_eq!(scene.ours.list("").await.unwrap(), [LockName::new(NAME).unwrap()]);
    let guard = timeout(GENEROUS, semaphore.acquire()).await.expect("its lease ends").unwrap();
    assert_eq!(theirs.answer("release").await, "not held");
    guard.release().await.unwrap();
    assert!(theirs.try_hold(None).await);
    let holder = scene.state().await.holders[0].clone();
    assert_eq!(holder.expires_in, None, "a permit without a lease");
    let waiter = tokio::spawn({
        let semaphore = semaphore.with(long().poll_cap(Duration::from_secs(600)));
        async move { semaphore.acquire().await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(scene.ours.evict(NAME, &holder.owner, "stuck").await.unwrap());
    let guard = timeout(GENEROUS, waiter).await.expect("ours is woken").unwrap();
    assert_eq!(theirs.answer("release").await, "not held");
    assert_eq!(scene.state().await.holders[0].owner, guard.owner().to_string());
    guard.release().await.unwrap();
    assert!(scene.ours.list("").await.unwrap().is_empty());
}
