//! Which faults a storm injects, and when.

use std::time::{Duration, Instant};

use tenure_core::Client;
use tenure_testkit::{Dice, Ensemble, Member, Proxy, Way};

use crate::setting;
use crate::storm::Storm;

const CLIENTS: usize = 3;

/// How long a server stands still in a storm, at the most: longer than any lease there.
pub const LONGEST_STALL: Duration = Duration::from_secs(7);

/// Minutes of random faults: servers that stand still and die, clients that are cut off, holders that
/// are evicted, acquires that are dropped or not polled. The environment variable `STORM` sets its
/// length in seconds, `SEED` the faults. Servers stand still for `stall` at the most. Prints a summary.
///
/// # Panics
/// If two claims hold that exclude each other, a task is stuck, or an entry is left behind.
pub async fn storm(
    mut ensemble: Ensemble<impl Member>,
    stall: Duration,
    connect: impl AsyncFn(&str) -> Client,
) {
    let mut dice = Dice::new(setting("SEED", 7));
    let (mut clients, mut proxies_of) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let members = ensemble.members().iter();
        let proxies: Vec<Proxy> =
            members.map(|member| Proxy::start(member.port()).unwrap()).collect();
        let addresses: Vec<String> = proxies.iter().map(Proxy::address).collect();
        clients.push(connect(&addresses.join(",")).await);
        proxies_of.push(proxies);
    }
    let running = Storm::start(clients, 4, &mut dice);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(setting("STORM", 60)) {
        tokio::time::sleep(dice.millis(100, 2_000)).await;
        let fault = inject(ensemble.members(), &proxies_of, stall, &mut dice).await;
        running.storm().count(format!("fault: {fault}"));
    }
    ensemble.until_all_serve().unwrap();
    let members = &*ensemble.members();
    let account = || {
        let each =
            members.iter().map(|it| format!("== the server at {}\n{}", it.port(), it.account()));
        each.collect::<Vec<_>>().join("\n")
    };
    match running.end(account).await {
        Ok(summary) => println!("{summary}"),
        Err(wrongs) => panic!("{wrongs}"),
    }
}

/// Injects a fault for a while, and names it. `proxies_of` has the proxies of each client.
async fn inject(
    members: &mut [impl Member],
    proxies_of: &[Vec<Proxy>],
    stall: Duration,
    dice: &mut Dice,
) -> String {
    let one = dice.below(members.len() as u64) as usize;
    // A short fault loses a few replies; a long one outlasts a lease.
    let long = match dice.below(2) {
        0 => dice.millis(5, 300),
        _ => dice.millis(500, LONGEST_STALL.as_millis() as u64),
    };
    match dice.below(10) {
        0..4 => {
            members[one].stop().unwrap();
            tokio::time::sleep(long.min(stall)).await;
            members[one].cont().unwrap();
            "a server stands still".into()
        }
        4 => {
            let two = [one, (one + 1) % members.len()];
            two.iter().for_each(|member| members[*member].stop().unwrap());
            tokio::time::sleep(long.min(stall)).await;
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
            // With `Deaf` the client's requests arrive and the replies are lost.
            let way = if dice.below(2) == 0 { Way::Shut } else { Way::Deaf };
            let proxies = &proxies_of[dice.below(proxies_of.len() as u64) as usize];
            proxies.iter().for_each(|proxy| proxy.set(way));
            tokio::time::sleep(2 * long).await;
            proxies.iter().for_each(Proxy::heal);
            format!("the connections of a client are {way:?}")
        }
    }
}
