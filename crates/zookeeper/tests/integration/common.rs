//! What the tests on ZooKeeper share.

use std::sync::Arc;

use tenure_core::Client;
use tenure_testkit::ZooKeeperServer;
use tenure_zookeeper::{ZooKeeperConfig, ZooKeeperStore};

pub(crate) fn config(addresses: &str) -> ZooKeeperConfig {
    ZooKeeperConfig::new(tenure_testkit::parse_addresses(addresses))
}

pub(crate) fn config_of(server: &ZooKeeperServer) -> ZooKeeperConfig {
    config(&format!("127.0.0.1:{}", server.port()))
}

pub(crate) async fn store(config: &ZooKeeperConfig) -> ZooKeeperStore {
    ZooKeeperStore::connect(config.clone()).await.unwrap()
}

pub(crate) async fn client(config: &ZooKeeperConfig) -> Client {
    Client::new(Arc::new(store(config).await)).unwrap()
}

pub(crate) async fn connect(addresses: &str) -> Client {
    client(&config(addresses)).await
}
