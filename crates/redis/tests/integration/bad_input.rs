//! Servers that are not Redis, and keys that are not locks: each is a clear and prompt error, and no data
//! is lost.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::servers::{client, refusal, said, single};
use tenure_core::store::{Eviction, Released, Store};
use tenure_core::{Client, Error, ErrorKind};
use tenure_redis::{RedisConfig, RedisStore, RedlockConfig, RedlockStore, Topology};
use tenure_testkit::{GENEROUS, RedisCluster, RedisServer};
use tenure_trials::until_waiting;

/// All three ways to reach what listens on this port, with a short timeout.
fn configs(port: u16) -> Vec<RedisConfig> {
    let server = ("127.0.0.1".to_owned(), port);
    let several = vec![server.clone(), server.clone(), server.clone()];
    let topologies = [
        Topology::Single { server },
        Topology::Sentinel { sentinels: several.clone(), service: "main".into() },
        Topology::Cluster { nodes: several },
    ];
    let brief = |topology| {
        let mut config = RedisConfig::new(topology);
        config.timeout = Duration::from_millis(500);
        config
    };
    topologies.into_iter().map(brief).collect()
}

async fn unreachable(port: u16) {
    for config in configs(port) {
        let start = Instant::now();
        let error = refusal(&config).await;
        assert!(start.elapsed() < GENEROUS / 2, "{:?}", start.elapsed());
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("check"), "{error}");
    }
}

#[tokio::test]
async fn a_port_without_a_server_is_unreachable() {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    unreachable(port).await;
}

#[tokio::test]
async fn a_server_that_never_answers_is_unreachable_within_the_timeout() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    unreachable(silent.local_addr().unwrap().port()).await;
}

#[tokio::test]
async fn a_host_without_an_address_is_unreachable() {
    let mut config = RedisConfig::new(Topology::Single { server: ("no.such.invalid".into(), 1) });
    config.timeout = Duration::from_millis(500);
    assert_eq!(refusal(&config).await.kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_server_that_speaks_something_else_is_unreachable() {
    for garbage in
        [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"\x00\xff\xfe garbage\r\n", b"*9\r\n"]
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        // Ends with the program.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 64]);
                let _ = stream.write_all(garbage);
            }
        });
        unreachable(port).await;
    }
}

on_servers! {
    async fn a_database_that_does_not_exist_is_invalid() {
        let server = RedisServer::start(&[]).unwrap();
        let mut config = single(server.port());
        config.database = 99;
        let invalid = refusal(&config).await;
        assert_eq!(invalid.kind(), ErrorKind::Invalid, "{invalid}");
        assert!(invalid.to_string().contains("database"), "{invalid}");
        config.database = 3;
        let guard = client(&config).await.mutex("a").unwrap().try_acquire().await.unwrap();
        assert_eq!(said(&server, &["EXISTS", "tenure:a"]), "0");
        guard.release().await.unwrap();
    }
}

on_servers! {
    async fn a_key_of_another_type_is_left_alone() {
        let server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        said(&server, &["RPUSH", "tenure:a", "precious"]);
        // Also at the key of the lock's queue.
        said(&server, &["SET", "tenure:{tenure:b}:w", "precious"]);
        let held = client.mutex("b").unwrap().try_acquire().await.unwrap();
        let damaged = |outcome: Result<(), Error>, what: &str| {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
        };
        let a = client.mutex("a").unwrap();
        damaged(a.try_acquire().await.map(drop), "try");
        damaged(a.acquire().await.map(drop), "acquire");
        damaged(a.acquire_within(GENEROUS).await.map(drop), "within");
        damaged(client.rw_lock("a").unwrap().try_read().await.map(drop), "read");
        damaged(client.semaphore("a", 2).unwrap().try_acquire().await.map(drop), "permit");
        damaged(client.inspect("a").await.map(drop), "inspect");
        damaged(client.mutex("b").unwrap().acquire().await.map(drop), "wait");
        let listed: Vec<String> =
            client.list("").await.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(listed, ["b"], "a key that is no lock hides the locks");
        client.close().await;
        assert_eq!(said(&server, &["LRANGE", "tenure:a", "0", "-1"]), "precious");
        assert_eq!(said(&server, &["GET", "tenure:{tenure:b}:w"]), "precious");
        assert!(held.is_valid());
    }
}

on_servers! {
    async fn a_full_server_is_reported_and_still_releases() {
        let server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        let held = client.mutex("before").unwrap().try_acquire().await.unwrap();
        let first = client.mutex("handed-over").unwrap().try_acquire().await.unwrap();
        let next = client.mutex("handed-over").unwrap();
        let next = tokio::spawn(async move { next.acquire().await.unwrap() });
        until_waiting(&client, "handed-over", 1).await;
        let shared = client.rw_lock("shared").unwrap();
        let readers = [shared.read().await.unwrap(), shared.read().await.unwrap()];
        said(&server, &["CONFIG", "SET", "maxmemory", "1"]);
        let full = client.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Full, "{full}");
        // A release frees memory, so it must not be refused for lack of memory.
        held.release().await.unwrap();
        assert_eq!(said(&server, &["EXISTS", "tenure:before"]), "0");
        // Nor may a release that hands the lock over, or leaves other waiters.
        first.release().await.unwrap();
        tokio::time::timeout(GENEROUS, next).await.unwrap().unwrap().release().await.unwrap();
        for reader in readers {
            reader.release().await.unwrap();
        }
        assert_eq!(said(&server, &["EXISTS", "tenure:shared"]), "0");
    }
}

on_servers! {
    async fn a_url_for_another_kind_of_server_says_which_to_use() {
        let server = RedisServer::start(&[]).unwrap();
        let cluster = RedisCluster::start().unwrap();
        let address = |port| ("127.0.0.1".to_owned(), port);
        let here = address(server.port());
        let node = address(cluster.nodes()[0].port());
        let sentinels = Topology::Sentinel { sentinels: vec![here.clone()], service: "a".into() };
        for (topology, remedy) in [
            (Topology::Cluster { nodes: vec![here] }, "use redis://"),
            (sentinels, "no Sentinel"),
        ] {
            let error = refusal(&RedisConfig::new(topology)).await;
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains(remedy), "{error}");
        }
        let client = client(&RedisConfig::new(Topology::Single { server: node })).await;
        let mut error = None;
        for number in 0..9 {
            let mutex = client.mutex(&format!("lock-{number}")).unwrap();
            error = error.or(mutex.try_acquire().await.err());
        }
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("use redis+cluster://"), "{error}");
        let mut nameless = RedisConfig::new(Topology::Single { server: address(server.port()) });
        nameless.username = Some("joe".into());
        assert_eq!(refusal(&nameless).await.kind(), ErrorKind::Invalid, "a user needs a password");
    }
}

on_servers! {
    /// A waiter's record has its channel as one word, and so must every prefix be one.
    async fn a_prefix_that_would_disable_pushes_is_refused() {
        let server = RedisServer::start(&[]).unwrap();
        let mut config = single(server.port());
        for prefix in ["my app:", "a\nb", "\t", "a\u{7f}", "a\u{a0}b"] {
            config.prefix = prefix.into();
            let quorum = RedlockConfig::new(vec![config.clone(), config.clone(), config.clone()]);
            for error in [refusal(&config).await, RedlockStore::connect(quorum).await.unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::Invalid, "{prefix:?}: {error}");
                assert!(error.to_string().contains("prefix"), "{error}");
            }
        }
        config.prefix = "é-_./:".into();
        let client = client(&config).await;
        crate::servers::hand_over_by_push(&client, &client, "a").await;
    }
}

on_servers! {
    async fn an_eviction_with_a_long_reason_is_recorded_in_one_bounded_line() {
        let servers = [(); 3].map(|()| RedisServer::start(&[]).unwrap());
        let nodes = servers.iter().map(|server| single(server.port())).collect();
        let quorum = RedlockStore::connect(RedlockConfig::new(nodes)).await.unwrap();
        let one = RedisStore::connect(single(servers[0].port())).await.unwrap();
        let stores: [(&str, Arc<dyn Store>); 2] = [("one", Arc::new(one)), ("three", Arc::new(quorum))];
        for (name, store) in stores {
            let client = Client::new(Arc::clone(&store)).unwrap();
            let guard = client.mutex(name).unwrap().acquire().await.unwrap();
            let reason = "restart\nof the\rhost ".repeat(1_000);
            let eviction = Eviction::new(guard.name().clone(), guard.owner(), reason);
            assert_eq!(store.evict(&eviction).await.unwrap(), Released::Released);
            let key = format!("tenure:{{tenure:{name}}}:audit");
            let record = said(&servers[0], &["LRANGE", &key, "0", "-1"]);
            assert_eq!(record, eviction.record().to_line());
            assert!(record.lines().count() == 1 && record.len() < 1_500, "{record}");
        }
    }
}
