//! The suite on one Redis server with `fencing=off`, where taking a free lock is one `SET NX PX`, and with
//! `cells=watch`, where cells are swapped by transactions.

use std::sync::Weak;

use crate::shared_server::SharedServer;
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

async fn unfenced() -> SharedServer<RedisServer> {
    static RUNNING: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let options = "fencing=off&cells=watch";
    let url = |server: &RedisServer| format!("redis://127.0.0.1:{}?{options}", server.port());
    SharedServer::get_or_start(&RUNNING, || RedisServer::start(&[]), url).await
}

tenure_conformance::suite!(unfenced, needs "redis-server");
