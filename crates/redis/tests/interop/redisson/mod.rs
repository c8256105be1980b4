//! The real Redisson on the same locks as `RedissonStore`, in several releases: see `interop/README.md`.

mod crowd;
mod ends;
mod failover;
mod foreign;
mod many_nodes;
mod pair;
mod permits;
mod single;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Client, ErrorKind, Guard, LockState, Options};
use tenure_redis::{RedisConfig, RedissonStore, Topology};
use tenure_testkit::{ExternalClient, Process, RedisServer, SharedLock};

/// The lock, as both call it.
pub(crate) const NAME: &str = "orders";

/// Longer than any case.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A bound for an answer: a Java program may stand behind many rounds of others on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// The watchdog of Java programs in cases that do not look at it.
const WATCHDOG: Duration = Duration::from_secs(30);

pub(crate) struct Scene {
    pub(crate) server: RedisServer,
    pub(crate) ours: Client,
}

impl Scene {
    pub(crate) async fn set() -> Self {
        let server = RedisServer::start(&[]).unwrap();
        let ours = client(&server).await;
        Self { server, ours }
    }

    /// A program with one lock of theirs, whose Redisson has connected.
    pub(crate) async fn theirs(&self, version: &ExternalClient, kind: &str) -> Java {
        self.theirs_renewing(version, kind, WATCHDOG).await
    }

    pub(crate) async fn theirs_renewing(
        &self,
        version: &ExternalClient,
        kind: &str,
        watchdog: Duration,
    ) -> Java {
        Java::start(version, &self.server.port().to_string(), kind, watchdog).await
    }

    /// A program with a lock that cannot tell how often it is held.
    pub(crate) fn theirs_unasked(&self, version: &ExternalClient, kind: &str) -> Java {
        Java::run(version, &self.server.port().to_string(), kind, WATCHDOG)
    }

    pub(crate) async fn state(&self) -> LockState {
        self.ours.inspect(NAME).await.unwrap()
    }

    /// Whether a claim of ours finds the lock busy.
    pub(crate) async fn is_busy(&self, shared: bool) -> bool {
        let outcome = match shared {
            false => self.ours.mutex(NAME).unwrap().try_acquire().await,
            true => self.ours.rw_lock(NAME).unwrap().try_read().await.map(Guard::from),
        };
        match outcome {
            Ok(guard) => {
                guard.release().await.unwrap();
                false
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                true
            }
        }
    }
}

/// A client of ours with connections of its own.
pub(crate) async fn client(server: &RedisServer) -> Client {
    client_of(server.port()).await
}

pub(crate) async fn client_of(port: u16) -> Client {
    let address = ("127.0.0.1".into(), port);
    let mut config = RedisConfig::new(Topology::Single { server: address });
    config.prefix.clear();
    Client::new(Arc::new(RedissonStore::connect(config).await.unwrap())).unwrap()
}

/// Options for a hold that is not renewed while a case runs.
pub(crate) fn long() -> Options {
    Options::new().ttl(LONG)
}

/// A Java program with one lock of Redisson, whose calls are all made by one thread. Ends with the test.
pub(crate) struct Java(Process);

impl Java {
    /// Starts one on these servers, as the program names them. Its Redisson has connected when this returns.
    pub(crate) async fn start(
        version: &ExternalClient,
        servers: &str,
        kind: &str,
        watchdog: Duration,
    ) -> Self {
        let mut java = Self::run(version, servers, kind, watchdog);
        assert!(java.answer("count").await.ends_with(" 0"));
        java
    }

    fn run(version: &ExternalClient, servers: &str, kind: &str, watchdog: Duration) -> Self {
        let watchdog = watchdog.as_millis().to_string();
        Self(version.start(&[servers, NAME, kind, &watchdog]).unwrap())
    }

    /// Whether it takes the lock now, with this term, or with that of the watchdog.
    pub(crate) async fn try_hold(&mut self, term: Option<Duration>) -> bool {
        let answer = self.answer(&format!("try {}", millis(term))).await;
        assert!(["held", "busy"].contains(&answer.as_str()), "{answer}");
        answer == "held"
    }

    /// Lets it wait for the lock.
    pub(crate) fn want(&mut self, term: Option<Duration>) {
        self.send(&format!("wait {}", millis(term)));
    }

    /// Returns when it holds what it waited for.
    pub(crate) async fn held(&mut self) {
        assert_eq!(self.line().await, "held");
    }

    /// Whether it says nothing for a while.
    pub(crate) async fn is_silent(&mut self) -> bool {
        self.0.line(Duration::from_millis(300)).await.is_none()
    }

    pub(crate) async fn release(&mut self) {
        assert_eq!(self.answer("release").await, "released");
    }

    pub(crate) async fn answer(&mut self, command: &str) -> String {
        self.send(command);
        self.line().await
    }

    pub(crate) fn send(&mut self, line: &str) {
        self.0.send(line).expect("the program runs");
    }

    pub(crate) async fn line(&mut self) -> String {
        self.0.line(PATIENCE).await.expect("the program answers")
    }

    pub(crate) fn kill9(&mut self) {
        self.0.kill9().unwrap();
    }
}

/// Reports a lock that was handed over both ways: a row of docs/neighbours.md.
pub(crate) fn report(version: &ExternalClient, kind: &str, place: &str, times: [Duration; 2]) {
    const AT_ONCE: &str = "`dialect=redisson`";
    const POLLED: &str = "`dialect=redisson`; ours hears of a release at its poll cap";
    let (kind, ours, setting) = match kind {
        "lock" => ("`RLock`", "mutex", AT_ONCE),
        "non-reentrant" => ("`getNonReentrantLock`", "mutex", AT_ONCE),
        "fenced" => ("`RFencedLock`", "mutex, with its tokens", AT_ONCE),
        "spin" => ("`RSpinLock`", "mutex", POLLED),
        "fair" => ("`RFairLock`", "mutex, behind their queue", POLLED),
        "write" => ("`RReadWriteLock`, writer", "`RwLock` or mutex", AT_ONCE),
        "read" => ("`RReadWriteLock`, reader", "`RwLock`, reader", AT_ONCE),
        "permits" => ("`RPermitExpirableSemaphore`", "`Semaphore`", AT_ONCE),
        "semaphore" => ("`RSemaphore`", "`Semaphore`; only ours have terms", AT_ONCE),
        _ => panic!("no row for {kind}"),
    };
    let client = format!("{}{place}", version.name.replace("redisson-", "Redisson "));
    SharedLock { client: &client, kind, ours, setting }.report(times[0], times[1]);
}

fn millis(term: Option<Duration>) -> u128 {
    term.map_or(0, |term| term.as_millis())
}

macro_rules! releases {
    ($($module:ident: $name:literal, $($test:ident on $($kind:literal)*),*;)*) => {
        $(mod $module {
            use super::*;
            pub(super) const RELEASE: ExternalClient =
                ExternalClient { name: $name, needs: &["redis-server", "java"] };
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if RELEASE.is_missing(stringify!($test)) {
                        return;
                    }
                    $(pair::all(&RELEASE, $kind).await;)*
                }
            )*
        })*
    };
}

releases! {
    redisson_4_7: "redisson-4.7.0",
        plain_locks_are_shared on "lock" "fenced" "spin" "non-reentrant",
        fair_locks_are_shared on "fair",
        read_write_locks_are_shared on "write" "read";
    redisson_3_52: "redisson-3.52.0",
        plain_locks_are_shared on "lock",
        read_write_locks_are_shared on "write";
    redisson_3_24: "redisson-3.24.3",
        plain_locks_are_shared on "lock",
        read_write_locks_are_shared on "write";
    redisson_3_23: "redisson-3.23.5",
        plain_locks_are_shared on "lock",
        read_write_locks_are_shared on "write";
    redisson_3_22: "redisson-3.22.0",
        plain_locks_are_shared on "lock",
        read_write_locks_are_shared on "write";
}

use redisson_4_7::RELEASE as CURRENT;
