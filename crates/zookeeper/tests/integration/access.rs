//! Passwords, ACLs, TLS, and servers that are not there.

use std::time::Duration;

use crate::common::{client, config, config_of};
use tenure_core::store::now;
use tenure_core::{Client, Error, ErrorKind, Options};
use tenure_testkit::{
    Certificates, GENEROUS, Member, Proxy, ZooKeeperEnsemble, ZooKeeperServer, eventually,
};
use tenure_trials::until_waiting;
use tenure_zookeeper::testing::{Bare, Kind, Rights};
use tenure_zookeeper::{Access, Tls, ZooKeeperConfig, ZooKeeperStore};

async fn works(client: &Client) {
    let mutex = client.mutex("orders").unwrap().with(Options::new().ttl(Duration::from_secs(20)));
    let guard = mutex.acquire().await.unwrap();
    assert!(guard.is_valid());
    assert_eq!(client.inspect("orders").await.unwrap().holders.len(), 1);
    guard.release().await.unwrap();
}

async fn refusal(config: &ZooKeeperConfig) -> Error {
    ZooKeeperStore::connect(config.clone()).await.map(drop).unwrap_err()
}

fn login(config: &ZooKeeperConfig, user: &str, password: &str) -> ZooKeeperConfig {
    let mut config = config.clone();
    config.username = Some(user.into());
    config.password = Some(password.into());
    config.access = Access::Creator;
    config
}

on_servers! {
    async fn nodes_of_a_user_are_closed_to_other_users() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let anonymous = config_of(&server);
        let ours = login(&anonymous, "app", "secret");
        works(&client(&ours).await).await;
        works(&client(&ours).await).await;
        for other in [login(&anonymous, "app", "wrong"), login(&anonymous, "other", "x"), anonymous] {
            let other = client(&other).await;
            let denied = other.mutex("orders").unwrap().try_acquire().await.unwrap_err();
            assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
            assert!(denied.to_string().contains("rights"), "{denied}");
            let denied = other.mutex("new").unwrap().acquire().await.unwrap_err();
            assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
            assert_eq!(other.list("").await.unwrap_err().kind(), ErrorKind::Denied);
        }
    }
}

on_servers! {
    async fn a_user_that_may_create_but_not_list_leaves_no_node_behind() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let warden = Bare::connect(server.port()).await.unwrap();
        warden.make("/tenure").await.unwrap();
        let blind = warden.create("/tenure/orders", b"", Kind::Persistent, Rights::Blind);
        blind.await.unwrap();
        let client = client(&config_of(&server)).await;
        let denied = client.mutex("orders").unwrap().acquire().await.unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        let lock = warden.state("/tenure/orders").await.unwrap().unwrap();
        assert_eq!((lock.cversion, lock.num_children), (2, 0), "one node was created and deleted");
    }
}

on_servers! {
    async fn an_unreadable_node_does_not_hide_the_others() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let warden = Bare::connect(server.port()).await.unwrap();
        warden.make("/tenure").await.unwrap();
        let [one, other] = ["one", "other"].map(|user| login(&config_of(&server), user, "x"));
        let (one, other) = (client(&one).await, client(&other).await);
        let hidden = one.mutex("theirs").unwrap().acquire().await.unwrap();
        assert_eq!(other.list("").await.unwrap_err().kind(), ErrorKind::Denied);
        // Every user may list the queue, but not read the data of another user.
        warden.make("/tenure/shared").await.unwrap();
        let held = one.mutex("shared").unwrap().acquire().await.unwrap();
        let names = other.list("").await.unwrap();
        assert_eq!(names.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["shared"]);
        let state = other.inspect("shared").await.unwrap();
        assert_eq!(state.holders.len(), 1, "{state:?}");
        assert_eq!(state.holders[0].owner, held.owner().to_string());
        assert_eq!(state.holders[0].token, held.token());
        // A waiter watches an entry that it may not read.
        let mutex = other.mutex("shared").unwrap();
        let waiter = tokio::spawn(async move { mutex.acquire().await });
        let waits = || async { other.inspect("shared").await.unwrap().waiters.len() == 1 };
        assert!(eventually(GENEROUS, waits).await);
        held.release().await.unwrap();
        let guard = tokio::time::timeout(GENEROUS, waiter).await.expect("the waiter was not told");
        guard.unwrap().unwrap().release().await.unwrap();
        hidden.release().await.unwrap();
    }
}

on_servers! {
    async fn a_user_may_open_its_locks_to_the_world() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let mut open = login(&config_of(&server), "app", "secret");
        open.access = Access::World;
        works(&client(&open).await).await;
        works(&client(&config_of(&server)).await).await;
    }
}

on_servers! {
    async fn locks_live_below_a_chroot_that_need_not_be_there() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let mut deep = config_of(&server);
        deep.chroot = "/apps/locks".into();
        let mut other = deep.clone();
        other.chroot = "/apps/other".into();
        let (one, two) = (client(&deep).await, client(&other).await);
        works(&one).await;
        let _held = one.mutex("a").unwrap().acquire().await.unwrap();
        let _beside = two.mutex("a").unwrap().try_acquire().await.unwrap();
        assert_eq!(one.list("").await.unwrap().len(), 1);
        for bad in ["/apps//locks", "/..", "apps"] {
            deep.chroot = bad.into();
            assert_eq!(refusal(&deep).await.kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}

on_servers! {
    async fn tls_is_spoken_and_verified() {
        let files = Certificates::make().unwrap();
        let server = ZooKeeperServer::start_with_tls(&[], &files).unwrap();
        let mut config = config_of(&server);
        config.servers = vec![("127.0.0.1".into(), server.tls_port().unwrap())];
        let plain = refusal(&config).await;
        assert_eq!(plain.kind(), ErrorKind::QuorumLost, "{plain}");
        assert!(plain.to_string().contains("TLS"), "{plain}");
        let identity = Some(files.of("client"));
        config.tls = Some(Tls { ca: Some(files.ca()), identity: identity.clone(), ..Tls::default() });
        works(&client(&login(&config, "app", "secret")).await).await;
        // A server that wants a certificate gets none.
        config.tls = Some(Tls { ca: Some(files.ca()), ..Tls::default() });
        let denied = refusal(&config).await;
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        assert!(denied.to_string().contains("TLS"), "{denied}");
        // A server that another authority vouches for.
        let others = Certificates::make().unwrap();
        config.tls = Some(Tls { ca: Some(others.ca()), identity, ..Tls::default() });
        let denied = refusal(&config).await;
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        assert!(denied.to_string().contains("check ca"), "{denied}");
        config.tls = Some(Tls { ca: Some("/nowhere.pem".into()), ..Tls::default() });
        assert_eq!(refusal(&config).await.kind(), ErrorKind::Invalid);
        // Only the public authorities are trusted.
        config.tls = Some(Tls::default());
        assert_eq!(refusal(&config).await.kind(), ErrorKind::Denied);
    }
}

on_servers! {
    async fn a_lost_quorum_is_distinguished_from_a_failed_tls_handshake() {
        let files = Certificates::make().unwrap();
        let mut ensemble = ZooKeeperEnsemble::start_with_tls(&[], &files).unwrap();
        let ports = ensemble.members().iter().map(|member| member.tls_port().unwrap());
        let servers = ports.map(|port| ("127.0.0.1".into(), port)).collect();
        let mut config = ZooKeeperConfig::new(servers);
        config.tls = Some(Tls { ca: Some(files.ca()), identity: Some(files.of("client")), ..Tls::default() });
        works(&client(&config).await).await;
        for member in &mut ensemble.members()[..2] {
            member.kill9().unwrap();
        }
        // The server takes a moment to notice that it is alone.
        let told = eventually(GENEROUS, || async {
            let error = refusal(&config).await;
            error.kind() == ErrorKind::QuorumLost && error.to_string().contains("has no quorum")
        });
        assert!(told.await);
    }
}

on_servers! {
    async fn a_server_that_hangs_is_not_reported_as_a_tls_failure() {
        let files = Certificates::make().unwrap();
        let mut server = ZooKeeperServer::start_with_tls(&[], &files).unwrap();
        let mut config = config_of(&server);
        config.servers[0].1 = server.tls_port().unwrap();
        config.tls = Some(Tls { ca: Some(files.ca()), identity: Some(files.of("client")), ..Tls::default() });
        server.stop().unwrap();
        let error = refusal(&config).await;
        assert_eq!(error.kind(), ErrorKind::QuorumLost, "{error}");
        assert!(error.to_string().contains("does not answer"), "{error}");
    }
}

on_servers! {
    async fn a_server_that_is_not_there_is_unreachable() {
        let mut server = ZooKeeperServer::start(&[]).unwrap();
        let config = config_of(&server);
        let client = client(&config).await;
        server.kill9().unwrap();
        let error = refusal(&config).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let error = client.mutex("a").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("check that"), "{error}");
    }
}

on_servers! {
    async fn a_ttl_beyond_the_servers_limit_is_refused_with_the_limit() {
        let server = ZooKeeperServer::start(&["maxSessionTimeout=10000"]).unwrap();
        let client = client(&config_of(&server)).await;
        let mutex = client.mutex("a").unwrap();
        let long = mutex.clone().with(Options::new().ttl(Duration::from_secs(30)));
        let error = long.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("at most 8s"), "{error}");
        assert!(error.to_string().contains("maxSessionTimeout"), "{error}");
        let default = mutex.acquire().await.unwrap();
        assert_eq!(default.ttl(), Duration::from_secs(8), "the default is within the limit");
        default.release().await.unwrap();
    }
}

on_servers! {
    /// The servers are replaced by others that end sessions earlier.
    async fn the_default_ttl_follows_a_limit_that_is_lowered() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let stricter = ZooKeeperServer::start(&["maxSessionTimeout=10000"]).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let client = client(&config(&proxy.address())).await;
        let mutex = client.mutex("a").unwrap();
        mutex.acquire().await.unwrap().release().await.unwrap();
        // A server that knows fewer transactions than a client does not talk to it.
        let busy = crate::common::client(&config_of(&stricter)).await;
        for _ in 0..30 {
            busy.mutex("b").unwrap().acquire().await.unwrap().release().await.unwrap();
        }
        proxy.lead_to(stricter.port());
        // The first claim may find out, and be refused.
        let followed = || async {
            let Ok(guard) = mutex.acquire().await else { return false };
            guard.ttl() == Duration::from_secs(8)
        };
        assert!(eventually(GENEROUS, followed).await, "the default is refused");
    }
}

on_servers! {
    /// No client may read the node: that it is there can be seen all the same, and that it goes.
    async fn a_waiter_behind_a_node_that_it_may_not_read_sends_few_requests_and_is_served() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let other = Bare::connect(server.port()).await.unwrap();
        other.make("/tenure/orders").await.unwrap();
        let unreadable = "/tenure/orders/_c_11111111-2222-3333-4444-555555555555-lock-";
        let created = other.create(unreadable, b"", Kind::EphemeralSequential, Rights::Blind).await;
        let node = created.unwrap();
        let client = client(&config_of(&server)).await;
        let mutex = client.mutex("orders").unwrap().with(Options::new().ttl(Duration::from_secs(60)));
        let waiting = tokio::spawn(async move { mutex.acquire().await });
        until_waiting(&client, "orders", 1).await;
        let long = Duration::from_secs(5);
        let before = server.requests().unwrap();
        tokio::time::sleep(long).await;
        let sent = server.requests().unwrap() - before;
        assert!(sent <= 20, "{sent} requests in {long:?}");
        // Nor in a lively queue: each arrival changes what is watched.
        let queued = "/tenure/orders/_c_99999999-2222-3333-4444-555555555555-lock-";
        let mut arrived = 0;
        let (before, until) = (server.requests().unwrap(), now() + long);
        while now() < until {
            other.create(queued, b"", Kind::EphemeralSequential, Rights::All).await.unwrap();
            arrived += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let sent = server.requests().unwrap() - before - arrived;
        assert!(arrived >= 50, "{arrived} arrivals");
        assert!(sent <= arrived + 40, "{sent} requests in {long:?} with {arrived} arrivals");
        assert!(!waiting.is_finished(), "{:?}", waiting.await);
        other.delete(&node).await.unwrap();
        let held = tokio::time::timeout(GENEROUS, waiting).await.expect("the waiter is stuck").unwrap();
        held.unwrap().release().await.unwrap();
    }
}
