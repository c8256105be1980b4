//! The suite on an etcd cluster of three members, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::sync::Weak;

use redis_fixture::Redis as Etcd;
use tenure_testkit::EtcdCluster;
use tokio::sync::Mutex;

async fn cluster() -> Etcd<EtcdCluster> {
    static RUNNING: Mutex<Weak<EtcdCluster>> = Mutex::const_new(Weak::new());
    // A busy machine must not look like a fault.
    let url = |cluster: &EtcdCluster| format!("etcd://{}?timeout=10s", cluster.addresses());
    Etcd::shared(&RUNNING, EtcdCluster::start, url).await
}

tenure_conformance::suite!(cluster, needs "etcd");
