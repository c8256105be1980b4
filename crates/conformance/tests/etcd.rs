//! The suite on one etcd server, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::sync::Weak;

use redis_fixture::Redis as Etcd;
use tenure_testkit::EtcdServer;
use tokio::sync::Mutex;

async fn etcd() -> Etcd<EtcdServer> {
    static RUNNING: Mutex<Weak<EtcdServer>> = Mutex::const_new(Weak::new());
    // A busy machine must not look like a fault.
    let url = |server: &EtcdServer| format!("etcd://127.0.0.1:{}?timeout=10s", server.port());
    Etcd::shared(&RUNNING, || EtcdServer::start(&[]), url).await
}

tenure_conformance::suite!(etcd, needs "etcd");
