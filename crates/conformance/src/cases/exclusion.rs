//! One at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::store::{Moment, now};
use tenure_core::{Guard, Mutex, Token};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{client, let_go, long, name};

const CLIENTS: usize = 3;
const TASKS: usize = 4;
const ROUNDS: usize = 8;

/// A span in which somebody believed to hold the lock.
struct Belief {
    from: Moment,
    until: Moment,
    token: Option<Token>,
}

/// Several clients with several tasks each increment a counter that only the lock protects. No
/// increment is lost, no two beliefs overlap, and tokens follow the order of the beliefs.
pub async fn one_holds_at_a_time_under_parallel_load(fixture: &dyn Fixture) {
    let name = name("exclusion");
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = client(fixture).await;
        for _ in 0..TASKS {
            let mutex = client.mutex(name.as_str()).unwrap().with(long());
            tasks.spawn(increments(mutex, Arc::clone(&counter)));
        }
    }
    let beliefs = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(counter.load(Ordering::Relaxed), (CLIENTS * TASKS * ROUNDS) as u64);
    assert_disjoint(beliefs);
}

async fn increments(mutex: Mutex, counter: Arc<AtomicU64>) -> Vec<Belief> {
    let mut beliefs = Vec::new();
    for _ in 0..ROUNDS {
        let guard = mutex.acquire().await.unwrap();
        beliefs.push(increment(guard, &counter).await);
    }
    beliefs
}

async fn increment(guard: Guard, counter: &AtomicU64) -> Belief {
    let from = now();
    let seen = counter.load(Ordering::Relaxed);
    tokio::task::yield_now().await;
    counter.store(seen + 1, Ordering::Relaxed);
    let until = now().min(now() + guard.remaining());
    let token = guard.token();
    let_go(guard).await;
    Belief { from, until, token }
}

fn assert_disjoint(mut beliefs: Vec<Belief>) {
    beliefs.sort_by_key(|belief| belief.from);
    for pair in beliefs.windows(2) {
        let [first, second] = pair else { unreachable!() };
        assert!(first.until <= second.from, "two believed to hold the lock at once");
        assert!(
            first.token.is_none() || first.token < second.token,
            "{:?} was followed by {:?}",
            first.token,
            second.token
        );
    }
}
