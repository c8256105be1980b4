//! The suite on one Redis server. All cases share it.

use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

async fn redis() -> SharedServer<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let url = |server: &RedisServer| format!("redis://127.0.0.1:{}", server.port());
    SharedServer::get_or_start(&RUNNING, || RedisServer::start(&[]), url).await
}

tenure_conformance::suite!(redis, needs "redis-server");
