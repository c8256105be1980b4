//! Latches: counted down by many, waited for by many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::{Client, ErrorKind, Latch, LockName};
use tenure_testkit::GENEROUS;

use crate::Fixture;
use crate::cases::cells::raw_cells;
use crate::cases::processes::{ttl_for_killed_process, url};
use crate::fixture::{client, name};
use crate::holder_process::HolderProcess;

/// A latch on a connection of its own. `None`: the store keeps no values, and says why.
async fn latch(fixture: &dyn Fixture, name: &LockName, count: u32) -> Option<(Client, Latch)> {
    let client = client(fixture).await;
    let latch = client.latch(name.as_str(), count);
    if raw_cells(fixture).await.is_none() {
        assert_eq!(latch.unwrap_err().kind(), ErrorKind::Unsupported);
        return None;
    }
    Some((client, latch.unwrap()))
}

/// No wait ends before the last party has counted down; then all end, also those that begin later.
pub async fn a_latch_opens_when_the_last_party_has_counted_down(fixture: &dyn Fixture) {
    const PARTIES: u32 = 5;
    let (name, counted) = (name("latch"), Arc::new(AtomicU32::new(0)));
    let Some((_client, ours)) = latch(fixture, &name, PARTIES).await else { return };
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (client, latch) = latch(fixture, &name, PARTIES).await.unwrap();
        let counted = Arc::clone(&counted);
        waiters.spawn(async move {
            latch.wait().await.unwrap();
            client.close().await;
            counted.load(Ordering::SeqCst)
        });
    }
    assert_eq!(ours.count().await.unwrap(), PARTIES);
    let mut parties = tokio::task::JoinSet::new();
    for _ in 0..PARTIES {
        let (client, latch) = latch(fixture, &name, PARTIES).await.unwrap();
        let counted = Arc::clone(&counted);
        parties.spawn(async move {
            // Counted before the call, because a waiter may see the count before this task sees the
            // answer.
            counted.fetch_add(1, Ordering::SeqCst);
            let left = latch.count_down().await.unwrap();
            client.close().await;
            left
        });
    }
    let mut left = parties.join_all().await;
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2, 3, 4], "each party counted once");
    let seen = tokio::time::timeout(GENEROUS, waiters.join_all()).await.expect("all pass");
    assert_eq!(seen, [PARTIES; 3], "a waiter passed before all had counted");
    ours.wait().await.unwrap();
    assert_eq!(ours.count().await.unwrap(), 0);
}

/// To count below zero, and a count of zero, are refused as invalid.
pub async fn counting_below_zero_is_refused_and_nothing_is_lost(fixture: &dyn Fixture) {
    let name = name("latch-zero");
    let Some((client, latch)) = latch(fixture, &name, 1).await else { return };
    let refused = client.latch(name.as_str(), 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert_eq!(latch.count().await.unwrap(), 1);
    assert_eq!(latch.count_down().await.unwrap(), 0);
    for _ in 0..3 {
        let refused = latch.count_down().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert_eq!(latch.count().await.unwrap(), 0);
    }
    latch.wait().await.unwrap();
    // The counter and the latch of one name are two things.
    assert_eq!(client.counter(name.as_str()).unwrap().get().await.unwrap(), 0);
}

/// Parties with a lease count down like others. A party that leaves or loses its lease before it has
/// counted down breaks the latch, for present and later waiters; one that has counted down does not.
pub async fn a_party_that_dies_or_leaves_breaks_the_latch(fixture: &dyn Fixture) {
    if fixture.injects_faults() {
        return;
    }
    let name = name("latch-parties");
    let Some((client, latch)) = latch(fixture, &name, 2).await else { return };
    if !client.store().capabilities().permits {
        assert_eq!(latch.join().await.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let (one, other) = (latch.join().await.unwrap(), latch.join().await.unwrap());
    assert_eq!(latch.join().await.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(one.count_down().await.unwrap(), 1);
    assert_eq!(other.count_down().await.unwrap(), 0);
    tokio::time::timeout(GENEROUS, latch.wait()).await.expect("the latch is open").unwrap();

    let (raw, lock) = (crate::fixture::raw(fixture).await, |name: &str| format!("latch:{name}"));
    raw.assert_free(&lock(name.as_str()).parse().unwrap()).await;
    for evicted in [false, true] {
        let name = crate::fixture::name("latch-broken");
        let broken = client.latch(name.as_str(), 2).unwrap();
        let (one, dead) = (broken.join().await.unwrap(), broken.join().await.unwrap());
        let waiting = tokio::spawn({
            let broken = broken.clone();
            async move { broken.wait().await }
        });
        assert_eq!(one.count_down().await.unwrap(), 1);
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        assert!(!waiting.is_finished(), "all parties live");
        if evicted {
            raw.evict_owner(&lock(name.as_str()).parse().unwrap(), dead.owner()).await;
        } else {
            drop(dead);
        }
        let ended = tokio::time::timeout(GENEROUS, waiting).await.expect("the wait ends");
        assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Broken);
        assert_eq!(broken.wait().await.unwrap_err().kind(), ErrorKind::Broken);
    }
}

/// A party whose process is killed before it has counted down breaks the latch.
pub async fn a_killed_party_process_breaks_the_latch(fixture: &dyn Fixture) {
    let name = name("latch-killed");
    let raw = crate::fixture::raw(fixture).await;
    let Some(url) = url(fixture, &raw) else { return };
    let Some((client, latch)) = latch(fixture, &name, 2).await else { return };
    if !client.store().capabilities().permits {
        return;
    }
    let mut victim = HolderProcess::start(&url).await;
    let ttl = ttl_for_killed_process(fixture, &raw).as_millis();
    victim.send(&format!("latch {name} 2 {ttl}"));
    victim.expect_line("joined").await;
    assert_eq!(latch.count_down().await.unwrap(), 1);
    let waiting = tokio::spawn(async move { latch.wait().await });
    victim.process.kill9().unwrap();
    let ended = tokio::time::timeout(GENEROUS, waiting).await.expect("the wait ends");
    assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Broken);
}

/// A latch whose parties never come expires: those that wait for it get an error.
pub async fn a_latch_that_expires_ends_the_wait(fixture: &dyn Fixture) {
    let name = name("latch-expires");
    let Some((_client, latch)) = latch(fixture, &name, 2).await else { return };
    let latch = latch.ttl(Duration::from_secs(1));
    let ended = tokio::time::timeout(GENEROUS, latch.wait()).await.expect("the wait ends");
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(latch.count().await.unwrap(), 2);
}
