//! The suite on one server of Valkey 9, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::io;
use std::sync::Weak;

use redis_fixture::Redis;
use tenure_testkit::{RedisServer, VALKEY_9};
use tokio::sync::Mutex;

async fn valkey() -> Redis<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let url = |server: &RedisServer| format!("redis://127.0.0.1:{}", server.port());
    Redis::shared(&RUNNING, start, url).await
}

fn start() -> io::Result<RedisServer> {
    let server = RedisServer::start_other(&VALKEY_9, &[])?;
    let said = server.command(&["INFO", "server"])?;
    assert!(said.contains("valkey_version:9."), "another server was started: {said}");
    Ok(server)
}

tenure_conformance::suite!(valkey, unless | case | VALKEY_9.is_missing(case));
