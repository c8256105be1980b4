//! Giving a lock back: by its owner only, once, and always.

use tenure_core::Mode;
use tenure_core::store::{ClaimOutcome, Released, Renewal};

use crate::Fixture;
use crate::fixture::{claim, client, let_go, long, name, raw};
use crate::raw::PATIENT;

/// A second release changes nothing and says so, also when another holds by then.
pub async fn a_repeated_release_changes_nothing(fixture: &dyn Fixture) {
    let name = name("release-twice");
    let raw = raw(fixture).await;
    let [first, second] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    assert_eq!(raw.release(&first).await, Released::NotHeld);
    raw.hold(&first).await;
    raw.give_up(&first).await;
    assert_eq!(raw.release(&first).await, Released::NotHeld);
    raw.assert_free(&name).await;
    raw.hold(&second).await;
    assert_eq!(raw.release(&first).await, Released::NotHeld);
    raw.assert_owners(&name, &[&second], &[]).await;
}

/// A stranger's release says `NotHeld`, and the holder holds on with the same token.
pub async fn a_stranger_cannot_release(fixture: &dyn Fixture) {
    let name = name("stranger");
    let raw = raw(fixture).await;
    let [holder, stranger, waiter] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    let grant = raw.hold(&holder).await;
    raw.queue(&waiter, PATIENT).await;
    assert_eq!(raw.release(&stranger).await, Released::NotHeld);
    assert_eq!(raw.renew(&stranger).await, Renewal::Lost);
    raw.assert_owners(&name, &[&holder], &[&waiter]).await;
    assert_eq!(raw.inspect(&name).await.holders[0].token, grant.token);
    assert_eq!(raw.renew(&holder).await, Renewal::Renewed);
}

/// A release names the lock and the owner; it does not matter what else the claim says.
pub async fn a_release_goes_by_name_and_owner_alone(fixture: &dyn Fixture) {
    let name = name("release-by-owner");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let mut bare = claim(&name, Mode::Shared);
    bare.owner = holder.owner;
    bare.ttl = std::time::Duration::from_millis(100);
    raw.give_up(&bare).await;
    raw.assert_free(&name).await;
}

/// The release of a claim that waits takes it out of the line.
pub async fn releasing_a_waiting_claim_leaves_the_line(fixture: &dyn Fixture) {
    let name = name("leave-line");
    let raw = raw(fixture).await;
    let [holder, first, second] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    raw.queue(&first, PATIENT).await;
    raw.queue(&second, PATIENT).await;
    assert_eq!(raw.release(&first).await, Released::NotHeld);
    raw.assert_owners(&name, &[&holder], &[&second]).await;
    raw.give_up(&holder).await;
    raw.assert_handed_to(&name, &[&second], &[]).await;
}

/// Claiming again with the same owner is the same hold: one token, one holder, one release.
pub async fn claiming_again_is_the_same_hold(fixture: &dyn Fixture) {
    let name = name("claim-twice");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    let first = raw.hold(&holder).await;
    let second = raw.hold(&holder).await;
    assert_eq!(raw.token(&first), raw.token(&second));
    let again = raw.claim(&holder, tenure_core::store::WaitPolicy::NoWait).await;
    assert!(matches!(again, ClaimOutcome::Granted(grant) if grant.token == first.token));
    raw.assert_owners(&name, &[&holder], &[]).await;
    raw.give_up(&holder).await;
    raw.assert_free(&name).await;
}

/// A dropped guard gives the lock back without being asked.
pub async fn a_dropped_guard_is_released_in_the_background(fixture: &dyn Fixture) {
    let name = name("drop");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let guard = mutex.acquire().await.unwrap();
    let other = crate::fixture::client(fixture).await;
    let next = other.mutex(name.as_str()).unwrap().with(long());
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    raw.until_waiting(&name, 1).await;
    drop(guard);
    let guard = tokio::time::timeout(tenure_testkit::GENEROUS, next).await.unwrap().unwrap();
    let_go(guard).await;
    other.close().await;
    raw.assert_free(&name).await;
}

/// When `close` returns, everything that was dropped before it is free.
pub async fn closing_a_client_waits_for_its_releases(fixture: &dyn Fixture) {
    let prefix = name("close");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mut guards = Vec::new();
    for number in 0..50 {
        let mutex = client.mutex(&format!("{prefix}/{number}")).unwrap().with(long());
        guards.push(mutex.acquire().await.unwrap());
    }
    assert_eq!(raw.list(prefix.as_str()).await.len(), 50);
    drop(guards);
    client.close().await;
    assert_eq!(raw.list(prefix.as_str()).await, []);
}

/// What is held when a client closes stays held, and who waits keeps its place; and a closed client
/// can be used again.
pub async fn closing_a_client_disturbs_nobody(fixture: &dyn Fixture) {
    let prefix = name("close-busy");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = |which: &str| client.mutex(&format!("{prefix}/{which}")).unwrap().with(long());
    let guard = mutex("held").acquire().await.unwrap();
    let token = guard.token();
    let waiter = mutex("held");
    let waiting = tokio::spawn(async move { waiter.acquire().await.unwrap() });
    raw.until_waiting(guard.name(), 1).await;
    let_go(mutex("before").acquire().await.unwrap()).await;
    client.close().await;
    let state = raw.inspect(guard.name()).await;
    assert_eq!((state.holders.len(), state.waiters.len()), (1, 1), "{state:?}");
    assert_eq!(state.holders[0].token, token);
    let_go(mutex("after").acquire().await.unwrap()).await;
    assert!(guard.is_valid());
    let_go(guard).await;
    let next = tokio::time::timeout(tenure_testkit::GENEROUS, waiting).await.unwrap().unwrap();
    let_go(next).await;
    client.close().await;
    assert_eq!(raw.list(prefix.as_str()).await, []);
}
