//! A hold lasts as long as it is renewed, and no longer.

use tenure_core::store::{ClaimOutcome, Moment, Released, Renewal, WaitPolicy, now};
use tenure_core::{ErrorKind, Mode, Options};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::disturbance::undisturbed;
use crate::fixture::{claim, claim_for, client, let_go, name, raw, try_acquire};
use crate::raw::PATIENT;

/// A hold that nobody renews ends, not before its deadline; then its owner can neither renew nor
/// release it, and does not disturb the next.
pub async fn a_hold_without_renewal_expires(fixture: &dyn Fixture) {
    let name = name("expiry");
    let (theirs, ours) = (raw(fixture).await, raw(fixture).await);
    let forgotten = claim_for(&name, Mode::Exclusive, fixture.ttl());
    let next = claim(&name, Mode::Exclusive);
    let sent = now();
    let grant = theirs.hold(&forgotten).await;
    ours.queue(&next, PATIENT).await;
    let granted = || async { matches!(ours.claim(&next, PATIENT).await, ClaimOutcome::Granted(_)) };
    assert!(eventually(GENEROUS, granted).await, "the hold never expired");
    assert!(now() >= tenure_proto::deadline(sent, fixture.ttl()), "expired before its deadline");
    assert_eq!(theirs.renew(&forgotten).await, Renewal::Lost);
    assert_eq!(theirs.release(&forgotten).await, Released::NotHeld);
    assert_eq!(theirs.claim(&forgotten, WaitPolicy::NoWait).await, ClaimOutcome::Busy);
    ours.assert_owners(&name, &[&next], &[]).await;
    let token = ours.inspect(&name).await.holders[0].token;
    assert!(token.is_none() || grant.token < token);
}

/// An expired hold is gone for those who look, too, although nobody asks for the lock.
pub async fn an_expired_hold_is_not_shown(fixture: &dyn Fixture) {
    let name = name("expiry-shown");
    let raw = raw(fixture).await;
    let forgotten = claim_for(&name, Mode::Exclusive, fixture.ttl());
    raw.hold(&forgotten).await;
    let gone = || async { raw.inspect(&name).await.is_free() };
    assert!(eventually(GENEROUS, gone).await, "the hold never expired");
    assert_eq!(raw.list(name.as_str()).await, []);
    assert_eq!(raw.renew(&forgotten).await, Renewal::Lost);
    assert_eq!(raw.release(&forgotten).await, Released::NotHeld);
}

/// A claim that expired and asks again is a new one, with a new token.
pub async fn an_expired_claim_that_asks_again_is_a_new_hold(fixture: &dyn Fixture) {
    let name = name("expiry-again");
    let raw = raw(fixture).await;
    let holder = claim_for(&name, Mode::Exclusive, fixture.ttl());
    let before = raw.hold(&holder).await;
    let gone = || async { raw.inspect(&name).await.is_free() };
    assert!(eventually(GENEROUS, gone).await, "the hold never expired");
    let after = raw.hold(&holder).await;
    assert!(raw.token(&before).is_none() || before.token < after.token, "{before:?} {after:?}");
}

/// A guard keeps its lock beyond several terms, and nobody gets in meanwhile.
pub async fn a_guard_holds_beyond_several_terms(fixture: &dyn Fixture) {
    let (holder, other) = (client(fixture).await, client(fixture).await);
    undisturbed(fixture.ttl() / 4, || async {
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
                (true, other) => break Err(format!("the lock was not busy: {other:?}")),
            }
            tokio::time::sleep(fixture.ttl() / 10).await;
        };
        let_go(guard).await;
        verdict
    })
    .await;
}

/// A renewal starts the term anew from its own time: the hold ends one term after the last.
pub async fn the_term_counts_from_the_last_renewal(fixture: &dyn Fixture) {
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
