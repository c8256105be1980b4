//! Waiters of one store on several runtimes, each of which may end or not be polled for a while.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::*;
use tenure_core::store::{ClaimOutcome, Store};
use tenure_local::LocalStore;
use tenure_testkit::{GENEROUS, eventually};

/// Not a test of its own: a process that holds two locks.
#[test]
fn child_entry() {
    let Some((_, dir)) = role() else {
        return;
    };
    runtime().block_on(async {
        let store = LocalStore::open(&dir).unwrap();
        for lock in ["x", "y"] {
            grant(store.claim(&exclusive(lock), QUEUE).await.unwrap());
        }
        say("held");
        listen();
    });
}

fn open() -> (tempfile::TempDir, LocalStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path()).unwrap();
    (dir, store)
}

#[test]
fn a_waiter_is_woken_after_the_runtime_of_an_earlier_wait_has_ended() {
    let (_dir, store) = open();
    let ours = LocalStore::open(store.dir()).unwrap();
    let holder = exclusive("a");
    current_thread().block_on(store.claim(&holder, QUEUE)).unwrap();
    let waiting = exclusive("a");
    for release in [false, true] {
        current_thread().block_on(async {
            let ClaimOutcome::Queued(place) = ours.claim(&waiting, QUEUE).await.unwrap() else {
                panic!("the claim must wait");
            };
            let wait = ours.wait(&waiting, &place);
            if !release {
                // Listening starts on this runtime, and ends with it.
                let _waited = tokio::time::timeout(Duration::from_millis(20), wait).await;
                return;
            }
            let handed_over = async {
                tokio::task::yield_now().await;
                store.release(&holder).await.unwrap();
            };
            let both = async { tokio::join!(wait, handed_over).0 };
            let answer = tokio::time::timeout(Duration::from_secs(20), both).await;
            grant(answer.expect("the waiter is woken").unwrap());
        });
    }
}

/// A runtime of one thread with a waiter on it, which makes no progress until it is polled again.
struct Paused {
    runtime: tokio::runtime::Runtime,
    waiting: tokio::task::JoinHandle<tenure_core::store::Grant>,
}

impl Paused {
    fn waiting_for(lock: &str, store: &LocalStore) -> Self {
        let runtime = current_thread();
        let before = store.check().unwrap().waiters;
        let (claim, waiter) = (exclusive(lock), store.clone());
        let waiting = runtime.spawn(async move { acquire(&waiter, &claim).await });
        runtime.block_on(async {
            let waits = || async { store.check().unwrap().waiters > before };
            assert!(eventually(GENEROUS, waits).await);
            // The tasks that the waiter has spawned start.
            tokio::task::yield_now().await;
        });
        Self { runtime, waiting }
    }

    fn finish(self) -> tenure_core::store::Grant {
        let finish = async { tokio::time::timeout(GENEROUS, self.waiting).await };
        self.runtime.block_on(finish).expect("the waiter is woken").unwrap()
    }
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_waiter_is_woken_while_the_runtime_of_another_waiter_is_not_polled() {
    let (_dir, ours) = open();
    let other = LocalStore::open(ours.dir()).unwrap();
    let (x, y, runtime) = (exclusive("x"), exclusive("y"), current_thread());
    for held in [&x, &y] {
        grant(runtime.block_on(other.claim(held, QUEUE)).unwrap());
    }
    let paused = Paused::waiting_for("x", &ours);
    // The wake-up for "x" arrives before the second runtime listens.
    runtime.block_on(other.release(&x)).unwrap();
    runtime.block_on(async {
        let waiting = exclusive("y");
        let handed_over = async {
            tokio::task::yield_now().await;
            other.release(&y).await.unwrap();
        };
        let both = async { tokio::join!(acquire(&ours, &waiting), handed_over).0 };
        tokio::time::timeout(GENEROUS, both).await.expect("the waiter is woken");
    });
    // The waiter's wake-up was read on the other runtime, or is still to be read on this one.
    drop(runtime);
    paused.finish();
}

#[test]
fn a_death_is_noticed_while_the_runtime_of_another_waiter_is_not_polled() {
    let (dir, ours) = open();
    let mut holder = Peer::start("hold", dir.path());
    assert_eq!(holder.hear(), "held");
    let paused = Paused::waiting_for("x", &ours);
    let second = Paused::waiting_for("y", &ours);
    holder.kill();
    second.finish();
    paused.finish();
}
