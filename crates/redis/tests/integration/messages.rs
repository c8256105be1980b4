//! Messages of a hand-off reach the client that they are for, and no other.

use crate::servers::{client, single};
use tenure_redis::RedisStore;
use tenure_testkit::RedisServer;
use tenure_trials::notifications;

on_servers! {
    async fn a_release_at_any_moment_while_a_waiter_joins_is_heard() {
        let server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        notifications::a_release_while_a_waiter_joins_is_heard(&client).await;
    }
}

on_servers! {
    async fn a_message_to_a_waiter_that_gave_up_admits_no_other() {
        let server = RedisServer::start(&[]).unwrap();
        let store = RedisStore::connect(single(server.port())).await.unwrap();
        notifications::a_waiter_that_gives_up_admits_no_other_early(&store).await;
    }
}

on_servers! {
    async fn every_kind_of_waiter_is_woken_by_a_message_alone() {
        let server = RedisServer::start(&[]).unwrap();
        let config = single(server.port());
        notifications::every_kind_of_waiter_is_woken([client(&config).await, client(&config).await]).await;
    }
}
