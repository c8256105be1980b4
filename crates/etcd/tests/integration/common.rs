//! What the tests on etcd share.

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;

use tenure_core::Client;
use tenure_etcd::{EtcdConfig, EtcdStore};
use tenure_testkit::EtcdServer;

pub(crate) fn config(addresses: &str) -> EtcdConfig {
    EtcdConfig::new(tenure_testkit::parse_addresses(addresses))
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

/// A transaction by `etcdctl` that puts a key. Returns whether its comparison held.
pub(crate) fn write_if(server: &EtcdServer, compare: &str, key: &str, value: &str) -> bool {
    let mut command = server.controller(&["txn"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    write!(input, "{compare}\n\nput {key} {value}\n\n\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("SUCCESS") || said.starts_with("FAILURE"), "{said}");
    said.starts_with("SUCCESS")
}
