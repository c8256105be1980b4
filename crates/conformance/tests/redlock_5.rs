//! The suite on a quorum of five Redis servers, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod redis_fixture;

use std::sync::Weak;

use redis_fixture::{Redis, quorum_url, start_many};
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

type Servers = [RedisServer; 5];

async fn redlock() -> Redis<Servers> {
    static RUNNING: Mutex<Weak<Servers>> = Mutex::const_new(Weak::new());
    Redis::shared(&RUNNING, start_many, |servers| quorum_url(servers)).await
}

tenure_conformance::suite!(redlock, needs "redis-server");
