//! `tenure` inside `tenure run`: it inherits a lock that the outer one holds.

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::{Process, RedisServer, lacks};

use crate::common::{Ran, Store, children_of, code, exits, is_guardian, line, signal};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");
const SHOW: &str = "echo $TENURE_LOCK $TENURE_TOKEN $TENURE_OWNER";

#[test]
fn a_nested_run_inherits_the_lock() {
    let store = Store::new();
    // Each level prints its lock; the innermost one, two levels below the first, inherits `a`.
    let shell_line = format!(
        "{SHOW}; exec $0 run -n b -c '{SHOW}; exec $0 run -n a -c \"{}\"'",
        SHOW.replace('$', "\\$")
    )
    .replace("$0", TENURE);
    let printed = store.run(&["run", "-n", "a", "-c", &shell_line]).ok();
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines.len(), 3, "{printed}");
    assert!(lines[0].starts_with("a ") && lines[1].starts_with("b "), "{printed}");
    assert_eq!(lines[2], lines[0], "the same token and owner");
    assert!(store.is_free("a"));
}

#[test]
fn an_inherited_lock_stays_held_after_the_inner_command_has_ended() {
    let store = Store::new();
    let shell_line = "$0 run a -- true && $0 hold -n --stdin a </dev/null && $0 status --json a";
    let shell_line = shell_line.replace("$0", TENURE);
    let printed = store.run(&["run", "a", "-c", &format!("{SHOW}; {shell_line}")]).ok();
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines[0], lines[1], "hold prints the inherited lock: {printed}");
    let status: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
    assert_eq!(status["holders"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["waiters"].as_array().unwrap().len(), 0, "{status}");
}

#[tokio::test]
async fn a_nested_election_inherits_the_leadership() {
    let store = Store::new();
    let elect = ["elect", "--on-exit", "exit", "a", "--"];
    let inner = [&[TENURE], &elect[..], &["echo", "inner"]].concat();
    let mut outer = store.start(&[&elect[..], &inner].concat());
    assert_eq!(line(&mut outer).await, "inner");
    assert_eq!(code(&mut outer).await, Some(0));
    assert!(store.is_free("a"));
}

#[test]
fn a_nested_run_in_another_mode_is_refused() {
    let store = Store::new();
    for (outer, inner) in [
        (&[][..], &["-s"][..]),
        (&["-s"], &["-x"]),
        (&["--permits", "3"], &[]),
        (&["--permits", "3"], &["--permits", "3", "--take", "2"]),
    ] {
        let inner = [&[TENURE, "run"], inner, &["a", "--", "true"]].concat();
        let printed = store.run(&[&["run"], outer, &["a", "--"], &inner].concat()).failed(64);
        assert!(printed.contains("cannot be taken as"), "{printed}");
    }
    for mode in [&["-s"][..], &["--permits", "3", "--take", "2"]] {
        let inner = [&[TENURE, "run"], mode, &["a", "--", "true"]].concat();
        store.run(&[&["run"], mode, &["a", "--"], &inner].concat()).ok();
    }
}

#[test]
fn a_lock_of_the_same_name_in_another_store_is_another_lock() {
    let store = Store::new();
    let elsewhere = format!("local:{}", store.scratch().display());
    let shell_line = format!("{SHOW}; {TENURE} --store {elsewhere} run -n a -c '{SHOW}'");
    let printed = store.run(&["run", "a", "-c", &shell_line]).ok();
    let lines: Vec<_> = printed.lines().collect();
    assert_ne!(lines[0], lines[1]);
    // A memory store is private to its process.
    let printed =
        store.run(&["--store", "memory:", "run", "a", "--", TENURE, "run", "a", "-c", SHOW]);
    assert!(printed.ok().starts_with("a "));
}

#[test]
fn a_nested_run_fails_if_the_outer_lock_is_lost() {
    let store = Store::new();
    let shell_line = format!(
        "{TENURE} release a --owner $TENURE_OWNER >&2; {TENURE} run a -- echo started; echo $?"
    );
    let ran = store.run(&["run", "a", "-c", &shell_line]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(76), "76\n"), "{ran:?}");
    assert!(ran.stderr.contains("the command was not started"), "{ran:?}");
}

#[test]
fn a_nested_run_without_the_outer_environment_does_not_inherit_the_lock() {
    let store = Store::new();
    let inner = ["env", "-u", "TENURE_HELD", TENURE, "run", "-n", "a", "--", "true"];
    store.run(&[&["run", "a", "--"], &inner[..]].concat()).failed_silently(75);
    let mut command = store.tenure(&["run", "a", "--", "true"]);
    let printed = Ran::from(command.env("TENURE_HELD", "[{").output().unwrap()).failed(64);
    assert!(printed.contains("TENURE_HELD"), "{printed}");
}

#[test]
fn a_nested_run_inherits_a_lock_on_a_server() {
    if lacks("redis-server", "a_nested_run_inherits_a_lock_on_a_server") {
        return;
    }
    let (store, server) = (Store::new(), RedisServer::start(&[]).unwrap());
    // Two spellings of the same server.
    let (outer, inner) = ("127.0.0.1", "localhost");
    let [outer, inner] = [outer, inner].map(|host| format!("redis://{host}:{}", server.port()));
    let shell_line = format!("{SHOW}; {TENURE} --store {inner} run -n a -c '{SHOW}'");
    let printed = store.run(&["--store", &outer, "run", "a", "-c", &shell_line]).ok();
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines[0], lines[1]);
}

/// Starts a command that ignores SIGTERM under `tenure run` under `tenure run`, and waits until it
/// runs. Returns its process id, too.
async fn stubborn(store: &Store, outer: &[&str], between: &[&str]) -> (Process, u32) {
    let shell_line = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let inner = [TENURE, "run", "--grace", "100ms", "a", "-c", shell_line];
    let all = [&["run"], outer, &["a", "--"], between, &inner[..]].concat();
    let mut run = store.start(&all);
    let pid = line(&mut run).await.parse().unwrap();
    (run, pid)
}

#[tokio::test]
async fn a_loss_ends_a_command_with_an_inherited_lock() {
    let store = Store::new();
    // In a session of its own the inner one gets no signals from the outer one.
    for between in [&[][..], &["setsid", "--wait"]] {
        let outer = ["--ttl", "600ms", "--grace", "100ms"];
        let (mut run, pid) = stubborn(&store, &outer, between).await;
        store.run(&["release", "a", "--force", "--reason", "test"]).ok();
        assert_eq!(code(&mut run).await, Some(76));
        assert!(exits(pid).await);
    }
}

#[tokio::test]
async fn a_nested_run_detects_the_loss_in_the_store() {
    let store = Store::new();
    let outer = ["--ttl", "600ms", "--on-lost", "nothing"];
    let (mut run, pid) = stubborn(&store, &outer, &[]).await;
    store.run(&["release", "a", "--force", "--reason", "test"]).ok();
    assert!(exits(pid).await, "the outer one does not stop it");
    assert_eq!(code(&mut run).await, Some(76));
}

#[tokio::test]
async fn killing_the_outer_run_ends_a_command_with_an_inherited_lock() {
    let store = Store::new();
    for between in [&[][..], &["setsid", "--wait"]] {
        let (mut run, pid) = stubborn(&store, &["--ttl", "1h"], between).await;
        signal(&run, Signal::KILL);
        run.wait(tenure_testkit::GENEROUS).await.unwrap();
        assert!(exits(pid).await);
    }
}

#[tokio::test]
async fn a_background_command_with_an_inherited_lock_ends_with_the_outer_run() {
    let store = Store::new();
    let inner = format!("{TENURE} run --grace 100ms a -c 'echo $$; exec sleep 100'");
    let shell_line = format!("{inner} & read word");
    let mut run = store.start(&["run", "--ttl", "1h", "a", "-c", &shell_line]);
    let pid = line(&mut run).await.parse().unwrap();
    run.close_input();
    run.wait(tenure_testkit::GENEROUS).await.unwrap();
    assert!(exits(pid).await, "it continues without the lock");
}

#[tokio::test]
async fn an_outage_ends_a_command_with_an_inherited_lock() {
    if lacks("redis-server", "an_outage_ends_a_command_with_an_inherited_lock") {
        return;
    }
    let (store, mut server) = (Store::new(), RedisServer::start(&[]).unwrap());
    let url = format!("redis://127.0.0.1:{}", server.port());
    // The TTL of the outer one applies.
    let outer = ["--ttl", "2s", "--on-lost", "nothing", "--store", &url];
    let (mut run, pid) = stubborn(&store, &outer, &[]).await;
    server.stop().unwrap();
    assert!(exits(pid).await);
    server.cont().unwrap();
    assert_eq!(code(&mut run).await, Some(76));
}

#[tokio::test]
async fn killing_the_inner_run_leaves_the_lock_with_the_outer_one() {
    if lacks("redis-server", "killing_the_inner_run_leaves_the_lock_with_the_outer_one") {
        return;
    }
    let (store, server) = (Store::new(), RedisServer::start(&[]).unwrap());
    let url = format!("redis://127.0.0.1:{}", server.port());
    let shell_line = format!("{TENURE} run a -c 'echo $PPID; exec sleep 100'; read word");
    let mut run = store.start(&["--store", &url, "run", "a", "-c", &shell_line]);
    let inner: u32 = line(&mut run).await.parse().unwrap();
    let guardian =
        children_of(inner).into_iter().find(is_guardian).expect("the inner run has a guardian");
    kill_process(Pid::from_raw(inner.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert!(exits(guardian).await, "the guardian has finished");
    let status = store.run(&["--store", &url, "status", "a"]).ok();
    assert!(status.contains("exclusive"), "{status}");
    run.send("go on").unwrap();
    assert_eq!(code(&mut run).await, Some(0));
}

/// The outer command exits and leaves the inner one in the background: from then on the lock is free.
#[tokio::test]
async fn an_inner_command_is_killed_at_once_when_the_outer_run_releases_the_lock() {
    let store = Store::new();
    let inner = "trap : TERM; echo $$; while :; do sleep 0.05; done";
    let outer = format!("{TENURE} run --grace 10m a -c '{inner}' & read line");
    let mut run = store.start(&["run", "a", "-c", &outer]);
    let command: u32 = line(&mut run).await.parse().unwrap();
    run.send("end").unwrap();
    assert_eq!(code(&mut run).await, Some(0));
    assert!(exits(command).await, "its grace period would be ten minutes");
}
