//! Servers that do not answer for a while: callers that wait go on waiting, and what arrives late
//! does not stay.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod common;

use std::time::Duration;

use common::{client, config, config_of};
use tenure_core::{Client, Options};
use tenure_testkit::{Ensemble, ZooKeeperEnsemble, ZooKeeperServer, eventually};
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

/// How many connections with a session the server has.
fn sessions(server: &ZooKeeperServer) -> usize {
    server.word("cons").unwrap().lines().filter(|line| line.contains("sid=")).count()
}

/// A client whose first connection is to this member, and may go to the others.
async fn at(ensemble: &mut Ensemble<ZooKeeperServer>, member: usize) -> Client {
    for _ in 0..50 {
        let client = hasty(&ensemble.addresses()).await;
        if sessions(&ensemble.members()[member]) > 0 {
            return client;
        }
        client.close().await;
    }
    panic!("no client came to the server");
}

on_servers! {
    /// The client turns to another server, does not find what it asked for, and gives up. The server
    /// that stood still then reads what it was sent.
    async fn a_claim_that_a_server_carries_out_late_does_not_stay() {
        const LOCKS: usize = 20;
        let mut ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        let mut late = Vec::new();
        for round in 0..12 {
            let leader = until_one_leads(&ensemble).await;
            let follower = (leader + 1 + round % 2) % 3;
            let client = at(&mut ensemble, follower).await;
            let client = client.with_call_timeout(CALL_TIMEOUT).unwrap();
            let other = client_of(&ensemble.members()[leader]).await;
            let options = Options::new().ttl(Duration::from_secs(60));
            // It keeps the session alive.
            let kept = client.mutex("kept").unwrap().with(options.clone()).acquire().await.unwrap();
            let mut acquiring = JoinSet::new();
            for lock in 0..LOCKS {
                let mutex = client.mutex(&lock.to_string()).unwrap().with(options.clone());
                acquiring.spawn(async move { mutex.try_acquire().await });
            }
            tokio::time::sleep(Duration::from_millis(round as u64)).await;
            ensemble.members()[follower].stop().unwrap();
            while let Some(acquired) = acquiring.join_next().await {
                if let Ok(guard) = acquired.unwrap() {
                    drop(guard.release().await);
                }
            }
            client.close().await;
            ensemble.members()[follower].cont().unwrap();
            until_all_serve(&mut ensemble).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let left = other.list("").await.unwrap();
            if left.len() > 1 {
                late.push((round, left.len() - 1));
            }
            drop(kept);
            client.close().await;
        }
        assert_eq!(late, [], "rounds, and how many claims stayed");
    }
}

async fn client_of(server: &ZooKeeperServer) -> Client {
    client(&config_of(server)).await
}
