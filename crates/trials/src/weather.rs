//! What happens to servers and clients in a storm.

use std::time::{Duration, Instant};

use tenure_core::Client;
use tenure_testkit::{Ensemble, Member, Proxy, Way};

use crate::setting;
use crate::storm::{Dice, Storm};

const CLIENTS: usize = 3;

/// Minutes of trouble: servers that stop and die, clients that are cut off, holders that are evicted,
/// acquires that are dropped and left alone. `STORM` says how many seconds, and `SEED` which; what
/// happened is printed.
///
/// # Panics
/// If one holds beside another, somebody is stuck, or anything is left behind.
pub async fn storm(mut ensemble: Ensemble<impl Member>, connect: impl AsyncFn(&str) -> Client) {
    let mut dice = Dice::new(setting("SEED", 7));
    let (mut clients, mut ways) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let members = ensemble.members().iter();
        let proxies: Vec<Proxy> =
            members.map(|member| Proxy::start(member.port()).unwrap()).collect();
        let addresses: Vec<String> = proxies.iter().map(Proxy::address).collect();
        clients.push(connect(&addresses.join(",")).await);
        ways.push(proxies);
    }
    let running = Storm::start(clients, 4, &mut dice);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(setting("STORM", 60)) {
        tokio::time::sleep(dice.millis(100, 2_000)).await;
        let trouble = trouble(ensemble.members(), &ways, &mut dice).await;
        running.storm().count(format!("trouble: {trouble}"));
    }
    ensemble.until_all_serve().unwrap();
    match running.end().await {
        Ok(summary) => println!("{summary}"),
        Err(wrongs) => {
            for member in ensemble.members() {
                println!("== the server at {}\n{}", member.port(), member.account());
            }
            panic!("{wrongs}");
        }
    }
}

/// Makes trouble for a while, and says which.
async fn trouble(members: &mut [impl Member], ways: &[Vec<Proxy>], dice: &mut Dice) -> String {
    let one = dice.below(members.len() as u64) as usize;
    // What is short loses a few replies; what is long, a term.
    let long = match dice.below(2) {
        0 => dice.millis(5, 300),
        _ => dice.millis(500, 7_000),
    };
    match dice.below(10) {
        0..4 => {
            members[one].stop().unwrap();
            tokio::time::sleep(long).await;
            members[one].cont().unwrap();
            "a server stands still".into()
        }
        4 => {
            let two = [one, (one + 1) % members.len()];
            two.iter().for_each(|member| members[*member].stop().unwrap());
            tokio::time::sleep(long).await;
            two.iter().for_each(|member| members[*member].cont().unwrap());
            "two servers stand still".into()
        }
        5 | 6 => {
            members[one].kill9().unwrap();
            tokio::time::sleep(long).await;
            members[one].restart().unwrap();
            "a server is killed".into()
        }
        _ => {
            // One that is deaf is over for itself, and still there for the servers.
            let way = if dice.below(2) == 0 { Way::Shut } else { Way::Deaf };
            let way_of_one = &ways[dice.below(ways.len() as u64) as usize];
            way_of_one.iter().for_each(|proxy| proxy.set(way));
            tokio::time::sleep(2 * long).await;
            way_of_one.iter().for_each(Proxy::heal);
            format!("to a client the way is {way:?}")
        }
    }
}
