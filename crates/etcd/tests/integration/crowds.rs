//! Many tasks of one process that wait for one lock: none fails, and idle ones cost next to nothing.

use crate::common::{client, config, config_of, connect};
use tenure_core::{Client, Mode};
use tenure_testkit::{Ensemble, EtcdCluster, EtcdServer, GENEROUS};
use tenure_trials::crowds;

on_servers! {
    async fn a_crowd_outlasts_a_standstill_of_the_server_and_is_served_in_order() {
        let alone = Ensemble::of(vec![EtcdServer::start(&[]).unwrap()]).unwrap();
        crowds::waiters_outlast_server_faults_and_are_served_in_order(alone, connect).await;
    }
}

on_servers! {
    async fn a_crowd_outlasts_the_death_of_members_and_is_served_in_order() {
        let cluster = EtcdCluster::start().unwrap();
        crowds::waiters_outlast_server_faults_and_are_served_in_order(cluster, connect).await;
    }
}

on_servers! {
    async fn two_thousand_waiters_that_arrive_at_once_are_all_served() {
        let server = EtcdServer::start(&[]).unwrap();
        crowds::all_tasks_that_arrive_at_once_are_served(&client(&config_of(&server)).await, 2_000).await;
    }
}

on_servers! {
    async fn waiters_for_many_locks_outlast_a_standstill_of_the_server() {
        let mut server = EtcdServer::start(&[]).unwrap();
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
        let server = EtcdServer::start(&[]).unwrap();
        crowds::an_arrival_costs_the_same_in_a_long_queue(&server, patient).await;
    }
}

on_servers! {
    async fn to_find_the_holder_costs_the_same_before_ten_waiters_and_before_two_thousand() {
        let server = EtcdServer::start(&[]).unwrap();
        let [few, many] = crowds::costs_to_find_the_holder(&server, patient).await;
        // The list is cut off, so a mark that it does not show is looked for.
        assert!(many.0 <= few.0 + 1.5, "{} requests, not {}", many.0, few.0);
        assert!(many.1 <= few.1 + 500.0, "{} bytes, not {}", many.1, few.1);
    }
}

async fn idle_waiters_cost_next_to_nothing(mode: Mode) {
    let server = EtcdServer::start(&[]).unwrap();
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
