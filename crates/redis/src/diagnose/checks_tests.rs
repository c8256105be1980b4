//! The checks, on replies as servers send them.

use super::super::facts::Clock;
use super::*;
use tenure_core::Severity::{self, Advice, Fine, Unsafe};

fn single() -> Topology {
    Topology::Single { server: ("a".into(), 1) }
}

fn sentinel() -> Topology {
    Topology::Sentinel { sentinels: Vec::new(), service: "s".into() }
}

fn info(text: &str) -> Facts {
    Facts::new("a:1", text, &[])
}

fn settings(settings: &[(&str, &str)]) -> Facts {
    Facts::new("a:1", "", settings)
}

fn severity(finding: Option<Finding>) -> Option<Severity> {
    finding.map(|finding| finding.severity)
}

#[test]
fn eviction_is_unsafe_with_a_limit_and_advice_without() {
    let found = |policy, most| {
        severity(eviction(&settings(&[("maxmemory-policy", policy), ("maxmemory", most)])))
    };
    for policy in ["volatile-lru", "allkeys-lru", "volatile-ttl", "allkeys-random"] {
        assert_eq!(found(policy, "104857600"), Some(Unsafe), "{policy}");
        assert_eq!(found(policy, "0"), Some(Advice), "{policy}");
    }
    assert_eq!(found("noeviction", "104857600"), Some(Fine));
    let text = "maxmemory:1048576\r\nmaxmemory_policy:allkeys-lfu\r\n";
    assert_eq!(severity(eviction(&info(text))), Some(Unsafe), "INFO has it, too");
    assert_eq!(eviction(&info("")), None);
}

#[test]
fn persistence_is_judged_by_what_a_restart_loses() {
    let found = |save, log, sync| {
        let facts = settings(&[("save", save), ("appendonly", log), ("appendfsync", sync)]);
        severity(persistence(&facts))
    };
    assert_eq!(found("", "no", "everysec"), Some(Unsafe));
    assert_eq!(found("3600 1", "no", "everysec"), Some(Advice));
    assert_eq!(found("", "yes", "everysec"), Some(Advice));
    assert_eq!(found("", "yes", "no"), Some(Advice));
    assert_eq!(found("", "yes", "always"), Some(Fine));
    assert_eq!(severity(persistence(&info("aof_enabled:0\r\n"))), Some(Advice));
    assert_eq!(severity(persistence(&info("aof_enabled:1\r\n"))), Some(Advice));
    assert_eq!(persistence(&info("")), None);
}

#[test]
fn a_server_that_cannot_save_is_reported() {
    assert_eq!(saving(&info("rdb_last_bgsave_status:ok\r\naof_last_write_status:ok\r\n")), None);
    let found =
        saving(&info("rdb_last_bgsave_status:err\r\naof_last_write_status:ok\r\n")).unwrap();
    assert!(found.what.contains("rdb_last_bgsave_status: err"), "{found:?}");
}

#[test]
fn replicas_without_a_minimum_are_advice_and_with_one_fine() {
    let master = "role:master\r\nconnected_slaves:2\r\n";
    let with = |least| Facts::new("a", master, &[("min-replicas-to-write", least)]);
    assert_eq!(severity(replication(&with("0"), &single())), Some(Advice));
    assert_eq!(severity(replication(&with("1"), &single())), Some(Fine));
    assert_eq!(severity(replication(&info(master), &single())), Some(Advice));
    let counted = format!("{master}min_slaves_good_slaves:2\r\n");
    assert_eq!(severity(replication(&info(&counted), &single())), Some(Fine));
    let alone = info("role:master\r\nconnected_slaves:0\r\n");
    assert_eq!(replication(&alone, &single()), None);
    assert_eq!(severity(replication(&alone, &sentinel())), Some(Advice), "no server can take over");
}

#[test]
fn a_replica_is_unsafe_for_locks_unless_sentinels_find_its_master() {
    let up = info("role:slave\r\nmaster_link_status:up\r\n");
    assert_eq!(severity(replication(&up, &single())), Some(Unsafe));
    assert_eq!(replication(&up, &sentinel()), None);
    let down = info("role:slave\r\nmaster_link_status:down\r\n");
    assert_eq!(severity(replication(&down, &sentinel())), Some(Advice));
}

#[test]
fn a_command_that_the_user_may_not_run_is_named() {
    let both = Facts::new("a", "role:master\r\n", &[("save", "")]);
    assert_eq!(not_permitted(&both), None);
    let text = |facts: &Facts| not_permitted(facts).unwrap().what;
    assert!(text(&info("")).contains("INFO and CONFIG GET"));
    assert!(text(&info("role:master\r\n")).contains("may not run CONFIG GET"));
    assert!(text(&settings(&[("save", "")])).contains("may not run INFO:"));
}

#[test]
fn clocks_are_reported_if_they_differ_by_more_than_the_margin() {
    let with = |ahead, margin| Facts { clock: Some(Clock { ahead, margin }), ..info("") };
    assert_eq!(severity(clock(&with(500, 1))), Some(Fine));
    assert_eq!(severity(clock(&with(-502, 1))), Some(Advice));
    assert_eq!(severity(clock(&with(2_000, 1_600))), Some(Fine), "a slow trip proves nothing");
    assert!(clock(&with(61_250, 1)).unwrap().what.contains("61.2 s ahead of"));
    assert!(clock(&with(-1_000, 1)).unwrap().what.contains("1.0 s behind"));
    assert_eq!(clock(&info("")), None);
    assert_eq!(severity(clocks_apart(&[with(-400, 1), with(400, 1)])), Some(Advice));
    assert_eq!(clocks_apart(&[with(-400, 200), with(400, 200), info("")]), None);
    assert_eq!(clocks_apart(&[with(90_000, 1)]), None);
}
