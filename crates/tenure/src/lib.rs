//! Distributed locks over the engines people already run, behind one API.
//!
//! ```
//! use std::time::Duration;
//! use tenure::Options;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure::Result<()> {
//! let client = tenure::connect("memory:").await?;
//! let orders = client.mutex("orders/42")?.with(Options::new().ttl(Duration::from_secs(10)));
//!
//! let guard = orders.acquire().await?;
//! // Send the token along with every write, and let the resource refuse an older one.
//! assert!(guard.token().is_some());
//! // The work is dropped at once when the lock is lost.
//! let total = guard.run(async { 40 + 2 }).await?;
//! assert_eq!(total, 42);
//! guard.release().await?;
//! # client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! A store is named by a URL ([`StoreUrl`]) and opened by [`connect`], so that one program locks in
//! its unit tests (`memory:`), on one machine (`local`) and on servers, without a change. Code here
//! may read a URL and choose an engine; it may not lock (that is `tenure-core`'s business).
//!
//! Each engine is a feature of this crate: `local` (Linux only) and `redis` are on by default, `etcd`
//! and `zookeeper` are not.

mod directory;
#[cfg(doctest)]
mod documents;
mod duration;
mod engine;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(all(feature = "local", target_os = "linux"))]
mod local;
mod open;
mod percent;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
mod servers;
mod url;
#[cfg(feature = "zookeeper")]
mod zookeeper;

pub use duration::parse_duration;
pub use open::{connect, connect_to, open};
pub use tenure_core::{
    Change, ChangeKind, ChangedClaim, Chaos, Client, Effect, Error, ErrorKind, Faults, Fence,
    FencedGuard, FencedMutex, Finding, Guard, Holder, LockName, LockState, LossReason, MemoryStore,
    Mode, Mutex, Options, OwnerId, ReadGuard, Result, RwLock, Semaphore, Severity, Token, Validity,
    Wait, Waiter, Watch, WatchEvent, WriteGuard, store,
};
pub use url::StoreUrl;
