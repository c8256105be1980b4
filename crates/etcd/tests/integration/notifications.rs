//! Notifications of a hand-off reach the waiter that they are for, and no other.

use std::time::Duration;

use crate::common::{client, config_of, store};
use tenure_core::Options;
use tenure_core::store::Eviction;
use tenure_testkit::{EtcdServer, GENEROUS, eventually};
use tenure_trials::{notifications, until_waiting};

const WAITERS: usize = 1_000;
const CLIENTS: usize = 4;
/// How many hand-offs are counted.
const HANDED: usize = 200;

/// How many events the server has sent to watchers so far.
fn events(server: &EtcdServer) -> f64 {
    let page = server.page("/metrics").unwrap();
    let name = "etcd_debugging_mvcc_events_total ";
    page.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

on_servers! {
    async fn a_hand_off_among_a_thousand_waiters_causes_one_event() {
        let server = EtcdServer::start(&[]).unwrap();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let client = client(&config_of(&server)).await;
            clients.push(client.with_call_timeout(GENEROUS).unwrap());
        }
        let holder = clients[0].mutex("a").unwrap().with(notifications::deaf()).acquire().await.unwrap();
        let (sender, mut guards) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        for place in 0..WAITERS {
            let mutex = clients[place % CLIENTS].mutex("a").unwrap().with(notifications::deaf());
            let sender = sender.clone();
            tasks.spawn(async move { sender.send(mutex.acquire().await.unwrap()).unwrap() });
            if place % 50 == 0 {
                // In batches: the speed of arrivals does not matter here.
                let come = || async {
                    let state = clients[0].inspect("a").await;
                    state.is_ok_and(|state| state.waiters.len() == place + 1)
                };
                assert!(eventually(GENEROUS, come).await, "{place} wait");
            }
        }
        let all = || async {
            clients[0].inspect("a").await.is_ok_and(|state| state.waiters.len() == WAITERS)
        };
        assert!(eventually(3 * GENEROUS, all).await);
        // Time for all clients to set their watches.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = events(&server);
        holder.release().await.unwrap();
        for _ in 0..HANDED {
            let guard = tokio::time::timeout(GENEROUS, guards.recv()).await;
            guard.expect("no notification came").unwrap().release().await.unwrap();
        }
        let guard = tokio::time::timeout(GENEROUS, guards.recv()).await;
        let each = (events(&server) - before) / (HANDED + 1) as f64;
        // A watch on a client's own key that is not cancelled in time sees the release, too.
        assert!((0.9..1.5).contains(&each), "{each} events a hand-off");
        drop(guard);
        tasks.abort_all();
    }
}

on_servers! {
    async fn a_release_at_any_moment_while_a_waiter_joins_is_heard() {
        let server = EtcdServer::start(&[]).unwrap();
        notifications::a_release_while_a_waiter_joins_is_heard(&client(&config_of(&server)).await).await;
    }
}

on_servers! {
    /// Its lease was confirmed some time before it was admitted.
    async fn a_waiter_that_is_admitted_has_its_whole_term_soon() {
        let server = EtcdServer::start(&[]).unwrap();
        let [holds, waits] =
            [client(&config_of(&server)).await, client(&config_of(&server)).await];
        let long = Options::new().ttl(Duration::from_secs(3600));
        for _ in 0..10 {
            let first = holds.mutex("a").unwrap().acquire().await.unwrap();
            let mutex = waits.mutex("a").unwrap().with(long.clone());
            let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
            until_waiting(&holds, "a", 1).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            first.release().await.unwrap();
            let guard = tokio::time::timeout(GENEROUS, waiting).await.expect("no notification came").unwrap();
            let whole = || async { guard.remaining() > Duration::from_secs(1800) };
            assert!(eventually(GENEROUS, whole).await, "{:?}", guard.remaining());
            let state = holds.inspect("a").await.unwrap();
            assert_eq!(state.holders[0].token, guard.token());
            assert!(state.holders[0].age.is_some());
            guard.release().await.unwrap();
        }
        assert_eq!(keys(&server), 0);
    }
}

fn keys(server: &EtcdServer) -> usize {
    let keys = server.control(&["get", "--prefix", "--keys-only", "tenure/a/"]).unwrap();
    keys.lines().filter(|line| !line.is_empty()).count()
}

on_servers! {
    /// Whichever comes first: it is not admitted, or its guard is lost at once.
    async fn a_waiter_that_is_evicted_while_it_is_admitted_does_not_stay() {
        let server = EtcdServer::start(&[]).unwrap();
        let [holds, waits] =
            [client(&config_of(&server)).await, client(&config_of(&server)).await];
        let long = Options::new().ttl(Duration::from_secs(3600));
        for round in 0..60 {
            let first = holds.mutex("a").unwrap().acquire().await.unwrap();
            let mutex = waits.mutex("a").unwrap().with(long.clone());
            let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
            until_waiting(&holds, "a", 1).await;
            let owner = &holds.inspect("a").await.unwrap().waiters[0].owner;
            let order = Eviction::new("a".parse().unwrap(), owner, "test");
            let release = async {
                tokio::time::sleep(Duration::from_micros(round * 50)).await;
                first.release().await.unwrap();
            };
            let (evicted, ()) = tokio::join!(holds.store().evict(&order), release);
            evicted.unwrap();
            let guard = tokio::time::timeout(GENEROUS, waiting).await.expect("the waiter is stuck").unwrap();
            // The claim was evicted as a waiter, and queued again; or it is evicted as a holder now.
            let settled = || async {
                let holders = holds.inspect("a").await.unwrap().holders;
                let token = holders.first().and_then(|holder| holder.token);
                let holds = token.is_some() && token == guard.token();
                guard.is_valid() == holds
            };
            assert!(eventually(GENEROUS, settled).await, "round {round}");
            drop(guard);
            waits.close().await;
            assert_eq!(keys(&server), 0);
        }
    }
}

on_servers! {
    async fn a_release_right_after_a_hand_off_leaves_nothing() {
        let server = EtcdServer::start(&[]).unwrap();
        let clients = [client(&config_of(&server)).await, client(&config_of(&server)).await];
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..40_usize {
            let mutex = clients[number % 2].mutex("a").unwrap();
            tasks.spawn(async move {
                for round in 0..5 {
                    let guard = mutex.acquire().await.unwrap();
                    if (number + round) % 3 == 0 {
                        tokio::time::sleep(Duration::from_micros(400)).await;
                    }
                    guard.release().await.unwrap();
                }
            });
        }
        tokio::time::timeout(3 * GENEROUS, tasks.join_all()).await.expect("all are stuck");
        assert_eq!(keys(&server), 0);
    }
}

on_servers! {
    async fn a_waiter_that_gives_up_admits_no_other_early() {
        let server = EtcdServer::start(&[]).unwrap();
        notifications::a_waiter_that_gives_up_admits_no_other_early(&store(&config_of(&server)).await).await;
    }
}

on_servers! {
    async fn every_kind_of_waiter_is_woken_by_notifications_alone() {
        let server = EtcdServer::start(&[]).unwrap();
        let clients = [client(&config_of(&server)).await, client(&config_of(&server)).await];
        notifications::every_kind_of_waiter_is_woken(clients).await;
    }
}
