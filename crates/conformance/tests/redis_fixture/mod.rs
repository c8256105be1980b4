//! Servers that all cases of a test program share.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tenure_conformance::Fixture;
use tenure_core::store::Store;
use tenure_testkit::RedisServer;
use tokio::sync::Mutex;

/// Running servers, and how to reach them.
pub(crate) struct Redis<T> {
    _servers: Arc<T>,
    url: String,
}

impl<T: Send + Sync + 'static> Redis<T> {
    /// The servers that run already for another case, or else new ones. They end with the last
    /// case that uses them.
    pub(crate) async fn shared(
        running: &Mutex<Weak<T>>,
        start: impl FnOnce() -> io::Result<T> + Send + 'static,
        url: impl FnOnce(&T) -> String,
    ) -> Self {
        let mut running = running.lock().await;
        let servers = match running.upgrade() {
            Some(servers) => servers,
            None => {
                let started = tokio::task::spawn_blocking(start).await.unwrap();
                Arc::new(started.unwrap())
            }
        };
        *running = Arc::downgrade(&servers);
        let url = url(&servers);
        Self { _servers: servers, url }
    }
}

#[async_trait]
impl<T: Send + Sync + 'static> Fixture for Redis<T> {
    async fn store(&self) -> Arc<dyn Store> {
        let registry = tenure::Registry::default();
        registry.open(&registry.parse(&self.url).unwrap()).await.unwrap()
    }

    fn url(&self) -> Option<String> {
        Some(self.url.clone())
    }

    fn ttl(&self) -> Duration {
        // etcd makes two seconds of anything shorter.
        Duration::from_secs(if self.url.starts_with("etcd") { 2 } else { 1 })
    }

    fn faithful(&self) -> bool {
        true
    }
}

/// Several servers.
#[allow(dead_code, reason = "only a quorum has several")]
pub(crate) fn start_many<const N: usize>() -> io::Result<[RedisServer; N]> {
    let servers: io::Result<Vec<_>> = (0..N).map(|_| RedisServer::start(&[])).collect();
    servers?.try_into().map_err(|_| io::Error::other("as many as were started"))
}

/// The URL of a quorum. The machine may be busy: its servers get more time than a TTL of a second
/// would give them.
#[allow(dead_code, reason = "only a quorum has several")]
pub(crate) fn quorum_url(servers: &[RedisServer]) -> String {
    let hosts: Vec<_> = servers.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    format!("redlock://{}?node-timeout=2s", hosts.join(","))
}
