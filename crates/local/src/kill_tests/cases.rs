//! Every operation that changes the table, in every situation that makes it take another path.

use std::sync::Arc;

use tenure_core::store::{Claim, ClaimOutcome, Eviction, Store, WaitPolicy};
use tenure_core::{ErrorKind, LockName, Mode};
use tenure_testkit::{GENEROUS, eventually};

use super::{FILLER, LAPSED, QUEUE, Scene, brief, claim, claim_on};
use crate::LocalStore;
use crate::layout::{CHUNK, words_for};
use crate::queue::bucket_of;
use crate::records::Name;
use crate::reservation;

const PERMIT: Mode = Mode::Permits { take: 1, of: 3 };
const ALL_PERMITS: Mode = Mode::Permits { take: 3, of: 3 };

fn is_granted(answer: &ClaimOutcome) -> bool {
    matches!(answer, ClaimOutcome::Granted(_))
}

#[tokio::test]
async fn a_kill_in_a_claim_renewal_or_release_leaves_a_sound_table() {
    let mut scene = Scene::new();
    let [first, second, third] = [(); 3].map(|()| claim(Mode::Exclusive));
    let steps = scene.kill_everywhere(async |store| store.claim(&first, QUEUE).await).await;
    assert!(steps > 20, "{steps}");
    scene.kill_everywhere(async |store| store.claim(&second, QUEUE).await).await;
    scene.kill_everywhere(async |store| store.claim(&third, QUEUE).await).await;
    scene.kill_everywhere(async |store| store.renew(&first).await).await;
    scene.kill_everywhere(async |store| store.claim(&first, QUEUE).await).await;
    scene.kill_everywhere(async |store| store.claim(&second, QUEUE).await).await;
    // Hands over to the second.
    scene.kill_everywhere(async |store| store.release(&first).await).await;
    assert!(is_granted(&scene.victim.claim(&second, QUEUE).await.unwrap()));
    // Leaves the queue.
    scene.kill_everywhere(async |store| store.release(&third).await).await;
    scene.kill_everywhere(async |store| store.release(&second).await).await;
    assert!(scene.survivor.list("").await.unwrap().is_empty());
    scene.finish(250, 1_200);
}

#[tokio::test]
async fn a_kill_among_live_waiters_leaves_them_queued() {
    let mut scene = Scene::new();
    let own = claim(Mode::Exclusive);
    scene.victim.claim(&own, QUEUE).await.unwrap();
    scene.bystander(Mode::Exclusive).await;
    let middle = claim(Mode::Exclusive);
    scene.kill_everywhere(async |store| store.claim(&middle, QUEUE).await).await;
    scene.bystander(Mode::Exclusive).await;
    // A waiter that gives up.
    let leave = async |store: &LocalStore| store.claim(&middle, WaitPolicy::NoWait).await;
    scene.kill_everywhere(leave).await;
    scene.kill_everywhere(async |store| store.renew(&own).await).await;
    scene.kill_everywhere(async |store| store.release(&own).await).await;
    scene.finish(150, 500);
}

#[tokio::test]
async fn a_kill_among_readers_and_permits_leaves_a_sound_table() {
    for mode in [Mode::Shared, PERMIT] {
        let mut scene = Scene::new();
        scene.bystander(mode).await;
        let claims = [(); 2].map(|()| claim(mode));
        for claim in &claims {
            scene.kill_everywhere(async |store| store.claim(claim, QUEUE).await).await;
        }
        scene.bystander(Mode::Exclusive).await;
        for claim in &claims {
            scene.kill_everywhere(async |store| store.renew(claim).await).await;
            scene.kill_everywhere(async |store| store.release(claim).await).await;
        }
        scene.finish(150, 500);
    }
}

#[tokio::test]
async fn a_kill_while_several_waiters_are_admitted_leaves_the_rest_queued() {
    for (held, waiting) in [(Mode::Exclusive, Mode::Shared), (ALL_PERMITS, PERMIT)] {
        let mut scene = Scene::new();
        let own = claim(held);
        scene.victim.claim(&own, QUEUE).await.unwrap();
        for _ in 0..3 {
            scene.bystander(waiting).await;
        }
        scene.bystander(Mode::Exclusive).await;
        scene.kill_everywhere(async |store| store.release(&own).await).await;
        scene.finish(200, 2_000);
    }
}

#[tokio::test]
async fn a_kill_in_a_downgrade_leaves_a_writer_or_a_reader_and_the_rest_queued() {
    let (mut kills, mut recovery_kills) = (0, 0);
    for waiting in [&[][..], &[Mode::Exclusive], &[Mode::Shared, Mode::Shared, Mode::Exclusive]] {
        let mut scene = Scene::new();
        let own = claim(Mode::Exclusive);
        scene.victim.claim(&own, QUEUE).await.unwrap();
        for mode in waiting {
            scene.bystander(*mode).await;
        }
        scene.kill_everywhere(async |store| store.downgrade(&own).await).await;
        let state = scene.survivor.inspect(&own.name).await.unwrap();
        assert!(state.holders.iter().all(|holder| holder.mode == Mode::Shared), "{state:?}");
        // Asked for again, and given up.
        scene.kill_everywhere(async |store| store.downgrade(&own).await).await;
        scene.kill_everywhere(async |store| store.release(&own).await).await;
        kills += scene.kills;
        recovery_kills += scene.recovery_kills;
    }
    println!("killed {kills} times, and {recovery_kills} times in recovery");
    assert!(kills >= 200 && recovery_kills >= 1_000, "{kills}, {recovery_kills}");
}

/// A claim on what the same owner held or waited for until its term ended, in all company that
/// makes a difference. The record it gives back is the first that is free for the new claim.
#[tokio::test]
async fn a_kill_in_a_claim_on_an_expired_claim_of_the_same_owner_leaves_a_sound_table() {
    let (mut kills, mut recovery_kills) = (0, 0);
    for policy in [QUEUE, WaitPolicy::NoWait] {
        for (mode, company) in [
            (Mode::Exclusive, None),
            (Mode::Exclusive, Some(Mode::Exclusive)),
            (PERMIT, Some(PERMIT)),
            (PERMIT, Some(ALL_PERMITS)),
        ] {
            let mut scene = Scene::new();
            let own = claim(mode);
            scene.victim.claim(&own, QUEUE).await.unwrap();
            if let Some(mode) = company {
                // Queued behind it, or beside it in the pool.
                scene.bystander(mode).await;
                scene.bystander(mode).await;
            }
            scene.victim.claim(&brief(&own), QUEUE).await.unwrap();
            scene.kill_everywhere(async |store| store.claim(&own, policy).await).await;
            kills += scene.kills;
            recovery_kills += scene.recovery_kills;

            let mut scene = Scene::new();
            scene.bystander(company.unwrap_or(Mode::Exclusive)).await;
            scene.victim.claim(&own, LAPSED).await.unwrap();
            scene.bystander(Mode::Exclusive).await;
            scene.kill_everywhere(async |store| store.claim(&own, policy).await).await;
            kills += scene.kills;
            recovery_kills += scene.recovery_kills;
        }
    }
    println!("killed {kills} times, and {recovery_kills} times in recovery");
    assert!(kills >= 700 && recovery_kills >= 5_000, "{kills}, {recovery_kills}");
}

#[tokio::test]
async fn a_kill_while_expired_claims_of_others_are_swept_leaves_a_sound_table() {
    let mut scene = Scene::new();
    scene.departed.claim(&brief(&claim(Mode::Exclusive)), QUEUE).await.unwrap();
    scene.kill_everywhere(async |store| store.claim(&claim(Mode::Exclusive), QUEUE).await).await;

    let mut pool = Scene::new();
    for _ in 0..3 {
        pool.departed.claim(&brief(&claim(PERMIT)), QUEUE).await.unwrap();
    }
    let newcomer =
        async |store: &LocalStore| store.claim(&claim(ALL_PERMITS), WaitPolicy::NoWait).await;
    pool.kill_everywhere(newcomer).await;

    let mut line = Scene::new();
    let holder = claim(Mode::Shared);
    line.departed.claim(&holder, QUEUE).await.unwrap();
    for _ in 0..3 {
        line.departed.claim(&claim(Mode::Exclusive), LAPSED).await.unwrap();
    }
    line.bystander(Mode::Exclusive).await;
    line.departed.claim(&brief(&holder), QUEUE).await.unwrap();
    line.kill_everywhere(async |store| store.claim(&claim(Mode::Exclusive), QUEUE).await).await;
    line.kills += scene.kills + pool.kills;
    line.recovery_kills += scene.recovery_kills + pool.recovery_kills;
    line.finish(300, 1_500);
}

#[tokio::test]
async fn a_kill_while_dead_waiters_are_removed_leaves_a_sound_table() {
    let mut scene = Scene::new();
    scene.bystander(PERMIT).await;
    scene.departed.claim(&claim(PERMIT), QUEUE).await.unwrap();
    for _ in 0..2 {
        scene.departed.claim(&claim(ALL_PERMITS), QUEUE).await.unwrap();
    }
    let own = claim(PERMIT);
    scene.victim.claim(&own, QUEUE).await.unwrap();
    scene.departed.claim(&claim(Mode::Shared), LAPSED).await.unwrap();
    scene.bystander(Mode::Exclusive).await;
    scene.bury_departed();
    scene.kill_everywhere(async |store| store.claim(&own, QUEUE).await).await;
    scene.kill_everywhere(async |store| store.release(&own).await).await;
    scene.finish(100, 500);
}

#[tokio::test]
async fn a_kill_in_an_eviction_leaves_a_sound_table() {
    let mut scene = Scene::new();
    let holder = claim(Mode::Exclusive);
    let waiter = claim(Mode::Exclusive);
    scene.departed.claim(&holder, QUEUE).await.unwrap();
    scene.bystander(Mode::Exclusive).await;
    scene.departed.claim(&waiter, QUEUE).await.unwrap();
    scene.bystander(Mode::Exclusive).await;
    for claim in [&waiter, &holder] {
        let eviction = Eviction::new(claim.name.clone(), claim.owner, "a test");
        scene.kill_everywhere(async |store| store.evict(&eviction).await).await;
    }
    scene.finish(100, 800);
}

/// A process that died had holds and places on several locks, alone and in company.
#[tokio::test]
async fn a_kill_while_claims_of_a_dead_process_are_removed_leaves_a_sound_table() {
    let mut scene = Scene::new();
    scene.departed.claim(&claim_on("its own", Mode::Exclusive), QUEUE).await.unwrap();
    scene.departed.claim(&claim(PERMIT), QUEUE).await.unwrap();
    scene.bystander(PERMIT).await;
    scene.departed.claim(&claim(PERMIT), QUEUE).await.unwrap();
    scene.departed.claim(&claim(ALL_PERMITS), QUEUE).await.unwrap();
    scene.bystander(PERMIT).await;
    scene.bystander(ALL_PERMITS).await;
    scene.departed.claim(&claim(Mode::Shared), LAPSED).await.unwrap();
    scene.bury_departed();
    let slot = scene.departed.inner.table.me().slot;
    let reap = async |store: &LocalStore| {
        let reaped = store.inner.remove_claims_of(slot, |_| true);
        reaped.map_err(|fault| fault.during("reap", store.dir()))
    };
    scene.kill_everywhere(reap).await;
    scene.finish(150, 1_000);
}

#[tokio::test]
async fn a_kill_while_the_table_grows_leaves_a_sound_table() {
    let mut scene = Scene::with_records(2 * CHUNK);
    // Record 0 is never used, and the filler is a record, too.
    for _ in 0..CHUNK - 2 {
        scene.survivor.claim(&claim_on(FILLER, Mode::Shared), QUEUE).await.unwrap();
    }
    let own = claim(Mode::Exclusive);
    let grow_ahead = async |store: &LocalStore| {
        let grown = reservation::grow(&Arc::downgrade(&store.inner.table));
        grown.map_err(|fault| fault.during("grow", store.dir()))
    };
    let full = scene.snapshot();
    scene.kill_everywhere(grow_ahead).await;
    assert_eq!(scene.bytes().len(), words_for(2 * CHUNK) * 8);
    scene.restore(&full);
    scene.kill_everywhere(async |store| store.claim(&own, QUEUE).await).await;
    scene.kill_everywhere(async |store| store.release(&own).await).await;
    scene.finish(60, 300);
}

#[tokio::test]
async fn the_table_grows_before_a_claim_needs_it_to() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let table = dir.path().join("table");
    let first = table.metadata().unwrap().len();
    // Three quarters of the records it has room for, and a few more.
    for _ in 0..CHUNK / 4 * 3 {
        store.claim(&claim(Mode::Shared), QUEUE).await.unwrap();
    }
    let is_grown = || async { table.metadata().unwrap().len() > first };
    assert!(eventually(GENEROUS, is_grown).await);
    store.inner.reserver.finish();
    store.check().unwrap();
}

#[tokio::test]
async fn a_kill_in_a_claim_on_a_full_table_leaves_a_sound_table() {
    let mut scene = Scene::with_records(6);
    for name in ["a lock", "another"] {
        scene.victim.claim(&claim_on(name, Mode::Exclusive), QUEUE).await.unwrap();
    }
    let refused = async |store: &LocalStore| match store
        .claim(&claim_on("too many", Mode::Exclusive), QUEUE)
        .await
    {
        Err(error) if error.kind() == ErrorKind::Full => Ok(()),
        other => other.map(drop),
    };
    scene.kill_everywhere(refused).await;
    let own = claim(Mode::Exclusive);
    scene.victim.claim(&own, LAPSED).await.unwrap();
    // There is room for it only because its own expired claim goes.
    scene.kill_everywhere(async |store| store.claim(&own, QUEUE).await).await;
    scene.finish(20, 20);
}

/// Locks whose names fall into one bucket are chained. Locks leave from the end, the middle and the start
/// of the chain.
#[tokio::test]
async fn a_kill_in_a_chain_of_locks_leaves_a_sound_table() {
    let mut scene = Scene::new();
    let bucket = |name: &str| bucket_of(Name::new(name).hash);
    let names = (0..).map(|n| format!("lock {n}"));
    let names: Vec<_> = names.filter(|name| bucket(name) == bucket("a lock")).take(3).collect();
    let claims: Vec<Claim> = names.iter().map(|name| claim_on(name, Mode::Exclusive)).collect();
    for claim in &claims {
        scene.kill_everywhere(async |store| store.claim(claim, QUEUE).await).await;
    }
    for claim in [&claims[1], &claims[0], &claims[2]] {
        scene.kill_everywhere(async |store| store.release(claim).await).await;
    }
    scene.finish(150, 500);
}

#[tokio::test]
async fn inspection_does_not_write_to_the_table() {
    let mut scene = Scene::new();
    scene.bystander(Mode::Exclusive).await;
    scene.departed.claim(&brief(&claim_on("another", Mode::Shared)), QUEUE).await.unwrap();
    let own = claim(Mode::Exclusive);
    let ClaimOutcome::Queued(place) = scene.victim.claim(&own, QUEUE).await.unwrap() else {
        panic!("not queued");
    };
    scene.bury_departed();
    let name = LockName::new("a lock").unwrap();
    // Inside the gate, before leaving it, is the only moment at which a kill is noticed.
    assert_eq!(scene.kill_everywhere(async |store| store.inspect(&name).await).await, 1);
    assert_eq!(scene.kill_everywhere(async |store| store.list("").await).await, 1);
    let look = async |store: &LocalStore| {
        let looked = store.inner.wait_step(&own, &place);
        looked.map_err(|(fault, _)| fault.during("look", store.dir()))
    };
    assert_eq!(scene.kill_everywhere(look).await, 2);
}

/// More holders than are looked at in passing: the dead and the expired behind them are removed in
/// changes of their own.
#[tokio::test]
async fn a_kill_while_many_holders_are_swept_leaves_a_sound_table() {
    let pooled = |take| claim(Mode::Permits { take, of: 12 });
    let (mut kills, mut recovery_kills) = (0, 0);
    for policy in [WaitPolicy::NoWait, QUEUE] {
        let mut scene = Scene::new();
        for _ in 0..9 {
            scene.bystander(pooled(1).mode).await;
        }
        for expires in [true, false, false] {
            let ended = pooled(1);
            scene.departed.claim(&ended, QUEUE).await.unwrap();
            if expires {
                scene.departed.claim(&brief(&ended), QUEUE).await.unwrap();
            }
        }
        scene.bury_departed();
        let own = pooled(3);
        scene.kill_everywhere(async |store| store.claim(&own, policy).await).await;
        assert!(is_granted(&scene.victim.claim(&own, WaitPolicy::NoWait).await.unwrap()));
        kills += scene.kills;
        recovery_kills += scene.recovery_kills;
    }
    assert!(kills > 100 && recovery_kills > 500, "{kills}, {recovery_kills}");
}
