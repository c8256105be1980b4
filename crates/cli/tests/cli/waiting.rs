//! Who waits, how long, and with which exit code.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_testkit::eventually;

use crate::common::{A_MOMENT, Store, code, died_of, line, signal};

#[tokio::test]
async fn a_busy_lock_has_an_exit_code_of_its_own() {
    let store = Store::new();
    let (holder, ..) = store.hold(&[], "a").await;
    // For cron, which sends a message for every word.
    store.run(&["run", "-n", "a", "--", "true"]).failed_silently(75);
    store.run(&["run", "-n", "-E", "9", "a", "--", "true"]).failed_silently(9);
    store.run(&["hold", "-n", "a"]).failed_silently(75);
    let told = store.run(&["-v", "run", "-n", "a", "--", "true"]);
    assert_eq!(told.code, Some(75));
    let busy = told.stderr.lines().find(|line| line.starts_with("tenure: ")).unwrap();
    assert!(busy.contains("\"a\"") && busy.contains("tenure status"), "{busy}");
    store.run(&["-q", "run", "-w", "1ms", "a", "--", "true"]).failed_silently(75);
    let start = Instant::now();
    store.run(&["run", "-w", "200ms", "a", "--", "true"]).failed(75);
    assert!(start.elapsed() >= Duration::from_millis(200));
    let status = store.status("a");
    assert_eq!(status["holders"][0]["pid"], holder.pid());
    assert_eq!(status["waiters"].as_array().unwrap().len(), 0, "who gave up left the line");
    store.run(&["run", "-n", "b", "--", "true"]).ok();
}

#[tokio::test]
async fn quiet_hides_a_busy_lock_and_no_fault() {
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
async fn a_wait_is_told_without_a_terminal_only_if_asked_for() {
    let store = Store::new();
    let (_holder, ..) = store.hold(&["--label", "nightly"], "a").await;
    let told = store.scratch().join("told");
    let mut waiter = store.tenure(&["-v", "run", "a", "--", "true"]);
    waiter.stderr(std::fs::File::create(&told).unwrap());
    let _waiter = tenure_testkit::Process::spawn(waiter).unwrap();
    let says = || async { std::fs::read_to_string(&told).unwrap().contains("(nightly) for") };
    assert!(eventually(tenure_testkit::GENEROUS, says).await);
    // One line: that the lock was not free in time.
    store.run(&["run", "-w", "1500ms", "a", "--", "true"]).failed(75);
}

#[tokio::test]
async fn a_waiter_that_a_signal_ends_leaves_the_line_and_dies_of_the_signal() {
    let store = Store::new();
    let (_holder, ..) = store.hold(&[], "a").await;
    let (run, hold) = (["run", "a", "--", "echo", "started"], ["hold", "a"]);
    for number in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        for arguments in [&run[..], &hold] {
            let mut waiter = store.start(arguments);
            store.waiters("a", 1).await;
            signal(&waiter, number);
            assert_eq!(died_of(&mut waiter).await, Some(number.as_raw()), "{arguments:?}");
            assert_eq!(waiter.line(A_MOMENT).await, None);
            store.waiters("a", 0).await;
        }
    }
}

#[test]
fn concurrent_runs_lose_no_update_and_all_have_their_own_token() {
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
async fn shared_holders_stand_beside_each_other_and_keep_a_writer_out() {
    let store = Store::new();
    let (_one, ..) = store.hold(&["-s"], "a").await;
    let (_two, ..) = store.hold(&["-s"], "a").await;
    store.run(&["run", "-n", "-x", "a", "--", "true"]).failed_silently(75);
    assert_eq!(store.status("a")["mode"], "shared");
}

#[tokio::test]
async fn a_semaphore_gives_as_many_permits_as_it_has() {
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
async fn hold_lets_go_when_told_to_and_when_its_input_closes() {
    let store = Store::new();
    for number in [Signal::INT, Signal::TERM] {
        let (mut holder, ..) = store.hold(&[], "a").await;
        signal(&holder, number);
        assert_eq!(code(&mut holder).await, Some(0));
        assert_eq!(store.status("a")["holders"].as_array().unwrap().len(), 0);
    }
    let (mut holder, ..) = store.hold(&["--stdin"], "a").await;
    holder.send("still here").unwrap();
    assert_eq!(store.status("a")["holders"].as_array().unwrap().len(), 1);
    holder.close_input();
    assert_eq!(code(&mut holder).await, Some(0));
    assert_eq!(store.status("a")["holders"].as_array().unwrap().len(), 0);
}

#[tokio::test]
async fn hold_releases_the_lock_and_dies_of_sigpipe_if_its_output_is_closed() {
    let store = Store::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = store.tenure(&["hold", "a"]);
    let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(Signal::PIPE.as_raw()), "{said}");
    assert!(said.contains("released the lock \"a\""), "{said}");
    assert_eq!(store.status("a")["holders"].as_array().unwrap().len(), 0);
}

#[tokio::test]
async fn hold_ends_with_its_own_code_when_the_lock_is_lost() {
    let store = Store::new();
    let (mut holder, ..) = store.hold(&["--max-hold", "200ms"], "a").await;
    assert_eq!(code(&mut holder).await, Some(76));
    let free = || async { store.status("a")["holders"].as_array().unwrap().is_empty() };
    assert!(eventually(tenure_testkit::GENEROUS, free).await);
}

#[tokio::test]
async fn hold_says_what_it_holds_as_json() {
    let store = Store::new();
    let mut holder = store.start(&["--json", "hold", "a"]);
    let object: serde_json::Value = serde_json::from_str(&line(&mut holder).await).unwrap();
    assert_eq!(object["lock"], "a");
    assert!(object["token"].is_u64());
    assert_eq!(object["owner"].as_str().unwrap().len(), 32);
    assert!(object["store"].as_str().unwrap().starts_with("local:/"));
}

#[tokio::test]
async fn an_outage_while_waiting_is_reported_without_a_terminal_and_although_quiet() {
    if tenure_testkit::lacks("redis-server", "an_outage_while_waiting_is_reported") {
        return;
    }
    let mut server = tenure_testkit::RedisServer::start(&[]).unwrap();
    let store = Store::new();
    let url = format!("redis://127.0.0.1:{}?timeout=500ms", server.port());
    let at = |words: &[&str]| store.tenure(&[&["--store", &url], words].concat());
    let mut holder = tenure_testkit::Process::spawn(at(&["hold", "a"])).unwrap();
    line(&mut holder).await;
    let told = store.scratch().join("told");
    let mut waiter = at(&["-q", "run", "a", "--", "true"]);
    waiter.stderr(std::fs::File::create(&told).unwrap());
    let _waiter = tenure_testkit::Process::spawn(waiter).unwrap();
    let waits = || async {
        let status = at(&["--json", "status", "a"]).output().unwrap();
        String::from_utf8_lossy(&status.stdout).contains("\"waiters\":[{")
    };
    assert!(eventually(tenure_testkit::GENEROUS, waits).await);
    server.stop().unwrap();
    let says = || async {
        let told = std::fs::read_to_string(&told).unwrap();
        told.starts_with("tenure: still waiting for the lock \"a\": ") && told.contains("500ms")
    };
    let reported = eventually(2 * tenure_testkit::GENEROUS, says).await;
    assert!(reported, "{}", std::fs::read_to_string(&told).unwrap());
    server.cont().unwrap();
}
