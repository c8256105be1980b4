//! The suite on one Redis server without fencing: there a free lock is one `SET NX PX`.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::sync::Weak;

use redis_fixture::Redis;
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

async fn unfenced() -> Redis<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let url = |server: &RedisServer| format!("redis://127.0.0.1:{}?fencing=off", server.port());
    Redis::shared(&RUNNING, || RedisServer::start(&[]), url).await
}

tenure_conformance::suite!(unfenced, needs "redis-server");
