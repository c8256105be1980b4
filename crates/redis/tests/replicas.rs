//! Grants that count only when replicas have them.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod servers;

use std::time::Duration;

use servers::{client, hand_over_by_push, said, single};
use tenure_core::ErrorKind;
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
