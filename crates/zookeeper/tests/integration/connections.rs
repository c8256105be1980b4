//! How many connections a process opens.

use std::time::Duration;

use crate::common::{client, config_of};
use tenure_core::{Client, Guard, Options};
use tenure_testkit::{GENEROUS, ZooKeeperServer, eventually};

/// How many clients with a session are connected.
fn connections(server: &ZooKeeperServer) -> usize {
    server.word("cons").unwrap().lines().filter(|line| line.contains("sid=")).count()
}

async fn hold(client: &Client, name: &str, seconds: u64) -> Guard {
    let options = Options::new().ttl(Duration::from_secs(seconds));
    client.mutex(name).unwrap().with(options).acquire().await.unwrap()
}

on_servers! {
    async fn one_lock_needs_one_connection() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let guard = hold(&client, "a", 10).await;
        // The one that was opened to connect may be given up by now, or soon.
        let one = || async { connections(&server) == 1 };
        assert!(eventually(GENEROUS, one).await, "{}", server.word("cons").unwrap());
        guard.release().await.unwrap();
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
