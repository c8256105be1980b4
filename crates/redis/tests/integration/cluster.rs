//! What a Cluster does to locks: hand-offs between nodes, a dead master, a slot that moves.

use std::time::Duration;

use crate::servers::{
    FAILOVER, Load, Moving, addresses, client, hand_over_by_push, insist, refusal, said,
};
use tenure_core::store::{Claim, ClaimOutcome, Released, Renewal, Store, WaitPolicy};
use tenure_core::{ErrorKind, LockName, Mode, Options};
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::{GENEROUS, RedisCluster, eventually};
use tenure_trials::until_waiting;

fn config(cluster: &RedisCluster) -> RedisConfig {
    RedisConfig::new(Topology::Cluster { nodes: addresses(&cluster.addresses()) })
}

/// Names of locks of which every master has some.
fn names(cluster: &RedisCluster) -> Vec<String> {
    let names: Vec<String> = (0..9).map(|number| format!("lock-{number}")).collect();
    let masters = names.iter().map(|name| cluster.master_of(&format!("tenure:{name}")).unwrap());
    assert_eq!(masters.collect::<std::collections::BTreeSet<_>>().len(), 3);
    names
}

on_servers! {
    async fn a_release_is_pushed_to_the_next_waiter_on_every_master() {
        let cluster = RedisCluster::start().unwrap();
        let (holder, waiter) = (client(&config(&cluster)).await, client(&config(&cluster)).await);
        for name in names(&cluster) {
            hand_over_by_push(&holder, &waiter, &name).await;
        }
        // Every node forgets the scripts.
        for node in cluster.nodes() {
            said(node, &["SCRIPT", "FLUSH"]);
        }
        for name in names(&cluster) {
            hand_over_by_push(&holder, &waiter, &name).await;
        }
    }
}

on_servers! {
    async fn grants_wait_for_replicas_on_a_cluster_too() {
        let cluster = RedisCluster::start().unwrap();
        let mut config = config(&cluster);
        config.replicas = 1;
        let one = client(&config).await;
        let names = names(&cluster);
        for name in &names {
            one.mutex(name).unwrap().try_acquire().await.unwrap().release().await.unwrap();
        }
        config.replicas = 2;
        let two = client(&config).await;
        let lost = two.mutex(&names[0]).unwrap().try_acquire().await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::QuorumLost, "{lost}");
        assert!(two.inspect(&names[0]).await.unwrap().holders.is_empty());
    }
}

on_servers! {
    async fn a_killed_master_is_replaced_and_every_waiter_goes_on() {
        let mut cluster = RedisCluster::start().unwrap();
        let client = client(&config(&cluster)).await;
        let names = names(&cluster);
        let load = Load::start(&client, &names);
        load.go_on(3).await;
        let key = format!("tenure:{}", names[0]);
        let dead = cluster.master_of(&key).unwrap();
        cluster.kill9(dead).unwrap();
        load.go_on(3).await;
        let replaced = eventually(GENEROUS, || async {
            cluster.master_of(&key).is_some_and(|now| now != dead)
        });
        assert!(replaced.await);
        load.stop().await;
        // A waiter that relies on a push alone gets it from the new master.
        hand_over_by_push(&client, &client, "after").await;
    }
}

on_servers! {
    async fn locks_that_cannot_be_seen_are_not_left_out_silently() {
        let serve_the_rest = ["--cluster-require-full-coverage", "no"];
        let mut cluster = RedisCluster::start_with(&serve_the_rest).unwrap();
        let client = client(&config(&cluster)).await;
        let names = names(&cluster);
        let mut guards = Vec::new();
        for name in &names {
            guards.push(client.mutex(name).unwrap().acquire().await.unwrap());
        }
        assert_eq!(client.list("").await.unwrap().len(), names.len());
        let dead = cluster.master_of(&format!("tenure:{}", names[0])).unwrap();
        // A master and the replica that could take its place.
        for node in [dead, dead + 3] {
            cluster.kill9(node).unwrap();
        }
        let told = eventually(FAILOVER, || async {
            client.list("").await.unwrap_err().to_string().contains("cannot be seen")
        });
        assert!(told.await, "no error says why");
    }
}

on_servers! {
    async fn a_node_that_knows_a_part_of_the_cluster_is_not_believed() {
        let cluster = RedisCluster::start().unwrap();
        // The node believes that the Cluster has only its own few slots.
        let stranger = RedisCluster::stranger().unwrap();
        said(&stranger, &["CLUSTER", "ADDSLOTSRANGE", "0", "99"]);
        let mut nodes = vec![("127.0.0.1".to_owned(), stranger.port())];
        nodes.extend(addresses(&cluster.addresses()));
        let client = client(&RedisConfig::new(Topology::Cluster { nodes })).await;
        for name in names(&cluster) {
            let guard = client.mutex(&name).unwrap().acquire().await.unwrap();
            assert_eq!(client.list("").await.unwrap().len(), 1);
            guard.release().await.unwrap();
        }
    }
}

on_servers! {
    async fn a_slot_moves_under_load_and_pushes_come_from_its_new_node() {
        let cluster = RedisCluster::start().unwrap();
        let (one, two) = (client(&config(&cluster)).await, client(&config(&cluster)).await);
        let name = "moving".to_owned();
        hand_over_by_push(&one, &two, &name).await;
        let load = Load::start(&one, std::slice::from_ref(&name));
        let other = Load::start(&two, std::slice::from_ref(&name));
        load.go_on(3).await;
        let moving = Moving::start(&cluster, "tenure:moving");
        // Long enough for calls to meet a slot that is halfway.
        tokio::time::sleep(Duration::from_millis(300)).await;
        moving.finish().await;
        load.go_on(10).await;
        other.go_on(10).await;
        load.stop().await;
        other.stop().await;
        // One hand-off that is found by asking shows that the subscription has gone with the slot.
        let held = one.mutex(&name).unwrap().acquire().await.unwrap();
        let waiter = two.clone();
        let waiting =
            tokio::spawn(async move { insist(&waiter, "moving", &Options::new()).await });
        until_waiting(&one, &name, 1).await;
        held.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
        hand_over_by_push(&one, &two, &name).await;
    }
}

/// The channels with a subscriber, at any node.
fn channels(cluster: &RedisCluster) -> Vec<String> {
    let named = |node| said(node, &["PUBSUB", "SHARDCHANNELS"]);
    let lines: Vec<String> = cluster.nodes().iter().map(named).collect();
    lines.iter().flat_map(|lines| lines.lines()).map(str::to_owned).collect()
}

on_servers! {
    async fn channels_are_given_up_when_no_claim_waits_in_their_slots() {
        let cluster = RedisCluster::start().unwrap();
        let (holder, waiter) = (client(&config(&cluster)).await, client(&config(&cluster)).await);
        for name in names(&cluster) {
            hand_over_by_push(&holder, &waiter, &name).await;
        }
        assert_eq!(channels(&cluster).len(), names(&cluster).len());
        let deaf = Options::new().ttl(Duration::from_secs(600)).poll_cap(Duration::from_secs(3600));
        let held = holder.mutex("kept").unwrap().with(deaf.clone()).acquire().await.unwrap();
        let mutex = waiter.mutex("kept").unwrap().with(deaf);
        let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        until_waiting(&holder, "kept", 1).await;
        let fewer = eventually(GENEROUS, || async { channels(&cluster).len() == 1 });
        assert!(fewer.await, "{:?}", channels(&cluster));
        // The channel of the waiting claim works, and the others do when they are needed again.
        held.release().await.unwrap();
        let next = tokio::time::timeout(GENEROUS, waiting).await.expect("no push").unwrap();
        next.release().await.unwrap();
        for name in names(&cluster) {
            hand_over_by_push(&holder, &waiter, &name).await;
        }
        let none = eventually(GENEROUS, || async { channels(&cluster).is_empty() });
        assert!(none.await, "{:?}", channels(&cluster));
    }
}

on_servers! {
    async fn a_wrong_password_and_a_database_are_refused() {
        let cluster = RedisCluster::start().unwrap();
        let mut wrong = config(&cluster);
        wrong.username = Some("nobody".into());
        wrong.password = Some("wrong".into());
        let denied = refusal(&wrong).await;
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        let mut numbered = config(&cluster);
        numbered.database = 1;
        assert_eq!(refusal(&numbered).await.kind(), ErrorKind::Invalid);
    }
}

on_servers! {
    /// Calls the store directly, because core would retry and hide the error.
    async fn a_single_call_follows_a_slot_that_moves_and_one_that_has_moved() {
        let cluster = RedisCluster::start().unwrap();
        let mut unfenced = config(&cluster);
        unfenced.fencing = false;
        let early = RedisStore::connect(unfenced).await.unwrap();
        let late = RedisStore::connect(config(&cluster)).await.unwrap();
        let moving = Moving::start(&cluster, "tenure:moving");
        // One key, which is not there: the node that gives the slot away answers ASK.
        let claim = claim("moving");
        let answer = early.claim(&claim, WaitPolicy::NoWait).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
        assert_eq!(moving.left_behind(), 0);
        // Several keys, not all there: that must be tried again.
        let halfway = late.claim(&claim, WaitPolicy::NoWait).await.unwrap_err();
        assert!(halfway.is_transient(), "{halfway}");
        moving.finish().await;
        let answer = late.claim(&self::claim("moving"), WaitPolicy::NoWait).await.unwrap();
        assert_eq!(answer, ClaimOutcome::Busy);
    }
}

on_servers! {
    async fn a_holder_renews_and_releases_while_its_slot_moves() {
        let cluster = RedisCluster::start().unwrap();
        let store = RedisStore::connect(config(&cluster)).await.unwrap();
        for moved in [false, true] {
            let (held, other) = (claim("moving"), claim("moving"));
            let answer = store.claim(&held, WaitPolicy::NoWait).await.unwrap();
            assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
            let moving = Moving::start(&cluster, "tenure:moving");
            assert_eq!(moved, moved && moving.left_behind() > 0);
            assert_eq!(store.renew(&held).await.unwrap(), Renewal::Renewed);
            assert_eq!(store.renew(&other).await.unwrap(), Renewal::Lost);
            // Whether the waiter is queued cannot be seen.
            assert!(store.release(&other).await.unwrap_err().is_transient());
            assert_eq!(store.release(&held).await.unwrap(), Released::Released);
            moving.finish().await;
        }
    }
}

fn claim(name: &str) -> Claim {
    Claim::new(LockName::new(name).unwrap(), Mode::Exclusive, Duration::from_secs(60))
}
