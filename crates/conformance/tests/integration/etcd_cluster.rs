//! The suite on an etcd cluster of three members. All cases share it.

use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::EtcdCluster;
use tokio::sync::Mutex;

async fn cluster() -> SharedServer<EtcdCluster> {
    static RUNNING: Mutex<Weak<EtcdCluster>> = Mutex::const_new(Weak::new());
    // A long timeout, so that a busy machine does not look like an outage.
    let url = |cluster: &EtcdCluster| format!("etcd://{}?timeout=10s", cluster.addresses());
    SharedServer::get_or_start(&RUNNING, EtcdCluster::start, url).await
}

tenure_conformance::suite!(cluster, needs "etcd");
