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
//! [`connect`] opens the store that a URL names, so that one program locks in its unit tests (`memory:`), on
//! one machine (`local`) and on servers, without a change. Programs that do not want URLs find the engines'
//! own types in modules of the features' names; engines of other crates are added to a [`Registry`].
//!
//! # Where to start
//!
//! | To | use |
//! |---|---|
//! | let one task work at a time | [`Client::mutex`]; [`Mutex::run`] acquires, works and releases |
//! | let readers share, or several work | [`Client::rw_lock`], [`Client::semaphore`] |
//! | hold several locks, or one twice | [`MultiLock`], [`ReentrantMutex`] |
//! | refuse the writes of a late holder | [`Guard::token`]; [`Mutex::fenced`] |
//! | choose the TTL and how long to wait | [`Options`], [`Wait`] |
//! | learn that the lock is lost | [`Guard::run`], [`Guard::lost`], [`Guard::validity`] |
//! | keep one leader | [`Client::election`] |
//! | do work once and keep its result | [`Client::once`] |
//! | wait for other processes | [`Client::latch`], [`Client::barrier`] |
//! | share a small value, count, or limit a rate | [`Client::cell`], [`Client::counter`], [`Client::rate_limiter`] |
//! | look at locks, or take one by force | [`Client::inspect`], [`Client::watch`], [`Client::evict`] |
//! | lock in threads without a runtime | [`blocking`] |
//! | test code that loses its locks | [`MemoryStore`], [`Chaos`] |
//! | write an engine | [`store`] |
//!
//! # Features
//!
//! `local` (on Linux) and `redis` are on by default. `etcd` and `zookeeper` add these engines; `gate`,
//! `gate-http` and `gate-postgres` add checks of tokens at the resource; `metrics` counts through the
//! `metrics` facade; `serde` and `json` serialize states and values. A feature never changes behaviour.
//!
//! # Store URLs
//!
#![doc = include_str!("urls.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// Code here may list engines. It may not read a URL or lock, which `tenure-core` does, nor speak to a store,
// which each engine does.

#[cfg(doctest)]
mod documents;
mod registry;
#[cfg(test)]
mod tests;

pub use registry::Registry;
#[cfg(feature = "json")]
pub use tenure_core::Json;
pub use tenure_core::store::StoreUrl;
pub use tenure_core::{
    AuditEvent, AuditRecord, Change, ChangeKind, ChangedClaim, Chaos, Client, Effect, Error,
    ErrorKind, Faults, Fence, FencedGuard, FencedMutex, Finding, Guard, Holder, Intervention,
    LockName, LockState, LongWait, LongWaits, LossReason, MemoryStore, Mode, MultiGuard, MultiLock,
    Mutex, Options, OwnerId, Party, ReadGuard, ReentrantGuard, ReentrantMutex, Result, Revocation,
    Revoke, RevokedHolder, RwLock, Semaphore, Severity, Token, Validity, Wait, Waiter, Watch,
    WatchEvent, WatchSource, WriteGuard, parse_duration, store,
};
pub use tenure_core::{
    Barrier, BarrierWaitResult, Cell, CellValue, Counter, Decision, Election, Latch, LatchParty,
    Leader, Leadership, Observer, Once, OnceOutcome, OnceRun, OnceStart, Rate, RateLimiter,
    Updated,
};

/// Connects to the store behind a URL, and makes a client of it. Call it inside a tokio runtime.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) for a URL that makes no sense,
/// [`Unsupported`](ErrorKind::Unsupported) for an engine that is not part of this build, and whatever
/// keeps the store from being opened.
pub async fn connect(url: &str) -> Result<Client> {
    Registry::default().connect(url).await
}

/// The same locks and values for threads, without an async runtime: every call blocks until it is done.
///
/// ```
/// # fn main() -> tenure::Result<()> {
/// let client = tenure::blocking::connect("memory:")?; // or "local", "redis://host" …
/// let guard = client.mutex("orders/42")?.acquire()?;
/// // … the work, with guard.token() sent along with every write …
/// guard.release()?;
/// client.close(); // waits for background releases
/// # Ok(())
/// # }
/// ```
///
/// Calls work on any thread, also on one of a runtime, which they block, as a [`std::sync::Mutex`] does: a
/// task must not block for a lock that another task of the same single thread holds. While a call waits,
/// its thread sleeps. Work that has begun cannot be stopped from outside when the lock is lost:
/// [`Guard::run`](blocking::Guard::run) then fails at its end, and long work asks
/// [`Guard::is_valid`](blocking::Guard::is_valid). A guard that is dropped in a panic releases its lock.
pub mod blocking {
    pub use tenure_core::blocking::{
        Barrier, Cell, Client, Counter, Election, FencedGuard, FencedMutex, Guard, Latch,
        LatchParty, Leaders, Leadership, MultiGuard, MultiLock, Mutex, Once, OnceRun, OnceStart,
        RateLimiter, ReadGuard, ReentrantGuard, ReentrantMutex, Revoke, RwLock, Semaphore,
        ThreadGuard, ThreadMutex, Validity, Watch, WriteGuard,
    };

    use crate::{Registry, Result};

    /// Connects to the store behind a URL, and makes a client of it. It works on any thread, in a runtime
    /// or not; the client's own thread serves its connections.
    ///
    /// # Errors
    /// As [`connect`](crate::connect).
    pub fn connect(url: &str) -> Result<Client> {
        Registry::default().connect_blocking(url)
    }
}

/// Fencing gates: the check by which a file, a service, PostgreSQL or Redis refuses the writes of a
/// holder that has lost its lock.
#[cfg(feature = "gate")]
pub mod gate {
    #[cfg(feature = "gate-http")]
    pub use tenure_gate::http;
    #[cfg(feature = "gate-postgres")]
    pub use tenure_gate::postgres;
    pub use tenure_gate::{FileGate, FileRegister, GateError, MemoryRegister, Register, redis};
}

/// The embedded store: the processes of one Linux machine, without a server.
#[cfg(all(feature = "local", target_os = "linux"))]
pub mod local {
    pub use tenure_local::{LocalFactory as Factory, LocalOptions as Config, LocalStore as Store};
}

/// Redis: one server, Sentinels, a Cluster, or a quorum of servers (Redlock).
#[cfg(feature = "redis")]
pub mod redis {
    pub use tenure_redis::{
        ACL, ACL_CLUSTER, ACL_DELEX, ACL_DELIFEQ, ACL_QUORUM, ACL_REDISSON, ACL_SENTINEL,
        ACL_WATCH, CellUpdates, Credentials, CredentialsProvider, Password, RedisConfig as Config,
        RedisFactory as Factory, RedisStore as Store, RedissonStore, RedlockConfig, RedlockFactory,
        RedlockStore, Sharded, Tls, Topology,
    };
}

/// etcd.
#[cfg(feature = "etcd")]
pub mod etcd {
    pub use tenure_etcd::{
        EtcdConfig as Config, EtcdFactory as Factory, EtcdStore as Store, Password, Srv, Tls,
        etcdctl,
    };
}

/// ZooKeeper.
#[cfg(feature = "zookeeper")]
pub mod zookeeper {
    pub use tenure_zookeeper::{
        Access, Compat, Password, Tls, ZooKeeperConfig as Config, ZooKeeperFactory as Factory,
        ZooKeeperStore as Store,
    };
}
