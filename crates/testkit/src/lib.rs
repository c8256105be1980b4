//! Helpers for tests: servers on free ports, child processes that can be stopped and killed, proxies that
//! lose or delay traffic, bounded waits, and temporary directories.
//!
//! Code here may start processes. It must end them, each by its own id, even if the test fails. It does not
//! know about locks.

mod certificates;
mod child_process;
mod dice;
mod ensemble;
mod etcd;
mod external_client;
mod fake_clock;
mod fake_sync;
mod postgres;
mod process;
mod proxy;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod redis_stub;
mod redis_wire;
mod signals;
mod waiting;
mod zookeeper;

pub use certificates::Certificates;
pub use child_process::ChildProcess;
pub use dice::Dice;
pub use ensemble::{Ensemble, Member};
pub use etcd::{EtcdCluster, EtcdServer};
pub use external_client::{ExternalClient, SharedLock, report_count};
pub use fake_clock::FakeClock;
pub use fake_sync::FakeSync;
pub use postgres::PostgresServer;
pub use process::Process;
pub use proxy::{Proxy, Way};
pub use redis::{REDIS_6_2, RedisServer, VALKEY_9};
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use redis_stub::RedisStub;
pub use signals::with_default_signals;
pub use tempfile::TempDir;
pub use waiting::{GENEROUS, eventually};
pub use zookeeper::{ZooKeeperEnsemble, ZooKeeperServer};

/// Whether a program of this name is on the search path, or a file is at this absolute path. For
/// `redis-server`, `TENURE_TEST_REDIS` can name another program.
pub fn is_installed(program: &str) -> bool {
    let chosen = (program == "redis-server").then(redis::program);
    let program = chosen.unwrap_or_else(|| program.into());
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(&program).is_file())
}

/// Whether a program or file that a test needs is missing. If so, reports the test as skipped.
pub fn lacks(program: &str, test: &str) -> bool {
    let missing = !is_installed(program);
    if missing {
        skip(test, &format!("{program} is not installed"));
    }
    missing
}

/// Reports a test as skipped on standard output, past the test harness's capture, so that `cargo xtask test`
/// counts it.
pub fn skip(test: &str, why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "skipped: {test}: {why}");
}

/// The hosts and ports in `host:port,host:port`, as [`Ensemble::addresses`] writes them.
///
/// # Panics
/// If the text has another form.
pub fn parse_addresses(list: &str) -> Vec<(String, u16)> {
    let address = |text: &str| {
        let (host, port) = text.rsplit_once(':').expect("a host and a port");
        (host.to_owned(), port.parse().expect("a port"))
    };
    list.split(',').map(address).collect()
}

/// Creates a temporary directory, which is removed with its content when it is dropped.
///
/// # Panics
/// If it cannot be created.
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("tenure-test-")
        .tempdir()
        .expect("a temporary directory can be made")
}
