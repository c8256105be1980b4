//! Several processes, some of which are stopped or killed.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use common::*;
use rustix::process::Signal;
use tenure_core::Mode;
use tenure_core::store::{ClaimOutcome, Released, Store, WaitPolicy};
use tenure_local::LocalStore;

/// Not a test of its own: what the processes started by the tests below do.
#[test]
fn child_entry() {
    let Some((role, dir)) = role() else {
        return;
    };
    runtime().block_on(async {
        let store = LocalStore::open(&dir).unwrap();
        match role.as_str() {
            "hold" => hold(&store, "a", LONG).await,
            "hold briefly" => hold(&store, "a", Duration::from_millis(300)).await,
            "hold a permit" => hold_permit(&store).await,
            "wait" => wait(&store).await,
            "hold many" => hold_many(&store).await,
            "wait many" => wait_many(&store).await,
            "hold own" => hold(&store, &format!("own/{}", std::process::id()), LONG).await,
            "churn" => churn(&store, &dir).await,
            other => panic!("no such role: {other}"),
        }
    });
}

async fn hold(store: &LocalStore, lock: &str, ttl: Duration) {
    let mut claim = exclusive(lock);
    claim.ttl = ttl;
    grant(store.claim(&claim, WaitPolicy::NoWait).await.unwrap());
    say("held");
    while listen() {
        store.release(&claim).await.unwrap();
        say("released");
    }
}

async fn hold_permit(store: &LocalStore) {
    let of = std::env::var("TENURE_TEST_PERMITS").unwrap().parse().unwrap();
    let claim = claim("pool", Mode::Permits { take: 1, of });
    grant(store.claim(&claim, WaitPolicy::NoWait).await.unwrap());
    say("held");
    listen();
}

/// Queues, says so, and says when it is in.
async fn wait(store: &LocalStore) {
    let claim = exclusive("a");
    place(store.claim(&claim, QUEUE).await.unwrap());
    say("queued");
    acquire(store, &claim).await;
    say("held");
    listen();
}

async fn hold_many(store: &LocalStore) {
    for n in 0..5_000 {
        let claim = claim(&format!("many/{n}"), Mode::Shared);
        grant(store.claim(&claim, WaitPolicy::NoWait).await.unwrap());
    }
    for _ in 0..5_000 {
        place(store.claim(&exclusive("a"), QUEUE).await.unwrap());
    }
    say("held");
    listen();
}

async fn wait_many(store: &LocalStore) {
    let mut waiting = Vec::new();
    for _ in 0..10_000 {
        let store = store.clone();
        let mut waiter = Box::pin(async move {
            let claim = claim("a", Mode::Shared);
            acquire(&store, &claim).await
        });
        // Asleep once it has queued up: a process stopped later is not stopped inside the table.
        let asleep = poll_fn(|context| Poll::Ready(waiter.as_mut().poll(context).is_pending()));
        assert!(asleep.await);
        waiting.push(waiter);
    }
    say("queued");
    for waiter in waiting {
        waiter.await;
    }
    say("all held");
}

/// Claims and releases until it is killed. Under the lock it makes sure that it is alone and that
/// its token is higher than all before.
async fn churn(store: &LocalStore, dir: &Path) {
    let witness = File::options().read(true).write(true).open(dir.join("witness")).unwrap();
    let mut log = File::options().append(true).open(dir.join("churn.log")).unwrap();
    say("ready");
    for turn in 0u32.. {
        let shared = claim("readers", Mode::Shared);
        let permit = claim("permits", Mode::Permits { take: 1 + turn % 2, of: 3 });
        let lone = exclusive(&format!("lone/{}/{}", std::process::id(), turn % 7));
        grant(store.claim(&lone, WaitPolicy::NoWait).await.unwrap());
        for pooled in [&shared, &permit] {
            let _ = store.claim(pooled, QUEUE).await.unwrap();
        }
        let claim = exclusive("a");
        let token = acquire(store, &claim).await.token.unwrap().get();
        let mut last = [0; 8];
        witness.read_exact_at(&mut last, 0).unwrap();
        if u64::from_le_bytes(last) >= token {
            writeln!(log, "token {token} after {}", u64::from_le_bytes(last)).unwrap();
        }
        witness.write_all_at(&token.to_le_bytes(), 0).unwrap();
        witness.write_all_at(&std::process::id().to_le_bytes(), 8).unwrap();
        let mut pid = [0; 4];
        witness.read_exact_at(&mut pid, 8).unwrap();
        if u32::from_le_bytes(pid) != std::process::id() {
            writeln!(log, "not alone").unwrap();
        }
        for held in [&claim, &lone, &shared, &permit] {
            store.release(held).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_replaced_by_its_waiter_without_a_poll() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let mut holder = Peer::start("hold", dir.path());
    assert_eq!(holder.hear(), "held");
    let state = store.inspect(&name("a")).await.unwrap();
    assert_eq!(state.holders[0].pid, Some(holder.pid()));
    let claim = exclusive("a");
    place(store.claim(&claim, QUEUE).await.unwrap());
    let waiting = tokio::spawn({
        let (store, claim) = (store.clone(), claim.clone());
        async move { acquire(&store, &claim).await }
    });
    tokio::task::yield_now().await;
    holder.kill();
    // Only the detection of the death can end this wait: the term is long, and nothing polls.
    waiting.await.unwrap();
    assert_eq!(store.release(&claim).await.unwrap(), Released::Released);
    assert_eq!(store.check().unwrap().locks, 0);
}

#[tokio::test]
async fn a_dead_holder_does_not_block_a_claim_that_does_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let mut holder = Peer::start("hold", dir.path());
    assert_eq!(holder.hear(), "held");
    let busy = store.claim(&exclusive("a"), WaitPolicy::NoWait).await.unwrap();
    assert_eq!(busy, ClaimOutcome::Busy);
    holder.kill();
    assert!(store.inspect(&name("a")).await.unwrap().is_free());
    assert!(store.list("").await.unwrap().is_empty());
    grant(store.claim(&exclusive("a"), WaitPolicy::NoWait).await.unwrap());
}

#[tokio::test]
async fn any_dead_holders_permit_is_free_for_a_claim_that_does_not_wait() {
    for victim in [0, 4, 9] {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path()).unwrap();
        let mut holders: Vec<_> = (0..10).map(|_| Peer::holding_permit(dir.path(), 10)).collect();
        let permit = |take| claim("pool", Mode::Permits { take, of: 10 });
        assert_eq!(store.claim(&permit(1), WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
        holders[victim].kill();
        assert_eq!(store.claim(&permit(2), WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
        grant(store.claim(&permit(1), WaitPolicy::NoWait).await.unwrap());
        assert_eq!(store.claim(&permit(1), WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
        store.check().unwrap();
    }
}

#[tokio::test]
async fn a_dead_holder_among_ten_thousand_is_found_by_a_claim_that_does_not_wait() {
    const PERMITS: u32 = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let permit = |take| claim("pool", Mode::Permits { take, of: PERMITS });
    let hold = async |count| {
        for _ in 0..count {
            grant(store.claim(&permit(1), WaitPolicy::NoWait).await.unwrap());
        }
    };
    hold(4_999).await;
    let mut middle = Peer::holding_permit(dir.path(), PERMITS);
    hold(4_999).await;
    let mut last = Peer::holding_permit(dir.path(), PERMITS);
    assert_eq!(store.claim(&permit(1), WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
    last.kill();
    grant(store.claim(&permit(1), WaitPolicy::NoWait).await.unwrap());
    middle.kill();
    // The first waiter finds it, too, without a notice of the death.
    let waiter = permit(1);
    grant(store.claim(&waiter, QUEUE).await.unwrap());
    assert_eq!(store.check().unwrap().holders, PERMITS as usize);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_a_waiter_in_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let claim = exclusive("a");
    grant(store.claim(&claim, WaitPolicy::NoWait).await.unwrap());
    let mut waiter = Peer::start("wait", dir.path());
    assert_eq!(waiter.hear(), "queued");
    store.release(&claim).await.unwrap();
    assert_eq!(waiter.hear(), "held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_is_skipped_and_the_one_behind_it_learns_of_the_holders_death() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let mut holder = Peer::start("hold", dir.path());
    assert_eq!(holder.hear(), "held");
    let mut first = Peer::start("wait", dir.path());
    assert_eq!(first.hear(), "queued");
    let mut second = Peer::start("wait", dir.path());
    assert_eq!(second.hear(), "queued");
    let mut third = Peer::start("wait", dir.path());
    assert_eq!(third.hear(), "queued");
    second.kill();
    holder.kill();
    assert_eq!(first.hear(), "held");
    first.kill();
    assert_eq!(third.hear(), "held");
    assert_eq!(store.check().unwrap().holders, 1);
}

#[tokio::test]
async fn a_process_removes_the_claims_of_the_dead_process_whose_slot_it_takes() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let mut holder = Peer::start("hold", dir.path());
    assert_eq!(holder.hear(), "held");
    holder.kill();
    assert_eq!(store.check().unwrap().holders, 1, "no claim has swept it yet");
    let newcomer = LocalStore::open(dir.path()).unwrap();
    assert_eq!(newcomer.check().unwrap().holders, 0);
}

#[tokio::test]
async fn a_waiter_that_leaves_makes_the_next_waiter_watch_the_holder() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let mut holder = Peer::start("hold", dir.path());
    assert_eq!(holder.hear(), "held");
    let quitter = exclusive("a");
    place(store.claim(&quitter, QUEUE).await.unwrap());
    let mut behind = Peer::start("wait", dir.path());
    assert_eq!(behind.hear(), "queued");
    store.release(&quitter).await.unwrap();
    holder.kill();
    assert_eq!(behind.hear(), "held");
}

#[tokio::test]
async fn a_stopped_holder_loses_the_lock_when_its_term_ends() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let mut holder = Peer::start("hold briefly", dir.path());
    assert_eq!(holder.hear(), "held");
    holder.signal(Signal::STOP);
    let claim = exclusive("a");
    let mut answer = store.claim(&claim, QUEUE).await.unwrap();
    for _ in 0..100 {
        let ClaimOutcome::Queued(place) = answer else {
            break;
        };
        let again = place.ask_again_in.unwrap();
        assert!(again <= Duration::from_millis(300));
        answer = match tokio::time::timeout(again, store.wait(&claim, &place)).await {
            Ok(Ok(ClaimOutcome::Granted(grant))) => ClaimOutcome::Granted(grant),
            _ => store.claim(&claim, QUEUE).await.unwrap(),
        };
    }
    grant(answer);
    holder.signal(Signal::CONT);
    holder.tell("release");
    assert_eq!(holder.hear(), "released");
    let state = store.inspect(&name("a")).await.unwrap();
    assert_eq!(state.holders[0].owner, claim.owner.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_claims_of_a_killed_process_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let holder = exclusive("a");
    grant(store.claim(&holder, QUEUE).await.unwrap());
    let mut many = Peer::start("hold many", dir.path());
    assert_eq!(many.hear(), "held");
    assert_eq!(store.check().unwrap().waiters, 5_000);
    assert_eq!(store.check().unwrap().holders, 5_001);
    let last = exclusive("a");
    place(store.claim(&last, QUEUE).await.unwrap());
    let waiting = tokio::spawn({
        let (store, last) = (store.clone(), last.clone());
        async move { acquire(&store, &last).await }
    });
    tokio::task::yield_now().await;
    many.kill();
    store.release(&holder).await.unwrap();
    waiting.await.unwrap();
    let newcomer = LocalStore::open(dir.path()).unwrap();
    let census = newcomer.check().unwrap();
    assert!(census.waiters == 0, "{census:?}");
    assert_eq!(newcomer.list("many/").await.unwrap().len(), 0);
}

/// A FIFO takes 8,192 messages: the stopped process misses some, and must find that out.
#[tokio::test]
async fn more_wake_ups_than_a_fifo_holds_reach_all_waiters() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let holder = exclusive("a");
    grant(store.claim(&holder, QUEUE).await.unwrap());
    let mut many = Peer::start("wait many", dir.path());
    assert_eq!(many.hear(), "queued");
    many.signal(Signal::STOP);
    store.release(&holder).await.unwrap();
    assert_eq!(store.check().unwrap().holders, 10_000);
    many.signal(Signal::CONT);
    assert_eq!(many.hear(), "all held");
}

#[tokio::test]
async fn processes_that_open_a_new_directory_at_once_share_one_table() {
    for _ in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks");
        let mut peers: Vec<_> = (0..4).map(|_| Peer::start("hold own", &path)).collect();
        peers.iter_mut().for_each(|peer| assert_eq!(peer.hear(), "held"));
        let store = LocalStore::open(&path).unwrap();
        assert_eq!(store.list("own/").await.unwrap().len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_killed_at_random_moments_leave_a_sound_table() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("witness"), [0; 16]).unwrap();
    std::fs::write(dir.path().join("churn.log"), "").unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    let mut peers: Vec<_> = (0..3).map(|_| Peer::start("churn", dir.path())).collect();
    peers.iter_mut().for_each(|peer| assert_eq!(peer.hear(), "ready"));
    let mut random = std::process::id();
    for kill in 0..120 {
        // Somewhere in the midst of the others' work; how long exactly decides nothing.
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        tokio::time::sleep(Duration::from_micros(u64::from(random >> 16) % 20_000)).await;
        let victim = kill % peers.len();
        peers[victim].kill();
        store.check().unwrap();
        peers[victim] = Peer::start("churn", dir.path());
        assert_eq!(peers[victim].hear(), "ready");
    }
    peers.iter_mut().for_each(Peer::kill);
    let claim = exclusive("a");
    let token = acquire(&store, &claim).await.token.unwrap().get();
    let witness = std::fs::read(dir.path().join("witness")).unwrap();
    let last = u64::from_le_bytes(witness[..8].try_into().unwrap());
    assert!(token > last && last > 0);
    store.release(&claim).await.unwrap();
    let log = std::fs::read_to_string(dir.path().join("churn.log")).unwrap();
    assert_eq!(log, "");
    assert!(store.list("").await.unwrap().is_empty());
    store.check().unwrap();
}
