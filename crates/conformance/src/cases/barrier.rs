//! Barriers: parties that pass together, and parties that die.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::{Barrier, BarrierWaitResult, Client, ErrorKind, LockName, Options, Result};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::cases::cells::raw_cells;
use crate::cases::processes::{ttl_for_killed_process, url};
use crate::fixture::{client, long, name, raw};
use crate::holder_process::HolderProcess;

/// A party on a connection of its own. `None`: the store keeps no values or no permits, and says why.
async fn party(fixture: &dyn Fixture, name: &LockName, parties: u32) -> Option<(Client, Barrier)> {
    let client = client(fixture).await;
    let barrier = client.barrier(name.as_str(), parties);
    if raw_cells(fixture).await.is_none() || !client.store().capabilities().permits {
        assert_eq!(barrier.unwrap_err().kind(), ErrorKind::Unsupported);
        return None;
    }
    Some((client, barrier.unwrap().with(long())))
}

async fn wait(barrier: &mut Barrier) -> Result<BarrierWaitResult> {
    tokio::time::timeout(GENEROUS, barrier.wait()).await.expect("the wait ends")
}

/// The number of permits that are held, which is that of the parties.
fn lock(name: &LockName) -> LockName {
    format!("barrier:{name}").parse().unwrap()
}

/// No party begins a phase before all have ended the one before; one of them is the leader.
pub async fn parties_pass_one_generation_after_the_other(fixture: &dyn Fixture) {
    const PARTIES: u32 = 4;
    const PHASES: u64 = 5;
    let (name, arrivals) = (name("barrier"), Arc::new(AtomicU64::new(0)));
    let mut parties = tokio::task::JoinSet::new();
    for _ in 0..PARTIES {
        let Some((client, mut barrier)) = party(fixture, &name, PARTIES).await else { return };
        let arrivals = Arc::clone(&arrivals);
        parties.spawn(async move {
            let (mut generations, mut led) = (Vec::new(), 0);
            for phase in 1..=PHASES {
                arrivals.fetch_add(1, Ordering::SeqCst);
                let passed = wait(&mut barrier).await.unwrap();
                let arrived = arrivals.load(Ordering::SeqCst);
                assert!(arrived >= phase * u64::from(PARTIES), "passed after {arrived} arrivals");
                generations.push(passed.generation());
                led += u64::from(passed.is_leader());
            }
            (generations, led, barrier, client)
        });
    }
    let parties = parties.join_all().await;
    let first = &parties[0].0;
    assert!(first.is_sorted_by(|one, other| one < other), "{first:?}");
    assert!(parties.iter().all(|party| party.0 == *first), "the parties count alike");
    let led: u64 = parties.iter().map(|party| party.1).sum();
    assert!(led == PHASES || fixture.injects_faults(), "{led} leaders in {PHASES} phases");
}

/// A party that leaves breaks the barrier for the waiting party and for one that arrives later in that
/// generation. With a new party in its place, the next generation passes.
pub async fn a_party_that_leaves_breaks_the_barrier_for_the_others(fixture: &dyn Fixture) {
    let name = name("barrier-left");
    let Some((_first, mut one)) = party(fixture, &name, 3).await else { return };
    let (_second, mut two) = party(fixture, &name, 3).await.unwrap();
    let (third, mut three) = party(fixture, &name, 3).await.unwrap();
    let (a, b, c) = tokio::join!(wait(&mut one), wait(&mut two), wait(&mut three));
    let generation = a.unwrap().generation();
    assert_eq!([b.unwrap().generation(), c.unwrap().generation()], [generation; 2]);
    let raw = raw(fixture).await;
    let mut waits = tokio::spawn(async move { (wait(&mut one).await, one) });
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut waits).await.is_err());
    drop(three);
    third.close().await;
    let left = || async { raw.inspect(&lock(&name)).await.holders.len() == 2 };
    assert!(eventually(GENEROUS, left).await, "the party never left");
    let (broken, mut one) = waits.await.unwrap();
    assert_eq!(broken.unwrap_err().kind(), ErrorKind::Broken);
    let (_fourth, mut four) = party(fixture, &name, 3).await.unwrap();
    let (a, b, d) = tokio::join!(wait(&mut one), wait(&mut two), wait(&mut four));
    assert!(a.unwrap().generation() > generation + 1);
    assert!(b.is_ok() && d.is_ok(), "{b:?} {d:?}");
}

/// A party whose process is killed breaks the barrier, whether it waited or worked.
pub async fn a_killed_party_process_breaks_the_barrier(fixture: &dyn Fixture) {
    let name = name("barrier-killed");
    let raw = raw(fixture).await;
    let Some(url) = url(fixture, &raw) else { return };
    let Some((_client, mut ours)) = party(fixture, &name, 2).await else { return };
    let command = format!("barrier {name} 2 {}", ttl_for_killed_process(fixture, &raw).as_millis());
    let mut victim = HolderProcess::start(&url).await;
    victim.send(&command);
    victim.expect_line("waiting").await;
    wait(&mut ours).await.unwrap();
    victim.expect_line("passed").await;
    victim.process.kill9().unwrap();
    assert_eq!(wait(&mut ours).await.unwrap_err().kind(), ErrorKind::Broken);
    // A party that waits with ours, in a generation that a third one must complete.
    let mut heir = HolderProcess::start(&url).await;
    heir.send(&command);
    heir.expect_line("waiting").await;
    wait(&mut ours).await.unwrap();
    heir.expect_line("passed").await;
}

/// A wait that was dropped after its arrival goes on with the next call, and counts once.
pub async fn a_wait_that_was_dropped_is_continued(fixture: &dyn Fixture) {
    let name = name("barrier-dropped");
    let Some((_first, mut one)) = party(fixture, &name, 2).await else { return };
    let (_second, mut two) = party(fixture, &name, 2).await.unwrap();
    let mut dropped = 0;
    for phase in 0..4 {
        for step in 0..20 {
            let brief = Duration::from_micros(step * 200);
            if tokio::time::timeout(brief, one.wait()).await.is_ok() {
                panic!("a party passed alone in phase {phase}");
            }
            dropped += 1;
        }
        let (ours, theirs) = tokio::join!(wait(&mut one), wait(&mut two));
        let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
        assert_eq!(ours.generation(), theirs.generation(), "after {dropped} dropped waits");
    }
}

/// A party that lost its lease gets an error, and so do the others, whose barrier is broken. Both may
/// wait again.
pub async fn a_party_that_lost_its_lease_gets_an_error_and_may_wait_again(fixture: &dyn Fixture) {
    let name = name("barrier-evicted");
    let Some((_first, one)) = party(fixture, &name, 2).await else { return };
    if fixture.injects_faults() {
        return;
    }
    let (_second, two) = party(fixture, &name, 2).await.unwrap();
    let options = Options::new().ttl(fixture.ttl());
    let (mut one, mut two) = (one.with(options.clone()), two.with(options));
    let passed = tokio::try_join!(wait(&mut one), wait(&mut two));
    passed.unwrap();
    let raw = raw(fixture).await;
    let holders = raw.inspect(&lock(&name)).await.holders;
    for holder in &holders {
        raw.evict_owner(&lock(&name), holder.owner.parse().unwrap()).await;
    }
    for party in [&mut one, &mut two] {
        learn_of_the_loss(party).await;
    }
    let (ours, theirs) = tokio::join!(wait(&mut one), wait(&mut two));
    assert_eq!(ours.unwrap().generation(), theirs.unwrap().generation());
}

/// Waits until this party gets the error that its lease is lost. It may get the error that the barrier is
/// broken first, because the other party lost its lease, too.
async fn learn_of_the_loss(party: &mut Barrier) {
    for _ in 0..5 {
        let told = wait(party).await.unwrap_err();
        match told.kind() {
            ErrorKind::Lost => return,
            ErrorKind::Broken => {}
            _ => panic!("{told}"),
        }
    }
    panic!("the loss was never reported");
}

/// No parties, too many, and numbers that differ are refused as invalid.
pub async fn numbers_of_parties_that_make_no_sense_are_refused(fixture: &dyn Fixture) {
    let name = name("barrier-numbers");
    let Some((client, one)) = party(fixture, &name, 1).await else { return };
    for parties in [0, Barrier::MAX_PARTIES + 1] {
        let refused = client.barrier(name.as_str(), parties).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    }
    let mut one = one;
    assert!(wait(&mut one).await.unwrap().is_leader() || fixture.injects_faults());
    let (_other, mut other) = party(fixture, &name, 2).await.unwrap();
    let refused = wait(&mut other).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    wait(&mut one).await.unwrap();
}
