//! Names under which something is stored that is no lock of Redisson.

use std::sync::Arc;

use tenure_core::{Client, ErrorKind};
use tenure_redis::{ACL, ACL_REDISSON, RedisConfig, RedissonStore, Topology};
use tenure_testkit::{GENEROUS, eventually, lacks};
use tokio::time::timeout;

use super::{CURRENT, LONG, NAME, Scene, long};

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
        // A counter may be a semaphore of which no permit is held.
        match scene.ours.inspect(NAME).await {
            Ok(state) => assert!(state.is_free() && family == "RSemaphore", "{family}"),
            Err(error) => refused(error),
        }
        if family != "RSemaphore" {
            let semaphore = scene.ours.semaphore(NAME, 2).unwrap();
            refused(semaphore.try_acquire().await.unwrap_err());
        }
        for owner in ["mode", "sku", "rate", "member"] {
            assert!(!scene.ours.evict(NAME, owner, "test").await.unwrap(), "{family} {owner}");
        }
        assert_eq!(scene.ours.list("").await.unwrap(), []);
        assert_eq!(said(&["DUMP", NAME]), before, "{family} was touched");
        assert_eq!(said(&["DBSIZE"]), "1", "{family}: something was left");
        said(&["DEL", NAME]);
    }
}

/// What the real one writes: its latch is a number, its group lock a hash of several holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latches_and_group_locks_of_theirs_are_named_and_left_alone() {
    if CURRENT.is_missing("latches and group locks") {
        return;
    }
    let scene = Scene::set().await;
    for (kind, family) in [("latch", "RCountDownLatch"), ("group", "a group lock")] {
        let mut theirs = match kind {
            "latch" => {
                let mut latch = scene.theirs(&CURRENT, kind).await;
                assert_eq!(latch.answer("size 2").await, "true");
                latch
            }
            _ => {
                let mut group = scene.theirs_unasked(&CURRENT, kind);
                assert!(group.try_hold(Some(LONG)).await);
                group
            }
        };
        // Fields of a large hash have no order: each look at it may move some.
        let content = || {
            let read = if kind == "latch" { "GET" } else { "HGETALL" };
            let read = scene.server.command(&[read, NAME]).unwrap();
            let lines: Vec<String> = read.lines().map(str::to_owned).collect();
            let mut fields: Vec<_> = lines.chunks(2).map(<[String]>::to_vec).collect();
            fields.sort();
            fields
        };
        let before = content();
        let refused = scene.ours.mutex(NAME).unwrap().try_acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
        assert!(refused.to_string().contains(family), "{refused}");
        assert_eq!(content(), before, "{kind} was touched");
        if kind == "latch" {
            assert_eq!(theirs.answer("count").await, "2 0");
            scene.server.command(&["DEL", NAME]).unwrap();
        } else {
            theirs.release().await;
        }
    }
}

/// A claim of permits would count a latch down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_of_ours_does_not_count_a_latch_down_that_java_programs_wait_for() {
    if CURRENT.is_missing("a latch that Java programs wait for") {
        return;
    }
    let scene = Scene::set().await;
    let mut theirs = scene.theirs(&CURRENT, "latch").await;
    assert_eq!(theirs.answer("size 1").await, "true");
    let mut waiting = scene.theirs_unasked(&CURRENT, "latch");
    waiting.send("await");
    let channel = format!("redisson_countdownlatch__channel__{{{NAME}}}");
    let said = |words: &[&str]| scene.server.command(words).unwrap();
    let listens = async || said(&["PUBSUB", "NUMSUB", &channel]).ends_with('1');
    assert!(eventually(GENEROUS, listens).await);
    let semaphore = scene.ours.semaphore(NAME, 1).unwrap();
    let refused = semaphore.try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
    assert!(refused.to_string().contains("RCountDownLatch"), "{refused}");
    assert_eq!(theirs.answer("count").await, "1 0");
    assert_eq!(theirs.answer("down").await, "counted");
    assert_eq!(waiting.line().await, "open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_suffice() {
    if lacks("redis-server", "the documented rights") {
        return;
    }
    let scene = Scene::set().await;
    let usual = ACL.replace("~tenure:*", "~*");
    let rights = format!("ACL SETUSER locker on >pw &redisson_* {usual} {ACL_REDISSON}");
    let rights: Vec<&str> = rights.split_whitespace().collect();
    assert_eq!(scene.server.command(&rights).unwrap(), "OK");
    let server = ("127.0.0.1".into(), scene.server.port());
    let mut config = RedisConfig::new(Topology::Single { server });
    config.prefix.clear();
    config.username = Some("locker".into());
    config.password = Some("pw".into());
    let client = Client::new(Arc::new(RedissonStore::connect(config).await.unwrap())).unwrap();
    let writer = client.rw_lock(NAME).unwrap().with(long()).write().await.unwrap();
    let reader = client.rw_lock(NAME).unwrap().with(long());
    let waiter = tokio::spawn(async move { reader.read().await.unwrap() });
    assert_eq!(client.list("").await.unwrap().len(), 1);
    let writer = writer.downgrade().await.unwrap();
    let reader = timeout(GENEROUS, waiter).await.expect("the reader is admitted").unwrap();
    assert_eq!(client.inspect(NAME).await.unwrap().holders.len(), 2);
    let owner = reader.owner().to_string();
    assert!(client.evict(NAME, &owner, "test").await.unwrap());
    assert_eq!(client.audit(NAME).await.unwrap().len(), 1);
    writer.release().await.unwrap();
    let mut barrier = client.barrier(NAME, 1).unwrap().with(long());
    barrier.wait().await.unwrap();
    let mut surplus = client.barrier(NAME, 1).unwrap().with(long());
    let waiter = tokio::spawn(async move { surplus.wait().await });
    let name = format!("barrier:{NAME}");
    let waits = async || client.inspect(&name).await.unwrap().waiters.len() == 1;
    assert!(eventually(GENEROUS, waits).await, "the second party never waited");
    drop(barrier);
    timeout(GENEROUS, waiter).await.expect("its turn comes").unwrap().unwrap();
    scene.server.command(&["SET", NAME, "x"]).unwrap();
    let refused = client.mutex(NAME).unwrap().try_acquire().await.unwrap_err();
    assert!(refused.to_string().contains("a string"), "{refused}");
}
