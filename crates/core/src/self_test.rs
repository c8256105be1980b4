//! Takes, hands over, renews and releases a lock of its own, to see whether a store works.

use std::time::Duration;

use crate::{
    Claim, ClaimOutcome, Finding, LockName, Mode, OwnerId, QueueTicket, Released, Renewal, Result,
    Store, WaitPolicy,
};

/// How long a claim of the test lasts if it is left behind.
const TTL: Duration = Duration::from_secs(10);

/// Takes a lock with a name of its own, hands it over, renews and releases it, and reports how that went:
/// one finding of [`Store::diagnose`]. The wake-up of the second claim may take as long as `timeout`;
/// `remedy` is what to do if it does not come.
pub async fn self_test(store: &dyn Store, timeout: Duration, remedy: &'static str) -> Finding {
    match LockName::new(&format!("tenure-doctor-{}", OwnerId::random())) {
        Ok(name) => self_test_on(store, &name, timeout, remedy).await,
        Err(error) => failed(&error.to_string()),
    }
}

/// As [`self_test`], on the lock of this name, for a store that keeps something of every lock it has granted.
pub async fn self_test_on(
    store: &dyn Store,
    name: &LockName,
    timeout: Duration,
    remedy: &'static str,
) -> Finding {
    let claims = [OwnerId::random(), OwnerId::random()].map(|owner| {
        let claim = Claim::new(name.clone(), Mode::Exclusive, TTL).with_owner(owner);
        claim.with_label("tenure doctor")
    });
    let [first, second] = &claims;
    let outcome = hand_over(store, first, second, timeout).await;
    for claim in &claims {
        // What cannot be released ends by itself.
        let _ = store.release(claim).await;
    }
    match outcome {
        Ok(Verdict::HandedOver) => {
            Finding::fine("a self-test lock was taken, handed over, renewed and released")
        }
        Ok(Verdict::NotWoken) => {
            let what = format!(
                "a self-test lock was handed over, but its waiter was not woken within {timeout:?}: \
                 waiters poll instead"
            );
            Finding::advice(what, remedy)
        }
        Ok(Verdict::Failed(why)) => failed(why),
        Err(error) => failed(&error.to_string()),
    }
}

enum Verdict {
    HandedOver,
    /// It was, but the waiter was not woken.
    NotWoken,
    Failed(&'static str),
}

async fn hand_over(
    store: &dyn Store,
    first: &Claim,
    second: &Claim,
    timeout: Duration,
) -> Result<Verdict> {
    let ClaimOutcome::Granted(_) = store.claim(first, WaitPolicy::NoWait).await? else {
        return Ok(Verdict::Failed("a lock that is free was not granted"));
    };
    let ClaimOutcome::Queued(ticket) = store.claim(second, WaitPolicy::queue(TTL)).await? else {
        return Ok(Verdict::Failed("a lock that is held was granted to another"));
    };
    if store.release(first).await? != Released::Released {
        return Ok(Verdict::Failed("a lock was gone before it was released"));
    }
    let woken = is_woken(store, second, &ticket, timeout).await?;
    // On a store that does not hand locks over, a waiter that is woken asks again.
    if !store.capabilities().fifo {
        store.claim(second, WaitPolicy::queue(TTL)).await?;
    }
    if store.renew(second).await? != Renewal::Renewed {
        return Ok(Verdict::Failed("a lock was not handed to its waiter"));
    }
    store.inspect(&second.name).await?;
    store.release(second).await?;
    Ok(if woken { Verdict::HandedOver } else { Verdict::NotWoken })
}

async fn is_woken(
    store: &dyn Store,
    claim: &Claim,
    ticket: &QueueTicket,
    limit: Duration,
) -> Result<bool> {
    match tokio::time::timeout(limit, store.wait(claim, ticket)).await {
        // A hint to ask again is a wake-up, too.
        Ok(answer) => answer.map(|_| true),
        Err(_) => Ok(false),
    }
}

fn failed(why: &str) -> Finding {
    Finding::danger(
        format!("a self-test lock failed: {why}"),
        "locks fail in the same way: see the message",
    )
}
