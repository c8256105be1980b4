//! Servers that do not answer for a while: a caller that waits goes on waiting.
//!
//! Each case takes the servers, and how a client of their store comes by their addresses. No holder's
//! term ends in an outage.

use std::time::Duration;

use tenure_core::{Client, Options};
use tenure_testkit::{Ensemble, Member};

use crate::{ELECTION, until_all_serve, until_waiting};

/// How long a call may take here, the store's own calls included.
pub const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// A waiter outlasts an outage of twelve call time-outs, and gets the lock when its holder lets go.
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
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire().await }
    });
    until_waiting(&client, "a", 1).await;
    outage(&mut ensemble, 12 * CALL_TIMEOUT).await;
    assert!(holder.is_valid(), "the holder lost the lock");
    if waiting.is_finished() {
        panic!("the waiter did not outlast the outage: {:?}", waiting.await.unwrap());
    }
    let token = holder.token();
    // The store may still be slow: then the release goes on in the background.
    drop(holder.release().await);
    let next =
        tokio::time::timeout(ELECTION, waiting).await.expect("it is stuck").unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    client.close().await;
}

/// An acquire that begins in an outage of three call time-outs, of a lock that is free, succeeds when
/// the servers are back.
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
    let acquired = tokio::time::timeout(ELECTION, acquiring).await.expect("it is stuck").unwrap();
    acquired.unwrap().release().await.unwrap();
    client.close().await;
}

fn long() -> Options {
    Options::new().ttl(Duration::from_secs(120))
}

async fn hasty(ensemble: &Ensemble<impl Member>, connect: impl AsyncFn(&str) -> Client) -> Client {
    connect(&ensemble.addresses()).await.with_call_timeout(CALL_TIMEOUT).unwrap()
}

/// No server answers for so long. Returns when all serve again.
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
