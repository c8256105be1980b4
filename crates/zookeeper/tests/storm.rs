//! Minutes of trouble: servers that stop and die, clients that are cut off, holders that are evicted,
//! acquires that are dropped and left alone. Run it by hand, alone on a machine:
//!
//! `STORM=120 SEED=7 cargo test -p tenure-zookeeper --test storm -- --ignored --nocapture`

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod common;
#[path = "common/proxy.rs"]
mod proxy;

use std::time::{Duration, Instant};

use common::{client, config};
use proxy::{Proxy, Way};
use tenure_testkit::{ZooKeeperEnsemble, ZooKeeperServer};
use tenure_trials::{Dice, Storm, setting};

const CLIENTS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes, and a machine of its own"]
async fn nobody_holds_beside_another_and_nobody_is_stuck_in_a_storm() {
    if ZooKeeperServer::is_missing("storm") {
        return;
    }
    let mut dice = Dice::new(setting("SEED", 7));
    let mut ensemble = ZooKeeperEnsemble::start(&["minSessionTimeout=400"]).unwrap();
    let ports: Vec<u16> = ensemble.members().iter().map(ZooKeeperServer::port).collect();
    let (mut clients, mut ways) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let mut proxies = Vec::new();
        for port in &ports {
            proxies.push(Proxy::start(*port).await.unwrap());
        }
        let addresses: Vec<String> = proxies.iter().map(Proxy::address).collect();
        clients.push(client(&config(&addresses.join(","))).await);
        ways.push(proxies);
    }
    let running = Storm::start(clients, 4, &mut dice);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(setting("STORM", 60)) {
        tokio::time::sleep(dice.millis(200, 3_000)).await;
        let one = dice.below(3) as usize;
        let long = dice.millis(500, 7_000);
        match dice.below(10) {
            0..4 => {
                running.storm().count("trouble: a server stands still");
                ensemble.members()[one].stop().unwrap();
                tokio::time::sleep(long).await;
                ensemble.members()[one].cont().unwrap();
            }
            4 => {
                running.storm().count("trouble: two servers stand still");
                let two = [one, (one + 1) % 3];
                two.iter().for_each(|member| ensemble.members()[*member].stop().unwrap());
                tokio::time::sleep(long).await;
                two.iter().for_each(|member| ensemble.members()[*member].cont().unwrap());
            }
            5 | 6 => {
                running.storm().count("trouble: a server is killed");
                ensemble.members()[one].kill9().unwrap();
                tokio::time::sleep(long).await;
                ensemble.members()[one].restart().unwrap();
            }
            _ => {
                // One that is deaf is over for itself, and still there for the servers.
                let way = if dice.below(2) == 0 { Way::Cut } else { Way::Deaf };
                running.storm().count(format!("trouble: to a client the way is {way:?}"));
                ways[one].iter().for_each(|proxy| proxy.set(way));
                tokio::time::sleep(2 * long).await;
                ways[one].iter().for_each(Proxy::heal);
            }
        }
    }
    ensemble.until_all_serve().unwrap();
    println!("{}", running.end().await);
}
