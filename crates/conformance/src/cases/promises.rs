//! A store's capabilities are neither more nor less than the truth.

use std::time::Duration;

use tenure_core::store::ClaimOutcome;
use tenure_core::{ErrorKind, Guard, Mode, Result, Severity, Token};

use crate::Fixture;
use crate::fixture::{LONG, claim, claim_for, client, let_go, long, name, raw};
use crate::raw::{PATIENT, Raw};

/// Grants, guards and snapshots carry a token exactly if the store promises fencing.
pub async fn tokens_are_given_exactly_as_promised(fixture: &dyn Fixture) {
    let name = name("fencing");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let promised = raw.capabilities().fencing.gives_tokens();
    let holder = claim(&name, Mode::Exclusive);
    let grant = raw.hold(&holder).await;
    assert_eq!(grant.token.is_some(), promised);
    assert_eq!(raw.inspect(&name).await.holders[0].token, grant.token);
    raw.give_up(&holder).await;
    let guard = client.mutex(name.as_str()).unwrap().with(long()).acquire().await.unwrap();
    assert_eq!(guard.token().is_some(), promised);
    let_go(guard).await;
}

/// Shared claims and permits are granted if the store promises them, and `Unsupported` if not.
pub async fn modes_are_supported_exactly_as_promised(fixture: &dyn Fixture) {
    let name = name("modes");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let promises = raw.capabilities();
    let permits = Mode::Permits { take: 1, of: 2 };
    for (mode, promised) in [(Mode::Shared, promises.shared), (permits, promises.permits)] {
        let wanted = claim(&name, mode);
        if promised {
            raw.hold(&wanted).await;
            raw.give_up(&wanted).await;
        } else {
            assert_eq!(raw.refusal(&wanted).await, ErrorKind::Unsupported);
        }
        raw.assert_free(&name).await;
    }
    let reader = client.rw_lock(name.as_str()).unwrap().with(long());
    assert_as_promised(reader.read().await.map(Guard::from), promises.shared).await;
    let semaphore = client.semaphore(name.as_str(), 2).unwrap().with(long());
    assert_as_promised(semaphore.acquire().await, promises.permits).await;
    client.close().await;
    raw.assert_free(&name).await;
}

async fn assert_as_promised(outcome: Result<Guard>, promised: bool) {
    match outcome {
        Ok(guard) => {
            assert!(promised, "a mode that was not promised was granted");
            let_go(guard).await;
        }
        Err(error) => {
            assert!(!promised, "{error}");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
    }
}

/// Tokens strictly increase whichever way the lock changes hands: released, handed over, expired,
/// evicted, or after a waiter gave up.
pub async fn tokens_increase_whichever_way_a_lock_changes_hands(fixture: &dyn Fixture) {
    let name = name("tokens");
    let raw = raw(fixture).await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(released(&raw, &claim(&name, Mode::Exclusive)).await);
    }
    // Handed over, to one that then expires.
    let [first, gives_up] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    let heir = claim_for(&name, Mode::Exclusive, fixture.ttl());
    let grant = raw.hold(&first).await;
    tokens.push(raw.token(&grant));
    raw.queue(&gives_up, PATIENT).await;
    raw.queue(&heir, PATIENT).await;
    raw.release(&gives_up).await;
    raw.give_up(&first).await;
    raw.assert_handed_to(&name, &[&heir], &[]).await;
    tokens.push(raw.inspect(&name).await.holders.first().and_then(|holder| holder.token));
    // Expired, then evicted, then free.
    let evicted = claim(&name, Mode::Exclusive);
    let grant = raw.acquire(&evicted).await;
    tokens.push(raw.token(&grant));
    raw.throw_out(&name, evicted.owner).await;
    tokens.push(released(&raw, &claim(&name, Mode::Exclusive)).await);
    if !raw.capabilities().fencing.gives_tokens() {
        assert!(tokens.iter().all(Option::is_none), "{tokens:?}");
        return;
    }
    assert!(tokens.iter().all(Option::is_some), "{tokens:?}");
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

async fn released(raw: &Raw, holder: &tenure_core::store::Claim) -> Option<Token> {
    let grant = raw.hold(holder).await;
    raw.give_up(holder).await;
    raw.token(&grant)
}

/// A term other than what was asked for is never shown, and a renewal starts it anew.
pub async fn a_hold_is_shown_with_the_term_it_asked_for(fixture: &dyn Fixture) {
    let name = name("term");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    for _ in 0..2 {
        let left = raw.inspect(&name).await.holders[0].expires_in.unwrap();
        assert!(left <= LONG, "{left:?} of {LONG:?}");
        assert!(left > LONG / 2 + Duration::from_secs(1), "{left:?} of {LONG:?}");
        raw.renew(&holder).await;
    }
    let ClaimOutcome::Granted(_) = raw.claim(&holder, PATIENT).await else { panic!("it holds") };
}

/// A store looks at itself without harm, and says about everything that is not fine what to do.
/// Whether something is unsafe depends on where it runs: that is for the store's own tests.
pub async fn a_store_examines_itself(fixture: &dyn Fixture) {
    let raw = raw(fixture).await;
    let findings = raw.diagnose().await;
    assert!(!findings.is_empty(), "nothing was looked at");
    for finding in findings {
        assert!(!finding.what.is_empty(), "{finding:?}");
        assert_eq!(finding.remedy.is_empty(), finding.severity == Severity::Fine, "{finding:?}");
    }
}
