//! The store under test, and how cases get at it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{Claim, Store};
use tenure_core::{Client, Guard, LockName, Mode, Mutex, Options, OwnerId, Result};

use crate::raw::Raw;

/// A place where locks are kept, to be judged. Each case gets one of its own.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A new connection to the place, as another process would have it.
    async fn store(&self) -> Arc<dyn Store>;

    /// What the holder process connects to; `None` for a store that lives in one process.
    fn url(&self) -> Option<String>;

    /// The shortest TTL that the store does well.
    fn ttl(&self) -> Duration;

    /// Whether a call fails only if something is wrong. If not, raw calls are repeated after
    /// transient faults, and a repeated release may say that nothing was held.
    fn faithful(&self) -> bool;
}

/// A TTL, a policy and a bound that no case ever reaches, however slow the machine is.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A lock name no other case uses.
pub(crate) fn name(tag: &str) -> LockName {
    let unique = OwnerId::random().to_string();
    LockName::new(&format!("{tag}-{}", &unique[..12])).unwrap()
}

/// A fresh claim that lasts as long as the case does.
pub(crate) fn claim(name: &LockName, mode: Mode) -> Claim {
    claim_for(name, mode, LONG)
}

/// A fresh claim with this TTL.
pub(crate) fn claim_for(name: &LockName, mode: Mode, ttl: Duration) -> Claim {
    Claim::new(name.clone(), mode, ttl).with_label("conformance")
}

/// Options of a hold that lasts as long as the case does.
pub(crate) fn long() -> Options {
    Options::new().ttl(LONG)
}

/// A client on a connection of its own.
pub(crate) async fn client(fixture: &dyn Fixture) -> Client {
    Client::new(fixture.store().await).unwrap()
}

/// A connection for raw calls.
pub(crate) async fn raw(fixture: &dyn Fixture) -> Raw {
    Raw::new(fixture.store().await, fixture.faithful())
}

/// Tries to take a lock. `try_acquire` makes one call: where calls fail, it is repeated after the
/// client has released what a lost reply may have granted.
pub(crate) async fn try_acquire(
    fixture: &dyn Fixture,
    client: &Client,
    mutex: &Mutex,
) -> Result<Guard> {
    loop {
        match mutex.try_acquire().await {
            Err(fault) if fault.is_transient() && !fixture.faithful() => client.close().await,
            tried => return tried,
        }
    }
}

/// Releases a lock. A fault on the way leaves the rest to the background, where
/// [`Client::close`] waits for it.
pub(crate) async fn let_go(guard: Guard) {
    if let Err(fault) = guard.release().await {
        assert!(fault.is_transient(), "{fault}");
    }
}
