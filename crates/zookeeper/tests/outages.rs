//! Servers that do not answer for a while: callers that wait go on waiting, and what arrives late
//! does not stay.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod common;

use common::{client, config};
use tenure_core::Client;
use tenure_testkit::{Ensemble, ZooKeeperServer};
use tenure_trials::outages::{self, CALL_TIMEOUT};

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
