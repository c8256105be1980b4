//! The suite on one server of Redis 6.2, the oldest that is supported, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::io;
use std::sync::Weak;

use redis_fixture::Redis;
use tenure_testkit::{REDIS_6_2, RedisServer};
use tokio::sync::Mutex;

async fn redis() -> Redis<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let url = |server: &RedisServer| format!("redis://127.0.0.1:{}", server.port());
    Redis::shared(&RUNNING, start, url).await
}

fn start() -> io::Result<RedisServer> {
    let server = RedisServer::start_other(&REDIS_6_2, &[])?;
    let said = server.command(&["INFO", "server"])?;
    assert!(said.contains("redis_version:6.2."), "another server was started: {said}");
    Ok(server)
}

tenure_conformance::suite!(redis, unless | case | REDIS_6_2.is_missing(case));
