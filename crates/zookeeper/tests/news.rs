//! News of a hand-off: they reach the one they are for, and nobody else.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod common;

use std::time::Duration;

use common::{client, config_of, store};
use tenure_core::{Answer, Options, Patience, Place, Store};
use tenure_testkit::{GENEROUS, ZooKeeperServer, eventually};
use tenure_trials::claim;

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

/// Nothing but news wakes who waits like this.
fn deaf() -> Options {
    Options::new().ttl(Duration::from_secs(500)).poll_cap(Duration::from_secs(3600))
}

on_servers! {
    async fn one_release_among_a_hundred_wakes_one() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(client(&config_of(&server)).await.with_call_timeout(GENEROUS));
        }
        let holder = clients[0].mutex("a").unwrap().with(deaf()).acquire().await.unwrap();
        let (sender, mut guards) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        for place in 0..WAITERS {
            let mutex = clients[place % CLIENTS].mutex("a").unwrap().with(deaf());
            let sender = sender.clone();
            tasks.spawn(async move { sender.send(mutex.acquire().await.unwrap()).unwrap() });
        }
        let watched = || async {
            // Sessions watch other nodes, too: for their losses, and those of locks they use often.
            let paths = server.word("wchp").unwrap();
            paths.lines().filter(|line| line.contains("-lock-")).count() == WAITERS
        };
        assert!(eventually(GENEROUS, watched).await, "{}", server.word("wchp").unwrap());
        let mut before = events(&server);
        let mut held = holder;
        for _ in 0..WAITERS {
            held.release().await.unwrap();
            held = tokio::time::timeout(GENEROUS, guards.recv()).await.expect("no news").unwrap();
            let now = events(&server);
            assert!((now - before - 1.0).abs() < 0.1, "{} events for one release", now - before);
            before = now;
        }
        held.release().await.unwrap();
    }
}

on_servers! {
    /// Between the look and the watch, at whichever moment: nothing falls through.
    async fn a_release_at_any_moment_while_a_waiter_joins_is_heard() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        let mutex = client.mutex("a").unwrap().with(deaf());
        for round in 0..200 {
            let guard = mutex.acquire().await.unwrap();
            let waiting = tokio::spawn({
                let mutex = mutex.clone();
                async move { mutex.acquire().await.unwrap() }
            });
            tokio::time::sleep(Duration::from_micros(round * 40)).await;
            guard.release().await.unwrap();
            let next = tokio::time::timeout(GENEROUS, waiting).await;
            let next = next.unwrap_or_else(|_| panic!("round {round}: no news")).unwrap();
            next.release().await.unwrap();
        }
    }
}

on_servers! {
    async fn news_of_a_waiter_that_gave_up_let_nobody_in() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let store = store(&config_of(&server)).await;
        let long = Duration::from_secs(60);
        let [holder, first, second] = [(); 3].map(|()| claim("a", long));
        let patience = Patience::queue(long);
        let granted = |answer: &Answer| matches!(answer, Answer::Granted(_));
        assert!(granted(&store.claim(&holder, patience).await.unwrap()));
        for waiter in [&first, &second] {
            assert!(!granted(&store.claim(waiter, patience).await.unwrap()));
        }
        // Time to make its watch, and then to hear.
        tokio::time::sleep(Duration::from_millis(300)).await;
        store.release(&first).await.unwrap();
        let place = Place::default();
        let early = tokio::time::timeout(Duration::from_millis(700), store.wait(&second, &place));
        assert!(early.await.is_err(), "it was let in beside the holder");
        store.release(&holder).await.unwrap();
        let news = tokio::time::timeout(GENEROUS, store.wait(&second, &place)).await;
        assert!(granted(&news.expect("no news").unwrap()));
    }
}

on_servers! {
    /// Writers, readers and takers of permits, each in turn and some together, of two clients.
    async fn every_kind_of_waiter_is_woken_by_news_alone() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let clients = [client(&config_of(&server)).await, client(&config_of(&server)).await];
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..60_u32 {
            let client = clients[number as usize % 2].clone();
            tasks.spawn(async move {
                let rw_lock = client.rw_lock("a").unwrap().with(deaf());
                let semaphore = client.semaphore("a", 4).unwrap();
                let semaphore = semaphore.taking(1 + number % 3).with(deaf());
                let guard = match number % 5 {
                    0 => rw_lock.write().await,
                    1 | 2 => rw_lock.read().await,
                    _ => semaphore.acquire().await,
                };
                let guard = guard.unwrap();
                tokio::time::sleep(Duration::from_millis(u64::from(number % 7))).await;
                guard.release().await.unwrap();
            });
        }
        let all = tokio::time::timeout(3 * GENEROUS, async {
            while let Some(served) = tasks.join_next().await {
                served.unwrap();
            }
        });
        let left = all.await;
        let state = clients[0].inspect("a").await.unwrap();
        assert!(left.is_ok(), "no news for {} of {:?}", state.waiters.len(), state.holders);
        assert!(state.is_free(), "{state:?}");
    }
}
