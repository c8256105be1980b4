//! A fixture for engines with servers: all cases of a test program share one server (or cluster).

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tenure_conformance::Fixture;
use tenure_core::store::Store;
use tenure_testkit::{ExternalClient, RedisServer};
use tokio::sync::Mutex;

/// A running server or group of servers, and its URL.
pub(crate) struct SharedServer<T> {
    _servers: Arc<T>,
    url: String,
}

impl<T: Send + Sync + 'static> SharedServer<T> {
    /// Returns the servers that already run for another case, or else starts them. They stop with
    /// the last case that uses them.
    pub(crate) async fn get_or_start(
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

impl SharedServer<RedisServer> {
    /// A server of another version than Debian's, which must say so in its `INFO`. The query ends its URL.
    pub(crate) async fn other(
        running: &Mutex<Weak<RedisServer>>,
        program: &'static ExternalClient,
        version: &'static str,
        query: &str,
    ) -> Self {
        let start = move || {
            let server = RedisServer::start_other(program, &[])?;
            let info = server.command(&["INFO", "server"])?;
            assert!(info.contains(version), "another server was started: {info}");
            Ok(server)
        };
        let url = |server: &RedisServer| format!("redis://127.0.0.1:{}{query}", server.port());
        Self::get_or_start(running, start, url).await
    }
}

#[async_trait]
impl<T: Send + Sync + 'static> Fixture for SharedServer<T> {
    async fn store(&self) -> Arc<dyn Store> {
        let registry = tenure::Registry::default();
        registry.open(&registry.parse(&self.url).unwrap()).await.unwrap()
    }

    fn url(&self) -> Option<String> {
        Some(self.url.clone())
    }

    fn ttl(&self) -> Duration {
        // etcd rounds shorter leases up to two seconds.
        Duration::from_secs(if self.url.starts_with("etcd") { 2 } else { 1 })
    }
}

/// Starts `N` Redis servers.
pub(crate) fn start_many<const N: usize>() -> io::Result<[RedisServer; N]> {
    let servers: io::Result<Vec<_>> = (0..N).map(|_| RedisServer::start(&[])).collect();
    servers?.try_into().map_err(|_| io::Error::other("another number of servers than requested"))
}

/// The Redlock URL of these servers, with a node timeout that suits a busy machine.
pub(crate) fn quorum_url(servers: &[RedisServer]) -> String {
    let hosts: Vec<_> = servers.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    format!("redlock://{}?node-timeout=2s", hosts.join(","))
}
