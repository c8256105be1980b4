//! What tenure's tests stand on: child processes that can be stopped and killed, waiting that is
//! always bounded, and directories that vanish.
//!
//! Code here may start processes and must end them, each by its own id, whatever the test does.
//! It may not know anything about locks.

mod certificates;
mod clock;
mod ensemble;
mod etcd;
mod neighbour;
mod postgres;
mod process;
mod proxy;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod redis_stub;
mod redis_wire;
mod servant;
mod signals;
mod sync;
mod waiting;
mod zookeeper;

pub use certificates::Certificates;
pub use clock::FalseClock;
pub use ensemble::{Ensemble, Member};
pub use etcd::{EtcdCluster, EtcdServer};
pub use neighbour::Neighbour;
pub use postgres::PostgresServer;
pub use process::Process;
pub use proxy::{Proxy, Way};
pub use redis::{REDIS_6_2, RedisServer, VALKEY_9};
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use redis_stub::RedisStub;
pub use servant::Servant;
pub use signals::with_default_signals;
pub use sync::FalseSync;
pub use tempfile::TempDir;
pub use waiting::{GENEROUS, eventually};
pub use zookeeper::{ZooKeeperEnsemble, ZooKeeperServer};

/// Whether a program of this name is on the search path, or a file is at this absolute path. Of
/// `redis-server`, that is the one that `TENURE_TEST_REDIS` names, if it does.
pub fn is_installed(program: &str) -> bool {
    let chosen = (program == "redis-server").then(redis::program);
    let program = chosen.unwrap_or_else(|| program.into());
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(&program).is_file())
}

/// Whether a test cannot run for want of a program, or of a file. Says so, if it cannot.
pub fn lacks(program: &str, test: &str) -> bool {
    let missing = !is_installed(program);
    if missing {
        skip(test, &format!("{program} is not installed"));
    }
    missing
}

/// Says that a test is not run, past the capture of its output, so that it can be counted.
pub fn skip(test: &str, why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "skipped: {test}: {why}");
}

/// A directory of one's own, removed with everything in it when it is dropped.
///
/// # Panics
/// If the machine has no room for one.
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("tenure-test-")
        .tempdir()
        .expect("a temporary directory can be made")
}
