//! The suite on one Redis server, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::sync::Weak;

use redis_fixture::Redis;
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

async fn redis() -> Redis<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let url = |server: &RedisServer| format!("redis://127.0.0.1:{}", server.port());
    Redis::shared(&RUNNING, || RedisServer::start(&[]), url).await
}

tenure_conformance::suite!(redis, needs "redis-server");
