//! Test scenarios that several stores share. The calling test brings the servers; a scenario locks
//! through [`Client`] or [`Store`](tenure_core::store::Store) alone, and knows no particular store.
//!
//! | module | scenario |
//! |---|---|
//! | [`failing_servers`] | servers that die, stand still and come back |
//! | [`partitions`] | clients that are cut off from their servers |
//! | [`outages`] | no server answers for a while |
//! | [`crowds`] | thousands of tasks of one process that wait for one lock |
//! | [`notifications`] | a hand-off reaches the waiter that it is for |
//! | [`storm()`] | minutes of random faults, for tests that are run by hand |

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

pub mod crowds;
pub mod failing_servers;
mod fault_schedule;
pub mod notifications;
pub mod outages;
pub mod partitions;
mod storm;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::store::Claim;
use tenure_core::{Client, LockName, Mode, Options};
use tenure_testkit::{Ensemble, Member, eventually};
use tokio::task::JoinHandle;

pub use fault_schedule::{LONGEST_STALL, storm};

/// Longer than an election of a leader takes on a busy machine.
pub const ELECTION: Duration = Duration::from_secs(60);

/// An exclusive claim of a new owner.
///
/// # Panics
/// If no lock can have this name.
pub fn claim(name: &str, ttl: Duration) -> Claim {
    Claim::new(LockName::new(name).unwrap(), Mode::Exclusive, ttl).with_label("test")
}

/// Returns when `count` claims wait for the lock.
///
/// # Panics
/// If that takes too long.
pub async fn until_waiting(client: &Client, name: &str, count: usize) {
    let reached = eventually(ELECTION, || async {
        client.inspect(name).await.is_ok_and(|state| state.waiters.len() == count)
    });
    assert!(reached.await, "{count} never waited for {name}");
}

/// Returns when every server serves.
///
/// # Panics
/// If that takes too long.
pub async fn until_all_serve(ensemble: &mut Ensemble<impl Member>) {
    let all = eventually(ELECTION, || std::future::ready(ensemble.until_all_serve().is_ok()));
    assert!(all.await, "a server does not serve");
}

/// Waits until one of the servers leads, and returns its index.
///
/// # Panics
/// If that takes too long.
pub async fn until_one_leads(ensemble: &Ensemble<impl Member>) -> usize {
    let leads = eventually(ELECTION, || async { ensemble.leader().is_some() }).await;
    assert!(leads, "no server leads");
    ensemble.leader().unwrap()
}

/// A number that can be set in the environment of a test.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A lock that many tasks take in turn while servers fail. It notices two holders at once, and tokens
/// that do not rise.
#[derive(Default)]
pub struct Turns {
    held: AtomicBool,
    last_token: AtomicU64,
    rounds: AtomicU64,
    over: AtomicBool,
    /// Shows the lock's state if all tasks are stuck.
    looks: OnceLock<Client>,
}

impl Turns {
    /// Starts `each` tasks for each client. The TTL is longer than any fault here, so no hold expires.
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
            // A fault may end an attempt; the next one is made at once.
            let Ok(guard) = mutex.acquire().await else { continue };
            assert!(!self.held.swap(true, Ordering::SeqCst), "two claims hold at once");
            let token = guard.token().unwrap().get();
            assert!(self.last_token.swap(token, Ordering::SeqCst) < token, "tokens went back");
            tokio::task::yield_now().await;
            self.rounds.fetch_add(1, Ordering::Relaxed);
            self.held.store(false, Ordering::SeqCst);
            drop(guard.release().await);
        }
        client.close().await;
    }

    /// Returns when the lock has been taken `more` times from now on.
    ///
    /// # Panics
    /// If that takes too long.
    pub async fn go_on(&self, more: u64) {
        let before = self.rounds.load(Ordering::Relaxed);
        let moved = || async { self.rounds.load(Ordering::Relaxed) >= before + more };
        let moved = eventually(ELECTION, moved).await;
        let now = self.rounds.load(Ordering::Relaxed);
        if let (false, Some(client)) = (moved, self.looks.get()) {
            let state = client.inspect("turns").await;
            panic!("all tasks are stuck: {now} rounds after {before}; {state:#?}");
        }
    }

    /// Waits for all tasks to end.
    ///
    /// # Panics
    /// If a task has panicked, or does not end in time.
    pub async fn stop(&self, tasks: BTreeMap<usize, JoinHandle<()>>) {
        self.over.store(true, Ordering::Relaxed);
        for (_, task) in tasks {
            tokio::time::timeout(2 * ELECTION, task).await.expect("a task is stuck").unwrap();
        }
    }
}
