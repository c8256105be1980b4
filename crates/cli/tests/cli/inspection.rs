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
    assert!(!table.contains('\x1b'), "no colour where there is no terminal");
    let objects = store.run(&["ls", "--json"]).ok();
    let names: Vec<_> = objects
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["lock"].clone())
        .collect();
    assert_eq!(names, ["jobs/a", "other"]);
}

#[tokio::test]
async fn the_exit_code_of_status_says_whether_the_lock_is_held() {
    let store = Store::new();
    let free = store.run(&["status", "a", "--json"]);
    let object = "{\"lock\":\"a\",\"mode\":null,\"holders\":[],\"waiters\":[]}\n";
    assert_eq!((free.code, free.stdout.as_str(), free.stderr.as_str()), (Some(1), object, ""));
    let free = store.run(&["status", "a"]);
    assert_eq!((free.code, free.stdout.as_str()), (Some(1), "a is free\n"));
    let (_holder, ..) = store.hold(&[], "a").await;
    assert_eq!(store.run(&["status", "a"]).code, Some(0));
    assert_eq!(store.run(&["status", "a", "--json"]).code, Some(0));
    // What is neither held nor free keeps its own code, and an empty list is no failure.
    store.run(&["--store", "redis://127.0.0.1:1?timeout=100ms", "status", "a"]).failed(69);
    store.run(&["ls", "nothing"]).ok();
}

#[tokio::test]
async fn status_shows_the_holder_and_the_waiters_in_order() {
    let store = Store::new();
    let (holder, token, owner) = store.hold(&[], "a").await;
    let first = store.start(&["run", "--label", "first", "a", "--", "true"]);
    store.waiters("a", 1).await;
    let second = store.start(&["run", "--label", "second", "a", "--", "true"]);
    store.waiters("a", 2).await;
    let status = store.status("a");
    let held = &status["holders"][0];
    assert_eq!(status["mode"], "exclusive");
    assert_eq!((&held["token"], &held["pid"]), (&token.into(), &holder.pid().into()));
    assert_eq!(held["owner"], owner);
    assert!(held["expires_in_ms"].as_u64().unwrap() <= 30_000);
    for (place, waiter, label) in [(0, &first, "first"), (1, &second, "second")] {
        let shown = &status["waiters"][place];
        assert_eq!((&shown["pid"], &shown["label"]), (&waiter.pid().into(), &label.into()));
    }
    let text = store.run(&["status", "a"]).ok();
    assert!(text.contains(&owner), "{text}");
    assert!(text.find("(first)").unwrap() < text.find("(second)").unwrap(), "{text}");
}

#[tokio::test]
async fn watch_tells_of_every_change_and_ends_well_when_interrupted() {
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
async fn watch_outlasts_an_outage_of_the_store() {
    if tenure_testkit::lacks("redis-server", "watch_outlasts_an_outage_of_the_store") {
        return;
    }
    let mut server = tenure_testkit::RedisServer::start(&["--appendonly", "yes"]).unwrap();
    let url = format!("redis://127.0.0.1:{}?timeout=200ms", server.port());
    let (store, place) = (Store::new(), ["--store", &url]);
    let mut watch = store.tenure(&[&["watch", "--every", "10ms"], &place[..]].concat());
    let told = store.scratch().join("told");
    watch.stderr(std::fs::File::create(&told).unwrap());
    let mut watch = tenure_testkit::Process::spawn(watch).unwrap();
    let (mut holder, ..) = store.hold(&place, "a").await;
    assert!(line(&mut watch).await.contains(" a acquired "));
    signal(&holder, Signal::TERM);
    assert_eq!(code(&mut holder).await, Some(0));
    assert!(line(&mut watch).await.contains(" a released "));
    server.kill9().unwrap();
    let says = |word: &str| std::fs::read_to_string(&told).unwrap().contains(word);
    let warned = || async { says("watching on") };
    assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, warned).await);
    server.restart().unwrap();
    let again = || async { says("answers again") };
    assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, again).await);
    let (mut holder, ..) = store.hold(&place, "a").await;
    assert!(line(&mut watch).await.contains(" a acquired "));
    signal(&holder, Signal::TERM);
    assert_eq!(code(&mut holder).await, Some(0));
    signal(&watch, Signal::INT);
    assert_eq!(code(&mut watch).await, Some(0));
    // A store that was never there is another matter.
    server.kill9().unwrap();
    assert_eq!(store.run(&[&["watch"], &place[..]].concat()).code, Some(69));
}

#[tokio::test]
async fn watch_ends_quietly_when_nobody_reads_it() {
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
    assert!(ended, "it watches on for nobody");
    let output = watch.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn who_only_looks_leaves_no_session_behind() {
    if ZooKeeperServer::is_missing("who_only_looks_leaves_no_session_behind") {
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
