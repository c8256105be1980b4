//! A hold lasts for one TTL after its last renewal.

use tenure_core::store::{ClaimOutcome, Moment, Released, Renewal, WaitPolicy, now};
use tenure_core::{ErrorKind, Mode, Options};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::fixture::{claim, claim_for, client, name, raw, release_guard, try_acquire};
use crate::raw::LONG_WAIT;
use crate::starvation::retry_if_starved;

/// A hold without renewals ends after its deadline, never before it. Then its owner can neither renew
/// nor release it, and has no effect on the next holder.
pub async fn a_hold_without_renewal_expires_after_its_ttl(fixture: &dyn Fixture) {
    let name = name("expiry");
    let (theirs, ours) = (raw(fixture).await, raw(fixture).await);
    let expiring = claim_for(&name, Mode::Exclusive, fixture.ttl());
    let next = claim(&name, Mode::Exclusive);
    let sent = now();
    let grant = theirs.hold(&expiring).await;
    ours.queue(&next, LONG_WAIT).await;
    let granted =
        || async { matches!(ours.claim(&next, LONG_WAIT).await, ClaimOutcome::Granted(_)) };
    assert!(eventually(GENEROUS, granted).await, "the hold never expired");
    assert!(now() >= tenure_proto::deadline(sent, fixture.ttl()), "expired before its deadline");
    assert_eq!(theirs.renew(&expiring).await, Renewal::Lost);
    assert_eq!(theirs.release(&expiring).await, Released::NotHeld);
    assert_eq!(theirs.claim(&expiring, WaitPolicy::NoWait).await, ClaimOutcome::Busy);
    ours.assert_owners(&name, &[&next], &[]).await;
    let token = ours.inspect(&name).await.holders[0].token;
    assert!(token.is_none() || grant.token < token);
}

/// `inspect` and `list` omit an expired hold even if no other claim is made for the lock.
pub async fn inspect_and_list_omit_expired_holds(fixture: &dyn Fixture) {
    let name = name("expiry-shown");
    let raw = raw(fixture).await;
    let expiring = claim_for(&name, Mode::Exclusive, fixture.ttl());
    raw.hold(&expiring).await;
    let gone = || async { raw.inspect(&name).await.is_free() };
    assert!(eventually(GENEROUS, gone).await, "the hold never expired");
    assert_eq!(raw.list(name.as_str()).await, []);
    assert_eq!(raw.renew(&expiring).await, Renewal::Lost);
    assert_eq!(raw.release(&expiring).await, Released::NotHeld);
}

/// A claim that is made again after it expired is a new hold, with a higher token.
pub async fn claiming_again_after_expiry_is_a_new_hold_with_a_higher_token(fixture: &dyn Fixture) {
    let name = name("expiry-again");
    let raw = raw(fixture).await;
    let holder = claim_for(&name, Mode::Exclusive, fixture.ttl());
    let before = raw.hold(&holder).await;
    let gone = || async { raw.inspect(&name).await.is_free() };
    assert!(eventually(GENEROUS, gone).await, "the hold never expired");
    let after = raw.hold(&holder).await;
    assert!(raw.token(&before).is_none() || before.token < after.token, "{before:?} {after:?}");
}

/// A guard keeps its lock for several TTLs, and another client finds it busy all the time.
pub async fn a_guard_is_renewed_beyond_several_ttls(fixture: &dyn Fixture) {
    let (holder, other) = (client(fixture).await, client(fixture).await);
    retry_if_starved(fixture.ttl() / 4, || async {
        let name = name("renewal");
        let options = Options::new().ttl(fixture.ttl());
        let mutex = holder.mutex(name.as_str()).unwrap().with(options.clone());
        let guard = mutex.acquire().await.unwrap();
        let rival = other.mutex(name.as_str()).unwrap().with(options);
        let end = now() + fixture.ttl() * 3;
        let verdict = loop {
            let refused = try_acquire(fixture, &other, &rival).await.map_err(|error| error.kind());
            match (guard.is_valid(), refused) {
                (true, Err(ErrorKind::Busy)) if now() >= end => break Ok(()),
                (true, Err(ErrorKind::Busy)) => {}
                (false, _) => break Err("the guard lost its lock".to_owned()),
                (true, result) => break Err(format!("the lock was not busy: {result:?}")),
            }
            tokio::time::sleep(fixture.ttl() / 10).await;
        };
        // A guard that a starved machine has lost cannot be released; the verdict reports it.
        if verdict.is_ok() {
            release_guard(guard).await;
        }
        verdict
    })
    .await;
}

/// A renewal restarts the TTL: the hold ends one TTL after the last renewal, not earlier.
pub async fn a_hold_lasts_one_ttl_from_its_last_renewal(fixture: &dyn Fixture) {
    let name = name("last-renewal");
    let raw = raw(fixture).await;
    let holder = claim_for(&name, Mode::Exclusive, fixture.ttl());
    raw.hold(&holder).await;
    let mut last = Moment::default();
    for _ in 0..4 {
        let sent = now();
        if raw.renew(&holder).await == Renewal::Renewed {
            last = sent;
        }
        tokio::time::sleep(fixture.ttl() / 4).await;
    }
    let gone = || async { raw.inspect(&name).await.is_free() };
    assert!(eventually(GENEROUS, gone).await, "the hold never expired");
    assert!(now() >= tenure_proto::deadline(last, fixture.ttl()), "expired before its deadline");
}
