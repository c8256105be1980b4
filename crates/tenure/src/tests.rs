//! What programs rely on without writing it down: handles may cross threads, and a store that is opened
//! outside a runtime fails with an error.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::*;

#[test]
fn every_public_handle_may_be_shared_by_threads() {
    const fn shared<T: Send + Sync + 'static>() {}
    macro_rules! shared {
        ($($type:ty),* $(,)?) => {
            $(shared::<$type>();)*
        };
    }
    shared!(
        AuditRecord,
        Change,
        Chaos,
        Client,
        Error,
        FencedGuard,
        FencedMutex,
        Finding,
        Guard,
        Holder,
        LockName,
        LockState,
        LongWait,
        LongWaits,
        MemoryStore,
        MultiGuard,
        MultiLock,
        Mutex,
        Options,
        ReadGuard,
        ReentrantGuard,
        ReentrantMutex,
        Registry,
        Revocation,
        Revoke,
        RwLock,
        Semaphore,
        StoreUrl,
        Token,
        Validity,
        Wait,
        Watch,
        WatchEvent,
        WriteGuard,
    );
    shared!(
        Barrier,
        BarrierWaitResult,
        Cell<String>,
        Counter,
        Election<String>,
        Latch,
        LatchParty,
        Leader<String>,
        Leadership<String>,
        Once<String>,
        OnceOutcome<String>,
        OnceRun<String>,
        OnceStart<String>,
        RateLimiter,
        Updated<String>,
    );
    // It is read by `&mut self` only.
    const fn sent<T: Send + 'static>() {}
    sent::<Observer<String>>();
    // Guards of one thread (`ThreadGuard`) are left out: they must stay on it.
    shared!(
        blocking::Barrier,
        blocking::Cell<String>,
        blocking::Client,
        blocking::Counter,
        blocking::Election<String>,
        blocking::FencedGuard,
        blocking::FencedMutex,
        blocking::Guard,
        blocking::Latch,
        blocking::LatchParty,
        blocking::Leadership<String>,
        blocking::MultiGuard,
        blocking::MultiLock,
        blocking::Mutex,
        blocking::Once<String>,
        blocking::OnceRun<String>,
        blocking::OnceStart<String>,
        blocking::RateLimiter,
        blocking::ReadGuard,
        blocking::ReentrantGuard,
        blocking::ReentrantMutex,
        blocking::Revoke,
        blocking::RwLock,
        blocking::Semaphore,
        blocking::ThreadMutex,
        blocking::Validity,
        blocking::WriteGuard,
    );
    #[cfg(all(feature = "local", target_os = "linux"))]
    shared!(local::Config, local::Store);
    #[cfg(feature = "redis")]
    shared!(
        redis::Config,
        redis::Store,
        redis::RedissonStore,
        redis::RedlockConfig,
        redis::RedlockStore,
        redis::Sharded,
        redis::Tls,
        redis::Topology,
    );
    #[cfg(feature = "etcd")]
    shared!(etcd::Config, etcd::Store, etcd::Srv);
    #[cfg(feature = "zookeeper")]
    shared!(zookeeper::Config, zookeeper::Store, zookeeper::Compat);
}

/// Polls a connection on a thread that has no runtime. It must fail at once, and not panic.
fn fails_outside_a_runtime<S>(what: &str, connecting: impl Future<Output = Result<S>>) {
    let polled = pin!(connecting).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else { panic!("{what}: it was opened, or waits") };
    assert_eq!(error.kind(), ErrorKind::Invalid, "{what}: {error}");
    assert!(error.to_string().contains("runtime"), "{what}: {error}");
}

#[test]
fn no_engine_panics_when_it_is_opened_outside_a_runtime() {
    for url in ["memory:", "local:///nowhere", "redis://h", "redlock://a,b,c", "etcd://h", "zk://h"]
    {
        if Registry::default().parse(url).is_ok() {
            fails_outside_a_runtime(url, connect(url));
        }
    }
    // The engines' own types, without a URL.
    #[cfg(feature = "etcd")]
    {
        let config = etcd::Config::new(vec![("127.0.0.1".into(), 1)]);
        fails_outside_a_runtime("etcd", etcd::Store::connect(config));
    }
    #[cfg(feature = "zookeeper")]
    {
        let config = zookeeper::Config::new(vec![("127.0.0.1".into(), 1)]);
        fails_outside_a_runtime("ZooKeeper", zookeeper::Store::connect(config));
    }
}
