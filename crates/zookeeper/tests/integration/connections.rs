//! How many connections a process opens, and how many requests it takes to list locks.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{client, config_of};
use tenure_core::store::{Connecting, StoreFactory, StoreUrl};
use tenure_core::{Client, Guard, Options};
use tenure_testkit::{Member, Proxy, ZooKeeperServer};
use tenure_zookeeper::ZooKeeperFactory;
use tenure_zookeeper::testing::Bare;

/// How many clients with a session are connected.
fn connections(server: &ZooKeeperServer) -> usize {
    server.word("cons").unwrap().lines().filter(|line| line.contains("sid=")).count()
}

async fn hold(client: &Client, name: &str, seconds: u64) -> Guard {
    let options = Options::new().ttl(Duration::from_secs(seconds));
    client.mutex(name).unwrap().with(options).acquire().await.unwrap()
}

on_servers! {
    /// The command knows the TTL before it connects.
    async fn one_lock_needs_one_connection() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let engine: Arc<dyn StoreFactory> = Arc::new(ZooKeeperFactory);
        let url = StoreUrl::parse(&format!("zk://{}", proxy.address()), from_ref(&engine)).unwrap();
        for ttl in [10, 30, 45] {
            let before = proxy.connections();
            let url = url.clone().for_ttl(Duration::from_secs(ttl));
            let store = engine.connect(&url, &Connecting::new(&url).unwrap()).await.unwrap();
            let client = Client::new(store).unwrap();
            let guard = hold(&client, "a", ttl).await;
            guard.release().await.unwrap();
            client.close().await;
            assert_eq!(proxy.connections() - before, 1, "for a TTL of {ttl} s");
        }
    }
}

on_servers! {
    async fn sixty_ttls_share_a_few_connections() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let mut guards = Vec::new();
        for number in 0..60 {
            guards.push(hold(&client, &number.to_string(), 10 + number).await);
        }
        let connections = connections(&server);
        assert!(connections <= 10, "{connections} connections");
        for guard in guards {
            guard.release().await.unwrap();
        }
    }
}

on_servers! {
    /// Whether a lock's node is in use takes a request for each.
    async fn to_list_very_many_locks_takes_a_bounded_number_of_requests() {
        const MANY: usize = 5_000;
        let server = ZooKeeperServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let bare = Bare::connect(server.port()).await.unwrap();
        let held = hold(&client, "held", 30).await;
        bare.make("/tenure/used-before").await.unwrap();
        assert_eq!(client.list("").await.unwrap(), ["held".parse().unwrap()]);
        for number in 0..MANY {
            bare.make(&format!("/tenure/unused-{number}")).await.unwrap();
        }
        for _ in 0..4 {
            let before = server.requests().unwrap();
            let names = client.list("").await.unwrap();
            let sent = server.requests().unwrap() - before;
            assert!(sent <= 4_020, "{sent} requests");
            assert!(names.iter().any(|name| name.as_str() == "held"), "a lock that is held is missing");
            let free: Vec<_> = names.into_iter().filter(|name| name.as_str() != "held").collect();
            assert!(free.len() <= MANY + 1 - 3_999, "{} that are free are listed", free.len());
        }
        assert_eq!(client.inspect_all("").await.unwrap().len(), 1);
        assert_eq!(client.list("held").await.unwrap().len(), 1);
        held.release().await.unwrap();
    }
}
