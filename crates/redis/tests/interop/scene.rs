//! A server, a client of ours on it, and as many of theirs as a case starts.

use std::sync::Arc;

use tenure_core::{Client, Guard, LockState};
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::{ExternalClient, GENEROUS, RedisServer, eventually};

use crate::theirs::Theirs;

/// The lock, as we call it and as they do.
pub(crate) const NAME: &str = "orders";
const KEY: &str = "tenure:orders";

pub(crate) struct Scene {
    foreign: &'static ExternalClient,
    server: RedisServer,
    pub(crate) ours: Client,
}

impl Scene {
    pub(crate) async fn set(foreign: &'static ExternalClient, fencing: bool) -> Self {
        let server = RedisServer::start(&[]).unwrap();
        let address = ("127.0.0.1".into(), server.port());
        let mut config = RedisConfig::new(Topology::Single { server: address });
        config.fencing = fencing;
        let ours = Client::new(Arc::new(RedisStore::connect(config).await.unwrap())).unwrap();
        Self { foreign, server, ours }
    }

    /// One more client of theirs.
    pub(crate) async fn theirs(&self) -> Theirs {
        Theirs::start(self.foreign, self.server.port(), KEY).await
    }

    /// What is written in the lock's key; empty if nothing is.
    pub(crate) fn written(&self) -> String {
        let reply = self.server.command(&["GET", KEY]).unwrap();
        if reply == "(nil)" { String::new() } else { reply }
    }

    pub(crate) async fn state(&self) -> LockState {
        self.ours.inspect(NAME).await.unwrap()
    }

    /// Our own client only.
    pub(crate) async fn assert_held_by(&self, guard: &Guard) {
        let state = self.state().await;
        let owners: Vec<&str> = state.holders.iter().map(|holder| &*holder.owner).collect();
        assert_eq!(owners, [guard.owner().to_string()]);
        assert!(guard.is_valid());
    }

    /// Returns when so many of ours stand in line.
    pub(crate) async fn until_waiting(&self, count: usize) {
        let waiting = || async { self.state().await.waiters.len() == count };
        assert!(eventually(GENEROUS, waiting).await, "{count} never waited");
    }
}
