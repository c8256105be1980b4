//! Minutes of random faults. Run it by hand, alone on a machine:
//!
//! `STORM=120 SEED=7 cargo test -p tenure-etcd --test integration storm:: -- --ignored --nocapture`
//!
//! It uses the `etcd` on the `PATH`, of any version.

use std::time::Duration;

use crate::common::connect;
use tenure_testkit::{EtcdCluster, EtcdServer, lacks};
use tenure_trials::{LONGEST_STALL, storm};

/// Shorter than any lease in a storm. A leader of etcd before 3.4.31 and 3.5.13 that stood still for longer
/// than a lease revokes it, although its successor has renewed it meanwhile: two claims then hold until
/// the first one hears of it.
const SHORT_STALL: Duration = Duration::from_millis(2_500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes, and a machine of its own"]
async fn a_storm_of_faults_leaves_one_holder_at_a_time_and_no_claim_stuck() {
    if lacks("etcd", "storm") {
        return;
    }
    let stall = if EtcdServer::keeps_renewed_leases() { LONGEST_STALL } else { SHORT_STALL };
    storm(EtcdCluster::start().unwrap(), stall, connect).await;
}
