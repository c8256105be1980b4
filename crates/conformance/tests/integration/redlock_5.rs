//! The suite on a quorum of five Redis servers. All cases share it.

use std::sync::Weak;

use crate::shared_server::{SharedServer, quorum_url, start_many};
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

type Servers = [RedisServer; 5];

async fn redlock() -> SharedServer<Servers> {
    static RUNNING: Mutex<Weak<Servers>> = Mutex::const_new(Weak::new());
    SharedServer::get_or_start(&RUNNING, start_many, |servers| quorum_url(servers)).await
}

tenure_conformance::suite!(redlock, needs "redis-server");
