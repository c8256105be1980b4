//! The suite on one Redis server as a user with the least rights, as the documentation has them.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::io;
use std::sync::Weak;

use redis_fixture::Redis;
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

async fn limited() -> Redis<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let url = |server: &RedisServer| format!("redis://locker:secret@127.0.0.1:{}", server.port());
    Redis::shared(&RUNNING, start, url).await
}

fn start() -> io::Result<RedisServer> {
    let server = RedisServer::start(&[])?;
    let rights = tenure_redis::ACL.split_whitespace();
    let words: Vec<_> =
        ["ACL", "SETUSER", "locker", "reset", "on", ">secret"].into_iter().chain(rights).collect();
    assert_eq!(server.command(&words)?, "OK");
    Ok(server)
}

tenure_conformance::suite!(limited, needs "redis-server");
