//! A server that dies and comes back with its data, clients that are cut off: no two claims hold at once,
//! every claim goes on, and tokens keep rising.

use crate::servers::{connect, durable};
use tenure_testkit::RedisServer;
use tenure_trials::{failing_servers, partitions};

on_servers! {
    async fn without_its_server_the_holder_is_warned_of_danger_and_loss() {
        failing_servers::a_lost_quorum_is_reported(durable(), connect).await;
    }
}

on_servers! {
    async fn a_restart_of_a_durable_server_keeps_locks_places_and_tokens() {
        failing_servers::a_restart_of_all_keeps_everything(durable(), connect).await;
    }
}

on_servers! {
    async fn a_client_that_is_cut_off_loses_its_guard_before_another_claim_holds() {
        let server = RedisServer::start(&[]).unwrap();
        partitions::a_cut_off_holder_loses_its_guard_before_another_claim_holds(server.port(), connect).await;
    }
}

on_servers! {
    async fn a_waiter_that_was_cut_off_is_served_when_it_is_back() {
        let server = RedisServer::start(&[]).unwrap();
        partitions::a_waiter_is_served_when_it_is_back(server.port(), connect).await;
    }
}

on_servers! {
    async fn a_downgrade_whose_reply_is_lost_is_made_again_or_undone() {
        let server = RedisServer::start(&[]).unwrap();
        let scenario = partitions::a_downgrade_whose_reply_is_lost_is_made_again_or_undone;
        scenario(server.port(), connect).await;
    }
}
