//! The suite on a Redis master that Sentinels name, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::sync::Weak;
use std::time::Duration;

use redis_fixture::Redis;
use tenure_testkit::RedisSentinel;
use tokio::sync::Mutex;

async fn sentinel() -> Redis<RedisSentinel> {
    static RUNNING: Mutex<Weak<RedisSentinel>> = Mutex::const_new(Weak::new());
    // No failover is wanted here, however busy the machine is.
    let start = || RedisSentinel::start(Duration::from_secs(10));
    let url = |group: &RedisSentinel| format!("redis+sentinel://{}/main", group.addresses());
    Redis::shared(&RUNNING, start, url).await
}

tenure_conformance::suite!(sentinel, needs "redis-server");
