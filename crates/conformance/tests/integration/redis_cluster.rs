//! The suite on a Redis Cluster of three masters and three replicas. All cases share it.

use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::RedisCluster;
use tokio::sync::Mutex;

async fn cluster() -> SharedServer<RedisCluster> {
    static RUNNING: Mutex<Weak<RedisCluster>> = Mutex::const_new(Weak::new());
    let url = |cluster: &RedisCluster| format!("redis+cluster://{}", cluster.addresses());
    SharedServer::get_or_start(&RUNNING, RedisCluster::start, url).await
}

tenure_conformance::suite!(cluster, needs "redis-server");
