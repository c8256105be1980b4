//! What the tests on etcd share.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;

use tenure_core::Client;
use tenure_etcd::{EtcdConfig, EtcdStore};
use tenure_testkit::EtcdServer;

/// A test that needs servers.
#[macro_export]
macro_rules! on_servers {
    ($(#[doc = $why:literal])* async fn $name:ident() $body:block) => {
        $(#[doc = $why])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if !tenure_testkit::lacks("etcd", stringify!($name))
                && !tenure_testkit::lacks("etcdctl", stringify!($name)) $body
        }
    };
}

pub(crate) fn config(addresses: &str) -> EtcdConfig {
    let address = |text: &str| {
        let (host, port) = text.rsplit_once(':').unwrap();
        (host.to_owned(), port.parse().unwrap())
    };
    EtcdConfig::new(addresses.split(',').map(address).collect())
}

pub(crate) fn config_of(server: &EtcdServer) -> EtcdConfig {
    config(&format!("127.0.0.1:{}", server.port()))
}

pub(crate) async fn store(config: &EtcdConfig) -> EtcdStore {
    EtcdStore::connect(config.clone()).await.unwrap()
}

pub(crate) async fn client(config: &EtcdConfig) -> Client {
    Client::new(Arc::new(store(config).await)).unwrap()
}

pub(crate) async fn connect(addresses: &str) -> Client {
    client(&config(addresses)).await
}
