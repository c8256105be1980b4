//! Many tasks of one process that wait for one lock: none fails, and idle ones cost next to nothing.

use crate::common::{client, config, config_of, connect};
use tenure_core::{Client, Mode};
use tenure_testkit::{Ensemble, GENEROUS, ZooKeeperEnsemble, ZooKeeperServer};
use tenure_trials::crowds;

on_servers! {
    async fn a_crowd_outlasts_a_standstill_of_the_server_and_is_served_in_order() {
        let alone = Ensemble::of(vec![ZooKeeperServer::start(&[]).unwrap()]).unwrap();
        crowds::waiters_outlast_server_faults_and_are_served_in_order(alone, connect).await;
    }
}

on_servers! {
    async fn a_crowd_outlasts_the_death_of_servers_and_is_served_in_order() {
        let ensemble = ZooKeeperEnsemble::start(&[]).unwrap();
        crowds::waiters_outlast_server_faults_and_are_served_in_order(ensemble, connect).await;
    }
}

on_servers! {
    async fn two_thousand_waiters_that_arrive_at_once_are_all_served() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        crowds::all_tasks_that_arrive_at_once_are_served(&client(&config_of(&server)).await, 2_000).await;
    }
}

on_servers! {
    async fn waiters_for_many_locks_outlast_a_standstill_of_the_server() {
        let mut server = ZooKeeperServer::start(&[]).unwrap();
        let client = client(&config_of(&server)).await;
        crowds::waiters_for_many_locks_outlast_a_standstill(&mut server, &client, 3_000).await;
    }
}

/// A client whose calls do not time out on a busy machine: they would be counted twice.
async fn patient(addresses: &str) -> Client {
    let mut config = config(addresses);
    config.timeout = GENEROUS;
    client(&config).await
}

on_servers! {
    async fn an_arrival_costs_the_same_behind_ten_waiters_and_behind_two_thousand() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        crowds::an_arrival_costs_the_same_in_a_long_queue(&server, patient).await;
    }
}

on_servers! {
    /// ZooKeeper lists all children of a node, so the names of the waiters are read, and nothing else of them.
    async fn to_find_the_holder_reads_of_two_thousand_waiters_the_names_alone() {
        let server = ZooKeeperServer::start(&[]).unwrap();
        let [few, many] = crowds::costs_to_find_the_holder(&server, patient).await;
        assert!(many.0 <= few.0 + 1.0, "{} requests, not {}", many.0, few.0);
        assert!(many.1 <= few.1 + 2_000.0 * 70.0, "{} bytes, not {}", many.1, few.1);
    }
}

async fn idle_waiters_cost_next_to_nothing(mode: Mode) {
    let server = ZooKeeperServer::start(&[]).unwrap();
    let client = client(&config_of(&server)).await;
    crowds::idle_waiters_cost_next_to_nothing(&server, &client, mode).await;
}

on_servers! {
    async fn idle_waiters_for_a_mutex_cost_next_to_nothing() {
        idle_waiters_cost_next_to_nothing(Mode::Exclusive).await;
    }
}

on_servers! {
    async fn idle_readers_behind_a_writer_cost_next_to_nothing() {
        idle_waiters_cost_next_to_nothing(Mode::Shared).await;
    }
}

on_servers! {
    async fn idle_waiters_for_a_permit_cost_next_to_nothing() {
        idle_waiters_cost_next_to_nothing(Mode::Permits { take: 1, of: 3 }).await;
    }
}
