//! The interface to the store under test, and the helpers that cases use to reach it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{Claim, Store};
use tenure_core::{Client, Guard, LockName, Mode, Mutex, Options, OwnerId, Result};

use crate::raw::Raw;

/// Access to the store under test. Each case creates its own fixture.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Opens a new connection to the same locks, independent of earlier ones, as another process
    /// would.
    async fn store(&self) -> Arc<dyn Store>;

    /// The URL with which another process connects to the same locks; `None` for a store that is
    /// private to one process.
    fn url(&self) -> Option<String>;

    /// The shortest TTL that the store supports without rounding it up.
    fn ttl(&self) -> Duration;

    /// Whether calls may fail on purpose, as under [`Chaos`](tenure_core::Chaos). If so, cases
    /// repeat calls after transient errors, and accept that a repeated release finds nothing held.
    fn injects_faults(&self) -> bool {
        false
    }
}

/// A duration that no case reaches, however slow the machine is.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A lock name that no other case uses.
pub(crate) fn name(tag: &str) -> LockName {
    let unique = OwnerId::random().to_string();
    LockName::new(&format!("{tag}-{}", &unique[..12])).unwrap()
}

/// A new claim that outlasts the case.
pub(crate) fn claim(name: &LockName, mode: Mode) -> Claim {
    claim_for(name, mode, LONG)
}

/// A new claim with this TTL.
pub(crate) fn claim_for(name: &LockName, mode: Mode, ttl: Duration) -> Claim {
    Claim::new(name.clone(), mode, ttl).with_label("conformance")
}

/// Options for a hold that outlasts the case.
pub(crate) fn long() -> Options {
    Options::new().ttl(LONG)
}

/// A client on a connection of its own.
pub(crate) async fn client(fixture: &dyn Fixture) -> Client {
    Client::new(fixture.store().await).unwrap()
}

/// A connection for direct calls to the store.
pub(crate) async fn raw(fixture: &dyn Fixture) -> Raw {
    Raw::new(fixture.store().await, fixture.injects_faults())
}

/// Calls `try_acquire`. Where calls may fail, repeats it after a transient error, once the client has
/// released what a lost reply may have granted.
pub(crate) async fn try_acquire(
    fixture: &dyn Fixture,
    client: &Client,
    mutex: &Mutex,
) -> Result<Guard> {
    loop {
        match mutex.try_acquire().await {
            Err(error) if error.is_transient() && fixture.injects_faults() => client.close().await,
            result => return result,
        }
    }
}

/// Releases a lock. After a transient error the release continues in the background, where
/// [`Client::close`] waits for it.
pub(crate) async fn release_guard(guard: Guard) {
    if let Err(error) = guard.release().await {
        assert!(error.is_transient(), "{error}");
    }
}
