//! Releasing a lock: by its owner only, once, and without fail.

use std::time::{Duration, Instant};

use tenure_core::store::{ClaimOutcome, Released, Renewal};
use tenure_core::{ErrorKind, Mode, Options};

use crate::Fixture;
use crate::fixture::{claim, client, long, name, raw, release_guard};
use crate::raw::LONG_WAIT;
use crate::starvation::retry_if_starved;

/// A second release returns `NotHeld` and changes nothing, also if another owner holds by then.
pub async fn a_repeated_release_is_a_no_op(fixture: &dyn Fixture) {
    let name = name("release-twice");
    let raw = raw(fixture).await;
    let [first, second] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    assert_eq!(raw.release(&first).await, Released::NotHeld);
    raw.hold(&first).await;
    raw.release_held(&first).await;
    assert_eq!(raw.release(&first).await, Released::NotHeld);
    raw.assert_free(&name).await;
    raw.hold(&second).await;
    assert_eq!(raw.release(&first).await, Released::NotHeld);
    raw.assert_owners(&name, &[&second], &[]).await;
}

/// A release by another owner returns `NotHeld`, and the holder keeps the lock and its token.
pub async fn only_the_owner_can_release(fixture: &dyn Fixture) {
    let name = name("other-owner");
    let raw = raw(fixture).await;
    let [holder, unrelated, waiter] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    let grant = raw.hold(&holder).await;
    raw.queue(&waiter, LONG_WAIT).await;
    assert_eq!(raw.release(&unrelated).await, Released::NotHeld);
    assert_eq!(raw.renew(&unrelated).await, Renewal::Lost);
    raw.assert_owners(&name, &[&holder], &[&waiter]).await;
    assert_eq!(raw.inspect(&name).await.holders[0].token, grant.token);
    assert_eq!(raw.renew(&holder).await, Renewal::Renewed);
}

/// A release identifies the hold by name and owner; mode and TTL of the claim do not matter.
pub async fn a_release_matches_name_and_owner_only(fixture: &dyn Fixture) {
    let name = name("release-by-owner");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let mut different = claim(&name, Mode::Shared);
    different.owner = holder.owner;
    different.ttl = std::time::Duration::from_millis(100);
    raw.release_held(&different).await;
    raw.assert_free(&name).await;
}

/// Releasing a claim that waits removes it from the queue.
pub async fn releasing_a_waiting_claim_leaves_the_queue(fixture: &dyn Fixture) {
    let name = name("leave-queue");
    let raw = raw(fixture).await;
    let [holder, first, second] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    raw.queue(&first, LONG_WAIT).await;
    raw.queue(&second, LONG_WAIT).await;
    assert_eq!(raw.release(&first).await, Released::NotHeld);
    raw.assert_owners(&name, &[&holder], &[&second]).await;
    raw.release_held(&holder).await;
    raw.assert_handed_to(&name, &[&second], &[]).await;
}

/// A holder that claims again has the same hold: one token, one holder, one release.
pub async fn claiming_again_returns_the_same_hold(fixture: &dyn Fixture) {
    let name = name("claim-twice");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    let first = raw.hold(&holder).await;
    let second = raw.hold(&holder).await;
    assert_eq!(raw.token(&first), raw.token(&second));
    let again = raw.claim(&holder, tenure_core::store::WaitPolicy::NoWait).await;
    assert!(matches!(again, ClaimOutcome::Granted(grant) if grant.token == first.token));
    raw.assert_owners(&name, &[&holder], &[]).await;
    raw.release_held(&holder).await;
    raw.assert_free(&name).await;
}

/// Dropping a guard releases the lock in the background.
pub async fn a_dropped_guard_is_released_in_the_background(fixture: &dyn Fixture) {
    let name = name("drop");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let guard = mutex.acquire().await.unwrap();
    let other = crate::fixture::client(fixture).await;
    let next = other.mutex(name.as_str()).unwrap().with(long());
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    raw.wait_for_waiters(&name, 1).await;
    drop(guard);
    let guard = tokio::time::timeout(tenure_testkit::GENEROUS, next).await.unwrap().unwrap();
    release_guard(guard).await;
    other.close().await;
    raw.assert_free(&name).await;
}

/// The release of an evicted hold returns the loss, also with `at_least`.
pub async fn an_evicted_hold_with_a_minimum_time_is_lost(fixture: &dyn Fixture) {
    // Injected faults may hide the loss.
    if fixture.injects_faults() {
        return;
    }
    let (raw, client, name) = (raw(fixture).await, client(fixture).await, name("at-least-evicted"));
    let options = long().at_least(Duration::from_secs(60));
    let guard = client.mutex(name.as_str()).unwrap().with(options).acquire().await.unwrap();
    raw.evict_owner(&name, guard.owner()).await;
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    client.close().await;
    raw.assert_free(&name).await;
}

/// A lock with `at_least` is shown as held, and kept from others, for that time after it was acquired,
/// although its guard was released or dropped long before; then it is free. Its TTL is shorter. `close`
/// waits for that.
pub async fn a_lock_stays_taken_for_at_least_its_time(fixture: &dyn Fixture) {
    let (raw, ours, theirs) = (raw(fixture).await, client(fixture).await, client(fixture).await);
    let ttl = fixture.ttl().max(Duration::from_secs(1));
    let at_least = 2 * ttl + Duration::from_secs(1);
    for dropped in [false, true] {
        retry_if_starved(ttl / 6, || async {
            let name = name("at-least");
            let options = Options::new().ttl(ttl).at_least(at_least);
            let started = Instant::now();
            let guard = ours.mutex(name.as_str()).unwrap().with(options);
            let guard = guard.acquire().await.unwrap();
            let (validity, token) = (guard.validity(), guard.token());
            match dropped {
                true => drop(guard),
                false => release_guard(guard).await,
            }
            assert!(!validity.is_valid(), "the holder has given it up");
            let state = raw.inspect(&name).await;
            assert_eq!(state.holders.len(), 1, "{state:?}");
            assert_eq!(state.holders[0].token, token);
            let next = theirs.mutex(name.as_str()).unwrap().with(long());
            let next = next.acquire_within(tenure_testkit::GENEROUS).await.unwrap();
            let waited = started.elapsed();
            release_guard(next).await;
            ours.close().await;
            theirs.close().await;
            raw.assert_free(&name).await;
            // Less, if the machine was too busy for the lock to be renewed.
            match waited >= at_least {
                true => Ok(()),
                false => Err(format!("the lock was free after {waited:?}")),
            }
        })
        .await;
    }
    let name = name("at-least-close");
    let options = Options::new().at_least(Duration::from_secs(1));
    let started = Instant::now();
    drop(ours.mutex(name.as_str()).unwrap().with(options).acquire().await.unwrap());
    ours.close().await;
    assert!(started.elapsed() >= Duration::from_secs(1));
    raw.assert_free(&name).await;
}

/// When `close` returns, the locks of all guards dropped before it are free.
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

/// `close` keeps the client's holds and waiters, and the client can be used afterwards.
pub async fn closing_a_client_keeps_its_holds_and_waiters(fixture: &dyn Fixture) {
    let prefix = name("close-busy");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let mutex = |which: &str| client.mutex(&format!("{prefix}/{which}")).unwrap().with(long());
    let guard = mutex("held").acquire().await.unwrap();
    let token = guard.token();
    let waiter = mutex("held");
    let waiting = tokio::spawn(async move { waiter.acquire().await.unwrap() });
    raw.wait_for_waiters(guard.name(), 1).await;
    release_guard(mutex("before").acquire().await.unwrap()).await;
    client.close().await;
    let state = raw.inspect(guard.name()).await;
    let shown = usize::from(raw.capabilities().waiters);
    assert_eq!((state.holders.len(), state.waiters.len()), (1, shown), "{state:?}");
    assert_eq!(state.holders[0].token, token);
    release_guard(mutex("after").acquire().await.unwrap()).await;
    assert!(guard.is_valid());
    release_guard(guard).await;
    let next = tokio::time::timeout(tenure_testkit::GENEROUS, waiting).await.unwrap().unwrap();
    release_guard(next).await;
    client.close().await;
    assert_eq!(raw.list(prefix.as_str()).await, []);
}
