//! Minutes of faults on a quorum whose servers keep nothing. Run it by hand, alone on a machine:
//!
//! `STORM=120 SEED=7 cargo test -p tenure-redis --test integration redlock_storm:: -- --ignored --nocapture`

use std::time::Duration;

use tenure_core::Client;
use tenure_testkit::Ensemble;
use tenure_trials::{LONGEST_STALL, storm};

/// So short that a server that was restarted soon votes again, and longer than any TTL here.
const MAX_TTL: Duration = Duration::from_secs(7);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes, and a machine of its own"]
async fn in_a_storm_no_two_claims_hold_at_once_and_every_claim_goes_on() {
    if !tenure_testkit::lacks("redis-server", "storm") {
        storm(Ensemble::of(crate::quorum::start(3)).unwrap(), LONGEST_STALL, connect).await;
    }
}

async fn connect(addresses: &str) -> Client {
    let port = |address: &str| address.rsplit(':').next().unwrap().parse().unwrap();
    let mut config = crate::quorum::config(addresses.split(',').map(port));
    config.max_ttl = MAX_TTL;
    crate::quorum::client(&config).await
}
