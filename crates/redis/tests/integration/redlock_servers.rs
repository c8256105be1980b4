//! Servers of a quorum that differ, or are not what they should be.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use crate::quorum::{Load, client, config, has, hold, of, ports, start, store, unblock};
use tenure_core::store::{ClaimOutcome, Renewal, Store, WaitPolicy};
use tenure_core::{ErrorKind, Finding, Severity};
use tenure_redis::{ACL, ACL_QUORUM, RedlockConfig, RedlockStore, Tls};
use tenure_testkit::{Certificates, GENEROUS, Proxy, REDIS_6_2, RedisServer, eventually};
use tenure_trials::claim;

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn said(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{:?} {}\n", finding.severity, finding.what)).collect()
}

/// Two clients with tasks that wait for each other.
async fn carries_a_load(config: &RedlockConfig) {
    let clients = [client(config).await, client(config).await];
    let load = Arc::new(Load::default());
    let tasks = load.start(&clients, 4);
    load.goes_on(50).await;
    load.end(tasks).await;
}

on_servers! {
    /// One keeps everything on disk, one is of an older version: any two of them are a quorum.
    async fn servers_of_different_versions_and_persistence_are_one_quorum() {
        if REDIS_6_2.is_missing("servers of different versions") {
            return;
        }
        let older = RedisServer::start_other(&REDIS_6_2, &[]).unwrap();
        let mut servers = [RedisServer::start(&DURABLE).unwrap(), older, start(1).remove(0)];
        let config = of(&servers);
        carries_a_load(&config).await;
        let store = store(&config).await;
        let findings = store.diagnose().await.unwrap();
        let words = said(&findings);
        assert!(words.contains("versions differ (Redis 6.2."), "{words}");
        assert!(words.contains("every lock is on disk"), "{words}");
        assert!(words.contains("a restart loses its locks"), "{words}");
        assert!(findings.iter().all(|it| it.severity != Severity::Unsafe), "{words}");
        servers[2].kill9().unwrap();
        let first = hold(&store, &claim("a", Duration::from_secs(1))).await;
        let next = claim("a", Duration::from_secs(30));
        assert!(hold(&store, &next).await > first, "when the first one's term is over");
        // What the one keeps outlives its restart; the older one has never forgotten it.
        servers[0].restart().unwrap();
        let renewed = || async { store.renew(&next).await.is_ok_and(|it| it == tenure_core::store::Renewal::Renewed) };
        assert!(eventually(GENEROUS, renewed).await, "a restart with all data loses no lock");
    }
}

on_servers! {
    async fn an_encrypted_quorum_is_verified() {
        let files = Certificates::make().unwrap();
        let (certificate, key) = files.of("server");
        let path = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
        let (ca, certificate, key) = (path(files.ca()), path(certificate), path(key));
        let encrypted: Vec<(RedisServer, u16)> = (0..3).map(|_| {
            let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            let number = port.to_string();
            let server = RedisServer::start(&[
                "--tls-port", &number, "--tls-auth-clients", "no", "--tls-ca-cert-file", &ca,
                "--tls-cert-file", &certificate, "--tls-key-file", &key,
            ]);
            (server.unwrap(), port)
        }).collect();
        let mut config = config(encrypted.iter().map(|(_, port)| *port));
        let mut trust = |tls: &Tls| {
            config.nodes.iter_mut().for_each(|node| node.tls = Some(tls.clone()));
            config.clone()
        };
        carries_a_load(&trust(&Tls { ca: Some(files.ca()), ..Tls::default() })).await;
        // No public authority has signed its certificate.
        let error = RedlockStore::connect(trust(&Tls::default())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("check `ca`"), "{error}");
    }
}

on_servers! {
    /// An address comes to lead to a server that has a vote already, and the third server dies.
    async fn a_server_that_is_reached_under_two_addresses_has_one_vote() {
        let mut servers = start(3);
        let proxy = Proxy::start(servers[0].port()).unwrap();
        let mut behind = ports(&servers);
        behind[0] = proxy.port();
        let mut config = config(behind);
        config.max_ttl = Duration::from_secs(2);
        let store = store(&config).await;
        hold(&store, &claim("before", Duration::from_secs(1))).await;
        proxy.lead_to(servers[1].port());
        servers[2].kill9().unwrap();
        let lost = claim("a", Duration::from_secs(1));
        // By the end of this, a server that had just restarted would count again.
        let end = std::time::Instant::now() + Duration::from_secs(5);
        while std::time::Instant::now() < end {
            let answer = store.claim(&lost, WaitPolicy::NoWait).await;
            assert!(!matches!(answer, Ok(ClaimOutcome::Granted(_))), "one server is no majority of three");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let error = store.claim(&lost, WaitPolicy::NoWait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::QuorumLost, "{error}");
        assert!(error.to_string().contains("the same server as another"), "{error}");
    }
}

on_servers! {
    /// A holder has one server left of three, under two addresses. Another claim holds the others.
    async fn a_server_that_is_reached_under_two_addresses_renews_once() {
        let servers = start(3);
        let proxy = Proxy::start(servers[0].port()).unwrap();
        let mut behind = ports(&servers);
        behind[0] = proxy.port();
        let store = [store(&config(behind)).await, store(&of(&servers)).await];
        let [first, second] = ["a", "a"].map(|name| claim(name, Duration::from_secs(60)));
        hold(&store[0], &first).await;
        assert!(eventually(GENEROUS, || async { servers.iter().all(|it| has(it, "a")) }).await);
        proxy.lead_to(servers[1].port());
        // Their terms ended, or their data was lost.
        unblock(&servers[0], "a");
        unblock(&servers[2], "a");
        hold(&store[1], &second).await;
        let end = std::time::Instant::now() + Duration::from_secs(3);
        while std::time::Instant::now() < end {
            let renewed = store[0].renew(&first).await;
            assert!(!matches!(renewed, Ok(Renewal::Renewed)), "two claims hold at once");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

on_servers! {
    /// Locks go on without it, and the diagnosis names it.
    async fn one_server_with_another_password_is_left_out_and_named() {
        let mut servers = start(3);
        servers[2].command(&["CONFIG", "SET", "requirepass", "other"]).unwrap();
        let store = store(&of(&servers)).await;
        let held = claim("a", Duration::from_secs(60));
        hold(&store, &held).await;
        store.release(&held).await.unwrap();
        let words = said(&store.diagnose().await.unwrap());
        let name = format!("127.0.0.1:{}", servers[2].port());
        assert!(words.contains(&format!("Advice {name} could not be checked")), "{words}");
        servers[0].kill9().unwrap();
        let mut told = None;
        let lost = eventually(GENEROUS, || { let refused = store.claim(&held, WaitPolicy::NoWait); async { refused.await.is_err() } }).await;
        if lost {
            told = store.claim(&held, WaitPolicy::NoWait).await.err();
        }
        let error = told.expect("one of three is no majority");
        assert_eq!(error.kind(), ErrorKind::QuorumLost, "{error}");
        assert!(error.to_string().contains(&name), "{error}");
        assert!(error.to_string().contains("password is wrong"), "{error}");
    }
}

on_servers! {
    /// A replica takes no claims. Two servers without it are enough; without one of them, the error says
    /// what is wrong with the replica.
    async fn a_replica_among_the_servers_is_left_out_and_named() {
        let mut servers = start(3);
        let master = servers[0].port().to_string();
        servers[2].command(&["REPLICAOF", "127.0.0.1", &master]).unwrap();
        let store = store(&of(&servers)).await;
        let held = claim("a", Duration::from_secs(60));
        hold(&store, &held).await;
        store.release(&held).await.unwrap();
        let findings = store.diagnose().await.unwrap();
        let words = said(&findings);
        let name = format!("127.0.0.1:{}", servers[2].port());
        let named = findings.iter().find(|it| it.what.contains("replica") && it.what.contains(&name));
        assert!(named.is_some_and(|it| it.severity != Severity::Fine), "{words}");
        servers[1].kill9().unwrap();
        // Between two connections to the replica, all that is known is that there is none.
        let named = eventually(GENEROUS, || async {
            let answer = store.claim(&claim("b", Duration::from_secs(60)), WaitPolicy::NoWait).await;
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::QuorumLost, "{error}");
            error.to_string().contains("replica")
        });
        assert!(named.await);
    }
}

fn limit(server: &RedisServer, rights: &str) {
    let words = ["ACL", "SETUSER", "locker", "reset", "on", ">secret"].into_iter();
    let words: Vec<&str> = words.chain(rights.split_whitespace()).collect();
    assert_eq!(server.command(&words).unwrap(), "OK");
}

on_servers! {
    /// It is needed only when a connection has broken: then it would be too late to say so.
    async fn a_user_that_may_not_end_connections_is_refused_when_it_connects() {
        let servers = start(3);
        let mut config = of(&servers);
        for node in &mut config.nodes {
            (node.username, node.password) = (Some("locker".into()), Some("secret".into()));
        }
        for server in &servers {
            limit(server, &format!("{ACL} {ACL_QUORUM}").replace("+client|kill", ""));
        }
        let denied = RedlockStore::connect(config.clone()).await.unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        assert!(denied.to_string().contains("client|kill"), "{denied}");
        for server in &servers {
            limit(server, &format!("{ACL} {ACL_QUORUM}"));
        }
        carries_a_load(&config).await;
    }
}

on_servers! {
    async fn servers_that_refuse_resp3_vote_and_notify_waiters() {
        let old = || RedisServer::start(&["--rename-command", "HELLO", ""]).unwrap();
        for servers in [[start(1).remove(0), old(), old()], [old(), old(), old()]] {
            let config = of(&servers);
            carries_a_load(&config).await;
            let (one, two) = (store(&config).await, store(&config).await);
            // Also after the connections for messages were lost.
            for round in 0..2 {
                let (held, waiting) = (claim("a", GENEROUS), claim("a", GENEROUS));
                hold(&one, &held).await;
                let queue = WaitPolicy::queue(GENEROUS);
                let queued = two.claim(&waiting, queue).await.unwrap();
                let ClaimOutcome::Queued(place) = queued else { panic!("{round}: {queued:?}") };
                one.release(&held).await.unwrap();
                // Nothing else ends this wait.
                let told = tokio::time::timeout(GENEROUS, two.wait(&waiting, &place)).await;
                told.unwrap_or_else(|_| panic!("{round}: the waiter is not notified")).unwrap();
                hold(&two, &waiting).await;
                two.release(&waiting).await.unwrap();
                for server in &servers[1..] {
                    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
                }
            }
        }
    }
}
