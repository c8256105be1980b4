//! The suite on one ZooKeeper server, with nodes for every neighbour, as a user that logs in.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::sync::Weak;

use redis_fixture::Redis as ZooKeeper;
use tenure_testkit::ZooKeeperServer;
use tokio::sync::Mutex;

/// As long as the longest TTL of any case.
const LONG_SESSIONS: &[&str] = &["maxSessionTimeout=7200000"];

async fn zookeeper() -> ZooKeeper<ZooKeeperServer> {
    static RUNNING: Mutex<Weak<ZooKeeperServer>> = Mutex::const_new(Weak::new());
    // A busy machine must not look like a fault.
    let url = |server: &ZooKeeperServer| {
        let options = "timeout=10s&prefix=app-&compat=curator-rw,kazoo";
        format!("zk://app:secret@127.0.0.1:{}/locks?{options}", server.port())
    };
    ZooKeeper::shared(&RUNNING, || ZooKeeperServer::start(LONG_SESSIONS), url).await
}

tenure_conformance::suite!(zookeeper, needs "/usr/share/java/zookeeper.jar");
