//! A server that does not answer for a while: callers that wait go on waiting.

use crate::servers::{addresses, client, durable, single};
use tenure_core::Client;
use tenure_trials::outages::{self, CALL_TIMEOUT};

async fn hasty(address: &str) -> Client {
    let mut config = single(addresses(address)[0].1);
    config.timeout = CALL_TIMEOUT;
    client(&config).await
}

on_servers! {
    async fn a_waiter_outlasts_a_long_outage() {
        outages::a_waiter_outlasts_a_long_outage(durable(), hasty).await;
    }
}

on_servers! {
    async fn an_acquire_that_begins_in_a_short_outage_succeeds() {
        outages::an_acquire_that_begins_in_a_short_outage_succeeds(durable(), hasty).await;
    }
}

on_servers! {
    async fn the_engine_gives_up_on_a_silent_server_before_the_client() {
        outages::the_engine_gives_up_on_a_silent_server_before_the_client(durable(), hasty).await;
    }
}
