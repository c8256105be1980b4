//! Servers that speak RESP2 only, and Clusters before 7.0.

use std::time::Duration;

use crate::servers::{FAILOVER, Load, addresses, client, hand_over_by_push, refusal, said, single};
use crate::stubs::{DIGEST, bulk};
use tenure_core::store::{ClaimOutcome, Store, WaitPolicy};
use tenure_core::{Client, ErrorKind, Options, Severity};
use tenure_redis::{ACL, RedisConfig, RedisStore, Topology};
use tenure_testkit::{GENEROUS, REDIS_6_2, RedisCluster, RedisServer, RedisStub, eventually};
use tenure_trials::{claim, until_waiting};

/// A server that does not know `HELLO`, as some proxies do not.
fn without_hello() -> RedisServer {
    RedisServer::start(&["--rename-command", "HELLO", ""]).unwrap()
}

async fn works(one: &Client, two: &Client) {
    let guard = one.mutex("a").unwrap().try_acquire().await.unwrap();
    let busy = two.mutex("a").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    assert_eq!(one.list("").await.unwrap().len(), 1);
    assert_eq!(two.inspect("a").await.unwrap().holders.len(), 1);
    guard.release().await.unwrap();
    hand_over_by_push(one, two, "a").await;
    hand_over_by_push(two, two, "b").await;
    let readers = [one.rw_lock("c").unwrap(), two.rw_lock("c").unwrap()];
    let (first, second) = (readers[0].read().await.unwrap(), readers[1].read().await.unwrap());
    drop((first, second));
    let permits = one.semaphore("d", 2).unwrap();
    let taken = (permits.acquire().await.unwrap(), permits.acquire().await.unwrap());
    assert!(permits.try_acquire().await.is_err());
    drop(taken);
}

on_servers! {
    async fn locks_are_taken_and_handed_over_in_resp2() {
        let server = without_hello();
        let config = single(server.port());
        let (one, two) = (client(&config).await, client(&config).await);
        works(&one, &two).await;
        let names = ["load".to_owned()];
        let (load, other) = (Load::start(&one, &names), Load::start(&two, &names));
        load.go_on(20).await;
        other.go_on(20).await;
        load.stop().await;
        other.stop().await;
        let clients = said(&server, &["CLIENT", "LIST"]);
        assert!(!clients.contains("resp=3"), "{clients}");
        assert!(clients.contains("name=tenure"), "{clients}");
    }
}

on_servers! {
    async fn a_login_and_a_database_are_the_same_in_resp2() {
        let server = without_hello();
        said(&server, &["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"]);
        let mut config = single(server.port());
        (config.username, config.password) = (Some("app".into()), Some("secret".into()));
        config.database = 3;
        let named = client(&config).await;
        works(&named, &named).await;
        assert_eq!(said(&server, &["DBSIZE"]), "0", "database 0 was used");
        config.password = Some("wrong".into());
        assert_eq!(crate::servers::refusal(&config).await.kind(), ErrorKind::Denied);
        said(&server, &["CONFIG", "SET", "requirepass", "other"]);
        (config.username, config.password) = (None, Some("other".into()));
        let default = client(&config).await;
        works(&default, &default).await;
        config.password = None;
        let error = RedisStore::connect(config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

on_servers! {
    async fn the_least_rights_suffice_in_resp2() {
        let server = without_hello();
        let words = ["ACL", "SETUSER", "locker", "reset", "on", ">secret"].into_iter();
        said(&server, &words.chain(ACL.split_whitespace()).collect::<Vec<_>>());
        let mut config = single(server.port());
        (config.username, config.password) = (Some("locker".into()), Some("secret".into()));
        let client = client(&config).await;
        works(&client, &client).await;
    }
}

on_servers! {
    async fn a_waiter_in_resp2_outlives_either_of_its_connections() {
        let server = without_hello();
        let config = single(server.port());
        let (holder, waiter) = (client(&config).await, client(&config).await);
        let deaf = Options::new().ttl(Duration::from_secs(600)).poll_cap(Duration::from_secs(3600));
        for kind in ["pubsub", "normal"] {
            let held = holder.mutex("a").unwrap().with(deaf.clone()).acquire().await.unwrap();
            let mutex = waiter.mutex("a").unwrap().with(deaf.clone());
            let waiting = tokio::spawn(async move { mutex.acquire().await });
            until_waiting(&holder, "a", 1).await;
            said(&server, &["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            // The client subscribes again by itself, not only when the waiter polls.
            let listens = eventually(GENEROUS, || async {
                said(&server, &["PUBSUB", "CHANNELS"]).contains("inbox")
            });
            assert!(listens.await, "{kind}: no client is subscribed any more");
            // The holder's connection may have just been killed, too: then the lock is released in the
            // background.
            let _late = held.release().await;
            let next = tokio::time::timeout(GENEROUS, waiting).await;
            drop(next.unwrap_or_else(|_| panic!("{kind}: no push")).unwrap().unwrap());
        }
    }
}

on_servers! {
    async fn a_server_in_resp2_is_diagnosed() {
        let server = without_hello();
        let store = RedisStore::connect(single(server.port())).await.unwrap();
        let findings = store.diagnose().await.unwrap();
        let trial = findings.iter().find(|finding| finding.what.contains("self-test lock")).unwrap();
        assert_eq!(trial.severity, Severity::Fine, "{findings:?}");
    }
}

on_servers! {
    async fn a_unix_socket_serves_locks_as_a_port_does() {
        let folder = tenure_testkit::temp_dir();
        let path = folder.path().join("redis.sock");
        for arguments in [&[][..], &["--rename-command", "HELLO", ""]] {
            let socket = ["--unixsocket", path.to_str().unwrap()];
            let mut server = RedisServer::start(&[&socket[..], arguments].concat()).unwrap();
            let mut config = RedisConfig::new(Topology::Unix { path: path.clone() });
            config.client_name = "locker".into();
            config.database = 1;
            let (one, two) = (client(&config).await, client(&config).await);
            works(&one, &two).await;
            let clients = said(&server, &["CLIENT", "LIST"]);
            assert!(clients.contains("redis.sock:0") && clients.contains("name=locker"), "{clients}");
            server.restart().unwrap();
            let back = eventually(GENEROUS, || async {
                one.mutex("b").unwrap().try_acquire().await.is_ok()
            });
            assert!(back.await, "the server is not found again");
            drop(server);
            let gone = crate::servers::refusal(&config).await;
            assert_eq!(gone.kind(), ErrorKind::Unreachable, "{gone}");
            assert!(gone.to_string().contains("redis.sock"), "{gone}");
        }
    }
}

/// Names of locks of which every master has some.
fn names() -> Vec<String> {
    (0..9).map(|number| format!("lock-{number}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_before_7_0_hands_over_by_push_and_survives_a_master() {
    if REDIS_6_2.is_missing("a_cluster_before_7_0_hands_over_by_push_and_survives_a_master") {
        return;
    }
    let mut cluster = RedisCluster::start_other(&REDIS_6_2).unwrap();
    let nodes = addresses(&cluster.addresses());
    let mut config = RedisConfig::new(Topology::Cluster { nodes });
    let (one, two) = (client(&config).await, client(&config).await);
    for name in names() {
        hand_over_by_push(&one, &two, &name).await;
    }
    let given_up = eventually(GENEROUS, || async {
        cluster.nodes().iter().all(|node| said(node, &["PUBSUB", "CHANNELS"]).is_empty())
    });
    assert!(given_up.await, "channels are kept that no claim waits in");
    config.replicas = 1;
    let confirmed = client(&config).await;
    hand_over_by_push(&confirmed, &confirmed, "confirmed").await;
    let findings = {
        let store = RedisStore::connect(config.clone()).await.unwrap();
        store.diagnose().await.unwrap()
    };
    let trial = findings.iter().find(|finding| finding.what.contains("self-test lock")).unwrap();
    assert_eq!(trial.severity, Severity::Fine, "{findings:?}");
    let shards = findings.iter().find(|finding| finding.what.contains("sharded")).unwrap();
    assert_eq!(shards.severity, Severity::Advice, "{findings:?}");
    let load = Load::start(&one, &names());
    load.go_on(2).await;
    let key = format!("tenure:{}", names()[0]);
    let dead = cluster.master_of(&key).unwrap();
    cluster.kill9(dead).unwrap();
    let replaced =
        eventually(FAILOVER, || async { cluster.master_of(&key).is_some_and(|now| now != dead) });
    assert!(replaced.await);
    load.go_on(2).await;
    load.stop().await;
    hand_over_by_push(&two, &one, &names()[0]).await;
}

/// A stub with this reply to `HELLO 3`, where another client holds every lock.
fn held_behind(hello: &'static str) -> RedisStub {
    RedisStub::start(move |words| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Some(match words[..] {
            ["HELLO", ..] => hello.into(),
            ["SCRIPT", "LOAD", ..] => DIGEST.into(),
            // The three keys of `take.lua`.
            ["EVALSHA", _, "3", ..] => bulk("held"),
            ["EVALSHA", ..] => bulk("queued -1 1000000"),
            ["SUBSCRIBE", channel] => format!("*3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(channel)),
            _ => "+OK\r\n".into(),
        })
    })
    .unwrap()
}

#[tokio::test]
async fn the_protocol_is_what_the_reply_to_hello_says() {
    let server = held_behind("*2\r\n$5\r\nproto\r\n:2\r\n");
    let store = RedisStore::connect(single(server.port())).await.unwrap();
    let waiting = WaitPolicy::Queue { lease: GENEROUS, poll: GENEROUS };
    let answer = store.claim(&claim("a", GENEROUS), waiting).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Queued(_)), "{answer:?}");
    assert_eq!(server.received(&["SUBSCRIBE"]), 1);
    assert_eq!(server.connections(), 2, "in RESP2, messages need a connection of their own");

    for hello in ["+OK\r\n", "*0\r\n", "%1\r\n+server\r\n+redis\r\n", "%1\r\n+proto\r\n:4\r\n"] {
        let server = held_behind(hello);
        let refused = refusal(&single(server.port())).await;
        assert_eq!(refused.kind(), ErrorKind::Unreachable, "{hello:?}: {refused}");
        assert!(refused.to_string().contains("reply to the login"), "{hello:?}: {refused}");
    }
}
