//! A client depends on no runtime of the program that uses it.

use std::time::Duration;

use tenure_core::{Client, Guard, LockName, Options};
use tenure_testkit::GENEROUS;
use tokio::runtime::{Builder, Runtime};

use crate::Fixture;
use crate::disturbance::undisturbed;
use crate::fixture::{client, let_go, name, raw};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs blocking work beside the case, on a thread without a runtime.
fn beside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| scope.spawn(work).join().expect("it does not panic"))
    })
}

async fn hold(client: &Client, name: &LockName, ttl: Duration) -> Guard {
    let mutex = client.mutex(name.as_str()).unwrap().with(Options::new().ttl(ttl));
    tokio::time::timeout(GENEROUS, mutex.acquire()).await.expect("it is granted").unwrap()
}

/// A synchronous program polls its runtime only now and then, and may drop it: its lock is renewed
/// all the same.
pub async fn a_lock_is_renewed_while_its_runtime_is_not_polled_and_after_it_has_ended(
    fixture: &dyn Fixture,
) {
    let (raw, ttl) = (raw(fixture).await, fixture.ttl().max(Duration::from_secs(1)));
    undisturbed(ttl / 6, || async {
        let name = name("runtime");
        let (client, guard, kept) = beside(|| {
            let runtime = runtime();
            let (client, guard) = runtime.block_on(async {
                let client = client(fixture).await;
                let guard = hold(&client, &name, ttl).await;
                (client, guard)
            });
            std::thread::sleep(ttl * 2);
            let unpolled = guard.is_valid();
            drop(runtime);
            std::thread::sleep(ttl * 2);
            let ended = guard.is_valid();
            (client, guard, (unpolled, ended))
        });
        let holders = raw.inspect(&name).await.holders.len();
        drop(guard);
        client.close().await;
        match (kept, holders) {
            ((true, true), 1) => Ok(()),
            seen => Err(format!("unpolled, ended, holders: {seen:?}")),
        }
    })
    .await;
}

/// A client in a static is used by one test's runtime after another: each can take a free lock, wait
/// for a held one, and let go.
pub async fn a_client_serves_one_runtime_after_another(fixture: &dyn Fixture) {
    let (name, ttl) = (name("in-turn"), fixture.ttl().max(Duration::from_secs(5)));
    let other = client(fixture).await;
    let ours = beside(|| runtime().block_on(client(fixture)));
    for _ in 0..2 {
        beside(|| runtime().block_on(async { let_go(hold(&ours, &name, ttl).await).await }));
        let held = hold(&other, &name, ttl).await;
        let waits = async {
            let waiting = hold(&ours, &name, ttl);
            let release = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let_go(held).await;
            };
            tokio::join!(waiting, release).0
        };
        let guard = beside(|| runtime().block_on(waits));
        assert!(guard.is_valid());
        drop(guard);
    }
    ours.close().await;
    other.close().await;
}
