//! Minutes of trouble: members that stop and die, holders that are evicted, acquires that are dropped
//! and left alone. Run it by hand, alone on a machine:
//!
//! `STORM=120 SEED=7 cargo test -p tenure-etcd --test storm -- --ignored --nocapture`

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{client, config};
use tenure_testkit::{EtcdCluster, lacks};
use tenure_trials::{Dice, Storm, setting};

const CLIENTS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes, and a machine of its own"]
async fn nobody_holds_beside_another_and_nobody_is_stuck_in_a_storm() {
    if lacks("etcd", "storm") {
        return;
    }
    let mut dice = Dice::new(setting("SEED", 7));
    let mut cluster = EtcdCluster::start().unwrap();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(&config(&cluster.addresses())).await);
    }
    let running = Storm::start(clients, 4, &mut dice);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(setting("STORM", 60)) {
        tokio::time::sleep(dice.millis(200, 3_000)).await;
        let one = dice.below(3) as usize;
        let long = dice.millis(500, 7_000);
        match dice.below(8) {
            0..5 => {
                running.storm().count("trouble: a member stands still");
                cluster.members()[one].stop().unwrap();
                tokio::time::sleep(long).await;
                cluster.members()[one].cont().unwrap();
            }
            5 => {
                running.storm().count("trouble: two members stand still");
                let two = [one, (one + 1) % 3];
                two.iter().for_each(|member| cluster.members()[*member].stop().unwrap());
                tokio::time::sleep(long).await;
                two.iter().for_each(|member| cluster.members()[*member].cont().unwrap());
            }
            _ => {
                running.storm().count("trouble: a member is killed");
                cluster.members()[one].kill9().unwrap();
                tokio::time::sleep(long).await;
                cluster.members()[one].restart().unwrap();
            }
        }
    }
    cluster.until_all_serve().unwrap();
    println!("{}", running.end().await);
}
