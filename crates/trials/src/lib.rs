//! What the tests of stores share: claims, waiting for waiters, work that notices when two hold at
//! once, and cases that several stores are judged by, on servers that the test brings.
//!
//! Code here knows locks by the one API alone, and no store.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

pub mod crowds;
pub mod members;
pub mod news;
pub mod outages;
mod storm;
pub mod ways;
mod weather;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::store::Claim;
use tenure_core::{Client, LockName, Mode, Options};
use tenure_testkit::{Ensemble, GENEROUS, Member, eventually};
use tokio::task::JoinHandle;

pub use weather::storm;

/// A bound for what takes an election, on a busy machine.
pub const ELECTION: Duration = Duration::from_secs(60);

/// A claim of somebody new, to hold alone.
///
/// # Panics
/// If no lock can have this name.
pub fn claim(name: &str, ttl: Duration) -> Claim {
    Claim::new(LockName::new(name).unwrap(), Mode::Exclusive, ttl).with_label("test")
}

/// Returns when so many wait for the lock.
///
/// # Panics
/// If they do not in time.
pub async fn until_waiting(client: &Client, name: &str, count: usize) {
    let reached = eventually(GENEROUS, || async {
        client.inspect(name).await.is_ok_and(|state| state.waiters.len() == count)
    });
    assert!(reached.await, "{count} never waited for {name}");
}

/// Returns when every server serves.
///
/// # Panics
/// If one does not in time.
pub async fn until_all_serve(ensemble: &mut Ensemble<impl Member>) {
    let all = eventually(ELECTION, || std::future::ready(ensemble.until_all_serve().is_ok()));
    assert!(all.await, "a server does not serve");
}

/// Which of several servers leads, as soon as one does.
///
/// # Panics
/// If none does in time.
pub async fn until_one_leads(ensemble: &Ensemble<impl Member>) -> usize {
    let leads = eventually(ELECTION, || async { ensemble.leader().is_some() }).await;
    assert!(leads, "no server leads");
    ensemble.leader().unwrap()
}

/// A number that can be set in the environment of a test.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A lock that many take in turn, through whatever happens to the servers.
#[derive(Default)]
pub struct Turns {
    held: AtomicBool,
    last_token: AtomicU64,
    rounds: AtomicU64,
    over: AtomicBool,
    /// Somebody who can look when all are stuck.
    looks: OnceLock<Client>,
}

impl Turns {
    /// Starts so many tasks for each client. The TTL is so long that no trouble here outlasts it:
    /// whoever holds, holds.
    pub fn start(
        self: &Arc<Self>,
        clients: &[Client],
        each: usize,
    ) -> BTreeMap<usize, JoinHandle<()>> {
        let _ = clients.first().map(|client| self.looks.set(client.clone()));
        let tasks = clients.iter().flat_map(|client| std::iter::repeat_n(client, each));
        let tasks = tasks.map(|client| tokio::spawn(Arc::clone(self).take(client.clone())));
        tasks.enumerate().collect()
    }

    async fn take(self: Arc<Self>, client: Client) {
        let options = Options::new().ttl(Duration::from_secs(120));
        let mutex = client.mutex("turns").unwrap().with(options);
        while !self.over.load(Ordering::Relaxed) {
            // A fault may end an attempt; then it is made again.
            let Ok(guard) = mutex.acquire().await else { continue };
            assert!(!self.held.swap(true, Ordering::SeqCst), "two hold at once");
            let token = guard.token().unwrap().get();
            assert!(self.last_token.swap(token, Ordering::SeqCst) < token, "tokens went back");
            tokio::task::yield_now().await;
            self.rounds.fetch_add(1, Ordering::Relaxed);
            self.held.store(false, Ordering::SeqCst);
            drop(guard.release().await);
        }
        client.close().await;
    }

    /// Returns when the lock has changed hands so often from now on.
    ///
    /// # Panics
    /// If it does not in time.
    pub async fn go_on(&self, more: u64) {
        let before = self.rounds.load(Ordering::Relaxed);
        let moved = || async { self.rounds.load(Ordering::Relaxed) >= before + more };
        let moved = eventually(ELECTION, moved).await;
        let now = self.rounds.load(Ordering::Relaxed);
        if let (false, Some(client)) = (moved, self.looks.get()) {
            let state = client.inspect("turns").await;
            panic!("all are stuck: {now} rounds after {before}; {state:#?}");
        }
    }

    /// Lets them all end.
    ///
    /// # Panics
    /// If one has panicked, or does not end in time.
    pub async fn stop(&self, tasks: BTreeMap<usize, JoinHandle<()>>) {
        self.over.store(true, Ordering::Relaxed);
        for (_, task) in tasks {
            tokio::time::timeout(2 * ELECTION, task).await.expect("one is stuck").unwrap();
        }
    }
}
