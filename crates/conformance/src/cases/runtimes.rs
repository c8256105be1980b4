//! A client does not depend on the async runtime that it was created or used on.

use std::time::Duration;

use tenure_core::{Client, Guard, LockName, Options};
use tenure_testkit::GENEROUS;
use tokio::runtime::{Builder, Runtime};

use crate::Fixture;
use crate::fixture::{client, name, raw, release_guard};
use crate::starvation::retry_if_starved;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs blocking work on a thread without a runtime, and waits for it.
fn on_plain_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| scope.spawn(work).join().expect("the thread does not panic"))
    })
}

async fn hold(client: &Client, name: &LockName, ttl: Duration) -> Guard {
    let mutex = client.mutex(name.as_str()).unwrap().with(Options::new().ttl(ttl));
    tokio::time::timeout(GENEROUS, mutex.acquire()).await.expect("the lock is granted").unwrap()
}

/// A synchronous program polls its runtime only inside `block_on`, and may drop it: its locks are
/// renewed nevertheless.
pub async fn a_lock_is_renewed_while_its_runtime_is_idle_or_dropped(fixture: &dyn Fixture) {
    let (raw, ttl) = (raw(fixture).await, fixture.ttl().max(Duration::from_secs(1)));
    retry_if_starved(ttl / 6, || async {
        let name = name("runtime");
        let (client, guard, valid) = on_plain_thread(|| {
            let runtime = runtime();
            let (client, guard) = runtime.block_on(async {
                let client = client(fixture).await;
                let guard = hold(&client, &name, ttl).await;
                (client, guard)
            });
            std::thread::sleep(ttl * 2);
            let while_idle = guard.is_valid();
            drop(runtime);
            std::thread::sleep(ttl * 2);
            let after_drop = guard.is_valid();
            (client, guard, (while_idle, after_drop))
        });
        let holders = raw.inspect(&name).await.holders.len();
        drop(guard);
        client.close().await;
        match (valid, holders) {
            ((true, true), 1) => Ok(()),
            seen => Err(format!("((valid while idle, after drop), holders): {seen:?}")),
        }
    })
    .await;
}

/// A client in a static is used from one test's runtime after another: each can take a free lock,
/// wait for a held one, and release it.
pub async fn a_client_works_across_successive_runtimes(fixture: &dyn Fixture) {
    let (name, ttl) = (name("successive-runtimes"), fixture.ttl().max(Duration::from_secs(5)));
    let other = client(fixture).await;
    let ours = on_plain_thread(|| runtime().block_on(client(fixture)));
    for _ in 0..2 {
        on_plain_thread(|| {
            runtime().block_on(async { release_guard(hold(&ours, &name, ttl).await).await })
        });
        let held = hold(&other, &name, ttl).await;
        let waits = async {
            let waiting = hold(&ours, &name, ttl);
            let release = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                release_guard(held).await;
            };
            tokio::join!(waiting, release).0
        };
        let guard = on_plain_thread(|| runtime().block_on(waits));
        assert!(guard.is_valid());
        drop(guard);
    }
    ours.close().await;
    other.close().await;
}
