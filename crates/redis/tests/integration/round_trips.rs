//! How many commands a call costs: the server is a stub that counts them, and answers a command only when all
//! that belong to one round trip have arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::servers::{client, single};
use crate::stubs::{bulk, stub};
use tenure_core::{Client, Rate};
use tenure_testkit::RedisStub;

/// A server that answers commands only in groups of `group`, all with this reply.
fn answers_in_groups_of(group: usize, reply: String) -> RedisStub {
    let seen = AtomicUsize::new(0);
    stub(move |_| {
        let count = seen.fetch_add(1, Ordering::SeqCst) + 1;
        Some(if count.is_multiple_of(group) { reply.repeat(group) } else { String::new() })
    })
}

/// What it was sent after the login.
fn commands(server: &RedisStub) -> Vec<String> {
    let sent = server.commands().into_iter().filter(|words| {
        !["HELLO", "SCRIPT", "CLIENT"].iter().any(|login| words[0].eq_ignore_ascii_case(login))
    });
    sent.map(|words| words[0].clone()).collect()
}

async fn connect(server: &RedisStub) -> Client {
    client(&single(server.port())).await
}

#[tokio::test]
async fn a_counter_is_changed_in_one_trip() {
    let server = answers_in_groups_of(1, bulk("done 5"));
    let counter = connect(&server).await.counter("stock").unwrap();
    assert_eq!(counter.subtract(3, 0).await.unwrap(), 5);
    assert_eq!(commands(&server), ["EVALSHA"]);
}

#[tokio::test]
async fn a_rate_limiter_is_asked_in_one_trip() {
    let server = answers_in_groups_of(1, bulk("1 7 1 1000000"));
    let limits = connect(&server).await;
    let limiter = limits.rate_limiter("mails", Rate::gcra(2, Duration::from_secs(60))).unwrap();
    assert!(limiter.take(1).await.unwrap().allowed);
    assert_eq!(commands(&server), ["EVALSHA"]);
}

#[tokio::test]
async fn a_cell_without_a_conflict_is_read_once_and_then_changed_in_one_trip_each() {
    let server = stub(|words| match words[0] {
        "GET" => Some("$-1\r\n".into()),
        _ => Some(":1\r\n".into()),
    });
    let cell = connect(&server).await.cell::<u64>("stock").unwrap();
    for _ in 0..3 {
        let updated = cell.update(|value| value.unwrap_or(10) - 1).await.unwrap();
        assert_eq!(updated.conflicts, 0);
    }
    // The handle knows what it wrote last.
    assert_eq!(commands(&server), ["GET", "EVALSHA", "EVALSHA", "EVALSHA"]);
}

#[tokio::test]
async fn four_free_locks_are_taken_in_one_trip_and_released_in_one() {
    // A run over four keys releases; one over more takes.
    let server = stub(|words| match words[2] {
        "4" => Some(":1\r\n".into()),
        _ => Some(bulk("granted 1024")),
    });
    let locks = connect(&server).await.multi_lock(["a", "b", "c", "d"]).unwrap();
    let guard = locks.try_acquire().await.unwrap();
    assert_eq!(guard.guards().len(), 4);
    assert_eq!(commands(&server), ["EVALSHA"]);
    guard.release().await.unwrap();
    assert_eq!(commands(&server), ["EVALSHA"; 2]);
}

#[tokio::test]
async fn a_reader_of_a_free_lock_costs_one_trip() {
    let server = answers_in_groups_of(1, bulk("granted 1024"));
    let lock = connect(&server).await.rw_lock("catalogue").unwrap();
    let guard = lock.try_read().await.unwrap();
    assert!(guard.token().is_some());
    assert_eq!(commands(&server), ["EVALSHA"]);
}

#[tokio::test]
async fn entering_a_hold_again_sends_nothing() {
    let server = answers_in_groups_of(1, bulk("granted 1024"));
    let account = connect(&server).await.reentrant_mutex("account/7").unwrap();
    let outer = account.acquire().await.unwrap();
    for _ in 0..10 {
        account.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(commands(&server), ["EVALSHA"]);
    drop(outer);
}

#[tokio::test]
async fn a_cell_that_is_swapped_by_watch_costs_two_trips() {
    let (seen, answered) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let trips = Arc::clone(&answered);
    // The first trip is an empty transaction, WATCH, GET; the second one MULTI, SET, EXEC.
    let server = stub(move |words| {
        // The read before the first update.
        if seen.load(Ordering::SeqCst) == 0 && words[0] == "GET" {
            return Some("$-1\r\n".into());
        }
        let count = seen.fetch_add(1, Ordering::SeqCst) + 1;
        if ![4, 7].contains(&count) {
            return Some(String::new());
        }
        trips.fetch_add(1, Ordering::SeqCst);
        Some(match words[0] {
            "GET" => "+OK\r\n*0\r\n+OK\r\n$-1\r\n".into(),
            "EXEC" => "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n".into(),
            other => format!("-ERR {other} is out of order\r\n").repeat(4),
        })
    });
    let mut config = single(server.port());
    config.cells = tenure_redis::CellUpdates::Watch;
    let cell = client(&config).await.cell::<u64>("stock").unwrap();
    let updated = cell.update(|value| value.unwrap_or(10) - 1).await.unwrap();
    assert_eq!((updated.value, updated.conflicts), (9, 0));
    assert_eq!(answered.load(Ordering::SeqCst), 2);
    let order = ["GET", "MULTI", "EXEC", "WATCH", "GET", "MULTI", "SET", "EXEC"];
    assert_eq!(commands(&server), order);
}
