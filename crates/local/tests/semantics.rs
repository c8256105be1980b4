//! The store's contract, with all claims in one process, through one or two open stores.

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use tenure_core::store::{ClaimOutcome, Eviction, Fencing, Released, Renewal, Store, WaitPolicy};
use tenure_core::{Mode, OwnerId};
use tenure_local::LocalStore;

fn open() -> (tempfile::TempDir, LocalStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path().join("locks")).unwrap();
    (dir, store)
}

#[tokio::test]
async fn a_free_lock_is_granted_with_rising_tokens_and_nothing_stays_behind() {
    let (_dir, store) = open();
    let mut last = None;
    for _ in 0..100 {
        let claim = exclusive("orders");
        let got = token(store.claim(&claim, WaitPolicy::NoWait).await.unwrap());
        assert!(last < Some(got));
        last = Some(got);
        assert_eq!(store.release(&claim).await.unwrap(), Released::Released);
        assert_eq!(store.release(&claim).await.unwrap(), Released::NotHeld);
    }
    let census = store.check().unwrap();
    assert_eq!((census.locks, census.holders, census.waiters), (0, 0, 0));
    assert!(store.capabilities().fencing.gives_tokens());
    assert!(matches!(store.capabilities().fencing, Fencing::Until { .. }));
}

#[tokio::test]
async fn a_repeated_claim_of_a_holder_keeps_its_token_and_extends_its_term() {
    let (_dir, store) = open();
    let claim = exclusive("a");
    let first = grant(store.claim(&claim, QUEUE).await.unwrap());
    let again = grant(store.claim(&claim, QUEUE).await.unwrap());
    assert_eq!(first.token, again.token);
    assert!(first.since < again.since);
    assert!(again.since.unwrap() <= store.capabilities().clock.now());
    assert_eq!(store.renew(&claim).await.unwrap(), Renewal::Renewed);
    store.release(&claim).await.unwrap();
    assert_eq!(store.renew(&claim).await.unwrap(), Renewal::Lost);
}

#[tokio::test]
async fn waiters_are_served_in_order_and_directly() {
    let (_dir, store) = open();
    let other = LocalStore::open(store.dir()).unwrap();
    let holder = exclusive("a");
    store.claim(&holder, QUEUE).await.unwrap();
    let claims: Vec<_> = (0..6).map(|_| exclusive("a")).collect();
    for (n, claim) in claims.iter().enumerate() {
        let through = [&store, &other][n % 2];
        let place = place(through.claim(claim, QUEUE).await.unwrap());
        assert_eq!(place.ask_again_in.is_some(), n == 0, "only the head asks");
    }
    let impatient = exclusive("a");
    assert_eq!(store.claim(&impatient, WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
    let state = other.inspect(&name("a")).await.unwrap();
    let order: Vec<_> = state.waiters.iter().map(|w| w.owner.clone()).collect();
    let expected: Vec<_> = claims.iter().map(|c| c.owner.to_string()).collect();
    assert_eq!(order, expected);
    assert_eq!(state.holders[0].pid, Some(std::process::id()));
    assert_eq!(state.holders[0].label, "a test");

    let mut before = holder;
    for (n, claim) in claims.iter().enumerate() {
        let through = [&store, &other][n % 2];
        let releases = [&store, &other][(n + 1) % 2];
        // The lock is handed over by the release itself, before the waiter runs.
        releases.release(&before).await.unwrap();
        let state = store.inspect(&name("a")).await.unwrap();
        assert_eq!(state.holders[0].owner, claim.owner.to_string());
        grant(through.claim(claim, QUEUE).await.unwrap());
        before = claim.clone();
    }
    store.release(&before).await.unwrap();
    assert_eq!(store.check().unwrap().locks, 0);
}

#[tokio::test]
async fn a_waiter_in_another_store_is_woken_without_polling() {
    let (_dir, store) = open();
    let other = LocalStore::open(store.dir()).unwrap();
    let holder = exclusive("a");
    let first = token(store.claim(&holder, QUEUE).await.unwrap());
    let waiter = exclusive("a");
    place(other.claim(&waiter, QUEUE).await.unwrap());
    let waiting = tokio::spawn({
        let (other, waiter) = (other.clone(), waiter.clone());
        async move { acquire(&other, &waiter).await }
    });
    tokio::task::yield_now().await;
    store.release(&holder).await.unwrap();
    let grant = waiting.await.unwrap();
    assert!(grant.token > Some(first));
}

#[tokio::test]
async fn a_dropped_wait_keeps_its_place_and_a_release_removes_it() {
    let (_dir, store) = open();
    let (holder, quitter, last) = (exclusive("a"), exclusive("a"), exclusive("a"));
    store.claim(&holder, QUEUE).await.unwrap();
    let place_of = place(store.claim(&quitter, QUEUE).await.unwrap());
    place(store.claim(&last, QUEUE).await.unwrap());
    let waiting = tokio::time::timeout(Duration::from_millis(5), store.wait(&quitter, &place_of));
    assert!(waiting.await.is_err());
    assert_eq!(store.release(&quitter).await.unwrap(), Released::NotHeld);
    let gone = store.wait(&quitter, &place_of).await.unwrap();
    assert!(matches!(gone, ClaimOutcome::Queued(_)), "{gone:?}");
    store.release(&holder).await.unwrap();
    grant(store.claim(&last, QUEUE).await.unwrap());
}

#[tokio::test]
async fn a_waiter_that_becomes_the_first_gets_the_time_of_its_next_attempt() {
    let (_dir, store) = open();
    let other = LocalStore::open(store.dir()).unwrap();
    let (quitter, last) = (exclusive("a"), exclusive("a"));
    store.claim(&exclusive("a"), QUEUE).await.unwrap();
    place(store.claim(&quitter, QUEUE).await.unwrap());
    let behind = place(other.claim(&last, QUEUE).await.unwrap());
    assert_eq!(behind.ask_again_in, None);
    let waiting = tokio::spawn(async move { other.wait(&last, &behind).await.unwrap() });
    // On this runtime of one thread, the waiter is asleep when we go on.
    tokio::task::yield_now().await;
    store.release(&quitter).await.unwrap();
    let told = place(waiting.await.unwrap());
    assert!(told.ask_again_in.is_some());
}

#[tokio::test]
async fn readers_share_and_none_overtakes_a_waiting_writer() {
    let (_dir, store) = open();
    let readers = [(); 3].map(|()| claim("a", Mode::Shared));
    let writer = exclusive("a");
    grant(store.claim(&readers[0], QUEUE).await.unwrap());
    grant(store.claim(&readers[1], QUEUE).await.unwrap());
    place(store.claim(&writer, QUEUE).await.unwrap());
    place(store.claim(&readers[2], QUEUE).await.unwrap());
    store.release(&readers[0]).await.unwrap();
    place(store.claim(&writer, QUEUE).await.unwrap());
    store.release(&readers[1]).await.unwrap();
    grant(store.claim(&writer, QUEUE).await.unwrap());
    place(store.claim(&readers[2], QUEUE).await.unwrap());
    store.release(&writer).await.unwrap();
    grant(store.claim(&readers[2], QUEUE).await.unwrap());
}

#[tokio::test]
async fn permits_are_counted() {
    let (_dir, store) = open();
    let take = |take| claim("a", Mode::Permits { take, of: 3 });
    let (two, one, more) = (take(2), take(1), take(2));
    grant(store.claim(&two, QUEUE).await.unwrap());
    grant(store.claim(&one, QUEUE).await.unwrap());
    place(store.claim(&more, QUEUE).await.unwrap());
    store.release(&one).await.unwrap();
    place(store.claim(&more, QUEUE).await.unwrap());
    store.release(&two).await.unwrap();
    grant(store.claim(&more, QUEUE).await.unwrap());
    let refused = store.claim(&take(4), QUEUE).await.unwrap_err();
    assert_eq!(refused.kind(), tenure_core::ErrorKind::Invalid);
}

#[tokio::test]
async fn an_expired_claim_is_replaced_and_can_be_made_again() {
    let (_dir, store) = open();
    let mut holder = exclusive("a");
    holder.ttl = Duration::ZERO;
    let first = token(store.claim(&holder, QUEUE).await.unwrap());
    assert!(store.inspect(&name("a")).await.unwrap().is_free());
    assert!(store.list("").await.unwrap().is_empty());
    assert_eq!(store.renew(&holder).await.unwrap(), Renewal::Lost);
    let second = token(store.claim(&holder, QUEUE).await.unwrap());
    assert!(first < second);
    let next = exclusive("a");
    let third = token(store.claim(&next, WaitPolicy::NoWait).await.unwrap());
    assert!(second < third);
    assert_eq!(store.release(&holder).await.unwrap(), Released::NotHeld);
    let mut unseen = exclusive("b");
    unseen.ttl = Duration::ZERO;
    grant(store.claim(&unseen, QUEUE).await.unwrap());
    assert_eq!(store.release(&unseen).await.unwrap(), Released::NotHeld);
}

#[tokio::test]
async fn any_expired_permit_is_free_for_a_claim_that_does_not_wait() {
    let (_dir, store) = open();
    let permit = |take| claim("a", Mode::Permits { take, of: 600 });
    let holders: Vec<_> = (0..600).map(|_| permit(1)).collect();
    for holder in &holders {
        grant(store.claim(holder, QUEUE).await.unwrap());
    }
    for expired in [3, 9, 255, 256, 599] {
        let mut brief = holders[expired].clone();
        brief.ttl = Duration::ZERO;
        grant(store.claim(&brief, QUEUE).await.unwrap());
        grant(store.claim(&permit(1), WaitPolicy::NoWait).await.unwrap());
        assert_eq!(store.claim(&permit(1), WaitPolicy::NoWait).await.unwrap(), ClaimOutcome::Busy);
    }
    assert_eq!(store.check().unwrap().holders, 600);
}

#[tokio::test]
async fn a_claim_is_found_behind_many_others_by_a_store_that_did_not_make_it() {
    let (_dir, store) = open();
    let other = LocalStore::open(store.dir()).unwrap();
    let permit = |take| claim("a", Mode::Permits { take, of: 600 });
    let holders: Vec<_> = (0..600).map(|_| permit(1)).collect();
    let waiters: Vec<_> = (0..600).map(|_| permit(600)).collect();
    for claim in holders.iter().chain(&waiters) {
        store.claim(claim, QUEUE).await.unwrap();
    }
    for index in [0, 4, 255, 256, 599] {
        assert_eq!(other.renew(&holders[index]).await.unwrap(), Renewal::Renewed);
        assert_eq!(other.release(&holders[index]).await.unwrap(), Released::Released);
        assert_eq!(other.release(&holders[index]).await.unwrap(), Released::NotHeld);
        assert_eq!(other.release(&waiters[index]).await.unwrap(), Released::NotHeld);
    }
    let census = store.check().unwrap();
    assert_eq!((census.holders, census.waiters), (595, 595));
}

#[tokio::test]
async fn an_expired_waiter_is_skipped() {
    let (_dir, store) = open();
    let (holder, lapsed, next) = (exclusive("a"), exclusive("a"), exclusive("a"));
    store.claim(&holder, QUEUE).await.unwrap();
    place(store.claim(&lapsed, WaitPolicy::queue(Duration::ZERO)).await.unwrap());
    place(store.claim(&next, QUEUE).await.unwrap());
    store.release(&holder).await.unwrap();
    grant(store.claim(&next, QUEUE).await.unwrap());
    assert_eq!(store.check().unwrap().waiters, 0);
}

#[tokio::test]
async fn ten_thousand_waiters_are_served_in_order_with_one_wake_up_each() {
    let (_dir, store) = open();
    let holder = exclusive("a");
    store.claim(&holder, QUEUE).await.unwrap();
    let claims: Vec<_> = (0..10_000).map(|_| exclusive("a")).collect();
    for claim in &claims {
        place(store.claim(claim, QUEUE).await.unwrap());
    }
    assert_eq!(store.check().unwrap().waiters, 10_000);
    // Every third leaves from the middle.
    for claim in claims.iter().skip(1).step_by(3) {
        assert_eq!(store.release(claim).await.unwrap(), Released::NotHeld);
    }
    let mut last = store.release(&holder).await.map(|_| None).unwrap();
    let stay = claims.iter().enumerate().filter(|(n, _)| n % 3 != 1);
    for (_, claim) in stay {
        let got = acquire(&store, claim).await.token;
        assert!(last < got);
        last = got;
        assert_eq!(store.release(claim).await.unwrap(), Released::Released);
    }
    assert_eq!(store.check().unwrap().locks, 0);
}

#[tokio::test]
async fn locks_are_listed_by_prefix_in_order() {
    let (_dir, store) = open();
    for lock in ["b/2", "a", "b/1", "c", &"x".repeat(200)] {
        store.claim(&exclusive(lock), QUEUE).await.unwrap();
    }
    let listed = store.list("b/").await.unwrap();
    assert_eq!(listed, [name("b/1"), name("b/2")]);
    assert_eq!(store.list("").await.unwrap().len(), 5);
}

#[tokio::test]
async fn an_eviction_compares_the_owner_uses_a_token_and_is_logged() {
    let (_dir, store) = open();
    let (holder, next) = (exclusive("a"), exclusive("a"));
    let first = token(store.claim(&holder, QUEUE).await.unwrap());
    place(store.claim(&next, QUEUE).await.unwrap());
    let wrong = Eviction::new(name("a"), OwnerId::random(), "typo");
    assert_eq!(store.evict(&wrong).await.unwrap(), Released::NotHeld);
    let other = LocalStore::open(store.dir()).unwrap();
    let eviction = Eviction::new(name("a"), holder.owner, "stuck \"since\" monday");
    assert_eq!(other.evict(&eviction).await.unwrap(), Released::Released);
    assert_eq!(store.renew(&holder).await.unwrap(), Renewal::Lost);
    let second = token(store.claim(&next, QUEUE).await.unwrap());
    assert!(second.get() > first.get() + 1);
    let log = std::fs::read_to_string(store.dir().join("audit.log")).unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains(&holder.owner.to_string()));
    assert!(log.contains("stuck \"since\" monday"));
}

#[tokio::test]
async fn long_labels_are_cut_at_a_character_and_names_are_not_cut() {
    let (_dir, store) = open();
    let mut claim = exclusive(&"é".repeat(100));
    claim.label = Arc::from("ü".repeat(300));
    store.claim(&claim, QUEUE).await.unwrap();
    let state = store.inspect(&claim.name).await.unwrap();
    assert_eq!(state.holders[0].label, "ü".repeat(100));
    assert_eq!(store.list("éé").await.unwrap(), [claim.name]);
}

#[tokio::test]
async fn a_closed_store_releases_its_locks() {
    let (_dir, store) = open();
    let other = LocalStore::open(store.dir()).unwrap();
    let (holder, waiter) = (exclusive("a"), exclusive("a"));
    store.claim(&holder, QUEUE).await.unwrap();
    place(other.claim(&waiter, QUEUE).await.unwrap());
    drop(store);
    acquire(&other, &waiter).await;
    assert_eq!(other.check().unwrap().holders, 1);
}

#[tokio::test]
async fn files_are_private() {
    let (_dir, store) = open();
    let mode = |path: &str| {
        let meta = std::fs::metadata(store.dir().join(path)).unwrap();
        meta.permissions().mode() & 0o777
    };
    assert_eq!(mode(""), 0o700);
    assert_eq!(mode("wake"), 0o700);
    for file in ["table", "tokens", "members", "init", "wake/0"] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_holder_detects_that_the_table_was_deleted() {
    let (_dir, store) = open();
    let claim = exclusive("a");
    let before = token(store.claim(&claim, QUEUE).await.unwrap());
    std::fs::remove_dir_all(store.dir()).unwrap();
    let error = store.renew(&claim).await.unwrap_err();
    assert_eq!(error.kind(), tenure_core::ErrorKind::Lost, "{error}");
    let again = LocalStore::open(store.dir()).unwrap();
    let after = token(again.claim(&claim, QUEUE).await.unwrap());
    assert!(before < after, "the clock keeps tokens from going back");
}

/// Processes that open the store after the table was deleted or moved use a new one, so the old one must
/// grant nothing.
#[tokio::test]
async fn a_table_that_was_moved_away_grants_no_claims() {
    for moved in [false, true] {
        let (_dir, store) = open();
        let table = store.dir().join("table");
        let waiter = exclusive("b");
        store.claim(&exclusive("b"), QUEUE).await.unwrap();
        store.claim(&waiter, QUEUE).await.unwrap();
        match moved {
            true => std::fs::rename(&table, store.dir().join("old")).unwrap(),
            false => std::fs::remove_file(&table).unwrap(),
        }
        let other = LocalStore::open(store.dir()).unwrap();
        other.claim(&exclusive("a"), QUEUE).await.unwrap();
        let refused = || async { store.claim(&exclusive("a"), QUEUE).await.is_err() };
        assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, refused).await);
        let error = store.claim(&exclusive("a"), QUEUE).await.unwrap_err();
        assert_eq!(error.kind(), tenure_core::ErrorKind::Damaged, "{error}");
        let error = store.claim(&waiter, QUEUE).await.unwrap_err();
        assert_eq!(error.kind(), tenure_core::ErrorKind::Damaged, "{error}");
    }
}

#[tokio::test]
async fn the_error_for_a_damaged_tokens_file_names_one_remedy() {
    let (_dir, store) = open();
    let dir = store.dir().to_owned();
    drop(store);
    std::fs::write(dir.join("tokens"), "nonsense").unwrap();
    let error = LocalStore::open(&dir).unwrap_err().to_string();
    assert!(error.contains("tokens") && !error.contains("table"), "{error}");
}
