//! Names under which something is stored that is no lock of Redisson.

use tenure_core::ErrorKind;
use tenure_testkit::lacks;

use super::{NAME, Scene};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_lock_is_named_and_left_alone() {
    if lacks("redis-server", "what is no lock") {
        return;
    }
    let scene = Scene::set().await;
    let said = |words: &[&str]| scene.server.command(words).unwrap();
    let group = "sku:00112233-4455-6677-8899-aabbccddeeff:17:lock_count";
    let cases: [(&[&str], &str); 7] = [
        (&["SET", NAME, "0123456789abcdef0123456789abcdef"], "redis-py"),
        (&["SET", NAME, "17"], "RSemaphore"),
        (&["SET", NAME, "AAECAwQFBgcICQoLDA0ODw=="], "redsync"),
        (&["HSET", NAME, "sku", "x", group, "1"], "group lock"),
        (&["HSET", NAME, "rate", "1", "interval", "2", "type", "0"], "RRateLimiter"),
        (&["ZADD", NAME, "1", "member"], "a zset"),
        (&["RPUSH", NAME, "entry"], "a list"),
    ];
    for (write, family) in cases {
        said(write);
        let before = said(&["DUMP", NAME]);
        let refused = |error: tenure_core::Error| {
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains(family), "{error}");
        };
        refused(scene.ours.mutex(NAME).unwrap().try_acquire().await.unwrap_err());
        refused(scene.ours.rw_lock(NAME).unwrap().try_read().await.unwrap_err());
        refused(scene.ours.inspect(NAME).await.unwrap_err());
        for owner in ["mode", "sku", "rate", "member"] {
            assert!(!scene.ours.evict(NAME, owner, "test").await.unwrap(), "{family} {owner}");
        }
        assert_eq!(scene.ours.list("").await.unwrap(), []);
        assert_eq!(said(&["DUMP", NAME]), before, "{family} was touched");
        assert_eq!(said(&["DBSIZE"]), "1", "{family}: something was left");
        said(&["DEL", NAME]);
    }
}
