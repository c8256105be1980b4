//! The documents' tables of guarantees say what each engine's `Capabilities` say.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

use std::fmt::Write as _;

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

/// Compares both tables with the engine behind `url`.
async fn check(engine: &str, url: &str) {
    let client = tenure::connect(url).await.unwrap();
    let promised = client.store().capabilities();
    client.close().await;

    let expected = row(engine, &promised);
    let found = line_of(GUARANTEES, engine);
    assert_eq!(found, expected, "docs/guarantees.md differs from the engine's Capabilities");

    let cells: Vec<&str> = line_of(README, engine).split('|').map(str::trim).collect();
    let [_, _, holders, tokens, death, fifo, clock, _] = cells[..] else {
        panic!("the README's row of {engine} has other columns: {cells:?}");
    };
    assert!(!holders.is_empty(), "{engine}: which faults can make two holders?");
    assert_eq!(tokens != "no tokens", promised.fencing.gives_tokens(), "{engine}: {tokens}");
    assert_eq!(death.starts_with("at once"), promised.detects_death, "{engine}: {death}");
    assert_eq!(fifo, yes(promised.fifo), "{engine}: FIFO");
    let stands_still = promised.clock == Clock::Monotonic;
    assert_eq!(clock.contains("stops in suspend"), stands_still, "{engine}: {clock}");
}

/// The only table row that begins with this engine's name, be it a link, and has its columns.
fn line_of<'a>(document: &'a str, engine: &str) -> &'a str {
    let begins = |line: &&str| {
        let first = line.strip_prefix("| ").and_then(|rest| rest.split(" |").next());
        first.is_some_and(|cell| cell == engine || cell.starts_with(&format!("[{engine}](")))
    };
    let wide = |line: &&str| line.matches('|').count() > 3;
    document.lines().filter(begins).find(wide).unwrap_or_else(|| panic!("no row for {engine}"))
}

/// The row of docs/guarantees.md.
fn row(engine: &str, promised: &Capabilities) -> String {
    let tokens = match promised.fencing {
        Fencing::Until { fault } => fault,
        _ => "no tokens",
    };
    let mut row = format!("| {engine} | {tokens} |");
    for cell in [
        yes(promised.fifo),
        yes(promised.push),
        yes(promised.shared),
        yes(promised.permits),
        if promised.detects_death { "at once" } else { "when its lease ends" },
        if promised.tells_losses { "at once" } else { "at its next renewal" },
        yes(promised.cross_process),
        yes(promised.clock == Clock::Monotonic),
    ] {
        write!(row, " {cell} |").unwrap();
    }
    row
}

const fn yes(promised: bool) -> &'static str {
    if promised { "yes" } else { "no" }
}
