//! Servers that die, stop and come back.
//!
//! Each scenario takes the servers, and a function that connects a client to their addresses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Client, ErrorKind, LossReason, Options};
use tenure_testkit::{Ensemble, GENEROUS, Member, eventually};
use tokio::task::JoinHandle;

use crate::{ELECTION, Turns, until_waiting};

async fn clients(
    ensemble: &Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
    count: usize,
) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(connect(&ensemble.addresses()).await);
    }
    clients
}

/// Three clients with three tasks each, which take one lock in turn.
async fn load(
    ensemble: &Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) -> (Arc<Turns>, BTreeMap<usize, JoinHandle<()>>) {
    let turns = Arc::new(Turns::default());
    let tasks = turns.start(&clients(ensemble, connect, 3).await, 3);
    turns.go_on(20).await;
    (turns, tasks)
}

/// The leader dies under load, and so does the server that all clients ask first: the lock is still
/// handed on.
///
/// # Panics
/// If it is not.
pub async fn deaths_cost_no_lock(
    mut ensemble: Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) {
    let (turns, tasks) = load(&ensemble, connect).await;
    for _ in 0..2 {
        let leader = ensemble.leader().unwrap();
        ensemble.members()[leader].kill9().unwrap();
        turns.go_on(20).await;
        ensemble.members()[leader].restart().unwrap();
        ensemble.until_all_serve().unwrap();
        turns.go_on(20).await;
    }
    ensemble.members()[0].kill9().unwrap();
    turns.go_on(20).await;
    turns.stop(tasks).await;
}

/// Each server in turn stands still under load: the lock is still handed on, also while the server
/// comes back.
///
/// # Panics
/// If it is not.
pub async fn standing_still_costs_no_lock(
    mut ensemble: Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) {
    let (turns, tasks) = load(&ensemble, connect).await;
    for member in 0..ensemble.members().len() {
        ensemble.members()[member].stop().unwrap();
        turns.go_on(20).await;
        ensemble.members()[member].cont().unwrap();
        turns.go_on(20).await;
        ensemble.until_all_serve().unwrap();
    }
    turns.stop(tasks).await;
}

/// A guard stays valid when the leader dies, and the waiter behind it is next.
///
/// # Panics
/// If not.
pub async fn a_guard_outlives_the_leader(
    mut ensemble: Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) {
    let clients = clients(&ensemble, connect, 2).await;
    let options = Options::new().ttl(Duration::from_secs(12));
    let guard = clients[0].mutex("a").unwrap().with(options.clone()).acquire().await.unwrap();
    let mutex = clients[1].mutex("a").unwrap().with(options);
    let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    until_waiting(&clients[0], "a", 1).await;
    let leader = ensemble.leader().unwrap();
    ensemble.members()[leader].kill9().unwrap();
    // Long enough to need several renewals.
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(guard.is_valid(), "the lock was lost with the leader");
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(ELECTION, waiting).await.expect("the waiter is stuck").unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

/// Without a majority of the servers the guard reports danger and then loss; when they are back, the
/// lock can be acquired.
///
/// # Panics
/// If not.
pub async fn a_lost_quorum_is_reported(
    mut ensemble: Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) {
    let client = connect(&ensemble.addresses()).await;
    let mutex = client.mutex("a").unwrap().with(Options::new().ttl(Duration::from_secs(4)));
    let guard = mutex.acquire().await.unwrap();
    let most = ensemble.members().len() / 2 + 1;
    for member in &mut ensemble.members()[..most] {
        member.kill9().unwrap();
    }
    tokio::time::timeout(GENEROUS, guard.danger()).await.unwrap();
    let reason = tokio::time::timeout(GENEROUS, guard.lost()).await.unwrap();
    assert_eq!(reason, LossReason::Expired);
    let error = mutex.try_acquire().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    drop(guard);
    for member in &mut ensemble.members()[..most] {
        member.restart().unwrap();
    }
    ensemble.until_all_serve().unwrap();
    let again = mutex.acquire_within(ELECTION).await.unwrap();
    again.release().await.unwrap();
    client.close().await;
}

/// All servers die at once and come back with what they have on disk: the guard stays valid, the waiter
/// is next, and tokens rise.
///
/// # Panics
/// If not.
pub async fn a_restart_of_all_keeps_everything(
    mut ensemble: Ensemble<impl Member>,
    connect: impl AsyncFn(&str) -> Client,
) {
    let clients = clients(&ensemble, connect, 2).await;
    let options = Options::new().ttl(Duration::from_secs(120));
    let guard = clients[0].mutex("a").unwrap().with(options.clone()).acquire().await.unwrap();
    let mutex = clients[1].mutex("a").unwrap().with(options.clone());
    let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    until_waiting(&clients[0], "a", 1).await;
    for member in ensemble.members() {
        member.kill9().unwrap();
    }
    for member in ensemble.members() {
        member.restart().unwrap();
    }
    ensemble.until_all_serve().unwrap();
    assert!(guard.is_valid());
    let rival = clients[0].mutex("a").unwrap().with(options);
    let refused = || async {
        let error = rival.try_acquire().await.unwrap_err();
        let busy = error.kind() == ErrorKind::Busy;
        assert!(busy || error.is_transient(), "{error}");
        busy
    };
    assert!(eventually(ELECTION, refused).await, "the lock was never busy");
    assert!(!waiting.is_finished(), "two claims hold at once");
    let token = guard.token();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(ELECTION, waiting).await.expect("the waiter is stuck").unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}
