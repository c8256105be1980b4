//! A lock that nobody else uses is taken, handed over, renewed and released.

use std::time::Duration;

use tenure_core::{
    Answer, Claim, Finding, LockName, Mode, Origin, OwnerId, Patience, Released, Renewal, Result,
    Store,
};

/// How long a claim of the trial lasts, should it be left behind.
const TTL: Duration = Duration::from_secs(10);

/// What came of the trial; news of the hand-over may take so long.
pub(super) async fn trial(store: &dyn Store, timeout: Duration) -> Finding {
    let unique = OwnerId::random();
    let claims = LockName::new(&format!("tenure-doctor-{unique}")).map(|name| {
        [(); 2].map(|()| Claim {
            name: name.clone(),
            owner: OwnerId::random(),
            mode: Mode::Exclusive,
            ttl: TTL,
            origin: Origin::here(),
            label: "tenure doctor".into(),
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
        Ok(None) => Finding::fine("a trial lock was taken, handed over, renewed and released"),
        Ok(Some(why)) => failed(why),
        Err(error) => failed(&error.to_string()),
    }
}

/// What went wrong, if something did.
async fn hand_over(
    store: &dyn Store,
    first: &Claim,
    second: &Claim,
    timeout: Duration,
) -> Result<Option<&'static str>> {
    let Answer::Granted(_) = store.claim(first, Patience::None).await? else {
        return Ok(Some("a lock that nobody holds was not granted"));
    };
    let Answer::Queued(place) = store.claim(second, Patience::queue(TTL)).await? else {
        return Ok(Some("a lock that is held was granted to another"));
    };
    if store.release(first).await? != Released::Released {
        return Ok(Some("a lock was gone before it was released"));
    }
    let Ok(news) = tokio::time::timeout(timeout, store.wait(second, &place)).await else {
        return Ok(Some("no news came that a lock was handed over"));
    };
    // A hint to ask again is news, too.
    news?;
    if store.renew(second).await? != Renewal::Renewed {
        return Ok(Some("a lock was not handed to the one who waited for it"));
    }
    store.inspect(&second.name).await?;
    Ok(None)
}

fn failed(why: &str) -> Finding {
    Finding::danger(
        format!("a trial lock failed: {why}"),
        "locks fail in the same way: see the message",
    )
}
