//! `doctor`: the verdict on a store, in words, as JSON and as an exit code.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use tenure_testkit::{RedisServer, is_installed};

use crate::common::Store;

#[test]
fn a_safe_store_is_reported_line_by_line_and_doctor_exits_with_0() {
    let store = Store::new();
    let text = store.run(&["doctor"]).ok();
    assert!(text.lines().any(|line| line.starts_with("fine    ")), "{text}");
    assert!(!text.contains("unsafe  "), "{text}");
    let memory = store.run(&["--store", "memory:", "doctor"]).ok();
    assert!(memory.starts_with("fine    ") && memory.contains("this process"), "{memory}");
}

#[test]
fn an_unsafe_store_is_reported_with_a_remedy_and_doctor_exits_with_1() {
    let store = Store::new();
    let dir = store.scratch().join("open");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let url = format!("local:{}", dir.display());
    let ran = store.run(&["--store", &url, "doctor"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    let remedy = format!("\n        remedy: chmod go-w {}\n", dir.display());
    assert!(ran.stdout.starts_with("unsafe  ") && ran.stdout.contains(&remedy), "{ran:?}");
    let ran = store.run(&["--store", &url, "doctor", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let first = ran.stdout.lines().next().unwrap();
    assert!(first.starts_with("{\"severity\":\"unsafe\",\"what\":\""), "{first}");
    for line in ran.stdout.lines() {
        let finding: Value = serde_json::from_str(line).unwrap();
        assert_eq!(finding["severity"] == "fine", finding["remedy"] == "", "{line}");
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    store.run(&["--store", &url, "doctor"]).ok();
}

#[test]
fn doctor_diagnoses_a_redis_server_and_exits_with_69_if_it_is_down() {
    if !is_installed("redis-server") {
        return;
    }
    let store = Store::new();
    let arguments = ["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"];
    let mut server = RedisServer::start(&arguments).unwrap();
    let url = format!("redis://127.0.0.1:{}?timeout=5s", server.port());
    let ran = store.run(&["--store", &url, "doctor"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in ["maxmemory-policy volatile-lru", "loses every lock", "fine    a self-test lock"] {
        assert!(ran.stdout.contains(part), "{part}: {ran:?}");
    }
    for setting in [["maxmemory-policy", "noeviction"], ["appendonly", "yes"]] {
        server.command(&["CONFIG", "SET", setting[0], setting[1]]).unwrap();
    }
    store.run(&["--store", &url, "doctor"]).ok();
    server.kill9().unwrap();
    let url = url.replace("5s", "500ms");
    store.run(&["--store", &url, "doctor"]).failed(69);
}
