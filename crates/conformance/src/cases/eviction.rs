//! Taking a lock away by force.

use std::time::Duration;

use tenure_core::store::{Eviction, Released, Renewal};
use tenure_core::{LossReason, Mode, Options};
use tenure_testkit::GENEROUS;

use crate::Fixture;
use crate::disturbance::undisturbed;
use crate::fixture::{claim, client, name, raw};
use crate::raw::PATIENT;

/// Only the owner that was seen is evicted, once; what it had is gone for it, and the next in
/// line holds with a higher token.
pub async fn an_eviction_hits_the_owner_seen_only(fixture: &dyn Fixture) {
    let name = name("evict");
    let raw = raw(fixture).await;
    let [seen, stranger, next] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    let order = |owner| Eviction::new(name.clone(), owner, "stuck since Monday");
    assert_eq!(raw.evict(&order(seen.owner)).await, Released::NotHeld, "nobody holds yet");
    let before = raw.hold(&seen).await;
    raw.queue(&next, PATIENT).await;
    assert_eq!(raw.evict(&order(stranger.owner)).await, Released::NotHeld);
    let mut odd = order(seen.owner);
    odd.owner = "not an owner".into();
    assert_eq!(raw.evict(&odd).await, Released::NotHeld);
    raw.assert_owners(&name, &[&seen], &[&next]).await;
    raw.throw_out(&name, seen.owner).await;
    raw.assert_handed_to(&name, &[&next], &[]).await;
    assert_eq!(raw.evict(&order(seen.owner)).await, Released::NotHeld, "it was evicted before");
    raw.assert_owners(&name, &[&next], &[]).await;
    assert_eq!(raw.renew(&seen).await, Renewal::Lost);
    assert_eq!(raw.release(&seen).await, Released::NotHeld);
    let after = raw.inspect(&name).await.holders[0].token;
    assert!(before.token.is_none() || before.token < after, "{before:?} {after:?}");
}

/// A waiter that is evicted has lost its place.
pub async fn an_evicted_waiter_loses_its_place(fixture: &dyn Fixture) {
    let name = name("evict-waiter");
    let raw = raw(fixture).await;
    let [holder, evicted, next] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    raw.queue(&evicted, PATIENT).await;
    raw.queue(&next, PATIENT).await;
    raw.evict(&Eviction::new(name.clone(), evicted.owner, "test")).await;
    raw.assert_owners(&name, &[&holder], &[&next]).await;
    raw.queue(&evicted, PATIENT).await;
    raw.assert_owners(&name, &[&holder], &[&next, &evicted]).await;
}

/// Where the store promises to tell of losses, a guard that is evicted hears of it long before its
/// next renewal, time and again, and nobody else hears anything.
pub async fn an_evicted_guard_is_told_at_once_as_promised(fixture: &dyn Fixture) {
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    // Where messages get lost, so may this one; then a renewal finds what the case before this judges.
    if !raw.capabilities().tells_losses || !fixture.faithful() {
        return;
    }
    let options = Options::new().ttl(Duration::from_secs(3600));
    let mutex = |tag| {
        let name = name(tag);
        (client.mutex(name.as_str()).unwrap().with(options.clone()), name)
    };
    let ((left_alone, _), (taken, name)) = (mutex("left-alone"), mutex("taken"));
    let other = left_alone.acquire().await.unwrap();
    for _ in 0..3 {
        let guard = taken.acquire().await.unwrap();
        raw.throw_out(&name, guard.owner()).await;
        let told = tokio::time::timeout(GENEROUS, guard.lost()).await;
        assert_eq!(told.expect("it is told"), LossReason::NotHeld);
        assert!(!guard.is_valid() && other.is_valid());
    }
    other.release().await.unwrap();
}

/// A guard that was evicted hears of it with its next renewal, and its release says so.
pub async fn an_evicted_guard_hears_of_its_loss(fixture: &dyn Fixture) {
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let ttl = fixture.ttl().max(Duration::from_secs(2));
    undisturbed(ttl / 6, || async {
        let name = name("evict-guard");
        let options = Options::new().ttl(ttl);
        let guard = client.mutex(name.as_str()).unwrap().with(options).acquire().await.unwrap();
        raw.throw_out(&name, guard.owner()).await;
        let reason = tokio::time::timeout(GENEROUS, guard.lost()).await.unwrap();
        assert!(!guard.is_valid());
        assert!(guard.release().await.is_err(), "the release says that it was lost");
        match reason {
            LossReason::NotHeld => Ok(()),
            other => Err(format!("the evicted guard ended with {other:?}")),
        }
    })
    .await;
}
