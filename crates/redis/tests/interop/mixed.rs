//! Many clients of tenure and of another project.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure_testkit::{GENEROUS, eventually, temp_dir};

use crate::scene::{NAME, Scene};
use crate::theirs::{LONG, Theirs};

const EACH: u32 = 3;
const ROUNDS: u32 = 10;

/// The other clients are not in tenure's queue, and get the lock only while it is empty. So tenure's
/// clients begin a round only when the others have finished as many.
pub(crate) async fn ours_and_theirs_count_together_and_lose_nothing(scene: &Scene) {
    let folder = temp_dir();
    let file = &*folder.path().join("counter");
    std::fs::write(file, "0").unwrap();
    let done = &AtomicU32::new(0);
    let mut drivers = Vec::new();
    for _ in 0..EACH {
        drivers.push(scene.theirs().await);
    }
    let theirs = drivers.into_iter().map(|theirs| their_rounds(theirs, file, done));
    let ours = (0..EACH).map(|_| our_rounds(scene, file, done));
    join(join_all(theirs), join_all(ours)).await;
    let counted: u32 = std::fs::read_to_string(file).unwrap().parse().unwrap();
    assert_eq!(counted, 2 * EACH * ROUNDS);
}

async fn their_rounds(mut theirs: Theirs, file: &Path, done: &AtomicU32) {
    for _ in 0..ROUNDS {
        theirs.hold(LONG).await;
        count(file).await;
        theirs.release().await;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

async fn our_rounds(scene: &Scene, file: &Path, done: &AtomicU32) {
    let mutex = scene.ours.mutex(NAME).unwrap();
    for round in 0..ROUNDS {
        let caught_up = || async { done.load(Ordering::Relaxed) >= round };
        assert!(eventually(GENEROUS, caught_up).await, "theirs never get in");
        let guard = mutex.acquire().await.unwrap();
        count(file).await;
        guard.release().await.unwrap();
    }
}

/// Not atomic, and slow: two at a time lose a count.
async fn count(file: &Path) {
    let before: u32 = std::fs::read_to_string(file).unwrap().parse().unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    std::fs::write(file, (before + 1).to_string()).unwrap();
}
