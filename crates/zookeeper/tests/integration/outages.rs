//! Servers that do not answer for a while: callers that wait go on waiting, and what arrives late
//! does not stay.

use std::time::Duration;

use crate::common::{client, config, config_of};
use tenure_core::{Client, Options};
use tenure_testkit::{Ensemble, Proxy, ZooKeeperEnsemble, ZooKeeperServer, eventually};
use tenure_trials::outages::{self, CALL_TIMEOUT};
use tenure_trials::{ELECTION, until_all_serve, until_one_leads};
use tokio::task::JoinSet;

fn alone() -> Ensemble<ZooKeeperServer> {
    Ensemble::of(vec![ZooKeeperServer::start(&[]).unwrap()]).unwrap()
}

async fn hasty(addresses: &str) -> Client {
    let mut config = config(addresses);
    config.timeout = CALL_TIMEOUT;
    client(&config).await
}

on_servers! {
    async fn a_waiter_outlasts_a_long_outage() {
        outages::a_waiter_outlasts_a_long_outage(alone(), hasty).await;
    }
}

on_servers! {
    async fn an_acquire_that_begins_in_a_short_outage_succeeds() {
        outages::an_acquire_that_begins_in_a_short_outage_succeeds(alone(), hasty).await;
    }
}

on_servers! {
    async fn the_engine_gives_up_on_a_silent_server_before_the_client() {
        outages::the_engine_gives_up_on_a_silent_server_before_the_client(alone(), hasty).await;
    }
}

on_servers! {
    /// The client tries to reconnect to the server that stands still, then to another one, does not find
    /// the nodes it asked for, and gives up. The first server then reads the reconnect and the earlier
    /// creations, in either order.
    async fn a_claim_that_a_server_carries_out_late_does_not_stay() {
        const LOCKS: usize = 100;
        // A server that stands still is not given up by the leader.
        let mut ensemble = ZooKeeperEnsemble::start(&["syncLimit=1000"]).unwrap();
        let leader = until_one_leads(&ensemble).await;
        let other = client(&config_of(&ensemble.members()[leader])).await;
        let options = Options::new().ttl(Duration::from_secs(60));
        let mut late = Vec::new();
        for round in 0..12 {
            let follower = (leader + 1 + round % 2) % 3;
            let proxy = Proxy::start(ensemble.members()[follower].port()).unwrap();
            let client = client(&config(&proxy.address())).await;
            let hasty = client.clone().with_call_timeout(CALL_TIMEOUT).unwrap();
            // The guard keeps the session alive.
            let kept = client.mutex("kept").unwrap().with(options.clone());
            let kept = kept.acquire_within(ELECTION).await.unwrap();
            let connections = proxy.connections();
            ensemble.members()[follower].stop().unwrap();
            let mut acquiring = JoinSet::new();
            for lock in 0..LOCKS {
                let mutex = hasty.mutex(&lock.to_string()).unwrap().with(options.clone());
                // Not `try_acquire`, which would look first, and create nothing.
                acquiring.spawn(async move { mutex.acquire_within(CALL_TIMEOUT).await });
            }
            let failed = acquiring.join_all().await.iter().filter(|one| one.is_err()).count();
            assert_eq!(failed, LOCKS, "the server stands still");
            let comes_back = || async { proxy.connections() > connections };
            assert!(eventually(ELECTION, comes_back).await, "the client stays");
            // By now the client has sent its session's id and password.
            tokio::time::sleep(CALL_TIMEOUT).await;
            proxy.lead_to(ensemble.members()[leader].port());
            hasty.close().await;
            ensemble.members()[follower].cont().unwrap();
            until_all_serve(&mut ensemble).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let kept_alone = || async { other.list("").await.is_ok_and(|left| left.len() == 1) };
            if !eventually(Duration::from_secs(5), kept_alone).await {
                late.push((round, other.list("").await.map(|left| left.len() - 1)));
            }
            drop(kept);
            client.close().await;
        }
        assert!(late.is_empty(), "rounds, and how many claims stayed: {late:?}");
    }
}
