//! Notifications of a hand-off: few nodes are watched, and few clients are woken.

use crate::common::{client, config_of, store};
use tenure_testkit::{GENEROUS, ZooKeeperServer, eventually};
use tenure_trials::notifications;

const WAITERS: usize = 100;
const CLIENTS: usize = 4;

/// How many events the server has sent to watchers so far.
fn events(server: &ZooKeeperServer) -> f64 {
    let figures = server.word("mntr").unwrap();
    let sum = |name: &str| {
        let name = format!("zk_sum_node_{name}_watch_count\t");
        let figure = figures.lines().find_map(|line| line.strip_prefix(name.as_str()));
        figure.map_or(0.0, |figure| figure.trim().parse().unwrap())
    };
    ["created", "deleted", "changed", "children"].map(sum).iter().sum()
}

on_servers! {
    async fn a_release_among_a_hundred_waiters_wakes_few_clients() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(client(&config_of(&server)).await.with_call_timeout(GENEROUS).unwrap());
        }
        let holder = clients[0].mutex("a").unwrap().with(notifications::deaf()).acquire().await.unwrap();
        let (sender, mut guards) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        for place in 0..WAITERS {
            let mutex = clients[place % CLIENTS].mutex("a").unwrap().with(notifications::deaf());
            let sender = sender.clone();
            tasks.spawn(async move { sender.send(mutex.acquire().await.unwrap()).unwrap() });
        }
        let queued = || async { clients[0].inspect("a").await.unwrap().waiters.len() == WAITERS };
        assert!(eventually(GENEROUS, queued).await);
        let watched = server.word("wchp").unwrap();
        let watched = watched.lines().filter(|line| line.contains("-lock-")).count();
        // Each client watches what is before its first waiter, and its first two. A watch that it gave
        // up while others arrived stays on the server.
        assert!((CLIENTS..=5 * CLIENTS).contains(&watched), "{watched} nodes are watched");
        let (first, mut before) = (events(&server), events(&server));
        let mut held = holder;
        for _ in 0..WAITERS {
            held.release().await.unwrap();
            held = tokio::time::timeout(GENEROUS, guards.recv()).await.expect("no notification came").unwrap();
            let now = events(&server);
            assert!(now - before < 4.5, "{} events for one release", now - before);
            before = now;
        }
        let mean = (before - first) / WAITERS as f64;
        assert!(mean < 2.5, "{mean} events for a release");
        held.release().await.unwrap();
    }
}

on_servers! {
    async fn a_release_at_any_moment_while_a_waiter_joins_is_heard() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        notifications::a_release_while_a_waiter_joins_is_heard(&client(&config_of(&server)).await).await;
    }
}

on_servers! {
    async fn a_waiter_that_gives_up_admits_no_other_early() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        notifications::a_waiter_that_gives_up_admits_no_other_early(&store(&config_of(&server)).await).await;
    }
}

on_servers! {
    async fn every_kind_of_waiter_is_woken_by_notifications_alone() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let clients = [client(&config_of(&server)).await, client(&config_of(&server)).await];
        notifications::every_kind_of_waiter_is_woken(clients).await;
    }
}
