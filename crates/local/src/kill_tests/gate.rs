//! What happens inside the gate: a process that does not come out, how much is done in one go, and
//! changes that are not committed.

use std::sync::atomic::Ordering;

use tenure_core::store::{ClaimOutcome, Eviction, Store, WaitPolicy};
use tenure_core::{ErrorKind, Mode};

use super::{QUEUE, Scene, claim};
use crate::layout::*;
use crate::records::Entry;
use crate::txn::Txn;

#[tokio::test]
async fn a_live_process_that_stays_inside_is_named_in_an_error() {
    let scene = Scene::new();
    let gate = scene.survivor.inner.table.map.half(GATE).unwrap();
    gate.store(scene.victim.inner.table.me().gate_word(), Ordering::Release);
    let error = scene.survivor.claim(&claim(Mode::Exclusive), QUEUE).await.unwrap_err();
    gate.store(0, Ordering::Release);
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.is_transient());
    let pid = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&pid), "{error}");
}

#[tokio::test]
async fn a_word_changed_twice_gets_its_first_value_back() {
    let scene = Scene::new();
    let before = scene.image();
    let mut txn = Txn::begin(&scene.victim.inner.table).unwrap();
    let word = RECORDS_AT - 1;
    let first = txn.get(word).unwrap();
    txn.set(word, first + 1).unwrap();
    txn.set(word, first + 2).unwrap();
    assert_eq!(txn.get(word).unwrap(), first + 2);
    drop(txn);
    assert!(before == scene.image());
}

#[tokio::test]
async fn a_change_too_large_for_the_journal_is_refused_and_undone() {
    let scene = Scene::new();
    let before = scene.image();
    let mut txn = Txn::begin(&scene.victim.inner.table).unwrap();
    let words = BUCKETS_AT..BUCKETS_AT + JOURNAL_ENTRIES;
    words.clone().for_each(|word| txn.set(word, 1).unwrap());
    assert!(txn.set(words.end, 1).is_err());
    drop(txn);
    assert!(before == scene.image());
}

/// No operation does this today; the next one that does must not have to know about it.
#[tokio::test]
async fn a_roll_back_restores_records_that_were_taken_and_freed_in_one_change() {
    let scene = Scene::new();
    let [held, gone] = [claim(Mode::Shared), claim(Mode::Shared)];
    for claim in [&held, &gone] {
        scene.victim.claim(claim, QUEUE).await.unwrap();
    }
    scene.victim.release(&gone).await.unwrap();
    let before = scene.image();
    for frees_first in [true, false] {
        let mut txn = Txn::begin(&scene.victim.inner.table).unwrap();
        let live = txn.claim(2).unwrap();
        if frees_first {
            txn.free(live.index, live.generation).unwrap();
        }
        for _ in 0..2 {
            let entry = Entry::new([1, 2], live.process, Mode::Exclusive, 3, 4);
            let taken = txn.build_claim(entry, "another label").unwrap();
            txn.free(taken.index, taken.generation).unwrap();
        }
        drop(txn);
        assert!(before == scene.image(), "frees first: {frees_first}");
    }
}

/// The most words read in one change, by operations on a pool with so many holders and waiters.
async fn most_reads(claims: u32) -> usize {
    let scene = Scene::with_records(4 * claims);
    let permit = |take| claim(Mode::Permits { take, of: claims });
    let holders: Vec<_> = (0..claims).map(|_| permit(1)).collect();
    for holder in &holders {
        scene.departed.claim(holder, QUEUE).await.unwrap();
    }
    let store = &scene.survivor;
    let most = &store.inner.table.kill.most_reads;
    most.store(0, Ordering::Relaxed);
    assert_eq!(store.claim(&permit(1), WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
    let head = permit(1);
    let ClaimOutcome::Queued(place) = store.claim(&head, QUEUE).await.unwrap() else {
        panic!("not queued");
    };
    store.claim(&head, QUEUE).await.unwrap();
    store.inner.wait_step(&head, &place).unwrap();
    let waiters: Vec<_> = (0..claims).map(|_| permit(claims)).collect();
    for waiter in &waiters {
        scene.departed.claim(waiter, QUEUE).await.unwrap();
    }
    let [.., claim, last] = &holders[..] else { panic!("too few") };
    store.renew(claim).await.unwrap();
    store.release(claim).await.unwrap();
    store.evict(&Eviction::new(last.name.clone(), last.owner, "a test")).await.unwrap();
    store.release(waiters.last().unwrap()).await.unwrap();
    most.load(Ordering::Relaxed)
}

#[tokio::test]
async fn the_length_of_a_change_does_not_depend_on_the_number_of_claims() {
    let few = most_reads(600).await;
    let many = most_reads(3_000).await;
    assert!(many <= few + few / 10, "{few} words with 600 claims, {many} with 3,000");
}
