//! The suite on a Redis master found through Sentinels, in the layout of Redisson. All cases share the servers.

use std::sync::Weak;
use std::time::Duration;

use crate::shared_server::SharedServer;
use tenure_testkit::RedisSentinel;
use tokio::sync::Mutex;

async fn sentinel() -> SharedServer<RedisSentinel> {
    static RUNNING: Mutex<Weak<RedisSentinel>> = Mutex::const_new(Weak::new());
    // Long enough that a busy machine causes no failover.
    let start = || RedisSentinel::start(Duration::from_secs(10));
    let url = |group: &RedisSentinel| {
        format!("redis+sentinel://{}/main?dialect=redisson", group.addresses())
    };
    SharedServer::get_or_start(&RUNNING, start, url).await
}

tenure_conformance::suite!(sentinel, needs "redis-server");
