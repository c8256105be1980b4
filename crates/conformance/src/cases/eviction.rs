//! Evicting a holder or waiter by force.

use std::time::Duration;

use tenure_core::store::{Eviction, Released, Renewal};
use tenure_core::{LossReason, Mode, Options};
use tenure_testkit::GENEROUS;

use crate::Fixture;
use crate::fixture::{claim, client, name, raw};
use crate::raw::LONG_WAIT;
use crate::starvation::retry_if_starved;

/// An eviction removes the owner it names and no other; a second one finds nothing. The evicted owner
/// can neither renew nor release, and the next waiter holds the lock with a higher token.
pub async fn an_eviction_removes_only_the_named_owner(fixture: &dyn Fixture) {
    let name = name("evict");
    let raw = raw(fixture).await;
    let [holder, unrelated, next] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    let eviction = |owner| Eviction::new(name.clone(), owner, "stuck since Monday");
    assert_eq!(raw.evict(&eviction(holder.owner)).await, Released::NotHeld, "the lock is free");
    let before = raw.hold(&holder).await;
    raw.queue(&next, LONG_WAIT).await;
    assert_eq!(raw.evict(&eviction(unrelated.owner)).await, Released::NotHeld);
    let mut malformed = eviction(holder.owner);
    malformed.owner = "not an owner".into();
    assert_eq!(raw.evict(&malformed).await, Released::NotHeld);
    raw.assert_owners(&name, &[&holder], &[&next]).await;
    raw.evict_owner(&name, holder.owner).await;
    raw.assert_handed_to(&name, &[&next], &[]).await;
    assert_eq!(
        raw.evict(&eviction(holder.owner)).await,
        Released::NotHeld,
        "it was evicted before"
    );
    raw.assert_owners(&name, &[&next], &[]).await;
    assert_eq!(raw.renew(&holder).await, Renewal::Lost);
    assert_eq!(raw.release(&holder).await, Released::NotHeld);
    let after = raw.inspect(&name).await.holders[0].token;
    assert!(before.token.is_none() || before.token < after, "{before:?} {after:?}");
}

/// An evicted waiter leaves the queue, and joins at its end if it claims again.
pub async fn an_evicted_waiter_leaves_the_queue(fixture: &dyn Fixture) {
    let name = name("evict-waiter");
    let raw = raw(fixture).await;
    let [holder, evicted, next] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    raw.queue(&evicted, LONG_WAIT).await;
    raw.queue(&next, LONG_WAIT).await;
    raw.evict(&Eviction::new(name.clone(), evicted.owner, "test")).await;
    raw.assert_owners(&name, &[&holder], &[&next]).await;
    raw.queue(&evicted, LONG_WAIT).await;
    raw.assert_owners(&name, &[&holder], &[&next, &evicted]).await;
}

/// If the store declares that it reports losses, an evicted guard is notified long before its next
/// renewal, every time, and other guards are not.
pub async fn an_evicted_guard_is_notified_at_once_if_the_store_reports_losses(
    fixture: &dyn Fixture,
) {
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    // Injected faults may lose the notification: then only the next renewal reveals the eviction.
    if !raw.capabilities().tells_losses || fixture.injects_faults() {
        return;
    }
    let options = Options::new().ttl(Duration::from_secs(3600));
    let mutex = |tag| {
        let name = name(tag);
        (client.mutex(name.as_str()).unwrap().with(options.clone()), name)
    };
    let ((kept, _), (evicted, name)) = (mutex("kept"), mutex("evicted"));
    let other = kept.acquire().await.unwrap();
    for _ in 0..3 {
        let guard = evicted.acquire().await.unwrap();
        raw.evict_owner(&name, guard.owner()).await;
        let lost = tokio::time::timeout(GENEROUS, guard.lost()).await;
        assert_eq!(lost.expect("the guard is notified"), LossReason::NotHeld);
        assert!(!guard.is_valid() && other.is_valid());
    }
    other.release().await.unwrap();
}

/// An evicted guard is invalid at the latest after its next renewal, and its release fails.
pub async fn an_evicted_guard_is_lost_at_its_next_renewal(fixture: &dyn Fixture) {
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let ttl = fixture.ttl().max(Duration::from_secs(2));
    retry_if_starved(ttl / 6, || async {
        let name = name("evict-guard");
        let options = Options::new().ttl(ttl);
        let guard = client.mutex(name.as_str()).unwrap().with(options).acquire().await.unwrap();
        raw.evict_owner(&name, guard.owner()).await;
        let reason = tokio::time::timeout(GENEROUS, guard.lost()).await.unwrap();
        assert!(!guard.is_valid());
        assert!(guard.release().await.is_err(), "the release must report the loss");
        match reason {
            LossReason::NotHeld => Ok(()),
            other => Err(format!("the evicted guard ended with {other:?}")),
        }
    })
    .await;
}
