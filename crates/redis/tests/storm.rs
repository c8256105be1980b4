//! Fifty waiters on one lock while the server is meddled with: nobody holds beside another, nobody
//! is stuck, and tokens keep rising. And minutes of trouble, to be run by hand, alone on a machine:
//!
//! `STORM=120 SEED=7 cargo test -p tenure-redis --test storm -- --ignored --nocapture`

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

mod servers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use servers::{connect, durable};
use tenure_testkit::RedisServer;
use tenure_trials::{Turns, storm};

const CLIENTS: usize = 5;
const TASKS_EACH: usize = 10;
const LONG: Duration = Duration::from_secs(8);

on_servers! {
    async fn a_meddled_with_server_lets_nobody_in_twice_and_nobody_wait_for_ever() {
        let mut server = durable();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(connect(&server.addresses()).await);
        }
        let turns = Arc::new(Turns::default());
        let tasks = turns.start(&clients, TASKS_EACH);
        let start = Instant::now();
        let mut meddled = 0;
        while start.elapsed() < LONG || meddled < 5 {
            meddle(&mut server.members()[0], meddled);
            meddled += 1;
            // Every piece of trouble is followed by work, or it was too much.
            turns.go_on(50).await;
        }
        turns.stop(tasks).await;
    }
}

fn meddle(server: &mut RedisServer, turn: u32) {
    let command = |words: &[&str]| drop(server.command(words));
    match turn % 5 {
        0 => command(&["SCRIPT", "FLUSH"]),
        1 => command(&["CLIENT", "KILL", "TYPE", "pubsub"]),
        2 => command(&["CLIENT", "KILL", "TYPE", "normal"]),
        3 => command(&["DEBUG", "SLEEP", "1"]),
        _ => server.restart().unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes, and a machine of its own"]
async fn nobody_holds_beside_another_and_nobody_is_stuck_in_a_storm() {
    if !tenure_testkit::lacks("redis-server", "storm") {
        storm(durable(), connect).await;
    }
}
