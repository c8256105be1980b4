//! The suite on one Redis server, which all cases share.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tenure_conformance::Fixture;
use tenure_core::Store;
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

struct Redis(Arc<RedisServer>);

/// One server for all cases that run at the same time; it ends with the last of them.
async fn redis() -> Redis {
    static SERVER: Mutex<Weak<RedisServer>> = Mutex::const_new(Weak::new());
    let mut server = SERVER.lock().await;
    if let Some(running) = server.upgrade() {
        return Redis(running);
    }
    let started = Arc::new(RedisServer::start(&[]).unwrap());
    *server = Arc::downgrade(&started);
    Redis(started)
}

#[async_trait]
impl Fixture for Redis {
    async fn store(&self) -> Arc<dyn Store> {
        tenure::open(&self.url().unwrap().parse().unwrap()).await.unwrap()
    }

    fn url(&self) -> Option<String> {
        Some(format!("redis://127.0.0.1:{}", self.0.port()))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn faithful(&self) -> bool {
        true
    }
}

tenure_conformance::suite!(redis, needs "redis-server");
