//! The suite on a ZooKeeper ensemble of three servers. All cases share it.

use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::{ZooKeeperEnsemble, ZooKeeperServer};
use tokio::sync::Mutex;

/// Allows sessions as long as the longest TTL of any case.
const LONG_SESSIONS: &[&str] = &["maxSessionTimeout=7200000"];

async fn ensemble() -> SharedServer<ZooKeeperEnsemble> {
    static RUNNING: Mutex<Weak<ZooKeeperEnsemble>> = Mutex::const_new(Weak::new());
    // A long timeout, so that a busy machine does not look like an outage.
    let url = |ensemble: &ZooKeeperEnsemble| format!("zk://{}?timeout=10s", ensemble.addresses());
    SharedServer::get_or_start(&RUNNING, || ZooKeeperEnsemble::start(LONG_SESSIONS), url).await
}

tenure_conformance::suite!(ensemble, unless | case | ZooKeeperServer::is_missing(case));
