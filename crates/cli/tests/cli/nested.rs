//! `tenure` under `tenure run`: a lock that is already held around it is entered.

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::{Process, RedisServer, lacks};

use crate::common::{Ran, Store, children_of, code, ends, is_guardian, line, signal};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");
const SHOW: &str = "echo $TENURE_LOCK $TENURE_TOKEN $TENURE_OWNER";

#[test]
fn a_lock_that_is_held_around_a_command_is_entered() {
    let store = Store::new();
    // The outer ones say what they hold, then the inner one does: `a` again, two levels below.
    let shell_line = format!(
        "{SHOW}; exec $0 run -n b -c '{SHOW}; exec $0 run -n a -c \"{}\"'",
        SHOW.replace('$', "\\$")
    )
    .replace("$0", TENURE);
    let said = store.run(&["run", "-n", "a", "-c", &shell_line]).ok();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].starts_with("a ") && lines[1].starts_with("b "), "{said}");
    assert_eq!(lines[2], lines[0], "the same hold, token and owner");
    assert_eq!(store.status("a")["holders"].as_array().unwrap().len(), 0);
}

#[test]
fn a_lock_that_was_entered_stays_held_when_the_inner_command_ends() {
    let store = Store::new();
    let shell_line = "$0 run a -- true && $0 hold -n --stdin a </dev/null && $0 status --json a";
    let shell_line = shell_line.replace("$0", TENURE);
    let said = store.run(&["run", "a", "-c", &format!("{SHOW}; {shell_line}")]).ok();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], lines[1], "hold shows the hold that it entered: {said}");
    let status: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
    assert_eq!(status["holders"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["waiters"].as_array().unwrap().len(), 0, "{status}");
}

#[test]
fn a_lock_that_is_held_around_a_command_cannot_be_taken_in_another_mode() {
    let store = Store::new();
    for (outer, inner) in [
        (&[][..], &["-s"][..]),
        (&["-s"], &["-x"]),
        (&["--permits", "3"], &[]),
        (&["--permits", "3"], &["--permits", "3", "--take", "2"]),
    ] {
        let inner = [&[TENURE, "run"], inner, &["a", "--", "true"]].concat();
        let said = store.run(&[&["run"], outer, &["a", "--"], &inner].concat()).failed(64);
        assert!(said.contains("cannot be taken as"), "{said}");
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
    let said = store.run(&["run", "a", "-c", &shell_line]).ok();
    let lines: Vec<_> = said.lines().collect();
    assert_ne!(lines[0], lines[1]);
    // The store of one process is another one in every process.
    let said = store.run(&["--store", "memory:", "run", "a", "--", TENURE, "run", "a", "-c", SHOW]);
    assert!(said.ok().starts_with("a "));
}

#[test]
fn a_hold_that_is_gone_is_not_entered_and_not_waited_for() {
    let store = Store::new();
    let shell_line = format!(
        "{TENURE} release a --owner $TENURE_OWNER >&2; {TENURE} run a -- echo started; echo $?"
    );
    let ran = store.run(&["run", "a", "-c", &shell_line]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(76), "76\n"), "{ran:?}");
    assert!(ran.stderr.contains("nothing was started"), "{ran:?}");
}

#[test]
fn without_the_environment_of_the_outer_command_a_lock_is_not_entered() {
    let store = Store::new();
    let inner = ["env", "-u", "TENURE_HELD", TENURE, "run", "-n", "a", "--", "true"];
    store.run(&[&["run", "a", "--"], &inner[..]].concat()).failed_silently(75);
    let mut command = store.tenure(&["run", "a", "--", "true"]);
    let said = Ran::from(command.env("TENURE_HELD", "[{").output().unwrap()).failed(64);
    assert!(said.contains("TENURE_HELD"), "{said}");
}

#[test]
fn a_lock_on_a_server_is_entered() {
    if lacks("redis-server", "a_lock_on_a_server_is_entered") {
        return;
    }
    let (store, server) = (Store::new(), RedisServer::start(&[]).unwrap());
    // The outer one says the port, the inner one another spelling of the same server.
    let (outer, inner) = ("127.0.0.1", "localhost");
    let [outer, inner] = [outer, inner].map(|host| format!("redis://{host}:{}", server.port()));
    let shell_line = format!("{SHOW}; {TENURE} --store {inner} run -n a -c '{SHOW}'");
    let said = store.run(&["--store", &outer, "run", "a", "-c", &shell_line]).ok();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], lines[1]);
}

/// Starts a command under `tenure run` under `tenure run`, which does not end by SIGTERM, and waits
/// until it runs. Returns its process id, too.
async fn stubborn(store: &Store, outer: &[&str], between: &[&str]) -> (Process, u32) {
    let shell_line = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let inner = [TENURE, "run", "--grace", "100ms", "a", "-c", shell_line];
    let all = [&["run"], outer, &["a", "--"], between, &inner[..]].concat();
    let mut run = store.start(&all);
    let pid = line(&mut run).await.parse().unwrap();
    (run, pid)
}

#[tokio::test]
async fn a_loss_ends_a_command_that_entered_the_lock() {
    let store = Store::new();
    // In a session of its own the inner one hears nothing from the outer one.
    for between in [&[][..], &["setsid", "--wait"]] {
        let outer = ["--ttl", "600ms", "--grace", "100ms"];
        let (mut run, pid) = stubborn(&store, &outer, between).await;
        store.run(&["release", "a", "--force", "--reason", "test"]).ok();
        assert_eq!(code(&mut run).await, Some(76));
        assert!(ends(pid).await);
    }
}

#[tokio::test]
async fn a_loss_is_seen_in_the_store_by_a_command_that_entered_the_lock() {
    let store = Store::new();
    let outer = ["--ttl", "600ms", "--on-lost", "nothing"];
    let (mut run, pid) = stubborn(&store, &outer, &[]).await;
    store.run(&["release", "a", "--force", "--reason", "test"]).ok();
    assert!(ends(pid).await, "the outer one left it alone");
    assert_eq!(code(&mut run).await, Some(76));
}

#[tokio::test]
async fn the_death_of_the_outer_one_ends_a_command_that_entered_the_lock() {
    let store = Store::new();
    for between in [&[][..], &["setsid", "--wait"]] {
        let (mut run, pid) = stubborn(&store, &["--ttl", "1h"], between).await;
        signal(&run, Signal::KILL);
        run.wait(tenure_testkit::GENEROUS).await.unwrap();
        assert!(ends(pid).await);
    }
}

#[tokio::test]
async fn a_command_left_behind_with_an_entered_lock_ends_with_the_hold() {
    let store = Store::new();
    let inner = format!("{TENURE} run --grace 100ms a -c 'echo $$; exec sleep 100'");
    let shell_line = format!("{inner} & read word");
    let mut run = store.start(&["run", "--ttl", "1h", "a", "-c", &shell_line]);
    let pid = line(&mut run).await.parse().unwrap();
    run.close_input();
    run.wait(tenure_testkit::GENEROUS).await.unwrap();
    assert!(ends(pid).await, "it runs on without the lock");
}

#[tokio::test]
async fn a_store_that_does_not_answer_ends_a_command_that_entered_the_lock() {
    if lacks("redis-server", "a_store_that_does_not_answer_ends_a_command_that_entered_the_lock") {
        return;
    }
    let (store, mut server) = (Store::new(), RedisServer::start(&[]).unwrap());
    let url = format!("redis://127.0.0.1:{}", server.port());
    // The TTL that counts is the outer one's.
    let outer = ["--ttl", "2s", "--on-lost", "nothing", "--store", &url];
    let (mut run, pid) = stubborn(&store, &outer, &[]).await;
    server.stop().unwrap();
    assert!(ends(pid).await);
    server.cont().unwrap();
    assert_eq!(code(&mut run).await, Some(76));
}

#[tokio::test]
async fn the_death_of_the_inner_one_leaves_the_lock_to_the_outer_one() {
    if lacks("redis-server", "the_death_of_the_inner_one_leaves_the_lock_to_the_outer_one") {
        return;
    }
    let (store, server) = (Store::new(), RedisServer::start(&[]).unwrap());
    let url = format!("redis://127.0.0.1:{}", server.port());
    let shell_line = format!("{TENURE} run a -c 'echo $PPID; exec sleep 100'; read word");
    let mut run = store.start(&["--store", &url, "run", "a", "-c", &shell_line]);
    let inner: u32 = line(&mut run).await.parse().unwrap();
    let guardian = children_of(inner).into_iter().find(is_guardian).expect("it has a guardian");
    kill_process(Pid::from_raw(inner.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert!(ends(guardian).await, "it has done what it does");
    let status = store.run(&["--store", &url, "status", "a"]).ok();
    assert!(status.contains("exclusive"), "{status}");
    run.send("go on").unwrap();
    assert_eq!(code(&mut run).await, Some(0));
}

/// The outer command ends and leaves the inner one in the background: the lock is free from then on.
#[tokio::test]
async fn an_inner_command_is_killed_at_once_when_the_lock_around_it_is_given_back() {
    let store = Store::new();
    let inner = "trap : TERM; echo $$; while :; do sleep 0.05; done";
    let outer = format!("{TENURE} run --grace 10m a -c '{inner}' & read line");
    let mut run = store.start(&["run", "a", "-c", &outer]);
    let command: u32 = line(&mut run).await.parse().unwrap();
    run.send("end").unwrap();
    assert_eq!(code(&mut run).await, Some(0));
    assert!(ends(command).await, "it would have ten minutes otherwise");
}
