//! The suite on a ZooKeeper ensemble of three servers, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::sync::Weak;

use redis_fixture::Redis as ZooKeeper;
use tenure_testkit::ZooKeeperEnsemble;
use tokio::sync::Mutex;

/// As long as the longest TTL of any case.
const LONG_SESSIONS: &[&str] = &["maxSessionTimeout=7200000"];

async fn ensemble() -> ZooKeeper<ZooKeeperEnsemble> {
    static RUNNING: Mutex<Weak<ZooKeeperEnsemble>> = Mutex::const_new(Weak::new());
    // A busy machine must not look like a fault.
    let url = |ensemble: &ZooKeeperEnsemble| format!("zk://{}?timeout=10s", ensemble.addresses());
    ZooKeeper::shared(&RUNNING, || ZooKeeperEnsemble::start(LONG_SESSIONS), url).await
}

tenure_conformance::suite!(ensemble, needs "/usr/share/java/zookeeper.jar");
