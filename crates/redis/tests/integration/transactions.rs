//! Cells that are swapped by `WATCH`, `MULTI` and `EXEC`, on a real server.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::servers::{client, single};
use tenure_core::{Client, ErrorKind};
use tenure_redis::{CellUpdates, RedisConfig, RedisStore, Topology};
use tenure_testkit::{GENEROUS, RedisServer, eventually};

/// The main connection and the one for renewals, beside those for transactions.
const OTHERS: usize = 2;
const TRANSACTIONS: usize = 4;

fn by_watch(mut config: RedisConfig) -> RedisConfig {
    config.cells = CellUpdates::Watch;
    config
}

async fn watching(server: &RedisServer) -> Client {
    client(&by_watch(single(server.port()))).await
}

fn connections(server: &RedisServer) -> usize {
    let list = server.command(&["CLIENT", "LIST"]).unwrap();
    list.lines().filter(|line| line.contains(" name=tenure ")).count()
}

/// Starts tasks that each add one, and returns how many of them did.
async fn add(clients: &[&Client], tasks: usize) -> u64 {
    let mut adding = tokio::task::JoinSet::new();
    for number in 0..tasks {
        let cell = clients[number % clients.len()].cell::<u64>("sum").unwrap();
        adding.spawn(async move { cell.update(|sum| sum.unwrap_or(0) + 1).await.unwrap() });
    }
    let mut conflicts = 0;
    while let Some(updated) = adding.join_next().await {
        conflicts += u64::from(updated.unwrap().conflicts);
    }
    conflicts
}

on_servers! {
    async fn updates_by_both_ways_at_once_are_each_counted_once() {
        let server = RedisServer::start(&[]).unwrap();
        let by_watch = [watching(&server).await, watching(&server).await];
        let by_script = client(&single(server.port())).await;
        let conflicts = add(&[&by_watch[0], &by_script, &by_watch[1]], 300).await;
        assert!(conflicts > 0, "the test has no contention");
        assert_eq!(by_script.cell::<u64>("sum").unwrap().get().await.unwrap(), Some(300));
    }
}

on_servers! {
    async fn a_crowd_of_updates_shares_a_few_connections() {
        let server = RedisServer::start(&[]).unwrap();
        let client = watching(&server).await;
        let tasks = tokio::spawn({
            let client = client.clone();
            async move { add(&[&client], 200).await }
        });
        let mut most = 0;
        while !tasks.is_finished() {
            most = most.max(connections(&server));
        }
        tasks.await.unwrap();
        assert!(most <= OTHERS + TRANSACTIONS, "{most} connections");
        let sum = client.cell::<u64>("sum").unwrap();
        assert_eq!(sum.get().await.unwrap(), Some(200));
    }
}

on_servers! {
    async fn an_update_that_is_dropped_halfway_leaves_no_transaction_behind() {
        let server = RedisServer::start(&[]).unwrap();
        let client = watching(&server).await;
        let sum = client.cell::<u64>("sum").unwrap();
        sum.set(&0).await.unwrap();
        for polls in 1..30 {
            let cell = client.cell::<u64>("sum").unwrap();
            let mut update = Box::pin(cell.update(|sum| sum.unwrap_or(0) + 1));
            for _ in 0..polls {
                let polled = poll_fn(|context| Poll::Ready(update.as_mut().poll(context).is_ready()));
                if polled.await {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        // Each of the next ones gets a connection that watches nothing and queues nothing.
        let before = sum.get().await.unwrap().unwrap();
        for _ in 0..2 * TRANSACTIONS {
            sum.update(|sum| sum.unwrap_or(0) + 1).await.unwrap();
        }
        let after = sum.get().await.unwrap().unwrap();
        assert!((before + 8..before + 38).contains(&after), "{before} {after}");
        let few = || async { connections(&server) <= OTHERS + TRANSACTIONS };
        assert!(eventually(GENEROUS, few).await, "{} connections", connections(&server));
    }
}

on_servers! {
    async fn an_expiry_is_set_kept_and_lifted() {
        let server = RedisServer::start(&[]).unwrap();
        let client = watching(&server).await;
        let minute = std::time::Duration::from_secs(60);
        let ttl = || server.command(&["TTL", "tenure:{tenure:a}:cell"]).unwrap();
        client.cell::<u64>("a").unwrap().ttl(minute).set(&1).await.unwrap();
        assert_eq!(ttl(), "60");
        client.cell::<u64>("a").unwrap().set(&2).await.unwrap();
        assert_eq!(ttl(), "-1");
        server.command(&["SET", "tenure:{tenure:b}:cell", "not ours"]).unwrap();
        let damaged = client.cell::<u64>("b").unwrap().set(&1).await.unwrap_err();
        assert_eq!(damaged.kind(), ErrorKind::Damaged);
    }
}

on_servers! {
    /// Without `MULTI`, the commands behind it would be carried out one by one, whatever the version is.
    async fn a_user_without_the_right_to_multi_changes_nothing() {
        let server = RedisServer::start(&[]).unwrap();
        let sum = client(&single(server.port())).await.cell::<u64>("sum").unwrap();
        sum.set(&1).await.unwrap();
        for (user, right) in [("a", "-multi"), ("b", "-exec"), ("c", "-watch")] {
            let rules = ["ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all", right];
            assert_eq!(server.command(&rules).unwrap(), "OK");
            let mut config = by_watch(single(server.port()));
            (config.username, config.password) = (Some(user.into()), Some("pw".into()));
            let refused = client(&config).await.cell::<u64>("sum").unwrap();
            for _ in 0..2 {
                let refused = refused.update(|sum| sum.unwrap_or(0) + 100).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Denied, "{right}: {refused}");
                assert_eq!(sum.get().await.unwrap(), Some(1), "{right}");
            }
        }
    }
}

on_servers! {
    async fn updates_that_are_dropped_while_no_connection_can_be_made_delay_no_later_one() {
        let server = RedisServer::start(&[]).unwrap();
        let password = |word: &str| {
            let rules = ["ACL", "SETUSER", "a", "on", "resetpass", word, "~*", "&*", "+@all"];
            assert_eq!(server.command(&rules).unwrap(), "OK");
        };
        password(">pw");
        let mut config = by_watch(single(server.port()));
        (config.username, config.password) = (Some("a".into()), Some("pw".into()));
        let sum = client(&config).await.cell::<u64>("sum").unwrap();
        // From here on only the connection that is there can be used.
        password(">other");
        for _ in 0..1000 {
            let update = sum.update(|sum| sum.unwrap_or(0) + 1);
            let _dropped = tokio::time::timeout(Duration::from_millis(2), update).await;
        }
        password(">pw");
        let found = eventually(GENEROUS, || async {
            sum.update(|sum| sum.unwrap_or(0) + 1).await.is_ok()
        });
        assert!(found.await, "dials for updates that were dropped are made one by one");
    }
}

#[tokio::test]
async fn a_cluster_has_no_transactions() {
    let nodes = vec![("127.0.0.1".into(), 1)];
    let cluster = RedisConfig::new(Topology::Cluster { nodes });
    let config = by_watch(cluster);
    let refused = RedisStore::connect(config).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("cells=watch"), "{refused}");
}
