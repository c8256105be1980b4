//! Fencing tokens: what the table hands out is durable, whenever the process that reserves it dies.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::Mode;
use tenure_core::store::{ClaimOutcome, Released, Store};

use super::{QUEUE, Scene, claim, identity};
use crate::LocalStore;
use crate::access::Access;
use crate::layout::STATE;
use crate::reservation::reserve;
use crate::tokens::Tokens;
use crate::txn::Txn;

/// Uses all tokens but so many.
fn leave_tokens(store: &LocalStore, left: u64) {
    let mut txn = Txn::begin(&store.inner.table).unwrap();
    while txn.tokens_left() > left {
        txn.next_token().unwrap();
    }
    txn.commit().unwrap();
}

fn ceiling_in_table(scene: &Scene) -> u64 {
    let word = scene.survivor.inner.table.map.word(STATE + 3).unwrap();
    word.load(Ordering::Acquire)
}

/// The process dies before each of its steps: writing, syncing, adding to the table. With it, the
/// power may fail, and then what was not synced is lost or spoiled.
#[tokio::test]
async fn no_token_is_above_the_durable_ceiling_whenever_a_reservation_is_killed() {
    let scene = Scene::with_tokens(64);
    let tokens = scene.dir.path().join("tokens");
    leave_tokens(&scene.survivor, 3);
    let (before, file) = (scene.snapshot(), std::fs::read(&tokens).unwrap());
    let first = ceiling_in_table(&scene);
    for step in 0..100 {
        scene.restore(&before);
        std::fs::write(&tokens, &file).unwrap();
        let victim = &scene.victim.inner;
        victim.table.tokens.synced.store(0, Ordering::Release);
        victim.table.kill.arm(step);
        let done = reserve(&victim.table.tokens, &Arc::downgrade(&victim.table));
        let was_killed = victim.table.kill.disarm();
        identity(&scene.victim).store(0, Ordering::Release);
        scene.check(step);
        let table = ceiling_in_table(&scene);
        // What was written and not synced is spoiled by the power cut, at worst.
        let written = std::fs::read(&tokens).unwrap();
        let mut after = written.clone();
        if victim.table.tokens.synced.load(Ordering::Acquire) == 0 {
            for (at, byte) in after.iter_mut().enumerate() {
                *byte ^= u8::from(file.get(at) != Some(byte)) * 0x5a;
            }
        }
        std::fs::write(&tokens, &after).unwrap();
        assert!(scene.survivor.inner.table.tokens.ceiling().unwrap() >= table, "{step}");
        std::fs::write(&tokens, &written).unwrap();
        go_on(&scene, first - 4).await;
        if !was_killed {
            done.unwrap();
            assert!(table > first && step > 8, "{step}");
            return;
        }
    }
    panic!("the reservation has no end");
}

/// More tokens than were left are handed out, each above the last and below the durable ceiling.
async fn go_on(scene: &Scene, mut last: u64) {
    for _ in 0..200 {
        let claim = claim(Mode::Exclusive);
        let answer = scene.survivor.claim(&claim, QUEUE).await.unwrap();
        let ClaimOutcome::Granted(grant) = answer else { panic!("not granted: {answer:?}") };
        let token = grant.token.unwrap().get();
        assert!(token > last, "{token} after {last}");
        last = token;
        assert!(token < scene.survivor.inner.table.tokens.ceiling().unwrap());
        scene.survivor.release(&claim).await.unwrap();
    }
    scene.survivor.inner.reserver.finish();
}

#[tokio::test]
async fn a_reservation_that_another_table_made_is_not_used() {
    let scene = Scene::with_tokens(64);
    leave_tokens(&scene.survivor, 3);
    let inner = &scene.survivor.inner;
    let theirs = inner.table.tokens.write(0).unwrap();
    reserve(&inner.table.tokens, &Arc::downgrade(&inner.table)).unwrap();
    let mut txn = Txn::begin(&inner.table).unwrap();
    assert_eq!(txn.next_token().unwrap().get(), theirs.end);
}

/// A kill in a release that has no token for the next waiter.
#[tokio::test]
async fn a_kill_in_a_hand_off_without_a_token_leaves_a_sound_table() {
    let mut scene = Scene::with_tokens(64);
    let own = claim(Mode::Exclusive);
    scene.victim.claim(&own, QUEUE).await.unwrap();
    scene.bystander(Mode::Exclusive).await;
    leave_tokens(&scene.survivor, 0);
    // While this reservation is locked, no process reserves tokens.
    let kept = Tokens::open(scene.dir.path(), &Access::default(), 0, 64).unwrap();
    let turn = kept.lock_reservation().unwrap();
    let before = scene.snapshot();
    for step in 0..100 {
        scene.restore(&before);
        scene.victim.inner.table.kill.arm(step);
        let released = scene.victim.release(&own).await;
        let was_killed = scene.victim.inner.table.kill.disarm();
        let alive = identity(&scene.victim).swap(0, Ordering::AcqRel);
        let census = scene.survivor.check().unwrap();
        identity(&scene.victim).store(alive, Ordering::Release);
        assert_eq!(census.waiters, 1, "{step}");
        if !was_killed {
            assert_eq!(released.unwrap(), Released::Released);
            assert_eq!(census.holders, 0);
            assert!(step > 20, "{step}");
            drop(turn);
            let answer = scene.survivor.claim(&scene.bystanders[0], QUEUE).await.unwrap();
            assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
            return;
        }
    }
    panic!("the release has no end");
}

#[tokio::test]
async fn a_waiter_without_a_token_is_woken_to_repeat_its_claim() {
    let mut scene = Scene::with_tokens(64);
    let own = claim(Mode::Exclusive);
    scene.victim.claim(&own, QUEUE).await.unwrap();
    let next = scene.bystander(Mode::Exclusive).await;
    let ClaimOutcome::Queued(place) = scene.survivor.claim(&next, QUEUE).await.unwrap() else {
        panic!("not queued");
    };
    leave_tokens(&scene.survivor, 0);
    let kept = Tokens::open(scene.dir.path(), &Access::default(), 0, 64).unwrap();
    let turn = kept.lock_reservation().unwrap();
    let store = scene.survivor.clone();
    let waiting = tokio::spawn({
        let next = next.clone();
        async move { store.wait(&next, &place).await.unwrap() }
    });
    // On this runtime of one thread, the waiter is asleep when we go on.
    tokio::task::yield_now().await;
    scene.victim.release(&own).await.unwrap();
    let told = tokio::time::timeout(tenure_testkit::GENEROUS, waiting).await.unwrap().unwrap();
    let ClaimOutcome::Queued(place) = told else { panic!("not queued: {told:?}") };
    assert_eq!(place.ask_again_in, Some(std::time::Duration::ZERO));
    drop(turn);
    let answer = scene.survivor.claim(&next, QUEUE).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
}
