//! Logins that change, Sentinels with users of their own, and names of servers and clients.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::servers::{addresses, client, refusal, said, single};
use parking_lot::Mutex;
use tenure_core::{Client, ErrorKind};
use tenure_redis::{Credentials, CredentialsProvider, RedisConfig, Tls, Topology};
use tenure_testkit::{
    Certificates, ChildProcess, GENEROUS, RedisSentinel, RedisServer, TempDir, eventually, temp_dir,
};

async fn works(client: &Client) {
    client.mutex("a").unwrap().try_acquire().await.unwrap().release().await.unwrap();
}

fn user(server: &RedisServer, name: &str, password: &str) {
    let password = format!(">{password}");
    let words = ["ACL", "SETUSER", name, "on", "resetpass", &password, "~*", "&*", "+@all"];
    assert_eq!(said(server, &words), "OK");
}

/// A provider of what is in `current`, which counts how often it is asked.
fn provider(
    current: &Arc<Mutex<Credentials>>,
    asked: &Arc<AtomicUsize>,
) -> Option<CredentialsProvider> {
    let (current, asked) = (Arc::clone(current), Arc::clone(asked));
    Some(CredentialsProvider::new(move || {
        asked.fetch_add(1, Ordering::SeqCst);
        let credentials = current.lock().clone();
        async move { Ok(credentials) }
    }))
}

fn credentials(username: &str, password: &str, refresh_after: Option<Duration>) -> Credentials {
    Credentials { username: Some(username.into()), password: password.into(), refresh_after }
}

/// The connections with this name as the server lists them, one per line.
fn connections(server: &RedisServer, name: &str) -> Vec<String> {
    let all = said(server, &["CLIENT", "LIST"]);
    let name = format!(" name={name} ");
    all.lines().filter(|line| line.contains(&name)).map(str::to_owned).collect()
}

fn field<'a>(connection: &'a str, name: &str) -> &'a str {
    connection.split(' ').find_map(|word| word.strip_prefix(name)).unwrap()
}

on_servers! {
    async fn a_new_connection_logs_in_with_what_the_provider_says_then() {
        let server = RedisServer::start(&[]).unwrap();
        user(&server, "app", "first");
        let current = Arc::new(Mutex::new(credentials("app", "first", None)));
        let asked = Arc::default();
        let mut config = single(server.port());
        config.credentials = provider(&current, &asked);
        let client = client(&config).await;
        works(&client).await;

        user(&server, "app", "second");
        said(&server, &["CLIENT", "KILL", "USER", "app"]);
        let denied = eventually(GENEROUS, || async {
            let tried = client.mutex("a").unwrap().try_acquire().await;
            tried.is_err_and(|error| {
                assert!(!error.to_string().contains("first"), "{error}");
                error.kind() == ErrorKind::Denied
            })
        });
        assert!(denied.await, "the old password is still accepted");
        *current.lock() = credentials("app", "second", None);
        let again = eventually(GENEROUS, || async {
            client.mutex("a").unwrap().try_acquire().await.is_ok()
        });
        assert!(again.await, "the provider was not asked again");
        assert!(asked.load(Ordering::SeqCst) >= 3);
    }
}

on_servers! {
    async fn an_open_connection_logs_in_anew_when_its_credentials_are_due() {
        let server = RedisServer::start(&[]).unwrap();
        user(&server, "before", "one");
        user(&server, "after", "two");
        let soon = Some(Duration::from_millis(100));
        let current = Arc::new(Mutex::new(credentials("before", "one", soon)));
        let asked: Arc<AtomicUsize> = Arc::default();
        let mut config = single(server.port());
        config.credentials = provider(&current, &asked);
        let client = client(&config).await;
        works(&client).await;
        let [first] = &connections(&server, "tenure")[..] else { panic!("one connection") };
        assert_eq!(field(first, "user="), "before");

        // A login that is refused changes nothing, and is tried again.
        *current.lock() = credentials("after", "wrong", soon);
        let before = asked.load(Ordering::SeqCst);
        assert!(eventually(GENEROUS, || async { asked.load(Ordering::SeqCst) > before + 2 }).await);
        works(&client).await;
        *current.lock() = credentials("after", "two", None);
        let renamed = eventually(GENEROUS, || async {
            let [now] = &connections(&server, "tenure")[..] else { panic!("one connection") };
            assert_eq!(field(now, "id="), field(first, "id="), "it is the same connection");
            field(now, "user=") == "after"
        });
        assert!(renamed.await);
        works(&client).await;
    }
}

on_servers! {
    async fn a_login_that_is_due_later_keeps_no_connection_open() {
        let server = RedisServer::start(&[]).unwrap();
        user(&server, "app", "one");
        let current = Arc::new(Mutex::new(credentials("app", "one", Some(GENEROUS * 100))));
        let mut config = single(server.port());
        config.credentials = provider(&current, &Arc::default());
        let client = client(&config).await;
        works(&client).await;
        assert!(!connections(&server, "tenure").is_empty());
        client.close().await;
        drop(client);
        let gone = || async { connections(&server, "tenure").is_empty() };
        assert!(eventually(GENEROUS, gone).await, "the connection stays open");
    }
}

on_servers! {
    async fn sentinels_can_have_a_login_of_their_own() {
        let group = RedisSentinel::start(Duration::from_secs(60)).unwrap();
        for server in group.servers() {
            user(server, "app", "for-servers");
        }
        let sentinels = addresses(&group.addresses());
        for (_, port) in &sentinels {
            let watcher = ["ACL", "SETUSER", "watcher", "on", ">for-sentinels", "&*", "+@all"];
            assert_eq!(group.ask(*port, &watcher).unwrap(), "OK");
            assert_eq!(group.ask(*port, &["ACL", "SETUSER", "default", "off"]).unwrap(), "OK");
        }
        let topology = Topology::Sentinel { sentinels, service: "main".into() };
        let mut config = RedisConfig::new(topology);
        config.username = Some("app".into());
        config.password = Some("for-servers".into());
        for (name, password) in [(None, None), (Some("watcher"), Some("for-servers"))] {
            config.sentinel_username = name.map(str::to_owned);
            config.sentinel_password = password.map(Into::into);
            let denied = refusal(&config).await;
            assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
            assert!(!denied.to_string().contains("for-"), "{denied}");
        }
        config.sentinel_password = Some("for-sentinels".into());
        works(&client(&config).await).await;
    }
}

on_servers! {
    async fn connections_have_the_name_that_is_asked_for() {
        let server = RedisServer::start(&[]).unwrap();
        let mut config = single(server.port());
        config.client_name = "orders-worker".into();
        let client = client(&config).await;
        works(&client).await;
        assert_eq!(connections(&server, "orders-worker").len(), 1);
        assert!(connections(&server, "tenure").is_empty());
        for bad in ["a b", "a\nb", "é"] {
            config.client_name = bad.into();
            assert_eq!(refusal(&config).await.kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }
}

/// A server and a Sentinel that take only encrypted connections, with a certificate for `client`.
struct Encrypted {
    _server: RedisServer,
    _sentinel: ChildProcess,
    _folder: TempDir,
    files: Certificates,
    ports: [u16; 2],
}

impl Encrypted {
    fn start() -> Self {
        let files = Certificates::make().unwrap();
        let ports = [(); 2].map(|()| {
            let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
            free.local_addr().unwrap().port()
        });
        let (certificate, key) = files.of("client");
        let settings = |port: u16| {
            let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
            [
                ("tls-port", port.to_string()),
                ("tls-ca-cert-file", path(&files.ca())),
                ("tls-cert-file", path(&certificate)),
                ("tls-key-file", path(&key)),
                ("tls-auth-clients", "no".to_owned()),
                ("tls-replication", "yes".to_owned()),
            ]
        };
        let arguments: Vec<String> = settings(ports[0])
            .into_iter()
            .flat_map(|(name, value)| [format!("--{name}"), value])
            .collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let server = RedisServer::start(&arguments).unwrap();
        let folder = temp_dir();
        let mut lines: Vec<String> =
            settings(ports[1]).iter().map(|(name, value)| format!("{name} {value}")).collect();
        lines.push("port 0\nbind 127.0.0.1".into());
        lines.push(format!("sentinel monitor main 127.0.0.1 {} 1\n", ports[0]));
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, lines.join("\n")).unwrap();
        let mut program = Command::new("redis-server");
        program.arg(&file).arg("--sentinel").arg("--dir").arg(folder.path());
        program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let sentinel = ChildProcess::spawn(program).unwrap();
        Self { _server: server, _sentinel: sentinel, _folder: folder, files, ports }
    }
}

on_servers! {
    async fn a_certificate_must_be_for_the_server_name_that_is_given() {
        let encrypted = Encrypted::start();
        let address = |port: u16| ("127.0.0.1".to_owned(), port);
        let [server, sentinel] = encrypted.ports;
        for topology in [
            Topology::Single { server: address(server) },
            Topology::Sentinel { sentinels: vec![address(sentinel)], service: "main".into() },
        ] {
            let mut config = RedisConfig::new(topology);
            let trusting = Tls { ca: Some(encrypted.files.ca()), ..Tls::default() };
            let named = |name: &str| Tls { server_name: Some(name.into()), ..trusting.clone() };
            config.tls = Some(named("client"));
            // The Sentinel may not listen yet.
            let connected = eventually(GENEROUS, || async {
                tenure_redis::RedisStore::connect(config.clone()).await.is_ok()
            });
            assert!(connected.await, "{:?}: {}", config.topology, refusal(&config).await);
            works(&client(&config).await).await;
            let redisson = tenure_redis::RedissonStore::connect(config.clone()).await.unwrap();
            works(&Client::new(Arc::new(redisson)).unwrap()).await;
            for other in [trusting.clone(), named("localhost")] {
                config.tls = Some(other);
                let denied = refusal(&config).await;
                assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
            }
            config.tls = Some(named("not a name"));
            assert_eq!(refusal(&config).await.kind(), ErrorKind::Invalid);
        }
    }
}
