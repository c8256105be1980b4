//! Grants that count only when replicas have them.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod servers;
#[path = "servers/stubs.rs"]
mod stubs;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use servers::{client, hand_over_by_push, said, single};
use stubs::{bulk, shards, stub};
use tenure_core::ErrorKind;
use tenure_redis::{RedisConfig, Topology};
use tenure_testkit::{GENEROUS, RedisServer, eventually};

on_servers! {
    async fn a_grant_that_too_few_replicas_have_is_undone() {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]).unwrap();
        let port = master.port().to_string();
        let mut replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
        let follows = eventually(GENEROUS, || async {
            said(&master, &["INFO", "replication"]).contains("state=online")
        });
        assert!(follows.await);

        let mut config = single(master.port());
        config.replicas = 1;
        let one = client(&config).await;
        let guard = one.mutex("a").unwrap().try_acquire().await.unwrap();
        assert_eq!(said(&replica, &["EXISTS", "tenure:a"]), "1");
        guard.release().await.unwrap();

        config.replicas = 2;
        config.timeout = Duration::from_millis(500);
        let two = client(&config).await;
        let lost = two.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::QuorumLost, "{lost}");
        assert!(lost.to_string().contains("1 of 2"), "{lost}");
        assert_eq!(said(&master, &["EXISTS", "tenure:a"]), "0");
        assert!(two.inspect("a").await.unwrap().holders.is_empty());

        // A replica that stands still acknowledges nothing.
        replica.stop().unwrap();
        config.replicas = 1;
        let one = client(&config).await;
        let lost = one.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::QuorumLost, "{lost}");
        replica.cont().unwrap();
        let back = eventually(GENEROUS, || async {
            one.mutex("a").unwrap().try_acquire().await.is_ok()
        });
        assert!(back.await);
    }
}

on_servers! {
    async fn a_waiter_is_confirmed_by_replicas_too() {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]).unwrap();
        let port = master.port().to_string();
        let _replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
        let follows = eventually(GENEROUS, || async {
            said(&master, &["INFO", "replication"]).contains("state=online")
        });
        assert!(follows.await);
        let mut config = single(master.port());
        config.replicas = 1;
        let client = client(&config).await;
        hand_over_by_push(&client, &client, "a").await;
    }
}

/// A slot on its way from one node to another. Whatever is not the claim itself the first node
/// would confirm, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_confirmed_by_the_replicas_of_the_node_that_made_it() {
    let target = stub(|words| match words[..] {
        ["ASKING"] => Some("+OK\r\n".into()),
        ["EVALSHA", _, "3", ..] => Some(bulk("granted 5")),
        ["EVALSHA", ..] => Some(":1\r\n".into()),
        ["WAIT", ..] => Some(":0\r\n".into()),
        _ => None,
    });
    let (port, to) = (Arc::new(OnceLock::new()), target.port());
    let own: Arc<OnceLock<u16>> = Arc::clone(&port);
    let source = stub(move |words| match words[..] {
        ["CLUSTER", "SHARDS"] => Some(shards(&[(0, 16_383, *own.wait())])),
        ["EVALSHA", ..] => Some(format!("-ASK 1 127.0.0.1:{to}\r\n")),
        ["WAIT", ..] => Some(":1\r\n".into()),
        _ => None,
    });
    port.set(source.port()).unwrap();
    let nodes = vec![("127.0.0.1".to_owned(), source.port())];
    let mut config = RedisConfig::new(Topology::Cluster { nodes });
    config.replicas = 1;
    let client = client(&config).await;
    let lost = client.mutex("a").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::QuorumLost, "{lost}");
    let sent: Vec<String> = target.commands().iter().map(|words| words[0].clone()).collect();
    let claim = sent.iter().position(|word| word == "ASKING").unwrap();
    assert_eq!(sent[claim..claim + 3], ["ASKING", "EVALSHA", "WAIT"]);
}
