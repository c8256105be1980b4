//! Grants that count only when replicas have them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::servers::{client, hand_over_by_push, said, single};
use crate::stubs::{bulk, shards, stub};
use tenure_core::store::{Claim, ClaimOutcome, Released, Renewal, Store, WaitPolicy};
use tenure_core::{Effect, ErrorKind, Mode};
use tenure_redis::{RedisConfig, RedisStore, RedissonStore, Topology};
use tenure_testkit::{GENEROUS, RedisServer, VALKEY_9, eventually};
use tenure_trials::claim;

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
        // Several locks at once. Two waits for replicas on one connection may outlast the call's timeout.
        assert!(two.multi_lock(["a", "b"]).unwrap().try_acquire().await.is_err());
        let none = || async { said(&master, &["EXISTS", "tenure:a", "tenure:b"]) == "0" };
        assert!(eventually(GENEROUS, none).await);

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
    /// Else a master that was cut off from its replicas would go on extending a lock that another
    /// client already holds on the new master.
    async fn a_renewal_that_too_few_replicas_have_does_not_count() {
        let on_debian = RedisServer::start as fn(&[&str]) -> std::io::Result<RedisServer>;
        let on_valkey = |arguments: &[&str]| RedisServer::start_other(&VALKEY_9, arguments);
        let mut kinds = vec![on_debian];
        if !VALKEY_9.is_missing("renewals that replicas confirm") {
            kinds.push(on_valkey);
        }
        for start in kinds {
            let master = start(&["--repl-diskless-sync-delay", "0"]).unwrap();
            let port = master.port().to_string();
            let mut replica = start(&["--replicaof", "127.0.0.1", &port]).unwrap();
            let follows = eventually(GENEROUS, || async {
                said(&master, &["INFO", "replication"]).contains("state=online")
            });
            assert!(follows.await);
            let mut config = single(master.port());
            (config.replicas, config.timeout) = (1, Duration::from_secs(1));
            let store = RedisStore::connect(config).await.unwrap();
            let held = claim("a", Duration::from_secs(60));
            // A replica that has just come online may take its time to acknowledge.
            let granted = eventually(GENEROUS, || async {
                let outcome = store.claim(&held, WaitPolicy::NoWait).await;
                matches!(outcome, Ok(ClaimOutcome::Granted(_)))
            });
            assert!(granted.await);
            // Also once the renewals have a connection of their own.
            for _ in 0..3 {
                assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
            }
            replica.stop().unwrap();
            for _ in 0..2 {
                let unconfirmed = store.renew(&held).await.unwrap_err();
                assert!(unconfirmed.is_transient(), "{unconfirmed}");
                assert_eq!(unconfirmed.effect(), Effect::Unknown, "{unconfirmed}");
            }
            replica.cont().unwrap();
            let again = eventually(GENEROUS, || async { store.renew(&held).await.is_ok() });
            assert!(again.await, "no renewal counts any more");
            assert_eq!(store.release(&held).await.unwrap(), Released::Released);
        }
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

/// A slot moves from one node to another. The first node would confirm every command but the claim
/// itself.
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

on_servers! {
    /// As Redisson does: what no replica has acknowledged is released again before the claim fails.
    async fn a_grant_that_no_replica_has_is_undone_in_redissons_layout_too() {
        let master = RedisServer::start(&[]).unwrap();
        let mut config = single(master.port());
        config.prefix.clear();
        (config.replicas, config.timeout) = (1, Duration::from_millis(500));
        let store = RedissonStore::connect(config).await.unwrap();
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 1 }] {
            let (name, tag) = ("a".parse().unwrap(), format!("{mode:?}"));
            let claim = Claim::new(name, mode, GENEROUS);
            let lost = store.claim(&claim, WaitPolicy::NoWait).await.unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::QuorumLost, "{tag}: {lost}");
            assert!(store.inspect(&claim.name).await.unwrap().is_free(), "{tag}");
        }
        assert_eq!(said(&master, &["GET", "a"]), "1", "the permit is back");
    }
}

on_servers! {
    /// A renewal or a downgrade that no replica has is not counted: the claim may be lost by a failover.
    async fn renewals_and_downgrades_wait_for_replicas_in_redissons_layout_too() {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]).unwrap();
        let port = master.port().to_string();
        let mut replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
        let follows = eventually(GENEROUS, || async {
            said(&master, &["INFO", "replication"]).contains("state=online")
        });
        assert!(follows.await);
        let mut config = single(master.port());
        config.prefix.clear();
        (config.replicas, config.timeout) = (1, Duration::from_secs(1));
        let store = RedissonStore::connect(config).await.unwrap();
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 1 }];
        let named = ["x", "s", "p"].into_iter().zip(modes);
        let claims = named.map(|(name, mode)| Claim::new(name.parse().unwrap(), mode, 3 * GENEROUS));
        let claims: Vec<Claim> = claims.collect();
        for claim in &claims {
            let granted = eventually(GENEROUS, || async {
                let outcome = store.claim(claim, WaitPolicy::NoWait).await;
                matches!(outcome, Ok(ClaimOutcome::Granted(_)))
            });
            assert!(granted.await);
            assert_eq!(store.renew(claim).await.unwrap(), Renewal::Renewed);
        }
        replica.stop().unwrap();
        for claim in &claims {
            let unconfirmed = store.renew(claim).await.unwrap_err();
            assert_eq!(unconfirmed.effect(), Effect::Unknown, "{unconfirmed}");
        }
        let unconfirmed = store.downgrade(&claims[0]).await.unwrap_err();
        assert_eq!(unconfirmed.effect(), Effect::Unknown, "{unconfirmed}");
        replica.cont().unwrap();
        let again = eventually(GENEROUS, || async { store.downgrade(&claims[0]).await.is_ok() });
        assert!(again.await, "no downgrade counts any more");
        for claim in &claims {
            let again = eventually(GENEROUS, || async { store.renew(claim).await.is_ok() });
            assert!(again.await, "no renewal counts any more");
        }
    }
}
