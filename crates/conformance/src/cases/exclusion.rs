//! Mutual exclusion under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::store::{Moment, now};
use tenure_core::{Guard, Mutex, Token};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{client, long, name, release_guard};

const CLIENTS: usize = 3;
const TASKS: usize = 4;
const ROUNDS: usize = 8;

/// An interval in which a guard was valid.
struct HoldInterval {
    from: Moment,
    until: Moment,
    token: Option<Token>,
}

/// Several clients with several tasks each increment a counter that only the lock protects. No
/// increment is lost, no two hold intervals overlap, and tokens increase with the intervals.
pub async fn at_most_one_task_holds_a_mutex_under_load(fixture: &dyn Fixture) {
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
    let intervals = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(counter.load(Ordering::Relaxed), (CLIENTS * TASKS * ROUNDS) as u64);
    assert_disjoint(intervals);
}

async fn increments(mutex: Mutex, counter: Arc<AtomicU64>) -> Vec<HoldInterval> {
    let mut intervals = Vec::new();
    for _ in 0..ROUNDS {
        let guard = mutex.acquire().await.unwrap();
        intervals.push(increment(guard, &counter).await);
    }
    intervals
}

async fn increment(guard: Guard, counter: &AtomicU64) -> HoldInterval {
    let from = now();
    let seen = counter.load(Ordering::Relaxed);
    tokio::task::yield_now().await;
    counter.store(seen + 1, Ordering::Relaxed);
    let until = now().min(now() + guard.remaining());
    let token = guard.token();
    release_guard(guard).await;
    HoldInterval { from, until, token }
}

fn assert_disjoint(mut intervals: Vec<HoldInterval>) {
    intervals.sort_by_key(|interval| interval.from);
    for pair in intervals.windows(2) {
        let [first, second] = pair else { unreachable!() };
        assert!(first.until <= second.from, "two guards were valid at once");
        assert!(
            first.token.is_none() || first.token < second.token,
            "{:?} was followed by {:?}",
            first.token,
            second.token
        );
    }
}
