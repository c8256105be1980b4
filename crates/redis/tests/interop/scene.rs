//! A server, a client of tenure on it, and as many other clients as a case starts.

use std::sync::Arc;

use tenure_core::{Client, Guard, LockState};
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::{ExternalClient, GENEROUS, RedisServer, SharedLock, eventually};

use crate::theirs::Theirs;

/// The lock, as we call it. Theirs add the prefix.
pub(crate) const NAME: &str = "orders";

/// A client of another project, and where its locks are.
pub(crate) struct Foreign {
    pub(crate) client: ExternalClient,
    /// What its keys begin with.
    pub(crate) prefix: &'static str,
    pub(crate) row: SharedLock<'static>,
}

pub(crate) struct Scene {
    pub(crate) foreign: &'static Foreign,
    server: RedisServer,
    pub(crate) ours: Client,
}

impl Scene {
    pub(crate) async fn set(foreign: &'static Foreign, fencing: bool) -> Self {
        let server = RedisServer::start(&[]).unwrap();
        let address = ("127.0.0.1".into(), server.port());
        let mut config = RedisConfig::new(Topology::Single { server: address });
        config.fencing = fencing;
        config.prefix = foreign.prefix.into();
        let ours = Client::new(Arc::new(RedisStore::connect(config).await.unwrap())).unwrap();
        Self { foreign, server, ours }
    }

    /// Starts another client of the other project.
    pub(crate) async fn theirs(&self) -> Theirs {
        Theirs::start(&self.foreign.client, self.server.port(), &self.key()).await
    }

    fn key(&self) -> String {
        format!("{}{NAME}", self.foreign.prefix)
    }

    /// The value of the lock's key; empty if there is none.
    pub(crate) fn written(&self) -> String {
        let reply = self.server.command(&["GET", &self.key()]).unwrap();
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

    /// Returns when so many of tenure's claims wait.
    pub(crate) async fn until_waiting(&self, count: usize) {
        let waiting = || async { self.state().await.waiters.len() == count };
        assert!(eventually(GENEROUS, waiting).await, "{count} never waited");
    }
}
