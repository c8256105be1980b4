//! The suite on one Redis server, as a user that has only the documented minimum of permissions.

use std::io;
use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

async fn limited() -> SharedServer<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let url = |server: &RedisServer| format!("redis://locker:secret@127.0.0.1:{}", server.port());
    SharedServer::get_or_start(&RUNNING, start, url).await
}

fn start() -> io::Result<RedisServer> {
    let server = RedisServer::start(&[])?;
    let rules = tenure_redis::ACL.split_whitespace();
    let words: Vec<_> =
        ["ACL", "SETUSER", "locker", "reset", "on", ">secret"].into_iter().chain(rules).collect();
    assert_eq!(server.command(&words)?, "OK");
    Ok(server)
}

tenure_conformance::suite!(limited, needs "redis-server");
