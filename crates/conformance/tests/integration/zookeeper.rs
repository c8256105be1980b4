//! The suite on one ZooKeeper server. All cases share it.

use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::ZooKeeperServer;
use tokio::sync::Mutex;

/// Allows sessions as long as the longest TTL of any case.
const LONG_SESSIONS: &[&str] = &["maxSessionTimeout=7200000"];

async fn zookeeper() -> SharedServer<ZooKeeperServer> {
    static RUNNING: Mutex<Weak<ZooKeeperServer>> = Mutex::const_new(Weak::new());
    // A long timeout, so that a busy machine does not look like an outage.
    let url = |server: &ZooKeeperServer| format!("zk://127.0.0.1:{}?timeout=10s", server.port());
    SharedServer::get_or_start(&RUNNING, || ZooKeeperServer::start(LONG_SESSIONS), url).await
}

tenure_conformance::suite!(zookeeper, unless | case | ZooKeeperServer::is_missing(case));
