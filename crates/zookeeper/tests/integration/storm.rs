//! Minutes of random faults. Run it by hand, alone on a machine:
//!
//! `STORM=120 SEED=7 cargo test -p tenure-zookeeper --test integration storm:: -- --ignored --nocapture`

use crate::common::connect;
use tenure_testkit::{ZooKeeperEnsemble, ZooKeeperServer};
use tenure_trials::{LONGEST_STALL, storm};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes, and a machine of its own"]
async fn a_storm_of_faults_leaves_one_holder_at_a_time_and_no_claim_stuck() {
    if ZooKeeperServer::is_missing("storm") {
        return;
    }
    storm(ZooKeeperEnsemble::start(&["minSessionTimeout=400"]).unwrap(), LONGEST_STALL, connect)
        .await;
}
