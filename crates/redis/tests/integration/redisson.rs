//! The layout of Redisson, and what is kept beside it for tenure alone.

use std::sync::Arc;
use std::time::Duration;

use crate::servers::{said, single};
use tenure_core::{Client, ErrorKind, Options};
use tenure_redis::{RedisConfig, RedissonStore};
use tenure_testkit::{GENEROUS, RedisServer, eventually};
use tokio::time::timeout;

async fn client(config: &RedisConfig) -> Client {
    let mut config = config.clone();
    config.prefix.clear();
    Client::new(Arc::new(RedissonStore::connect(config).await.unwrap())).unwrap()
}

on_servers! {
    /// Redisson's counters have no expiry, so the leases of parties may not be in its layout.
    async fn latches_and_barriers_leave_no_key_without_an_expiry() {
        let server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        let latch = client.latch("a", 1).unwrap();
        let party = latch.join().await.unwrap();
        let mut barrier = client.barrier("b", 1).unwrap();
        barrier.wait().await.unwrap();
        let listed = || async { client.list("").await.unwrap() };
        assert_eq!(listed().await, ["barrier:b", "latch:a"].map(|name| name.parse().unwrap()));
        assert_eq!(client.list("latch").await.unwrap().len(), 1);
        assert_eq!(party.count_down().await.unwrap(), 0);
        drop(barrier);
        assert!(eventually(GENEROUS, || async { listed().await.is_empty() }).await);
        for key in said(&server, &["KEYS", "*"]).lines() {
            assert!(key.starts_with("tenure:"), "{key} is in Redisson's layout");
            // One counter serves all locks.
            let expires = key == "tenure:{token}" || said(&server, &["PTTL", key]) != "-1";
            assert!(expires, "{key} stays");
        }
    }
}

on_servers! {
    /// A lock there would be in tenure's layout, and would not exclude one of a Java program's.
    async fn a_lock_with_the_name_of_parties_is_refused() {
        let server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        for name in ["latch:a", "barrier:a"] {
            let refused = client.mutex(name).unwrap().try_acquire().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
            let refused = client.rw_lock(name).unwrap().try_read().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        }
        client.mutex("latch").unwrap().try_acquire().await.unwrap().release().await.unwrap();
        client.mutex("barrier-a:1").unwrap().try_acquire().await.unwrap().release().await.unwrap();
        assert_eq!(said(&server, &["DBSIZE"]), "2", "the tokens of two locks");
    }
}

on_servers! {
    /// Parties wait in a queue of tenure's, and other claims on the channels of Redisson.
    async fn messages_of_both_layouts_wake_their_waiters() {
        let server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        // Longer than the bound below: only messages can be what is heard.
        let hour = Duration::from_secs(3600);
        let options = Options::new().ttl(hour).poll_cap(hour);
        let mutex = client.mutex("a").unwrap().with(options.clone());
        let surplus = |_| client.barrier("b", 1).unwrap().with(options.clone());
        let [mut first, mut second] = [0, 1].map(surplus);
        let held = mutex.acquire().await.unwrap();
        first.wait().await.unwrap();
        let waiters = tokio::spawn(async move {
            let acquired = async { mutex.acquire().await.unwrap() };
            tokio::join!(acquired, async { second.wait().await.unwrap() })
        });
        let waits = async || client.inspect("barrier:b").await.unwrap().waiters.len() == 1;
        assert!(eventually(GENEROUS, waits).await, "the second party never waited");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!waiters.is_finished());
        drop(first);
        held.release().await.unwrap();
        let (guard, _) = timeout(GENEROUS, waiters).await.expect("both are woken").unwrap();
        guard.release().await.unwrap();
    }
}

on_servers! {
    /// Redisson keeps the answer of each unlock for a while, beside the lock.
    async fn an_unlock_latch_is_no_lock() {
        let server = RedisServer::start(&[]).unwrap();
        let client = client(&single(server.port())).await;
        let guard = client.mutex("a").unwrap().acquire().await.unwrap();
        for (name, answer) in [("a", "0"), ("b", "1")] {
            let latch = format!("redisson_unlock_latch:{{{name}}}:0123456789abcdef0123456789abcdef");
            said(&server, &["SET", &latch, answer, "PX", "60000"]);
        }
        assert_eq!(client.list("").await.unwrap(), ["a".parse().unwrap()]);
        assert_eq!(client.list("redisson").await.unwrap(), []);
        guard.release().await.unwrap();
        assert_eq!(client.list("").await.unwrap(), []);
        client.mutex("b").unwrap().try_acquire().await.unwrap().release().await.unwrap();
    }
}
