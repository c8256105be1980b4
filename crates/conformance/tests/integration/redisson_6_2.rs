//! The suite on one server of Redis 6.2, in the layout of Redisson. All cases share the server.

use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::{REDIS_6_2, RedisServer};
use tokio::sync::Mutex;

async fn redis() -> SharedServer<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    SharedServer::other(&RUNNING, &REDIS_6_2, "redis_version:6.2.", "?dialect=redisson").await
}

tenure_conformance::suite!(redis, unless | case | REDIS_6_2.is_missing(case));
