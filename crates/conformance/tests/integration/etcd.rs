//! The suite on one etcd server. All cases share it.

use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::EtcdServer;
use tokio::sync::Mutex;

async fn etcd() -> SharedServer<EtcdServer> {
    static RUNNING: Mutex<Weak<EtcdServer>> = Mutex::const_new(Weak::new());
    // A long timeout, so that a busy machine does not look like an outage.
    let url = |server: &EtcdServer| format!("etcd://127.0.0.1:{}?timeout=10s", server.port());
    SharedServer::get_or_start(&RUNNING, || EtcdServer::start(&[]), url).await
}

tenure_conformance::suite!(etcd, needs "etcd");
