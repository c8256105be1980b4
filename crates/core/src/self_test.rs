//! A lock that nobody else uses is taken, handed over, renewed and released.

use std::time::Duration;

use crate::{
    Claim, ClaimOutcome, Finding, LockName, Mode, OwnerId, QueueTicket, Released, Renewal, Result,
    Store, WaitPolicy,
};

/// How long a claim of the trial lasts, should it be left behind.
const TTL: Duration = Duration::from_secs(10);

/// Takes a lock that nobody else uses, hands it over, renews and releases it, and says what came of
/// it: a part of what [`Store::diagnose`] tells. News of the hand-over may take as long as `timeout`;
/// `remedy` is what to do where none come.
pub async fn self_test(store: &dyn Store, timeout: Duration, remedy: &'static str) -> Finding {
    let owners = [OwnerId::random(), OwnerId::random()];
    let claims = LockName::new(&format!("tenure-doctor-{}", owners[0])).map(|name| {
        owners.map(|owner| {
            let claim = Claim::new(name.clone(), Mode::Exclusive, TTL).with_owner(owner);
            claim.with_label("tenure doctor")
        })
    });
    let outcome = match &claims {
        Ok([first, second]) => hand_over(store, first, second, timeout).await,
        Err(error) => return failed(&error.to_string()),
    };
    for claim in claims.iter().flatten() {
        // What cannot be released ends by itself.
        let _ = store.release(claim).await;
    }
    match outcome {
        Ok(Verdict::HandedOver) => {
            Finding::fine("a trial lock was taken, handed over, renewed and released")
        }
        Ok(Verdict::Unheard) => {
            let what = format!(
                "a trial lock was handed over, but news of it did not come within {timeout:?}: \
                 waiters ask now and then instead"
            );
            Finding::advice(what, remedy)
        }
        Ok(Verdict::Failed(why)) => failed(why),
        Err(error) => failed(&error.to_string()),
    }
}

enum Verdict {
    HandedOver,
    /// It was, and no news of it came.
    Unheard,
    Failed(&'static str),
}

async fn hand_over(
    store: &dyn Store,
    first: &Claim,
    second: &Claim,
    timeout: Duration,
) -> Result<Verdict> {
    let ClaimOutcome::Granted(_) = store.claim(first, WaitPolicy::NoWait).await? else {
        return Ok(Verdict::Failed("a lock that nobody holds was not granted"));
    };
    let ClaimOutcome::Queued(place) = store.claim(second, WaitPolicy::queue(TTL)).await? else {
        return Ok(Verdict::Failed("a lock that is held was granted to another"));
    };
    if store.release(first).await? != Released::Released {
        return Ok(Verdict::Failed("a lock was gone before it was released"));
    }
    let heard = hears(store, second, &place, timeout).await?;
    // Where the lock is not handed over, who hears of it asks.
    if !store.capabilities().fifo {
        store.claim(second, WaitPolicy::queue(TTL)).await?;
    }
    if store.renew(second).await? != Renewal::Renewed {
        return Ok(Verdict::Failed("a lock was not handed to the one who waited for it"));
    }
    store.inspect(&second.name).await?;
    store.release(second).await?;
    Ok(if heard { Verdict::HandedOver } else { Verdict::Unheard })
}

async fn hears(
    store: &dyn Store,
    claim: &Claim,
    place: &QueueTicket,
    limit: Duration,
) -> Result<bool> {
    match tokio::time::timeout(limit, store.wait(claim, place)).await {
        // A hint to ask again is news, too.
        Ok(answer) => answer.map(|_| true),
        Err(_) => Ok(false),
    }
}

fn failed(why: &str) -> Finding {
    Finding::danger(
        format!("a trial lock failed: {why}"),
        "locks fail in the same way: see the message",
    )
}
