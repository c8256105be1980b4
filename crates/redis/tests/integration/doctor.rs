//! What the store says about real servers: each finding where it is due, and only there.

use std::time::Duration;

use tenure_core::store::Store;
use tenure_core::{ErrorKind, Finding, Severity};
use tenure_redis::{
    ACL, ACL_CLUSTER, ACL_REDISSON, RedisConfig, RedisStore, RedissonStore, Topology,
};
use tenure_testkit::{
    GENEROUS, RedisCluster, RedisSentinel, RedisServer, VALKEY_9, eventually, is_installed,
};

/// The settings of a server that is fit to lock on.
const FIT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn start(arguments: &[&str]) -> Option<RedisServer> {
    is_installed("redis-server").then(|| RedisServer::start(arguments).unwrap())
}

fn config(server: &RedisServer) -> RedisConfig {
    let server = ("127.0.0.1".into(), server.port());
    let mut config = RedisConfig::new(Topology::Single { server });
    config.timeout = GENEROUS;
    config
}

async fn diagnosed(config: RedisConfig) -> Vec<Finding> {
    let store = RedisStore::connect(config).await.unwrap();
    store.diagnose().await.unwrap()
}

/// The severity of the one finding that has this in its text.
#[track_caller]
fn severity(findings: &[Finding], text: &str) -> Option<Severity> {
    let mut found = findings.iter().filter(|finding| finding.what.contains(text));
    let first = found.next();
    assert_eq!(found.next(), None, "{text} is reported twice");
    first.map(|finding| finding.severity)
}

fn unsafe_ones(findings: &[Finding]) -> Vec<&str> {
    let bad = findings.iter().filter(|finding| finding.severity == Severity::Unsafe);
    bad.map(|finding| finding.what.as_str()).collect()
}

#[tokio::test]
async fn a_server_that_keeps_its_data_and_evicts_nothing_is_fit_and_left_as_it_was() {
    let Some(server) = start(&FIT) else { return };
    let findings = diagnosed(config(&server)).await;
    assert_eq!(unsafe_ones(&findings), [""; 0]);
    for text in [
        "no key is evicted",
        "on disk before it is granted",
        "the server is new enough",
        "clock and this machine's agree",
        "all rights that locks need",
        "taken, handed over, renewed and released",
    ] {
        assert_eq!(severity(&findings, text), Some(Severity::Fine), "{text}: {findings:?}");
    }
    assert_eq!(server.command(&["KEYS", "*"]).unwrap(), "tenure:{token}");
}

#[tokio::test]
async fn eviction_is_unsafe_with_a_limit_and_advice_without() {
    let evicting = [&FIT[..], &["--maxmemory-policy", "volatile-lru"]].concat();
    let Some(server) = start(&[&evicting[..], &["--maxmemory", "100mb"]].concat()) else { return };
    let findings = diagnosed(config(&server)).await;
    assert_eq!(severity(&findings, "maxmemory-policy volatile-lru"), Some(Severity::Unsafe));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    let findings = diagnosed(config(&server)).await;
    assert_eq!(severity(&findings, "maxmemory-policy volatile-lru"), Some(Severity::Advice));
    assert_eq!(unsafe_ones(&findings), [""; 0]);
}

#[tokio::test]
async fn persistence_is_judged_by_what_a_restart_forgets() {
    let Some(server) = start(&[]) else { return };
    let set = |name, value| {
        assert_eq!(server.command(&["CONFIG", "SET", name, value]).unwrap(), "OK");
    };
    let findings = diagnosed(config(&server)).await;
    assert_eq!(severity(&findings, "loses every lock"), Some(Severity::Unsafe), "{findings:?}");
    assert_eq!(unsafe_ones(&findings).len(), 1);
    set("save", "3600 1");
    let findings = diagnosed(config(&server)).await;
    assert_eq!(severity(&findings, "only snapshots"), Some(Severity::Advice), "{findings:?}");
    set("appendonly", "yes");
    let findings = diagnosed(config(&server)).await;
    assert_eq!(severity(&findings, "appendfsync everysec"), Some(Severity::Advice));
    assert_eq!(unsafe_ones(&findings), [""; 0]);
}

#[tokio::test]
async fn a_master_with_replicas_is_asked_for_a_minimum_and_a_replica_is_refused() {
    let Some(master) = start(&FIT) else { return };
    let port = master.port().to_string();
    let replica = start(&[&FIT[..], &["--replicaof", "127.0.0.1", &port]].concat()).unwrap();
    let follows =
        || async { master.command(&["INFO", "replication"]).unwrap().contains("state=online") };
    assert!(eventually(GENEROUS, follows).await, "the replica never comes");
    let findings = diagnosed(config(&master)).await;
    assert_eq!(severity(&findings, "min-replicas-to-write 0"), Some(Severity::Advice));
    master.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    let findings = diagnosed(config(&master)).await;
    assert_eq!(severity(&findings, "min-replicas-to-write 0"), None);
    assert_eq!(severity(&findings, "min-replicas-to-write 1"), Some(Severity::Fine));
    let findings = diagnosed(config(&replica)).await;
    assert_eq!(severity(&findings, "it grants no locks"), Some(Severity::Unsafe));
}

fn limited(server: &RedisServer, rights: &str) -> RedisConfig {
    let words = ["ACL", "SETUSER", "joe", "reset", "on", ">secret"].into_iter();
    let words: Vec<_> = words.chain(rights.split_whitespace()).collect();
    assert_eq!(server.command(&words).unwrap(), "OK");
    let mut config = config(server);
    (config.username, config.password) = (Some("joe".into()), Some("secret".into()));
    config
}

#[tokio::test]
async fn with_the_documented_rights_only_the_settings_cannot_be_checked() {
    let Some(server) = start(&FIT) else { return };
    let findings = diagnosed(limited(&server, ACL)).await;
    assert_eq!(unsafe_ones(&findings), [""; 0]);
    assert_eq!(severity(&findings, "all rights that locks need"), Some(Severity::Fine));
    assert_eq!(severity(&findings, "handed over, renewed"), Some(Severity::Fine));
    assert_eq!(severity(&findings, "may not run INFO and CONFIG GET"), Some(Severity::Advice));
    let findings = diagnosed(limited(&server, &format!("{ACL} +info"))).await;
    assert_eq!(severity(&findings, "may not run CONFIG GET"), Some(Severity::Advice));
    assert_eq!(severity(&findings, "no key is evicted"), Some(Severity::Fine), "INFO has it");
}

#[tokio::test]
async fn each_missing_right_is_named_with_the_words_to_grant_it() {
    let Some(server) = start(&FIT) else { return };
    for (change, remedy) in [
        ("-zadd", "ACL SETUSER joe +zadd"),
        ("-publish", "ACL SETUSER joe +publish"),
        ("-subscribe", "ACL SETUSER joe +subscribe"),
        ("-set", "ACL SETUSER joe +set"),
        ("-del", "ACL SETUSER joe +del"),
        ("resetkeys ~other:*", "ACL SETUSER joe ~tenure:*"),
        ("resetchannels &other:*", "ACL SETUSER joe &tenure:*"),
    ] {
        let findings = diagnosed(limited(&server, &format!("{ACL} {change}"))).await;
        let bad: Vec<_> = findings.iter().filter(|f| f.severity == Severity::Unsafe).collect();
        assert_eq!(bad.len(), 1, "{change}: {findings:?}");
        assert_eq!(bad[0].remedy, remedy);
        assert_eq!(severity(&findings, "all rights that locks need"), None);
    }
    let mut replicated = limited(&server, ACL);
    replicated.replicas = 1;
    let findings = diagnosed(replicated).await;
    assert!(findings.iter().any(|finding| finding.remedy == "ACL SETUSER joe +wait"));
    let findings = diagnosed(limited(&server, &format!("{ACL} -scan -ltrim"))).await;
    assert_eq!(unsafe_ones(&findings), [""; 0]);
    assert_eq!(severity(&findings, "may not run SCAN"), Some(Severity::Advice));
    assert_eq!(severity(&findings, "may not run LTRIM"), Some(Severity::Advice));
}

/// Its keys and channels have names of their own, and its scripts call more commands.
#[tokio::test]
async fn the_rights_for_locks_of_redisson_are_tried_too() {
    let Some(server) = start(&FIT) else { return };
    let all = format!("{ACL} {ACL_REDISSON} ~* &redisson_*");
    for (rights, remedies) in [
        (all.clone(), &[][..]),
        (format!("{ACL} {ACL_REDISSON} &redisson_*"), &["ACL SETUSER joe ~*"]),
        // Other keys belong to the lock than that of its name.
        (format!("{ACL} {ACL_REDISSON} ~tenure-doctor* &redisson_*"), &["ACL SETUSER joe ~*"]),
        (format!("{ACL} {ACL_REDISSON} ~*"), &["ACL SETUSER joe &redisson_*"]),
        (format!("{all} -lindex"), &["ACL SETUSER joe +lindex"]),
        (format!("{all} -decrby"), &["ACL SETUSER joe +decrby"]),
    ] {
        let mut config = limited(&server, &rights);
        config.prefix.clear();
        let store = RedissonStore::connect(config).await.unwrap();
        let findings = store.diagnose().await.unwrap();
        let bad = findings.iter().filter(|finding| finding.severity == Severity::Unsafe);
        let bad: Vec<_> = bad.map(|finding| &*finding.remedy).collect();
        assert_eq!(bad, remedies, "{rights}: {findings:?}");
    }
    assert_eq!(server.command(&["KEYS", "*doctor*"]).unwrap(), "", "a probe is left");
}

#[tokio::test]
async fn a_known_flaw_is_reported_by_the_servers_own_version() {
    let Some(server) = start(&FIT) else { return };
    let info = server.command(&["INFO", "server"]).unwrap();
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap();
    let findings = diagnosed(config(&server)).await;
    let about = findings.iter().find(|finding| finding.what.contains("script engine")).unwrap();
    assert!(about.what.contains(version.trim()), "{about:?}");
}

#[tokio::test]
async fn valkey_is_judged_by_its_own_version_and_must_have_its_lua_engine() {
    if VALKEY_9.is_missing("valkey_is_judged_by_its_own_version_and_must_have_its_lua_engine") {
        return;
    }
    let arguments = [&FIT[..], &["--enable-module-command", "yes"]].concat();
    let server = RedisServer::start_other(&VALKEY_9, &arguments).unwrap();
    let findings = diagnosed(config(&server)).await;
    assert_eq!(unsafe_ones(&findings), [""; 0]);
    assert_eq!(severity(&findings, "new enough (Valkey 9."), Some(Severity::Fine));
    assert_eq!(severity(&findings, "7.2.4"), None, "the Redis that it is compatible with");
    assert_eq!(severity(&findings, "known vulnerabilities"), None);

    assert_eq!(server.command(&["MODULE", "UNLOAD", "lua"]).unwrap(), "OK");
    let error = RedisStore::connect(config(&server)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("load Valkey's Lua module"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error_and_not_a_finding() {
    let Some(mut server) = start(&[]) else { return };
    let mut config = config(&server);
    config.timeout = Duration::from_millis(500);
    let store = RedisStore::connect(config).await.unwrap();
    server.kill9().unwrap();
    assert_eq!(store.diagnose().await.unwrap_err().kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn each_node_of_a_cluster_is_checked_and_a_missing_replica_is_reported() {
    if start(&[]).is_none() {
        return;
    }
    let mut cluster = RedisCluster::start_with(&FIT).unwrap();
    let nodes = tenure_testkit::parse_addresses(&cluster.addresses());
    let config = || {
        let mut config = RedisConfig::new(Topology::Cluster { nodes: nodes.clone() });
        config.timeout = GENEROUS;
        config
    };
    let findings = diagnosed(config()).await;
    assert_eq!(unsafe_ones(&findings), [""; 0]);
    assert_eq!(severity(&findings, "masters are up and have replicas"), Some(Severity::Fine));
    assert_eq!(severity(&findings, "taken, handed over"), Some(Severity::Fine));
    let kept = findings.iter().find(|f| f.what.contains("on disk before it is granted")).unwrap();
    for (_, port) in &nodes {
        assert!(kept.what.contains(&format!(":{port}")), "{kept:?}");
    }
    // A right that a single node withholds is found, and the node is named.
    let rights = format!("{ACL} {ACL_CLUSTER}");
    for node in cluster.nodes() {
        limited(node, &rights);
    }
    let miser = &cluster.nodes()[1];
    limited(miser, &format!("{rights} -asking"));
    let mut joe = config();
    (joe.username, joe.password) = (Some("joe".into()), Some("secret".into()));
    let findings = diagnosed(joe).await;
    let bad: Vec<_> = findings.iter().filter(|f| f.severity == Severity::Unsafe).collect();
    assert_eq!(bad.len(), 1, "{findings:?}");
    assert_eq!(bad[0].remedy, "ACL SETUSER joe +asking");
    assert!(bad[0].what.contains(&format!(":{}", miser.port())), "{bad:?}");
    let replica = nodes.len() - 1;
    let id = cluster.id_of(replica).unwrap();
    cluster.kill9(replica).unwrap();
    for server in &cluster.nodes()[..replica] {
        assert_eq!(server.command(&["CLUSTER", "FORGET", &id]).unwrap(), "OK");
    }
    let findings = diagnosed(config()).await;
    assert_eq!(severity(&findings, "without a replica"), Some(Severity::Advice));
}

#[tokio::test]
async fn a_master_that_sentinels_name_is_looked_at_together_with_its_replicas() {
    if start(&[]).is_none() {
        return;
    }
    let sentinel = RedisSentinel::start(GENEROUS).unwrap();
    let sentinels = tenure_testkit::parse_addresses(&sentinel.addresses());
    let mut config = RedisConfig::new(Topology::Sentinel { sentinels, service: "main".into() });
    config.timeout = GENEROUS;
    let findings = diagnosed(config).await;
    // None of these servers saves its data.
    assert_eq!(unsafe_ones(&findings).len(), 1, "{findings:?}");
    let loses = findings.iter().find(|f| f.what.contains("loses every lock")).unwrap();
    let master = sentinel.master().unwrap();
    for (number, server) in sentinel.servers().iter().enumerate() {
        let named = loses.what.contains(&format!(":{}", server.port()));
        assert_eq!(named, number != master, "{loses:?}");
    }
    assert!(loses.what.contains("the master"), "{loses:?}");
    assert_eq!(severity(&findings, "min-replicas-to-write 0"), Some(Severity::Advice));
    assert_eq!(severity(&findings, "it grants no locks"), None);
}
