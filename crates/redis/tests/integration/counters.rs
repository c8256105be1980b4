//! Counters whose replies are lost.

use std::time::Duration;

use crate::servers::{client, connect, single};
use tenure_core::{Counter, Effect};
use tenure_testkit::{GENEROUS, Proxy, RedisServer, Way, eventually};

/// Adds one through a connection whose reply is lost, and so many more by another client before the request
/// is sent again.
async fn add_without_a_reply(warm: bool, others: i64) -> (tenure_core::Result<i64>, i64) {
    let server = RedisServer::start(&[]).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let slow = client(&single(proxy.port())).await.with_call_timeout(Duration::from_secs(1));
    let (slow, quick) = (slow.unwrap(), connect(&format!("127.0.0.1:{}", server.port())).await);
    let [slow, quick] = [slow, quick].map(|client| client.counter("stock").unwrap());
    // The list of changes is full before.
    add(&quick, 20).await;
    if warm {
        slow.add(1).await.unwrap();
    } else {
        slow.get().await.unwrap();
        quick.add(1).await.unwrap();
    }
    proxy.set(Way::Deaf);
    let adding = tokio::spawn(async move { slow.add(1).await });
    assert!(eventually(GENEROUS, || async { quick.get().await.unwrap() == 22 }).await);
    add(&quick, others).await;
    proxy.heal();
    let added = tokio::time::timeout(GENEROUS, adding).await.expect("the addition ends").unwrap();
    (added, quick.get().await.unwrap())
}

async fn add(counter: &Counter, times: i64) {
    for _ in 0..times {
        counter.add(1).await.unwrap();
    }
}

on_servers! {
    async fn an_addition_whose_reply_is_lost_counts_once_after_few_others() {
        for warm in [true, false] {
            let (added, value) = add_without_a_reply(warm, 10).await;
            assert_eq!((added.unwrap(), value), (32, 32));
        }
    }
}

on_servers! {
    async fn an_addition_that_the_counter_may_have_forgotten_is_not_counted_again() {
        for warm in [true, false] {
            let (added, value) = add_without_a_reply(warm, 30).await;
            assert_eq!(value, 52, "the addition was counted twice");
            assert_eq!(added.unwrap_err().effect(), Effect::Unknown);
        }
    }
}
