//! Which clients the servers accept: TLS, passwords and rights.

use std::net::TcpListener;
use std::time::Duration;

use crate::servers::{addresses, client, hand_over_by_push, refusal, said, single};
use tenure_core::{Client, ErrorKind, Options};
use tenure_redis::{ACL, ACL_CLUSTER, ACL_SENTINEL, RedisConfig, Tls, Topology};
use tenure_testkit::{
    Certificates, GENEROUS, RedisCluster, RedisSentinel, RedisServer, eventually,
};

async fn works(client: &Client) {
    let guard = client.mutex("a").unwrap().try_acquire().await.unwrap();
    assert_eq!(client.list("").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    hand_over_by_push(client, client, "a").await;
}

/// Arguments for a port with TLS.
fn encryption(files: &Certificates, port: u16, clients: &str) -> Vec<String> {
    let (certificate, key) = files.of("server");
    let path = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let pairs = [
        ("--tls-port", port.to_string()),
        ("--tls-ca-cert-file", path(files.ca())),
        ("--tls-cert-file", path(certificate)),
        ("--tls-key-file", path(key)),
        ("--tls-auth-clients", clients.to_owned()),
    ];
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// A server with a port for TLS, and how to reach that.
fn encrypted(files: &Certificates, clients: &str) -> (RedisServer, RedisConfig) {
    let port = free_port();
    let arguments = encryption(files, port, clients);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    (RedisServer::start(&arguments).unwrap(), single(port))
}

on_servers! {
    async fn an_encrypted_cluster_is_verified() {
        let files = Certificates::make().unwrap();
        let ports = std::sync::Mutex::new(Vec::new());
        let cluster = RedisCluster::start_each(|| {
            let port = free_port();
            ports.lock().unwrap().push(("127.0.0.1".to_owned(), port));
            // Otherwise the nodes name only their ports without TLS.
            let within = ["--tls-cluster", "yes", "--tls-replication", "yes"];
            let within = within.into_iter().map(str::to_owned);
            encryption(&files, port, "no").into_iter().chain(within).collect()
        });
        let _cluster = cluster.unwrap();
        let nodes = ports.into_inner().unwrap();
        let mut config = RedisConfig::new(Topology::Cluster { nodes });
        // Handshakes with six nodes take their time on a busy machine.
        config.timeout = GENEROUS;
        config.tls = Some(Tls { ca: Some(files.ca()), ..Tls::default() });
        works(&client(&config).await).await;
        config.tls = Some(Tls::default());
        let denied = refusal(&config).await;
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    }
}

on_servers! {
    async fn an_encrypted_server_is_verified() {
        let files = Certificates::make().unwrap();
        let (_server, mut config) = encrypted(&files, "no");
        for host in ["127.0.0.1", "localhost"] {
            let Topology::Single { server } = &mut config.topology else { unreachable!() };
            server.0 = host.into();
            config.tls = Some(Tls { ca: Some(files.ca()), ..Tls::default() });
            works(&client(&config).await).await;
            // No public authority has signed its certificate.
            config.tls = Some(Tls::default());
            let denied = refusal(&config).await;
            assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
            assert!(denied.to_string().contains("`ca`"), "{denied}");
        }
        // Without TLS, the replies of its port are not understood.
        config.tls = None;
        assert_eq!(refusal(&config).await.kind(), ErrorKind::Unreachable);
        config.tls = Some(Tls { ca: Some("/nowhere.pem".into()), ..Tls::default() });
        assert_eq!(refusal(&config).await.kind(), ErrorKind::Invalid);
    }
}

on_servers! {
    async fn a_server_that_requires_a_certificate_gets_the_clients() {
        let files = Certificates::make().unwrap();
        let (_server, mut config) = encrypted(&files, "yes");
        config.tls = Some(Tls { ca: Some(files.ca()), identity: Some(files.of("client")), ..Tls::default() });
        works(&client(&config).await).await;
        config.tls = Some(Tls { ca: Some(files.ca()), ..Tls::default() });
        let denied = refusal(&config).await;
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        assert!(denied.to_string().contains("TLS"), "{denied}");
    }
}

on_servers! {
    async fn replaced_certificates_are_used_without_a_restart_of_the_client() {
        let (files, renewed) = (Certificates::make().unwrap(), Certificates::make().unwrap());
        let port = free_port();
        let mut arguments = encryption(&files, port, "yes");
        // A restart must not lose the held lock.
        let durable = ["--appendonly", "yes", "--appendfsync", "always"];
        arguments.extend(durable.map(str::to_owned));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut server = RedisServer::start(&arguments).unwrap();
        let mut config = single(port);
        let identity = Some(files.of("client"));
        config.tls = Some(Tls { ca: Some(files.ca()), identity, ..Tls::default() });
        let client = client(&config).await;
        let options = Options::new().ttl(Duration::from_secs(30));
        let guard = client.mutex("held").unwrap().with(options).acquire().await.unwrap();
        std::fs::copy(renewed.ca(), files.ca()).unwrap();
        for role in ["server", "client"] {
            let ((certificate, key), (new, new_key)) = (files.of(role), renewed.of(role));
            std::fs::copy(new, certificate).unwrap();
            std::fs::copy(new_key, key).unwrap();
        }
        server.kill9().unwrap();
        server.restart().unwrap();
        let back = || async { client.list("").await.is_ok() };
        assert!(eventually(GENEROUS, back).await, "{}", client.list("").await.unwrap_err());
        // A renewal, which has a connection of its own, succeeds too.
        said(&server, &["PEXPIRE", "tenure:held", "15000"]);
        let renewed = || async {
            said(&server, &["PTTL", "tenure:held"]).parse::<u64>().unwrap() > 15_000
        };
        assert!(eventually(GENEROUS, renewed).await, "the lock is not renewed");
        guard.release().await.unwrap();
    }
}

on_servers! {
    async fn a_password_is_needed_and_must_be_right() {
        let server = RedisServer::start(&[]).unwrap();
        said(&server, &["ACL", "SETUSER", "app", "on", ">apart", "~*", "&*", "+@all"]);
        said(&server, &["CONFIG", "SET", "requirepass", "secret"]);
        let mut config = single(server.port());
        for (user, password, right) in [
            (None, Some("secret"), true),
            (Some("default"), Some("secret"), true),
            (Some("app"), Some("apart"), true),
            (None, None, false),
            (None, Some("wrong"), false),
            (Some("app"), Some("secret"), false),
            (Some("nobody"), Some("secret"), false),
        ] {
            config.username = user.map(str::to_owned);
            config.password = password.map(Into::into);
            if right {
                works(&client(&config).await).await;
            } else {
                let denied = refusal(&config).await;
                assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
                assert!(denied.to_string().contains("password"), "{denied}");
                assert!(!denied.to_string().contains("secret"), "{denied}");
            }
        }
    }
}

fn limit(server: &RedisServer, rights: &str) {
    let words = ["ACL", "SETUSER", "locker", "reset", "on", ">secret"].into_iter();
    let words: Vec<&str> = words.chain(rights.split_whitespace()).collect();
    assert_eq!(said(server, &words), "OK");
}

fn as_locker(mut config: RedisConfig) -> RedisConfig {
    config.username = Some("locker".into());
    config.password = Some("secret".into());
    config
}

on_servers! {
    async fn the_least_rights_suffice_behind_sentinels_and_on_a_cluster() {
        let group = RedisSentinel::start(Duration::from_secs(10)).unwrap();
        for server in group.servers() {
            limit(server, &format!("{ACL} {ACL_SENTINEL}"));
        }
        let sentinels = addresses(&group.addresses());
        let topology = Topology::Sentinel { sentinels, service: "main".into() };
        works(&client(&as_locker(RedisConfig::new(topology))).await).await;
        drop(group);

        let cluster = RedisCluster::start().unwrap();
        for node in cluster.nodes() {
            limit(node, &format!("{ACL} {ACL_CLUSTER}"));
        }
        let nodes = addresses(&cluster.addresses());
        works(&client(&as_locker(RedisConfig::new(Topology::Cluster { nodes }))).await).await;
    }
}

on_servers! {
    async fn a_right_that_is_missing_is_named() {
        let server = RedisServer::start(&[]).unwrap();
        let config = as_locker(single(server.port()));
        limit(&server, ACL);
        let connected = client(&config).await;
        for (rights, named) in [
            (ACL.replace("+evalsha", ""), "evalsha"),
            (ACL.replace("+setrange", "").replace("+set ", ""), "+set "),
            (ACL.replace("~tenure:*", "~other:*"), "key"),
        ] {
            limit(&server, &rights);
            let denied = connected.mutex("a").unwrap().try_acquire().await.unwrap_err();
            assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
            assert!(denied.to_string().contains(named), "{named}: {denied}");
        }
        limit(&server, &ACL.replace("+script|load", ""));
        let denied = refusal(&config).await;
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        assert!(denied.to_string().contains("script"), "{denied}");
    }
}

on_servers! {
    /// No right is superfluous: without any one of them, something is refused.
    async fn every_right_is_needed() {
        let server = RedisServer::start(&[]).unwrap();
        limit(&server, ACL);
        let all = client(&as_locker(single(server.port()))).await;
        works(&all).await;
        let sent = ["evalsha", "eval", "script|load", "subscribe", "scan"];
        for command in sent {
            limit(&server, &format!("{ACL} -{command}"));
            said(&server, &["SCRIPT", "FLUSH"]);
            said(&server, &["CLIENT", "KILL", "USER", "locker"]);
            let config = as_locker(single(server.port()));
            let works = async {
                let store = tenure_redis::RedisStore::connect(config).await?;
                let client = Client::new(std::sync::Arc::new(store)).unwrap();
                if command == "eval" {
                    said(&server, &["SCRIPT", "FLUSH"]);
                }
                let mutex = client.mutex(&command.replace('|', "-")).unwrap();
                let _held = mutex.try_acquire().await?;
                let wait = Duration::from_millis(50);
                let waited = mutex.acquire_within(wait).await;
                match waited {
                    Err(error) if error.kind() != ErrorKind::TimedOut => return Err(error),
                    _ => {}
                }
                client.list("").await
            };
            let refused = works.await.expect_err(command);
            assert_eq!(refused.kind(), ErrorKind::Denied, "{command}: {refused}");
        }
    }
}
