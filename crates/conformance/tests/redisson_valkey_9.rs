//! The suite on one server of Valkey 9, in the layout of Redisson. All cases share the server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod shared_server;

use std::io;
use std::sync::Weak;

use shared_server::SharedServer;
use tenure_testkit::{RedisServer, VALKEY_9};
use tokio::sync::Mutex;

async fn valkey() -> SharedServer<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let url =
        |server: &RedisServer| format!("redis://127.0.0.1:{}?dialect=redisson", server.port());
    SharedServer::get_or_start(&RUNNING, start, url).await
}

fn start() -> io::Result<RedisServer> {
    let server = RedisServer::start_other(&VALKEY_9, &[])?;
    let info = server.command(&["INFO", "server"])?;
    assert!(info.contains("valkey_version:9."), "another server was started: {info}");
    Ok(server)
}

tenure_conformance::suite!(valkey, unless | case | VALKEY_9.is_missing(case));
