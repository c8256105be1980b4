//! Other clients on the same keys: a client that locks with `SET NX PX` excludes us and is excluded.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::{Eviction, Released};
use tenure_core::{Client, ErrorKind, Guard, LockName, Options};
use tenure_redis::{RedisConfig, RedisStore, Topology};
use tenure_testkit::RedisServer;

async fn connect(server: &RedisServer, fencing: bool) -> Client {
    let server = ("127.0.0.1".into(), server.port());
    let mut config = RedisConfig::new(Topology::Single { server });
    config.fencing = fencing;
    Client::new(Arc::new(RedisStore::connect(config).await.unwrap())).unwrap()
}

fn server() -> Option<RedisServer> {
    let missing = tenure_testkit::lacks("redis-server", "locks of other Redis clients");
    (!missing).then(|| RedisServer::start(&[]).unwrap())
}

/// The command with which redis-py, node-redlock, redsync, rslock and others take a lock.
fn set_if_absent(server: &RedisServer, value: &str) -> bool {
    let reply = server.command(&["SET", "tenure:a", value, "NX", "PX", "60000"]).unwrap();
    reply == "OK"
}

/// The script with which they release it.
fn delete_if_own(server: &RedisServer, value: &str) -> bool {
    let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                  return redis.call('DEL', KEYS[1]) else return 0 end";
    server.command(&["EVAL", script, "1", "tenure:a", value]).unwrap() == "1"
}

#[tokio::test]
async fn a_foreign_holder_keeps_us_out_and_its_release_lets_our_waiters_in() {
    let Some(server) = server() else { return };
    for fencing in [true, false] {
        let client = connect(&server, fencing).await;
        let mutex = client.mutex("a").unwrap();
        let mutex = mutex.with(Options::new().poll_cap(Duration::from_millis(50)));
        assert!(set_if_absent(&server, "theirs"));
        assert_eq!(mutex.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
        let reader = client.rw_lock("a").unwrap().try_read().await;
        assert_eq!(reader.unwrap_err().kind(), ErrorKind::Busy);
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let mutex = mutex.clone();
                tokio::spawn(async move { mutex.acquire().await?.release().await })
            })
            .collect();
        let in_line = || async { client.inspect("a").await.unwrap().waiters.len() == 3 };
        assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, in_line).await);
        assert!(delete_if_own(&server, "theirs"));
        for waiter in waiters {
            waiter.await.unwrap().unwrap();
        }
        assert!(client.inspect("a").await.unwrap().is_free());
    }
}

#[tokio::test]
async fn a_foreign_client_is_kept_out_by_holds_of_every_mode() {
    let Some(server) = server() else { return };
    for fencing in [true, false] {
        let client = connect(&server, fencing).await;
        let held: [Guard; 3] = [
            client.mutex("a").unwrap().acquire().await.unwrap(),
            // The others get their turn in the loop below.
            client.rw_lock("b").unwrap().read().await.unwrap().into(),
            client.semaphore("c", 2).unwrap().acquire().await.unwrap(),
        ];
        assert!(!set_if_absent(&server, "theirs"));
        assert!(!delete_if_own(&server, "theirs"), "a foreign client deleted our hold");
        for (guard, name) in held.into_iter().zip(["a", "b", "c"]) {
            let key = format!("tenure:{name}");
            let set = ["SET", &key, "theirs", "NX", "PX", "60000"];
            assert_eq!(server.command(&set).unwrap(), "(nil)", "{name}");
            guard.release().await.unwrap();
            assert_eq!(server.command(&set).unwrap(), "OK", "{name}");
            assert_eq!(server.command(&["DEL", &key]).unwrap(), "1", "{name}");
        }
    }
}

#[tokio::test]
async fn a_foreign_holder_is_shown_and_can_be_evicted_by_the_value_seen() {
    let Some(server) = server() else { return };
    let client = connect(&server, true).await;
    assert!(set_if_absent(&server, "some token of theirs"));
    let state = client.inspect("a").await.unwrap();
    let [holder] = &state.holders[..] else { panic!("one claim holds: {state:?}") };
    assert_eq!(holder.owner, "some token of theirs");
    assert_eq!((holder.token, holder.age, holder.pid), (None, None, None));
    assert!(holder.expires_in.unwrap() > Duration::from_secs(30));
    let eviction = |owner: &str| Eviction::new(LockName::new("a").unwrap(), owner, "test");
    let store = client.store();
    assert_eq!(store.evict(&eviction("another")).await.unwrap(), Released::NotHeld);
    assert_eq!(store.evict(&eviction(&holder.owner)).await.unwrap(), Released::Released);
    assert!(client.inspect("a").await.unwrap().is_free());
    let audit = server.command(&["LRANGE", "tenure:{tenure:a}:audit", "0", "-1"]).unwrap();
    assert!(audit.contains("some token of theirs") && audit.contains("test"), "{audit}");
}

#[tokio::test]
async fn a_foreign_lock_without_an_end_is_waited_for_and_shown_as_such() {
    let Some(server) = server() else { return };
    let client = connect(&server, true).await;
    assert_eq!(server.command(&["SET", "tenure:a", "for ever"]).unwrap(), "OK");
    let limit = Duration::from_millis(100);
    let error = client.mutex("a").unwrap().acquire_within(limit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let state = client.inspect("a").await.unwrap();
    assert_eq!(state.holders[0].expires_in, None);
    assert_eq!(state.waiters, []);
}

/// The value of a pool can vanish, by eviction or by hand: then its holders no longer hold.
#[tokio::test]
async fn a_reader_whose_key_was_taken_by_another_loses_its_lock_and_leaves_the_key_alone() {
    let Some(server) = server() else { return };
    let client = connect(&server, true).await;
    let options = Options::new().ttl(Duration::from_secs(2));
    for foreign in [true, false] {
        let reader = client.rw_lock("a").unwrap().with(options.clone()).read().await.unwrap();
        assert_eq!(server.command(&["DEL", "tenure:a"]).unwrap(), "1");
        let guard = if foreign {
            assert_eq!(server.command(&["SET", "tenure:a", "for ever"]).unwrap(), "OK");
            None
        } else {
            Some(client.mutex("a").unwrap().acquire().await.unwrap())
        };
        assert_eq!(reader.lost().await, tenure_core::LossReason::NotHeld);
        assert_eq!(reader.release().await.unwrap_err().kind(), ErrorKind::Lost);
        match guard {
            Some(guard) => guard.release().await.unwrap(),
            None => {
                assert_eq!(server.command(&["PTTL", "tenure:a"]).unwrap(), "-1");
                assert_eq!(server.command(&["DEL", "tenure:a"]).unwrap(), "1");
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_wants_tokens_gets_one_from_a_holder_that_does_not() {
    let Some(server) = server() else { return };
    let (fenced, unfenced) = (connect(&server, true).await, connect(&server, false).await);
    let holder = unfenced.mutex("a").unwrap().acquire().await.unwrap();
    assert_eq!(holder.token(), None);
    let waiter = fenced.mutex("a").unwrap();
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    let in_line = || async { fenced.inspect("a").await.unwrap().waiters.len() == 1 };
    assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, in_line).await);
    holder.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(guard.token().is_some());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn waiters_join_again_when_their_queue_was_lost() {
    let Some(server) = server() else { return };
    let client = connect(&server, true).await;
    assert!(set_if_absent(&server, "theirs"));
    let waiter = client.rw_lock("a").unwrap();
    let waiter = waiter.with(Options::new().poll_cap(Duration::from_millis(50)));
    let waiter = tokio::spawn(async move { waiter.read().await });
    let in_line = || async { client.inspect("a").await.unwrap().waiters.len() == 1 };
    assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, in_line).await);
    server.command(&["DEL", "tenure:{tenure:a}:line"]).unwrap();
    assert!(delete_if_own(&server, "theirs"));
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_short_foreign_value_is_not_changed_by_waiters() {
    let Some(server) = server() else { return };
    let client = connect(&server, true).await;
    assert!(set_if_absent(&server, "abc "));
    let error = client.mutex("a").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(delete_if_own(&server, "abc "));
}

#[tokio::test]
async fn keys_that_are_no_text_do_not_keep_locks_from_being_listed() {
    let Some(server) = server() else { return };
    let client = connect(&server, true).await;
    let guard = client.mutex("a").unwrap().acquire().await.unwrap();
    let script = r"return redis.call('SET', 'tenure:\255\254', 'x')";
    assert_eq!(server.command(&["EVAL", script, "0"]).unwrap(), "OK");
    let names = client.list("").await.unwrap();
    assert_eq!(names, [guard.name().clone()]);
}

/// Dropped at its second await, a first wait has subscribed, and no reply has arrived yet.
#[tokio::test]
async fn a_first_wait_that_was_dropped_does_not_keep_others_from_waiting() {
    let Some(server) = server() else { return };
    for polls in 1..6 {
        let client = connect(&server, true).await;
        let holder = client.mutex("a").unwrap().acquire().await.unwrap();
        let mutex = client.mutex("a").unwrap();
        {
            let mut first = std::pin::pin!(mutex.acquire());
            for _ in 0..polls {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(first.as_mut().poll(&mut context).is_pending());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        let second = tokio::spawn(async move { mutex.acquire().await });
        let in_line = || async { client.inspect("a").await.unwrap().waiters.len() == 1 };
        assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, in_line).await);
        holder.release().await.unwrap();
        second.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_foreign_value_that_is_no_text_can_be_evicted_as_it_is_shown() {
    let Some(server) = server() else { return };
    let client = connect(&server, true).await;
    let set = "return redis.call('SET', 'tenure:a', string.char(255, 0, 10, 128), 'PX', 60000)";
    assert_eq!(server.command(&["EVAL", set, "1", "tenure:a"]).unwrap(), "OK");
    let state = client.inspect("a").await.unwrap();
    let [holder] = &state.holders[..] else { panic!("one claim holds: {state:?}") };
    assert_eq!(holder.owner, "0xff000a80");
    let eviction = Eviction::new(LockName::new("a").unwrap(), &holder.owner, "test");
    assert_eq!(client.store().evict(&eviction).await.unwrap(), Released::Released);
    assert!(client.inspect("a").await.unwrap().is_free());
}
