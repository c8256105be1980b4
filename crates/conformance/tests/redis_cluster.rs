//! The suite on a Redis Cluster of three masters and three replicas, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::sync::Weak;

use redis_fixture::Redis;
use tenure_testkit::RedisCluster;
use tokio::sync::Mutex;

async fn cluster() -> Redis<RedisCluster> {
    static RUNNING: Mutex<Weak<RedisCluster>> = Mutex::const_new(Weak::new());
    let url = |cluster: &RedisCluster| format!("redis+cluster://{}", cluster.addresses());
    Redis::shared(&RUNNING, RedisCluster::start, url).await
}

tenure_conformance::suite!(cluster, needs "redis-server");
