//! Many clients of tenure and threads of Redisson on one counter.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure_core::Client;
use tenure_testkit::{report_count, temp_dir};

use super::{CURRENT, NAME, Scene, client};

const EACH: usize = 20;
const TIME: Duration = Duration::from_secs(20);

/// Twenty tasks of ours and twenty threads of theirs add to a number in a file that only the lock protects.
async fn count_together(kind: &str) {
    let scene = Scene::set().await;
    let folder = temp_dir();
    let file = &*folder.path().join("counter");
    std::fs::write(file, "0").unwrap();
    let mut theirs = scene.theirs(&CURRENT, kind).await;
    theirs.send(&format!("contend {EACH} {} {}", TIME.as_millis(), file.display()));
    let clients = [client(&scene.server).await, client(&scene.server).await];
    let end = Instant::now() + TIME;
    let rounds = (0..EACH).map(|task| ours(&clients[task % 2], file, end));
    let ours: u64 = join_all(rounds).await.into_iter().sum();
    let theirs: u64 = theirs.line().await.parse().unwrap();
    let counted: u64 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    assert_eq!(counted, ours + theirs, "an update was lost");
    assert!(ours > 0 && theirs > 0, "ours {ours}, theirs {theirs}");
    let kind = if kind == "lock" { "`RLock`" } else { "writers of `RReadWriteLock`" };
    report_count("Redisson 4.7.0", &format!("20 and 20 for 20 s, {kind}"), ours, theirs);
}

async fn ours(client: &Client, file: &Path, end: Instant) -> u64 {
    let mutex = client.mutex(NAME).unwrap();
    let mut count = 0;
    while Instant::now() < end {
        let guard = mutex.acquire().await.unwrap();
        let before: u64 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        tokio::task::yield_now().await;
        std::fs::write(file, (before + 1).to_string()).unwrap();
        count += 1;
        guard.release().await.unwrap();
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_of_ours_and_twenty_of_theirs_lose_no_update() {
    if !CURRENT.is_missing("twenty and twenty") {
        count_together("lock").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_writers_of_ours_and_twenty_of_theirs_lose_no_update() {
    if !CURRENT.is_missing("twenty and twenty writers") {
        count_together("write").await;
    }
}
