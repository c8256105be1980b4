//! The tables of guarantees in the documents agree with the `Capabilities` of each engine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tenure::store::{Capabilities, Clock, Fencing};
use tenure_testkit::{EtcdServer, RedisServer, ZooKeeperServer, lacks, temp_dir};

const README: &str = include_str!("../../../README.md");
const GUARANTEES: &str = include_str!("../../../docs/guarantees.md");

#[tokio::test]
async fn the_documents_state_the_guarantees_of_local() {
    let folder = temp_dir();
    check("local", &format!("local:{}", folder.path().display())).await;
}

#[tokio::test]
async fn the_documents_state_the_guarantees_of_memory() {
    check("memory", "memory:").await;
}

#[tokio::test]
async fn the_documents_state_the_guarantees_of_redis() {
    if lacks("redis-server", "the documented guarantees of Redis") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    check("Redis", &format!("redis://127.0.0.1:{}", server.port())).await;
}

#[tokio::test]
async fn the_documents_state_the_guarantees_of_redlock() {
    if lacks("redis-server", "the documented guarantees of Redlock") {
        return;
    }
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start(&[]).unwrap()).collect();
    let hosts: Vec<_> = servers.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
    check("Redlock", &format!("redlock://{}?timeout=10s", hosts.join(","))).await;
}

#[tokio::test]
async fn the_documents_state_the_guarantees_of_etcd() {
    if lacks("etcd", "the documented guarantees of etcd") {
        return;
    }
    let server = EtcdServer::start(&[]).unwrap();
    check("etcd", &format!("etcd://127.0.0.1:{}?timeout=10s", server.port())).await;
}

#[tokio::test]
async fn the_documents_state_the_guarantees_of_zookeeper() {
    if ZooKeeperServer::is_missing("the documented guarantees of ZooKeeper") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    check("ZooKeeper", &format!("zk://127.0.0.1:{}?timeout=10s", server.port())).await;
}

#[test]
fn the_documents_grant_the_rights_that_redis_needs() {
    const PAGE: &str = include_str!("../../../docs/engines/redis.md");
    let command = PAGE.split("ACL SETUSER locker on >password ").nth(1).unwrap();
    let granted: Vec<_> = command.split("```").next().unwrap().split_whitespace().collect();
    assert_eq!(granted, tenure_redis::ACL.split_whitespace().collect::<Vec<_>>());
    let more = PAGE.replace("\\|", "|");
    let rights = [
        tenure_redis::ACL_SENTINEL,
        tenure_redis::ACL_CLUSTER,
        tenure_redis::ACL_QUORUM,
        tenure_redis::ACL_REDISSON,
        tenure_redis::ACL_DELIFEQ,
        tenure_redis::ACL_DELEX,
    ];
    for right in rights {
        assert!(more.contains(&format!("`{right}`")), "docs/engines/redis.md lacks {right}");
    }
}

/// Compares both tables with the engine behind `url`.
async fn check(engine: &str, url: &str) {
    let client = tenure::connect(url).await.unwrap();
    let promised = client.store().capabilities();
    client.close().await;

    assert_eq!(
        cells_of(GUARANTEES, engine, 9),
        promises(&promised),
        "docs/guarantees.md: {engine}"
    );
    let until = match promised.fencing {
        Fencing::Until { fault } => fault,
        _ => "no tokens",
    };
    assert_eq!(cells_of(GUARANTEES, engine, 2)[1], until, "docs/guarantees.md: {engine}");

    let cells = cells_of(README, engine, 5);
    let [holders, tokens, death, fifo, clock] = cells[..] else { unreachable!("five cells") };
    assert!(!holders.is_empty(), "{engine}: which faults can make two holders?");
    assert_eq!(tokens != "no tokens", promised.fencing.gives_tokens(), "{engine}: {tokens}");
    assert_eq!(death.starts_with("at once"), promised.detects_death, "{engine}: {death}");
    assert_eq!(fifo, yes(promised.fifo), "{engine}: FIFO");
    let stands_still = promised.clock == Clock::Monotonic;
    assert_eq!(clock.contains("stops in suspend"), stands_still, "{engine}: {clock}");
}

/// The cells after the engine's name, which may be a link, in the row with so many of them.
fn cells_of<'a>(document: &'a str, engine: &str, count: usize) -> Vec<&'a str> {
    let link = format!("[{engine}](");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let mut rows = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    let is_meant = |cells: &Vec<&str>| {
        cells.len() == count + 1 && (cells[0] == engine || cells[0].starts_with(&link))
    };
    rows.find(is_meant)
        .unwrap_or_else(|| panic!("no row of {engine} with {count} cells"))
        .split_off(1)
}

/// The row of the first table in docs/guarantees.md.
const fn promises(promised: &Capabilities) -> [&'static str; 9] {
    [
        yes(promised.fifo),
        yes(promised.push),
        yes(promised.shared),
        yes(promised.downgrade),
        yes(promised.permits),
        if promised.detects_death { "at once" } else { "when its lease ends" },
        if promised.tells_losses { "at once" } else { "at its next renewal" },
        yes(promised.cross_process),
        yes(matches!(promised.clock, Clock::Monotonic)),
    ]
}

const fn yes(promised: bool) -> &'static str {
    if promised { "yes" } else { "no" }
}
