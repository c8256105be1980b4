//! The suite on one server of Valkey 9, in the layout of Redisson. All cases share the server.

use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::{RedisServer, VALKEY_9};
use tokio::sync::Mutex;

async fn valkey() -> SharedServer<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    SharedServer::other(&RUNNING, &VALKEY_9, "valkey_version:9.", "?dialect=redisson").await
}

tenure_conformance::suite!(valkey, unless | case | VALKEY_9.is_missing(case));
