//! A failover by Sentinels, with locks held and waited for.

use std::time::Duration;

use crate::servers::{FAILOVER, addresses, client, insist, refusal, said, single};
use tenure_core::{ErrorKind, Options};
use tenure_redis::{RedisConfig, Topology};
use tenure_testkit::{RedisSentinel, eventually};
use tenure_trials::until_waiting;

fn config(group: &RedisSentinel, service: &str) -> RedisConfig {
    let sentinels = addresses(&group.addresses());
    RedisConfig::new(Topology::Sentinel { sentinels, service: service.into() })
}

on_servers! {
    async fn after_a_failover_waiters_are_admitted_and_a_guard_reports_that_its_lock_is_lost() {
        let mut group = RedisSentinel::start(Duration::from_secs(1)).unwrap();
        let client = client(&config(&group, "main")).await;
        let options = Options::new().ttl(Duration::from_secs(15));
        let acquire = |name: &str| client.mutex(name).unwrap().with(options.clone());
        let kept = acquire("kept").acquire().await.unwrap();
        let (waiter, waits) = (client.clone(), options.clone());
        let waiting = tokio::spawn(async move { insist(&waiter, "kept", &waits).await });
        until_waiting(&client, "kept", 1).await;

        // The replicas hear no more of the master, and never of this lock.
        assert_eq!(said(&group.servers()[0], &["WAIT", "2", "5000"]), "2");
        for replica in [1, 2] {
            group.server(replica).stop().unwrap();
        }
        said(&group.servers()[0], &["CLIENT", "KILL", "TYPE", "replica"]);
        let gone = acquire("gone").acquire().await.unwrap();
        group.server(0).kill9().unwrap();
        for replica in [1, 2] {
            group.server(replica).cont().unwrap();
        }

        let fresh = insist(&client, "fresh", &options).await;
        // Each Sentinel learns of the failover in its own time.
        let told = eventually(FAILOVER, || async { group.master() != Some(0) });
        assert!(told.await, "no other server became the master");
        assert!(fresh.is_valid());
        let lost = tokio::time::timeout(FAILOVER, gone.lost()).await;
        assert!(lost.is_ok(), "the guard does not report the loss");
        let again = insist(&client, "gone", &options).await;
        assert!(again.token() > gone.token());

        let token = kept.token();
        drop(kept);
        let next = tokio::time::timeout(FAILOVER, waiting).await.unwrap().unwrap();
        assert!(next.token() > token);
    }
}

on_servers! {
    async fn nothing_is_claimed_on_a_replica() {
        let group = RedisSentinel::start(Duration::from_secs(10)).unwrap();
        let replica = client(&single(group.servers()[1].port())).await;
        let refused = replica.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
        assert!(refused.to_string().contains("replica"), "{refused}");
        // What the Sentinels name is the master, by its own account.
        let client = client(&config(&group, "main")).await;
        let guard = client.mutex("a").unwrap().try_acquire().await.unwrap();
        assert!(said(&group.servers()[0], &["EXISTS", "tenure:a"]) == "1");
        guard.release().await.unwrap();
    }
}

on_servers! {
    async fn an_unknown_service_and_a_wrong_password_give_different_errors() {
        let group = RedisSentinel::start(Duration::from_secs(10)).unwrap();
        let unknown = refusal(&config(&group, "other")).await;
        assert_eq!(unknown.kind(), ErrorKind::Unreachable, "{unknown}");
        assert!(unknown.to_string().contains("other"), "{unknown}");
        let mut wrong = config(&group, "main");
        wrong.username = Some("nobody".into());
        wrong.password = Some("wrong".into());
        let denied = refusal(&wrong).await;
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    }
}

on_servers! {
    async fn a_master_that_is_demoted_while_it_runs_is_left_behind() {
        let group = RedisSentinel::start(Duration::from_secs(10)).unwrap();
        let client = client(&config(&group, "main")).await;
        let guard = client.mutex("a").unwrap().acquire().await.unwrap();
        let sentinel = addresses(&group.addresses())[0].1;
        assert_eq!(group.ask(sentinel, &["SENTINEL", "FAILOVER", "main"]).unwrap(), "OK");
        let moved = eventually(FAILOVER, || async { group.master().is_some_and(|now| now != 0) });
        assert!(moved.await);
        let master = group.master().unwrap();
        // The old master goes on until the Sentinels demote it: a lock there is not safe.
        let arrived = eventually(FAILOVER, || async {
            let next = insist(&client, "b", &Options::new()).await;
            let there = said(&group.servers()[master], &["EXISTS", "tenure:b"]) == "1";
            let _moved = next.release().await;
            there
        });
        assert!(arrived.await);
        drop(guard);
    }
}
