//! The suite on one server of Redis 6.2, in the layout of Redisson. All cases share the server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod shared_server;

use std::io;
use std::sync::Weak;

use shared_server::SharedServer;
use tenure_testkit::{REDIS_6_2, RedisServer};
use tokio::sync::Mutex;

async fn redis() -> SharedServer<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let url =
        |server: &RedisServer| format!("redis://127.0.0.1:{}?dialect=redisson", server.port());
    SharedServer::get_or_start(&RUNNING, start, url).await
}

fn start() -> io::Result<RedisServer> {
    let server = RedisServer::start_other(&REDIS_6_2, &[])?;
    let info = server.command(&["INFO", "server"])?;
    assert!(info.contains("redis_version:6.2."), "another server was started: {info}");
    Ok(server)
}

tenure_conformance::suite!(redis, unless | case | REDIS_6_2.is_missing(case));
