//! `tenure revoke` and `tenure audit`, and how holders react.

use serde_json::Value;
use tenure_testkit::{GENEROUS, Process, RedisServer, eventually, lacks};

use crate::common::{Store, code, line};

/// A shell command that cleans up when it gets SIGTERM.
const POLITE: &str = "trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
/// A shell command that ignores SIGTERM.
const STUBBORN: &str = "trap '' TERM; echo ready; while :; do sleep 0.02; done";

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_command_gets_sigterm_and_its_lock_is_released_when_it_has_ended() {
    let store = Store::new();
    let mut holder = store.start(&["run", "a", "-c", POLITE]);
    assert_eq!(line(&mut holder).await, "ready");
    let asked = store.run(&["revoke", "a", "--reason", "deploy", "--grace", "1m", "--json"]).ok();
    let object = &objects(&asked)[0];
    assert_eq!(object["heard"], true, "{object}");
    assert_eq!(object["evicted"], false, "{object}");
    assert_eq!(object["label"], "sh");
    assert_eq!(line(&mut holder).await, "cleaned");
    assert_eq!(code(&mut holder).await, Some(76));
    assert!(store.is_free("a"));
    let records = objects(&store.run(&["audit", "a", "--json"]).ok());
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(
        (&records[0]["event"], &records[0]["reason"]),
        (&"revoked".into(), &"deploy".into())
    );
    assert_eq!(records[0]["token"], object["token"]);
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_killed_before_the_lock_is_taken() {
    let store = Store::new();
    let mut holder = store.start(&["run", "--grace", "1h", "a", "-c", STUBBORN]);
    assert_eq!(line(&mut holder).await, "ready");
    let asked = store.run(&["revoke", "a", "--reason", "now", "--grace", "4s", "--json"]).ok();
    let object = &objects(&asked)[0];
    assert_eq!((&object["heard"], &object["evicted"]), (&true.into(), &false.into()), "{object}");
    assert_eq!(code(&mut holder).await, Some(76));
    // Without a grace period of the asker, that of the holder counts.
    let mut holder = store.start(&["run", "--grace", "100ms", "a", "-c", STUBBORN]);
    assert_eq!(line(&mut holder).await, "ready");
    let said = store.run(&["revoke", "a", "--reason", "now"]).ok();
    assert!(said.contains("let go of a"), "{said}");
    assert_eq!(code(&mut holder).await, Some(76));
}

#[tokio::test]
async fn a_holder_that_does_not_listen_is_evicted_after_the_grace_and_not_without_one() {
    let store = Store::new();
    let mut holder = store.start(&["run", "--on-lost", "nothing", "a", "-c", "echo ready; read x"]);
    assert_eq!(line(&mut holder).await, "ready");
    let timed_out = store.run(&["revoke", "a", "--reason", "now", "--wait", "1500ms"]);
    assert_eq!(timed_out.code, Some(75), "{timed_out:?}");
    assert!(timed_out.stdout.contains("still holds a"), "{timed_out:?}");
    assert!(!store.is_free("a"), "nothing is evicted without --grace");
    let said = store.run(&["revoke", "a", "--reason", "really", "--grace", "0s"]).ok();
    assert!(said.starts_with("evicted "), "{said}");
    assert!(store.is_free("a"));
    let table = store.run(&["audit", "a"]).ok();
    let events: Vec<_> =
        table.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(events, ["EVENT", "evicted", "revoked", "revoked"], "{table}");
    holder.close_input();
    assert_eq!(code(&mut holder).await, Some(76));
}

#[tokio::test]
async fn hold_lets_go_and_a_script_with_a_descriptor_is_stopped() {
    let store = Store::new();
    let (mut holder, ..) = store.hold(&[], "a").await;
    store.run(&["revoke", "a", "--reason", "deploy"]).ok();
    assert_eq!(code(&mut holder).await, Some(76));
    let script = "exec 9>\"$(mktemp)\"; \"$TENURE\" hold --fd 9 b >/dev/null || exit; echo ready; \
                  while :; do sleep 0.02; done";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).env("TENURE", env!("CARGO_BIN_EXE_tenure"));
    store.set_environment(&mut command);
    tenure_testkit::with_default_signals(&mut command);
    let mut script = Process::spawn(command).unwrap();
    assert_eq!(line(&mut script).await, "ready");
    store.run(&["revoke", "b", "--reason", "deploy", "--grace", "1m"]).ok();
    assert!(script.wait(GENEROUS).await.is_some());
    assert!(eventually(GENEROUS, || async { store.is_free("b") }).await);
}

#[tokio::test]
async fn a_lock_that_is_not_held_is_reported_and_records_of_evictions_are_listed() {
    let store = Store::new();
    let missing = store.run(&["revoke", "a", "--reason", "x"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(1), "a is not held\n"));
    assert_eq!(store.run(&["audit", "a"]).ok(), "");
    let (_holder, token, owner) = store.hold(&[], "a").await;
    store.run(&["release", "a", "--force", "--reason", "stuck\u{1b}[2J"]).ok();
    let record = &objects(&store.run(&["audit", "a", "--json"]).ok())[0];
    assert_eq!(record["event"], "evicted");
    assert_eq!((&record["owner"], &record["token"]), (&owner.into(), &token.into()));
    assert!(!store.run(&["audit", "a"]).ok().contains('\u{1b}'));
    assert_eq!(store.run(&["revoke", "a"]).code, Some(64), "a reason is required");
}

#[tokio::test]
async fn on_a_quorum_a_request_cannot_be_left_and_evictions_are_listed() {
    if lacks("redis-server", "revoke on a quorum") {
        return;
    }
    let servers = [(); 3].map(|()| RedisServer::start(&[]).unwrap());
    let hosts = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port()));
    let url = format!("redlock://{}", hosts.join(","));
    let store = Store::new();
    let (_holder, ..) = store.hold(&["--store", &url], "a").await;
    let refused = store.run(&["revoke", "a", "--reason", "x", "--grace", "0s", "--store", &url]);
    let why = refused.failed(64);
    assert!(why.contains("agrees") && why.contains("tenure release --force"), "{why}");
    store.run(&["release", "a", "--force", "--reason", "stuck", "--store", &url]).ok();
    let records = objects(&store.run(&["audit", "a", "--json", "--store", &url]).ok());
    assert_eq!(records.len(), 1, "{records:?}");
    let refused = store.run(&["run", "--once-per", "1h", "--store", &url, "b", "--", "true"]);
    let why = refused.failed(64);
    assert!(why.contains("agrees"), "{why}");
}
