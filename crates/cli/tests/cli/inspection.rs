//! `ls`, `status` and `watch`.

use rustix::process::Signal;
use serde_json::Value;
use tenure_testkit::{GENEROUS, ZooKeeperServer, eventually};

use crate::common::{Store, code, line, signal};

#[tokio::test]
async fn ls_shows_a_row_per_holder_and_only_names_with_the_prefix() {
    let store = Store::new();
    let (holder, token, _) = store.hold(&["--label", "nightly report"], "jobs/a").await;
    let (_other, ..) = store.hold(&[], "other").await;
    let table = store.run(&["ls", "jobs/"]).ok();
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    let headings: Vec<_> = lines[0].split_whitespace().collect();
    assert_eq!(headings, ["NAME", "MODE", "HOLDER", "TOKEN", "AGE", "TTL", "WAITERS"]);
    assert!(lines[1].starts_with("jobs/a "), "{table}");
    for part in [&format!(":{} (nightly report)", holder.pid()), &token.to_string(), "exclusive"] {
        assert!(lines[1].contains(part), "{part}: {table}");
    }
    assert!(!table.contains('\x1b'), "no colour without a terminal");
    let objects = store.run(&["ls", "--json"]).ok();
    let names: Vec<_> = objects
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["lock"].clone())
        .collect();
    assert_eq!(names, ["jobs/a", "other"]);
}

#[tokio::test]
async fn status_exits_with_0_if_the_lock_is_held_and_1_if_it_is_free() {
    let store = Store::new();
    let free = store.run(&["status", "a", "--json"]);
    let object = "{\"lock\":\"a\",\"mode\":null,\"holders\":[],\"waiters\":[]}\n";
    assert_eq!((free.code, free.stdout.as_str(), free.stderr.as_str()), (Some(1), object, ""));
    let free = store.run(&["status", "a"]);
    assert_eq!((free.code, free.stdout.as_str()), (Some(1), "a is free\n"));
    let (_holder, ..) = store.hold(&[], "a").await;
    assert_eq!(store.run(&["status", "a"]).code, Some(0));
    assert_eq!(store.run(&["status", "a", "--json"]).code, Some(0));
    // An unreachable store has its own code, and an empty list is a success.
    store.run(&["--store", "redis://127.0.0.1:1?timeout=100ms", "status", "a"]).failed(69);
    store.run(&["ls", "nothing"]).ok();
}

#[tokio::test]
async fn status_shows_the_holder_and_the_waiters_in_order() {
    let store = Store::new();
    let (holder, token, owner) = store.hold(&[], "a").await;
    let first = store.start(&["run", "--label", "first", "a", "--", "true"]);
    store.wait_for_waiters("a", 1).await;
    let second = store.start(&["run", "--label", "second", "a", "--", "true"]);
    store.wait_for_waiters("a", 2).await;
    let status = store.status("a");
    let held = &status["holders"][0];
    assert_eq!(status["mode"], "exclusive");
    assert_eq!((&held["token"], &held["pid"]), (&token.into(), &holder.pid().into()));
    assert_eq!(held["owner"], owner);
    assert!(held["expires_in_ms"].as_u64().unwrap() <= 30_000);
    for (position, waiter, label) in [(0, &first, "first"), (1, &second, "second")] {
        let shown = &status["waiters"][position];
        assert_eq!((&shown["pid"], &shown["label"]), (&waiter.pid().into(), &label.into()));
    }
    let text = store.run(&["status", "a"]).ok();
    assert!(text.contains(&owner), "{text}");
    assert!(text.find("(first)").unwrap() < text.find("(second)").unwrap(), "{text}");
}

#[tokio::test]
async fn watch_reports_every_change_and_exits_with_0_when_interrupted() {
    let store = Store::new();
    let (mut holder, ..) = store.hold(&["--label", "one"], "a").await;
    let mut watch = store.start(&["watch", "--every", "10ms"]);
    assert!(line(&mut watch).await.contains(" a acquired "));
    let mut waiter = store.start(&["hold", "--label", "two", "a"]);
    let waiting = line(&mut watch).await;
    assert!(waiting.contains(" a waiting ") && waiting.contains("(two)"), "{waiting}");
    signal(&holder, Signal::TERM);
    let handed = line(&mut watch).await;
    assert!(handed.contains(" a handed over ") && handed.contains("(one)"), "{handed}");
    signal(&waiter, Signal::TERM);
    assert!(line(&mut watch).await.contains(" a released "));
    signal(&watch, Signal::INT);
    assert_eq!(code(&mut watch).await, Some(0));
    assert_eq!(code(&mut holder).await, Some(0));
    assert_eq!(code(&mut waiter).await, Some(0));
}

#[tokio::test]
async fn watch_shows_an_eviction_as_one_with_its_reason() {
    let store = Store::new();
    let (_holder, ..) = store.hold(&["--label", "one"], "a").await;
    let mut watch = store.start(&["watch", "--every", "10ms", "--json"]);
    assert!(line(&mut watch).await.contains("acquired"));
    store.run(&["release", "a", "--force", "--reason", "it \u{1b}[2J hangs"]).ok();
    let evicted: Value = serde_json::from_str(&line(&mut watch).await).unwrap();
    assert_eq!((&evicted["event"], &evicted["label"]), (&"evicted".into(), &"one".into()));
    assert_eq!(evicted["by"]["reason"], "it  [2J hangs");
}

#[tokio::test]
async fn a_filter_that_matches_no_lock_says_so() {
    let store = Store::new();
    let (_holder, ..) = store.hold(&[], "a").await;
    let none = "tenure: no lock whose name begins with \"b\\u{202e}\" is held or waited for";
    assert_eq!(store.run(&["ls", "b\u{202e}"]).stderr, format!("{none}\n"));
    assert_eq!(store.run(&["ls", "-q", "b"]).stderr, "");
    let stderr = store.scratch().join("stderr");
    let mut watch = store.tenure(&["watch", "b\u{202e}"]);
    watch.stderr(std::fs::File::create(&stderr).unwrap());
    let _watch = tenure_testkit::Process::spawn(watch).unwrap();
    let said = || async {
        std::fs::read_to_string(&stderr).unwrap() == format!("{none}; waiting for changes\n")
    };
    assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, said).await);
}

#[tokio::test]
async fn watch_continues_after_an_outage_of_the_store() {
    if tenure_testkit::lacks("redis-server", "watch_continues_after_an_outage_of_the_store") {
        return;
    }
    let mut server = tenure_testkit::RedisServer::start(&["--appendonly", "yes"]).unwrap();
    let url = format!("redis://127.0.0.1:{}?timeout=200ms", server.port());
    let (store, on_redis) = (Store::new(), ["--store", &url]);
    let mut watch = store.tenure(&[&["watch", "--every", "10ms"], &on_redis[..]].concat());
    let stderr = store.scratch().join("stderr");
    watch.stderr(std::fs::File::create(&stderr).unwrap());
    let mut watch = tenure_testkit::Process::spawn(watch).unwrap();
    let (mut holder, ..) = store.hold(&on_redis, "a").await;
    assert!(line(&mut watch).await.contains(" a acquired "));
    signal(&holder, Signal::TERM);
    assert_eq!(code(&mut holder).await, Some(0));
    assert!(line(&mut watch).await.contains(" a released "));
    server.kill9().unwrap();
    let reported = |text: &str| std::fs::read_to_string(&stderr).unwrap().contains(text);
    let warned = || async { reported("still watching") };
    assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, warned).await);
    server.restart().unwrap();
    let again = || async { reported("answers again") };
    assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, again).await);
    let (mut holder, ..) = store.hold(&on_redis, "a").await;
    assert!(line(&mut watch).await.contains(" a acquired "));
    signal(&holder, Signal::TERM);
    assert_eq!(code(&mut holder).await, Some(0));
    signal(&watch, Signal::INT);
    assert_eq!(code(&mut watch).await, Some(0));
    // An outage at the start is an error.
    server.kill9().unwrap();
    assert_eq!(store.run(&[&["watch"], &on_redis[..]].concat()).code, Some(69));
}

#[tokio::test]
async fn watch_exits_silently_when_its_reader_closes_the_pipe() {
    let store = Store::new();
    let mut command = store.tenure(&["watch", "--every", "10ms"]);
    let mut watch = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(watch.stdout.take());
    let mut status = None;
    let ended = eventually(GENEROUS, || {
        status = watch.try_wait().unwrap();
        std::future::ready(status.is_some())
    });
    let ended = ended.await;
    watch.kill().unwrap();
    assert!(ended, "it continues without a reader");
    let output = watch.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn commands_leave_no_zookeeper_session_behind() {
    if ZooKeeperServer::is_missing("commands_leave_no_zookeeper_session_behind") {
        return;
    }
    let (store, server) = (Store::new(), ZooKeeperServer::start(&[]).unwrap());
    let url = format!("zk://127.0.0.1:{}", server.port());
    for (words, code) in [
        (&["run", "a", "--", "true"][..], 0),
        (&["ls"], 0),
        (&["status", "a"], 1),
        (&["release", "a", "--force", "--reason", "test"], 1),
        (&["doctor"], 0),
    ] {
        let ran = store.run(&[&["--store", &*url], words].concat());
        assert_eq!(ran.code, Some(code), "{ran:?}");
        let figures = server.word("mntr").unwrap();
        let sessions = figures.lines().find(|line| line.starts_with("zk_global_sessions")).unwrap();
        assert!(sessions.ends_with("\t0"), "{words:?}: {sessions}");
    }
}
