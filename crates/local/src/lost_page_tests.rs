//! Tests: a process that loses a page of the table stops using it, and harms no other process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::store::{Claim, ClaimOutcome, Released, Store, WaitPolicy};
use tenure_core::{ErrorKind, LockName, Mode};

use crate::layout::*;
use crate::queue::bucket_of;
use crate::records::Name;
use crate::txn::Txn;
use crate::{LocalStore, reservation};

fn exclusive(lock: &str) -> Claim {
    Claim::new(LockName::new(lock).unwrap(), Mode::Exclusive, Duration::from_secs(600))
        .with_label("a test")
}

async fn hold(store: &LocalStore, lock: &str) -> Claim {
    let claim = exclusive(lock);
    let answer = store.claim(&claim, WaitPolicy::NoWait).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
    claim
}

fn bucket_page(lock: &str) -> usize {
    BUCKETS_AT + bucket_of(Name::new(lock).hash)
}

/// Two stores on one directory, each with locks held; the first is about to lose a page.
struct Scene {
    broken: LocalStore,
    healthy: LocalStore,
    held_by_broken: Claim,
    held_by_healthy: Claim,
    dir: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let broken = LocalStore::open(dir.path()).unwrap();
        let healthy = LocalStore::open(dir.path()).unwrap();
        let held_by_broken = hold(&broken, "held by the broken store").await;
        let held_by_healthy = hold(&healthy, "held by the healthy store").await;
        // Gives the free list records, so that claims change pages that are still there.
        let freed = hold(&healthy, "freed").await;
        healthy.release(&freed).await.unwrap();
        Self { broken, healthy, held_by_broken, held_by_healthy, dir }
    }

    fn lose(&self, word: usize) {
        self.broken.inner.table.map.lose_page(word).unwrap();
    }

    /// Uses the broken store in every way, which fails each time.
    async fn use_broken(&self) {
        let inside = Txn::begin(&self.healthy.inner.table).unwrap();
        let fault = Txn::begin(&self.broken.inner.table).map(drop).unwrap_err();
        assert_eq!(fault.kind(), ErrorKind::Damaged, "it does not even wait at the gate");
        drop(inside);
        for n in 0..200 {
            let refused =
                self.broken.claim(&exclusive(&format!("many/{n}")), WaitPolicy::NoWait).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Damaged);
        }
        self.healthy.check().unwrap();
        let store = &self.broken;
        let results = [
            store
                .claim(&exclusive("held by the healthy store"), WaitPolicy::NoWait)
                .await
                .map(drop),
            store.release(&self.held_by_broken).await.map(drop),
            store.renew(&self.held_by_broken).await.map(drop),
            store.list("").await.map(drop),
            store.check().map(drop),
            store.diagnose().await.map(drop),
        ];
        for result in results {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Damaged);
        }
        let table = &Arc::downgrade(&store.inner.table);
        let reserved = reservation::reserve(&store.inner.table.tokens, table);
        assert_eq!(reserved.unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(reservation::grow(table).unwrap_err().kind(), ErrorKind::Damaged);
    }

    /// The other stores find the table sound, while the broken store is open and afterwards.
    async fn verify(self) {
        assert_eq!(self.healthy.check().unwrap().holders, 2);
        let claim = hold(&self.healthy, "many/0").await;
        self.healthy.release(&claim).await.unwrap();
        assert_eq!(self.healthy.release(&self.held_by_healthy).await.unwrap(), Released::Released);
        drop(self.broken);
        assert_eq!(self.healthy.check().unwrap().holders, 1);
        let third = LocalStore::open(self.dir.path()).unwrap();
        third.check().unwrap();
        hold(&third, "held by the broken store").await;
        hold(&third, "held by the healthy store").await;
        assert_eq!(self.healthy.check().unwrap().holders, 2);
    }
}

#[tokio::test]
async fn a_store_that_lost_a_page_of_buckets_changes_nothing() {
    let scene = Scene::new().await;
    scene.lose(bucket_page("first"));
    let refused = scene.broken.claim(&exclusive("first"), WaitPolicy::NoWait).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Damaged);
    scene.use_broken().await;
    scene.verify().await;
}

#[tokio::test]
async fn a_lock_on_a_lost_page_is_not_reported_as_free() {
    let scene = Scene::new().await;
    let held = &scene.held_by_healthy.name;
    scene.lose(bucket_page(held.as_str()));
    assert_eq!(scene.broken.inspect(held).await.unwrap_err().kind(), ErrorKind::Damaged);
    scene.use_broken().await;
    scene.verify().await;
}

#[tokio::test]
async fn a_store_that_lost_the_page_of_the_gate_changes_nothing() {
    let scene = Scene::new().await;
    scene.lose(GATE);
    let refused = scene.broken.claim(&exclusive("first"), WaitPolicy::NoWait).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Damaged);
    scene.use_broken().await;
    scene.verify().await;
}

#[tokio::test]
async fn a_store_that_lost_a_page_of_records_changes_nothing() {
    let scene = Scene::new().await;
    scene.lose(RECORDS_AT + RECORD_WORDS);
    scene.broken.release(&scene.held_by_broken).await.unwrap_err();
    scene.use_broken().await;
    scene.verify().await;
}

#[tokio::test]
async fn a_change_during_which_a_page_was_lost_is_undone_by_the_next_process() {
    let scene = Scene::new().await;
    let (table, word) = (&scene.broken.inner.table, bucket_page("first"));
    let real = |word| scene.healthy.inner.table.map.word(word).unwrap().load(Ordering::Acquire);
    let mut txn = Txn::begin(table).unwrap();
    txn.set(word, 1).unwrap();
    scene.lose(RECORDS_AT + RECORD_WORDS);
    assert_eq!(txn.get(RECORDS_AT + RECORD_WORDS).unwrap(), 0);
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Damaged);
    assert!(!txn.has_committed());
    drop(txn);
    assert_ne!(real(JOURNAL_LENGTH), 0, "the journal stays for the next process");
    assert_eq!(real(word), 1);
    scene.use_broken().await;
    assert_eq!((real(word), real(JOURNAL_LENGTH)), (0, 0));
    scene.verify().await;
}

#[tokio::test]
async fn nothing_is_changed_if_the_page_of_the_journal_is_lost() {
    let page = rustix::param::page_size() / 8;
    if page >= JOURNAL + JOURNAL_ENTRIES * 2 {
        println!("skipped: a lost page of the journal: it has one page only");
        return;
    }
    let scene = Scene::new().await;
    let mut txn = Txn::begin(&scene.broken.inner.table).unwrap();
    scene.lose(page);
    let fault = (0..JOURNAL_ENTRIES).find_map(|n| txn.set(BUCKETS_AT + n, 1).err());
    assert_eq!(fault.unwrap().kind(), ErrorKind::Damaged);
    drop(txn);
    scene.use_broken().await;
    scene.verify().await;
}

#[tokio::test]
async fn a_lost_page_of_process_slots_does_not_open_the_gate_of_a_live_process() {
    let scene = Scene::new().await;
    let inside = Txn::begin(&scene.healthy.inner.table).unwrap();
    scene.lose(SLOTS_AT);
    let fault = Txn::begin(&scene.broken.inner.table).map(drop).unwrap_err();
    assert_eq!(fault.kind(), ErrorKind::Damaged);
    let gate = scene.healthy.inner.table.map.half(GATE).unwrap().load(Ordering::Acquire);
    let me = scene.healthy.inner.table.me().gate_word();
    assert_eq!(gate & !(1 << 31), me, "the healthy store is still inside");
    drop(inside);
    scene.use_broken().await;
    scene.verify().await;
}

#[tokio::test]
async fn a_gate_whose_page_was_lost_is_free_again_when_the_store_is_closed() {
    let scene = Scene::new().await;
    let real = |word| scene.healthy.inner.table.map.word(word).unwrap().load(Ordering::Acquire);
    let mut txn = Txn::begin(&scene.broken.inner.table).unwrap();
    // The next entry is on the second page of the journal, its length on the first.
    let entries = rustix::param::page_size().saturating_sub(JOURNAL * 8) / 16;
    let entries = entries.min(JOURNAL_ENTRIES - 1);
    for n in 0..entries {
        txn.set(BUCKETS_AT + n, 1).unwrap();
    }
    scene.lose(GATE);
    let fault = txn.set(BUCKETS_AT + entries, 1).unwrap_err();
    assert_eq!(fault.kind(), ErrorKind::Damaged);
    assert_eq!(real(BUCKETS_AT + entries), 0);
    drop(txn);
    let blocked = scene.healthy.check().unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::Unreachable, "{blocked}");
    drop(scene.broken);
    assert_eq!(scene.healthy.check().unwrap().holders, 2);
    LocalStore::open(scene.dir.path()).unwrap().check().unwrap();
}
