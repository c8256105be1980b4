//! Servers that do not answer for a while: a waiting acquire goes on waiting.
//!
//! Each scenario takes the servers, and a function that connects a client to their addresses. No lease
//! ends during an outage.

use std::time::Duration;

use tenure_core::store::{WaitPolicy, step_limit};
use tenure_core::{Client, Options};
use tenure_testkit::{Ensemble, Member};

use crate::{ELECTION, claim, until_all_serve, until_waiting};

/// How long a call may take here, the store's own calls included.
pub const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// With the default call timeout of two seconds, this would be an outage of 48 seconds.
const LONG_OUTAGE: u32 = 24;

/// A waiter outlasts an outage of many call timeouts, and gets the lock when its holder releases it. The
/// outage is counted in call timeouts, because a client gives up after a number of those.
///
/// # Panics
/// If not.
pub async fn a_waiter_outlasts_a_long_outage(
    mut ensemble: Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) {
    let client = hasty(&ensemble, connect).await;
    let mutex = client.mutex("a").unwrap().with(long());
    let holder = mutex.acquire().await.unwrap();
    // No call of the waiter takes longer than this, whatever the store allows.
    let call_timeout = CALL_TIMEOUT / 2;
    let mutex =
        client.clone().with_call_timeout(call_timeout).unwrap().mutex("a").unwrap().with(long());
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire().await }
    });
    until_waiting(&client, "a", 1).await;
    outage(&mut ensemble, LONG_OUTAGE * call_timeout).await;
    assert!(holder.is_valid(), "the holder lost the lock");
    if waiting.is_finished() {
        panic!("the waiter did not outlast the outage: {:?}", waiting.await.unwrap());
    }
    let token = holder.token();
    // If the store is still slow, the release goes on in the background.
    drop(holder.release().await);
    let next = tokio::time::timeout(ELECTION, waiting)
        .await
        .expect("the waiter is stuck")
        .unwrap()
        .unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    client.close().await;
}

/// An acquire that begins in an outage of three call timeouts, of a lock that is free, succeeds when the
/// servers are back.
///
/// # Panics
/// If not.
pub async fn an_acquire_that_begins_in_a_short_outage_succeeds(
    mut ensemble: Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) {
    let client = hasty(&ensemble, connect).await;
    let mutex = client.mutex("a").unwrap().with(long());
    for member in ensemble.members() {
        member.stop().unwrap();
    }
    let acquiring = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire().await }
    });
    outage(&mut ensemble, 3 * CALL_TIMEOUT).await;
    let acquired =
        tokio::time::timeout(ELECTION, acquiring).await.expect("the waiter is stuck").unwrap();
    acquired.unwrap().release().await.unwrap();
    client.close().await;
}

/// A server that does not answer ends a call by the engine's own limit, which is shorter than the
/// client's call timeout. So the caller always gets the engine's error, never the client's.
///
/// # Panics
/// If not.
pub async fn the_engine_gives_up_on_a_silent_server_before_the_client(
    mut ensemble: Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) {
    let client = connect(&ensemble.addresses()).await;
    let claim = claim("a", Duration::from_secs(60));
    // So that the connections and sessions exist when the server stops.
    client.store().claim(&claim, WaitPolicy::NoWait).await.unwrap();
    for member in ensemble.members() {
        member.stop().unwrap();
    }
    // Called on the store directly, so the client's call timeout does not apply.
    let error = client.store().release(&claim).await.unwrap_err();
    let within = format!("within {:?}", step_limit(CALL_TIMEOUT));
    assert!(error.to_string().contains(&within), "{error}");
    for member in ensemble.members() {
        member.cont().unwrap();
    }
    client.close().await;
}

fn long() -> Options {
    Options::new().ttl(Duration::from_secs(120))
}

async fn hasty(ensemble: &Ensemble<impl Member>, connect: impl AsyncFn(&str) -> Client) -> Client {
    connect(&ensemble.addresses()).await.with_call_timeout(CALL_TIMEOUT).unwrap()
}

/// Stops all servers for `long`. Returns when all serve again.
async fn outage(ensemble: &mut Ensemble<impl Member>, long: Duration) {
    for member in ensemble.members() {
        member.stop().unwrap();
    }
    tokio::time::sleep(long).await;
    for member in ensemble.members() {
        member.cont().unwrap();
    }
    until_all_serve(ensemble).await;
}
