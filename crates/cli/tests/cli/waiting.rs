//! Waiting for a lock: limits, reports, signals and exit codes; shared locks and semaphores.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_testkit::eventually;

use crate::common::{BRIEFLY, Store, exit_signal, line, signal};

#[tokio::test]
async fn a_busy_lock_exits_with_75_or_the_chosen_code() {
    let store = Store::new();
    let (holder, ..) = store.hold(&[], "a").await;
    // Silent, because cron mails every output.
    store.run(&["run", "-n", "a", "--", "true"]).failed_silently(75);
    store.run(&["run", "-n", "-E", "9", "a", "--", "true"]).failed_silently(9);
    store.run(&["hold", "-n", "a"]).failed_silently(75);
    let verbose = store.run(&["-v", "run", "-n", "a", "--", "true"]);
    assert_eq!(verbose.code, Some(75));
    let busy = verbose.stderr.lines().find(|line| line.starts_with("tenure: ")).unwrap();
    assert!(busy.contains("\"a\"") && busy.contains("tenure status"), "{busy}");
    store.run(&["-q", "run", "-w", "1ms", "a", "--", "true"]).failed_silently(75);
    let start = Instant::now();
    store.run(&["run", "-w", "200ms", "a", "--", "true"]).failed(75);
    assert!(start.elapsed() >= Duration::from_millis(200));
    let status = store.status("a");
    assert_eq!(status["holders"][0]["pid"], holder.pid());
    assert_eq!(status["waiters"].as_array().unwrap().len(), 0, "the queue is empty again");
    store.run(&["run", "-n", "b", "--", "true"]).ok();
}

#[tokio::test]
async fn quiet_hides_a_busy_lock_but_no_error() {
    let store = Store::new();
    let run = |arguments: &[&str]| store.run(&[&["-q"], arguments].concat());
    let nowhere = ["--store", "redis://127.0.0.1:1?timeout=100ms"];
    run(&[&nowhere[..], &["run", "-n", "a", "--", "true"]].concat()).failed(69);
    run(&["run", "-n", "a", "--", "no-such-command"]).failed(127);
    run(&["run", "--ttl", "0s", "a", "--", "true"]).failed(64);
    run(&["run", "", "--", "true"]).failed(64);
    let lost = run(&["run", "--max-hold", "100ms", "--grace", "100ms", "a", "--", "sleep", "100"]);
    assert_eq!(lost.code, Some(76));
    assert!(lost.stderr.contains("giving up the lock \"a\""), "{lost:?}");
}

#[tokio::test]
async fn without_a_terminal_a_wait_is_reported_only_with_verbose() {
    let store = Store::new();
    let (_holder, ..) = store.hold(&["--label", "nightly"], "a").await;
    let stderr = store.scratch().join("stderr");
    let mut waiter = store.tenure(&["-v", "run", "a", "--", "true"]);
    waiter.stderr(std::fs::File::create(&stderr).unwrap());
    let _waiter = tenure_testkit::Process::spawn(waiter).unwrap();
    let reported = || async { std::fs::read_to_string(&stderr).unwrap().contains("(nightly) for") };
    assert!(eventually(tenure_testkit::GENEROUS, reported).await);
    // One line, about the timeout.
    store.run(&["run", "-w", "1500ms", "a", "--", "true"]).failed(75);
}

#[tokio::test]
async fn a_signal_ends_a_waiter_and_removes_it_from_the_queue() {
    let store = Store::new();
    let (_holder, ..) = store.hold(&[], "a").await;
    let (run, hold) = (["run", "a", "--", "echo", "started"], ["hold", "a"]);
    for number in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        for arguments in [&run[..], &hold] {
            let mut waiter = store.start(arguments);
            store.wait_for_waiters("a", 1).await;
            signal(&waiter, number);
            assert_eq!(exit_signal(&mut waiter).await, Some(number.as_raw()), "{arguments:?}");
            assert_eq!(waiter.line(BRIEFLY).await, None);
            store.wait_for_waiters("a", 0).await;
        }
    }
}

#[test]
fn concurrent_runs_lose_no_update_and_have_distinct_tokens() {
    const RUNS: u64 = 40;
    let store = Store::new();
    let file = store.scratch().join("f");
    std::fs::write(&file, "0\n").unwrap();
    let shell_line = "echo $TENURE_TOKEN; n=$(cat f); echo $((n+1)) > f";
    let start = |_| {
        let mut command = store.tenure(&["run", "counter", "-c", shell_line]);
        command.current_dir(store.scratch()).stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..RUNS).map(start).collect();
    let mut tokens = HashSet::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        tokens.insert(String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), RUNS.to_string());
    assert_eq!(tokens.len() as u64, RUNS);
}

#[tokio::test]
async fn shared_holders_hold_together_and_exclude_a_writer() {
    let store = Store::new();
    let (_one, ..) = store.hold(&["-s"], "a").await;
    let (_two, ..) = store.hold(&["-s"], "a").await;
    store.run(&["run", "-n", "-x", "a", "--", "true"]).failed_silently(75);
    assert_eq!(store.status("a")["mode"], "shared");
}

#[tokio::test]
async fn a_semaphore_grants_no_more_permits_than_it_has() {
    let store = Store::new();
    let (_two, ..) = store.hold(&["--permits", "3", "--take", "2"], "a").await;
    store.run(&["run", "-n", "--permits", "3", "a", "--", "true"]).ok();
    store
        .run(&["run", "-n", "--permits", "3", "--take", "2", "a", "--", "true"])
        .failed_silently(75);
    let status = store.status("a");
    assert_eq!((&status["mode"], &status["holders"][0]["take"]), (&"permits".into(), &2.into()));
    assert_eq!(status["holders"][0]["of"], 3);
    store.run(&["run", "--permits", "3", "--take", "4", "a", "--", "true"]).failed(64);
}

#[tokio::test]
async fn an_outage_during_a_wait_is_reported_without_a_terminal_and_with_quiet() {
    if tenure_testkit::lacks("redis-server", "an_outage_while_waiting_is_reported") {
        return;
    }
    let mut server = tenure_testkit::RedisServer::start(&[]).unwrap();
    let store = Store::new();
    let url = format!("redis://127.0.0.1:{}?timeout=500ms", server.port());
    let at = |words: &[&str]| store.tenure(&[&["--store", &url], words].concat());
    let mut holder = tenure_testkit::Process::spawn(at(&["hold", "a"])).unwrap();
    line(&mut holder).await;
    let stderr = store.scratch().join("stderr");
    let mut waiter = at(&["-q", "run", "a", "--", "true"]);
    waiter.stderr(std::fs::File::create(&stderr).unwrap());
    let _waiter = tenure_testkit::Process::spawn(waiter).unwrap();
    let waits = || async {
        let status = at(&["--json", "status", "a"]).output().unwrap();
        String::from_utf8_lossy(&status.stdout).contains("\"waiters\":[{")
    };
    assert!(eventually(tenure_testkit::GENEROUS, waits).await);
    server.stop().unwrap();
    // The engine gives up on the silent server before the client ends the call.
    let reported = || async {
        let text = std::fs::read_to_string(&stderr).unwrap();
        text.starts_with("tenure: still waiting for the lock \"a\": ")
            && text.contains("within 450ms")
    };
    let reported = eventually(2 * tenure_testkit::GENEROUS, reported).await;
    assert!(reported, "{}", std::fs::read_to_string(&stderr).unwrap());
    server.cont().unwrap();
}
