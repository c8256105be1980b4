//! TLS, passwords and permissions.

use std::time::Duration;

use crate::common::{client, config_of};
use tenure_core::store::Eviction;
use tenure_core::{Client, Error, ErrorKind, Options};
use tenure_etcd::{EtcdConfig, EtcdStore, Tls};
use tenure_testkit::{Certificates, EtcdServer, GENEROUS, eventually};
use tenure_trials::until_waiting;

async fn works(client: &Client) {
    let mutex = client.mutex("a").unwrap();
    let guard = mutex.try_acquire().await.unwrap();
    assert_eq!(client.list("").await.unwrap().len(), 1);
    let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    until_waiting(client, "a", 1).await;
    guard.release().await.unwrap();
    let next = tokio::time::timeout(GENEROUS, waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
}

async fn refusal(config: &EtcdConfig) -> Error {
    EtcdStore::connect(config.clone()).await.unwrap_err()
}

fn encrypted(files: &Certificates, besides: &[&str]) -> EtcdServer {
    let (certificate, key) = files.of("server");
    let arguments =
        [format!("--cert-file={}", certificate.display()), format!("--key-file={}", key.display())];
    let arguments: Vec<&str> =
        arguments.iter().map(String::as_str).chain(besides.iter().copied()).collect();
    EtcdServer::start(&arguments).unwrap()
}

/// A server that listens may not serve yet.
async fn connected(config: &EtcdConfig) -> Client {
    let serves = || async { EtcdStore::connect(config.clone()).await.is_ok() };
    assert!(eventually(GENEROUS, serves).await, "{}", refusal(config).await);
    client(config).await
}

on_servers! {
    async fn an_encrypted_server_is_verified() {
        let files = Certificates::make().unwrap();
        let server = encrypted(&files, &[]);
        let mut config = config_of(&server);
        for host in ["127.0.0.1", "localhost"] {
            config.servers[0].0 = host.into();
            config.tls = Some(Tls { ca: Some(files.ca()), ..Tls::default() });
            works(&connected(&config).await).await;
            // The public authorities do not vouch for it.
            config.tls = Some(Tls::default());
            let denied = refusal(&config).await;
            assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
            assert!(denied.to_string().contains("`ca`"), "{denied}");
        }
        config.tls = None;
        assert_eq!(refusal(&config).await.kind(), ErrorKind::Unreachable);
        config.tls = Some(Tls { ca: Some("/nowhere.pem".into()), ..Tls::default() });
        assert_eq!(refusal(&config).await.kind(), ErrorKind::Invalid);
    }
}

on_servers! {
    async fn a_server_that_requires_a_certificate_gets_the_clients() {
        let files = Certificates::make().unwrap();
        let ca = format!("--trusted-ca-file={}", files.ca().display());
        let server = encrypted(&files, &["--client-cert-auth", &ca]);
        let mut config = config_of(&server);
        config.tls = Some(Tls { ca: Some(files.ca()), identity: Some(files.of("client")), ..Tls::default() });
        works(&connected(&config).await).await;
        config.tls = Some(Tls { ca: Some(files.ca()), ..Tls::default() });
        let denied = refusal(&config).await;
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        assert!(denied.to_string().contains("TLS"), "{denied}");
    }
}

on_servers! {
    /// The authority, the server's and the client's certificate are all replaced; the client goes on.
    async fn replaced_certificates_are_used_without_a_restart_of_the_client() {
        let (files, renewed) = (Certificates::make().unwrap(), Certificates::make().unwrap());
        let ca = format!("--trusted-ca-file={}", files.ca().display());
        let mut server = encrypted(&files, &["--client-cert-auth", &ca]);
        let mut config = config_of(&server);
        let identity = Some(files.of("client"));
        config.tls = Some(Tls { ca: Some(files.ca()), identity, ..Tls::default() });
        let client = connected(&config).await;
        let options = Options::new().ttl(Duration::from_secs(60));
        let guard = client.mutex("held").unwrap().with(options).acquire().await.unwrap();
        let replace = |old: std::path::PathBuf, new: std::path::PathBuf| {
            std::fs::copy(new, old).unwrap();
        };
        replace(files.ca(), renewed.ca());
        for name in ["server", "client"] {
            let ((certificate, key), (new, new_key)) = (files.of(name), renewed.of(name));
            replace(certificate, new);
            replace(key, new_key);
        }
        server.restart().unwrap();
        let back = || async { client.list("").await.is_ok() };
        assert!(eventually(GENEROUS, back).await, "{}", client.list("").await.unwrap_err());
        // A renewal, which has a connection of its own, succeeds too.
        let renewed = || async {
            let claimed = guard.remaining() > Duration::from_secs(58);
            claimed || { tokio::time::sleep(Duration::from_millis(200)).await; false }
        };
        assert!(guard.is_valid() && eventually(GENEROUS, renewed).await, "the lock is not renewed");
        guard.release().await.unwrap();
    }
}

/// Adds the user `locker` with the permissions that the documentation names, and enables authentication.
fn guard_by_passwords(server: &EtcdServer) {
    for words in [
        &["user", "add", "root:rootsecret"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "readwrite", "tenure/", "--prefix=true"],
        &["user", "add", "locker:secret"],
        &["user", "grant-role", "locker", "locks"],
        &["user", "add", "guest:guest"],
        &["auth", "enable"],
    ] {
        // Roles are added by hand where `auth enable` would need them.
        let done = server.control(words);
        assert!(done.is_ok() || words.contains(&"grant-role"), "{words:?}: {done:?}");
    }
}

on_servers! {
    async fn a_password_is_needed_and_must_be_right() {
        let server = EtcdServer::start(&[]).unwrap();
        server.control(&["role", "add", "root"]).unwrap();
        guard_by_passwords(&server);
        let mut config = config_of(&server);
        for (login, right) in [
            (Some(("locker", "secret")), true),
            (Some(("root", "rootsecret")), true),
            (Some(("locker", "wrong")), false),
            (Some(("nobody", "secret")), false),
            (Some(("guest", "guest")), false),
            (None, false),
        ] {
            config.username = login.map(|(user, _)| user.into());
            config.password = login.map(|(_, password)| password.into());
            if right {
                works(&client(&config).await).await;
            } else {
                let denied = refusal(&config).await;
                assert_eq!(denied.kind(), ErrorKind::Denied, "{login:?}: {denied}");
            }
        }
    }
}

on_servers! {
    async fn a_login_that_the_server_forgot_is_made_again() {
        let mut server = EtcdServer::start(&[]).unwrap();
        server.control(&["role", "add", "root"]).unwrap();
        guard_by_passwords(&server);
        let mut config = config_of(&server);
        config.username = Some("locker".into());
        config.password = Some("secret".into());
        let client = client(&config).await;
        works(&client).await;
        // Long enough that it does not have to enable logins again from its log.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        // The server keeps its tokens in memory alone.
        server.restart().unwrap();
        let back = || async { client.list("").await.is_ok() };
        assert!(eventually(GENEROUS, back).await, "{}", client.list("").await.unwrap_err());
        works(&client).await;
    }
}

on_servers! {
    /// The password is changed in etcd and in the file; the server forgets all logins.
    async fn a_password_file_is_read_again_for_each_login() {
        let mut server = EtcdServer::start(&[]).unwrap();
        server.control(&["role", "add", "root"]).unwrap();
        guard_by_passwords(&server);
        let folder = tenure_testkit::temp_dir();
        let path = folder.path().join("password");
        std::fs::write(&path, "secret\n").unwrap();
        let mut config = config_of(&server);
        config.username = Some("locker".into());
        config.password = Some(tenure_etcd::Password::File(path.clone()));
        let client = client(&config).await;
        works(&client).await;
        let root = ["--user", "root:rootsecret"];
        server.control(&[&root[..], &["user", "delete", "locker"]].concat()).unwrap();
        server.control(&[&root[..], &["user", "add", "locker:changed"]].concat()).unwrap();
        server.control(&[&root[..], &["user", "grant-role", "locker", "locks"]].concat()).unwrap();
        std::fs::write(&path, "changed\n").unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        server.restart().unwrap();
        let back = || async { client.list("").await.is_ok() };
        assert!(eventually(GENEROUS, back).await, "{}", client.list("").await.unwrap_err());
        works(&client).await;
    }
}

/// How many watches there are.
fn watchers(server: &EtcdServer) -> u32 {
    let page = server.page("/metrics").unwrap();
    let name = "etcd_debugging_mvcc_watcher_total ";
    page.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

on_servers! {
    /// Calls log in again. So must the stream of watches, or no waiter is woken and no loss is reported.
    async fn notifications_are_received_after_a_login_has_expired() {
        let server = EtcdServer::start(&["--auth-token-ttl", "1"]).unwrap();
        server.control(&["role", "add", "root"]).unwrap();
        guard_by_passwords(&server);
        let mut config = config_of(&server);
        config.username = Some("locker".into());
        config.password = Some("secret".into());
        let client = client(&config).await;
        // No renewal, and no poll, falls into this test.
        let hour = Duration::from_secs(3600);
        let deaf = Options::new().ttl(hour).poll_cap(hour);
        let mutex = client.mutex("a").unwrap().with(deaf);
        for _ in 0..3 {
            let guard = mutex.acquire().await.unwrap();
            // A login expires when it was not used for its TTL.
            tokio::time::sleep(Duration::from_secs(3)).await;
            let waiting = tokio::spawn({
                let mutex = mutex.clone();
                async move { mutex.acquire().await.unwrap() }
            });
            until_waiting(&client, "a", 1).await;
            // The waiter's own key, the key before it, and the loss channel.
            let listens = || async { watchers(&server) == 3 };
            assert!(eventually(GENEROUS, listens).await, "{} watches", watchers(&server));
            guard.release().await.unwrap();
            let next = tokio::time::timeout(GENEROUS, waiting).await.expect("no notification came").unwrap();
            let order = Eviction::new(next.name().clone(), next.owner(), "test");
            client.store().evict(&order).await.unwrap();
            tokio::time::timeout(GENEROUS, next.lost()).await.expect("the loss is not reported");
        }
    }
}

on_servers! {
    async fn a_password_where_none_is_needed_does_no_harm() {
        let server = EtcdServer::start(&[]).unwrap();
        let mut config = config_of(&server);
        config.username = Some("locker".into());
        config.password = Some("secret".into());
        works(&client(&config).await).await;
    }
}

on_servers! {
    async fn a_server_that_is_not_there_is_unreachable() {
        let mut server = EtcdServer::start(&[]).unwrap();
        let config = config_of(&server);
        let client = client(&config).await;
        server.kill9().unwrap();
        let error = refusal(&config).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let error = client.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("check that it runs"), "{error}");
    }
}
