//! A store behaves exactly as its capabilities declare.

use std::time::Duration;

use tenure_core::store::ClaimOutcome;
use tenure_core::{ErrorKind, Guard, Mode, Result, Severity, Token};

use crate::Fixture;
use crate::fixture::{LONG, claim, claim_for, client, long, name, raw, release_guard};
use crate::raw::{LONG_WAIT, Raw};

/// Grants, guards and `inspect` have a token exactly if the store declares fencing.
pub async fn tokens_are_issued_exactly_as_declared(fixture: &dyn Fixture) {
    let name = name("fencing");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let declared = raw.capabilities().fencing.gives_tokens();
    let holder = claim(&name, Mode::Exclusive);
    let grant = raw.hold(&holder).await;
    assert_eq!(grant.token.is_some(), declared);
    assert_eq!(raw.inspect(&name).await.holders[0].token, grant.token);
    raw.release_held(&holder).await;
    let guard = client.mutex(name.as_str()).unwrap().with(long()).acquire().await.unwrap();
    assert_eq!(guard.token().is_some(), declared);
    release_guard(guard).await;
}

/// Shared claims and permits are granted if the store declares them, and `Unsupported` if not.
pub async fn modes_are_supported_exactly_as_declared(fixture: &dyn Fixture) {
    // A name for permits and one for the others: they need not have the same.
    let (name, of_permits) = (name("modes"), name("permit-mode"));
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let capabilities = raw.capabilities();
    let permits = Mode::Permits { take: 1, of: 2 };
    let modes =
        [(&name, Mode::Shared, capabilities.shared), (&of_permits, permits, capabilities.permits)];
    for (name, mode, declared) in modes {
        let claim = claim(name, mode);
        if declared {
            raw.hold(&claim).await;
            raw.release_held(&claim).await;
        } else {
            assert_eq!(raw.refusal(&claim).await, ErrorKind::Unsupported);
        }
        raw.assert_free(name).await;
    }
    let reader = client.rw_lock(name.as_str()).unwrap().with(long());
    assert_as_declared(reader.read().await.map(Guard::from), capabilities.shared).await;
    let semaphore = client.semaphore(of_permits.as_str(), 2).unwrap().with(long());
    assert_as_declared(semaphore.acquire().await, capabilities.permits).await;
    client.close().await;
    raw.assert_free(&name).await;
    raw.assert_free(&of_permits).await;
}

async fn assert_as_declared(outcome: Result<Guard>, declared: bool) {
    match outcome {
        Ok(guard) => {
            assert!(declared, "a mode was granted that the store does not declare");
            release_guard(guard).await;
        }
        Err(error) => {
            assert!(!declared, "{error}");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
    }
}

/// Tokens strictly increase however the lock changes hands: by release, hand-off, expiry or
/// eviction, and after a waiter left the queue.
pub async fn tokens_increase_however_the_lock_changes_hands(fixture: &dyn Fixture) {
    let name = name("tokens");
    let raw = raw(fixture).await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(hold_and_release(&raw, &claim(&name, Mode::Exclusive)).await);
    }
    // Handed over, to a claim that then expires.
    let [first, leaves_queue] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    let expires = claim_for(&name, Mode::Exclusive, fixture.ttl());
    let grant = raw.hold(&first).await;
    tokens.push(raw.token(&grant));
    raw.queue(&leaves_queue, LONG_WAIT).await;
    raw.queue(&expires, LONG_WAIT).await;
    raw.release(&leaves_queue).await;
    raw.release_held(&first).await;
    raw.assert_handed_to(&name, &[&expires], &[]).await;
    tokens.push(raw.inspect(&name).await.holders.first().and_then(|holder| holder.token));
    // Expired, then evicted, then free.
    let evicted = claim(&name, Mode::Exclusive);
    let grant = raw.acquire(&evicted).await;
    tokens.push(raw.token(&grant));
    raw.evict_owner(&name, evicted.owner).await;
    tokens.push(hold_and_release(&raw, &claim(&name, Mode::Exclusive)).await);
    if !raw.capabilities().fencing.gives_tokens() {
        assert!(tokens.iter().all(Option::is_none), "{tokens:?}");
        return;
    }
    assert!(tokens.iter().all(Option::is_some), "{tokens:?}");
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

async fn hold_and_release(raw: &Raw, holder: &tenure_core::store::Claim) -> Option<Token> {
    let grant = raw.hold(holder).await;
    raw.release_held(holder).await;
    raw.token(&grant)
}

/// `expires_in` starts at the TTL of the claim, never exceeds it, and a renewal restarts it.
pub async fn expires_in_follows_the_requested_ttl(fixture: &dyn Fixture) {
    let name = name("expires-in");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    for _ in 0..2 {
        let left = raw.inspect(&name).await.holders[0].expires_in.unwrap();
        assert!(left <= LONG, "{left:?} of {LONG:?}");
        assert!(left > LONG / 2 + Duration::from_secs(1), "{left:?} of {LONG:?}");
        raw.renew(&holder).await;
    }
    let outcome = raw.claim(&holder, LONG_WAIT).await;
    assert!(matches!(outcome, ClaimOutcome::Granted(_)), "the claim holds: {outcome:?}");
}

/// `diagnose` returns at least one finding, and a remedy for each that is not `Fine`. Whether a
/// finding is `Unsafe` depends on the installation, so the store's own tests assert that.
pub async fn diagnose_returns_findings_with_remedies(fixture: &dyn Fixture) {
    let raw = raw(fixture).await;
    let findings = raw.diagnose().await;
    assert!(!findings.is_empty(), "diagnose returned no findings");
    for finding in findings {
        assert!(!finding.what.is_empty(), "{finding:?}");
        assert_eq!(finding.remedy.is_empty(), finding.severity == Severity::Fine, "{finding:?}");
    }
}
