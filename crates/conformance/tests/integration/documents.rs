//! The tables of guarantees in the documents agree with the `Capabilities` of each engine.

use std::time::Duration;

use tenure::store::{Capabilities, Clock, Fencing};
use tenure::{Client, ErrorKind, Rate};
use tenure_testkit::{EtcdServer, RedisServer, ZooKeeperServer, lacks, temp_dir};

const README: &str = include_str!("../../../../README.md");
const GUARANTEES: &str = include_str!("../../../../docs/guarantees.md");

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
    const PAGE: &str = include_str!("../../../../docs/engines/redis.md");
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

#[test]
fn every_cell_of_the_table_that_compares_engines_links_to_its_evidence() {
    const PAGE: &str = include_str!("../../../../docs/choosing.md");
    let section = PAGE.split("## The table people know").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() >= 9, "{rows:?}");
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{row}");
        for cell in &cells[1..] {
            assert!(cell.contains("](") && cell.contains(".md#"), "{}: {cell}", cells[0]);
        }
    }
}

/// Compares both tables with the engine behind `url`.
async fn check(engine: &str, url: &str) {
    let client = tenure::connect(url).await.unwrap();
    let promised = client.store().capabilities();
    check_primitives(engine, &client).await;
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

/// The primitives of docs/guarantees.md, and the subjects of their cases. All other cases are about the mutex.
const PRIMITIVES: &[(&str, &[&str])] = &[
    ("re-entrant mutex", &["reentrant"]),
    ("read-write lock, downgrade", &["shared", "downgrade"]),
    ("multi-lock", &["multi"]),
    ("`blocking`", &["blocking"]),
    ("semaphore", &["permits"]),
    ("`cell`", &["cells"]),
    ("`counter`", &["counters"]),
    ("`rate_limiter`", &["limits"]),
    ("`once`", &["once"]),
    ("`election` with a value, `observe`", &["election"]),
    ("`latch`", &["latch"]),
    ("`barrier`", &["barrier"]),
    ("`revoke`, `revoked`", &["revocation"]),
];

#[test]
fn the_documents_count_the_cases_of_each_primitive() {
    let cases = |subjects: &[&str]| {
        let is_meant = |case: &&&str| subjects.contains(&case.split_once("::").unwrap().0);
        tenure_conformance::CASES.iter().filter(is_meant).count()
    };
    let mut others = tenure_conformance::CASES.len();
    for (primitive, subjects) in PRIMITIVES {
        others -= cases(subjects);
        let stated = cells_of(GUARANTEES, primitive, 7)[6];
        assert_eq!(stated, cases(subjects).to_string(), "docs/guarantees.md: {primitive}");
    }
    assert_eq!(
        cells_of(GUARANTEES, "mutex", 7)[6],
        others.to_string(),
        "docs/guarantees.md: mutex"
    );
}

/// Tries each primitive, and compares what is refused with the table.
async fn check_primitives(engine: &str, client: &Client) {
    let row = cells_of(GUARANTEES, "Primitive", 7);
    let column = row.iter().position(|title| title.starts_with(engine)).unwrap();
    let minute = Duration::from_secs(60);
    for (primitive, _) in PRIMITIVES.iter().chain(&[("mutex", &[][..])]) {
        let tried = match *primitive {
            "mutex" => client.mutex("tried").unwrap().try_acquire().await.map(drop),
            "re-entrant mutex" => {
                client.reentrant_mutex("tried-1").unwrap().try_acquire().await.map(drop)
            }
            "read-write lock, downgrade" => {
                let writer = client.rw_lock("tried-2").unwrap().try_write().await.unwrap();
                writer.downgrade().await.map(drop)
            }
            "multi-lock" => {
                let locks = client.multi_lock(["tried-3", "tried-4"]).unwrap();
                locks.try_acquire().await.map(drop)
            }
            "`blocking`" => {
                let client = client.clone();
                let blocks = move || {
                    let store = client.store().clone();
                    let client = tenure_core::blocking::Client::new(store)?;
                    client.mutex("tried-6")?.try_acquire().map(drop)
                };
                tokio::task::spawn_blocking(blocks).await.unwrap()
            }
            "semaphore" => client.semaphore("tried-5", 2).unwrap().try_acquire().await.map(drop),
            "`cell`" => client.cell::<u64>("tried").map(drop),
            "`counter`" => client.counter("tried").map(drop),
            "`rate_limiter`" => client.rate_limiter("tried", Rate::gcra(1, minute)).map(drop),
            "`once`" => client.once::<u64>("tried").map(drop),
            "`election` with a value, `observe`" => client.election::<u64>("tried").map(drop),
            "`latch`" => client.latch("tried", 2).map(drop),
            "`barrier`" => client.barrier("tried", 2).map(drop),
            "`revoke`, `revoked`" => client.revoke("tried", "a test").await.map(drop),
            other => panic!("{other} is not tried"),
        };
        let stated = cells_of(GUARANTEES, primitive, 7)[column];
        match tried {
            Ok(()) => assert!(stated.starts_with("yes"), "{engine}: {primitive} is supported"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{engine}: {primitive}: {error}");
                assert!(stated.starts_with("no"), "{engine}: {primitive}: {error}");
            }
        }
    }
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
