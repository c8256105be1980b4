//! `--at-least` and `--once-per`.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::{EtcdServer, GENEROUS, RedisServer, eventually, lacks};

use crate::common::{BRIEFLY, Store, code, exit_signal, exits, line, runs, signal};

impl Store {
    /// The process that holds the lock.
    fn holder(&self, name: &str) -> Option<u32> {
        self.status(name)["holders"][0]["pid"].as_u64().map(|pid| pid as u32)
    }

    async fn becomes_free(&self, name: &str) -> bool {
        eventually(GENEROUS, || async { self.is_free(name) }).await
    }
}

#[tokio::test]
async fn the_lock_stays_taken_after_the_command_and_tenure_exits_with_it() {
    let store = Store::new();
    let started = Instant::now();
    let least = ["--at-least", "4s"];
    let ran = store.run(&[&["run"], &least[..], &["a", "-c", "echo out; exit 3"]].concat());
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(3), "out\n", ""));
    if started.elapsed() < Duration::from_secs(4) {
        store.run(&["run", "-n", "a", "--", "true"]).failed_silently(75);
        assert!(store.run(&["ls"]).stdout.contains("(sh)"));
    }
    let holder = store.holder("a");
    store.run(&["run", "a", "--", "true"]).ok();
    assert!(started.elapsed() >= Duration::from_secs(4), "{:?}", started.elapsed());
    if let Some(holder) = holder {
        assert!(exits(holder).await, "nothing is left behind");
    }
    // A command that takes longer than that is not delayed.
    store.run(&["run", "--at-least", "1ms", "a", "--", "sleep", "0.05"]).ok();
    assert!(store.is_free("a"));
}

#[tokio::test]
async fn the_longest_minimum_time_is_accepted() {
    if lacks("redis-server", "a long --at-least on Redis") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let store = Store::new();
    let least = format!("{}ms", u64::MAX);
    store.run(&["run", "--store", &url, "--at-least", &least, "a", "--", "true"]).ok();
    store.run(&["run", "--store", &url, "-n", "a", "--", "true"]).failed_silently(75);
    store.run(&["revoke", "--store", &url, "a", "--reason", "the test is over"]).ok();
}

#[tokio::test]
async fn the_background_process_keeps_no_descriptor_of_the_caller_open() {
    let store = Store::new();
    let script = "exec 9>&1; \"$0\" run --at-least 1h a -- true";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tenure")]);
    store.set_environment(&mut command);
    // Returns only when every copy of its standard output, which is descriptor 9 too, is closed.
    assert!(command.output().unwrap().status.success());
    let holder = store.holder("a").unwrap();
    assert!(runs(holder) && std::fs::read_dir(format!("/proc/{holder}/fd")).is_ok());
    store.run(&["revoke", "a", "--reason", "the test is over"]).ok();
    assert!(exits(holder).await);
}

#[tokio::test]
async fn signals_reach_the_command_and_the_lock_stays_taken() {
    let store = Store::new();
    let line_of = "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.02; done";
    let mut tenure = store.start(&["run", "--at-least", "1h", "a", "-c", line_of]);
    assert_eq!(line(&mut tenure).await, "ready");
    signal(&tenure, Signal::USR1);
    assert_eq!(line(&mut tenure).await, "usr1");
    signal(&tenure, Signal::TERM);
    assert_eq!(exit_signal(&mut tenure).await, Some(15));
    let holder = store.holder("a").expect("it is still held");
    tokio::time::sleep(BRIEFLY).await;
    assert!(runs(holder), "the signal was for the command");
    // A signal to the process that holds it ends the hold.
    kill_process(Pid::from_raw(holder.cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert!(store.becomes_free("a").await);
}

#[tokio::test]
async fn the_command_dies_with_the_foreground_process() {
    let store = Store::new();
    let mut tenure = store.start(&["run", "--at-least", "1h", "a", "-c", "echo $$; sleep 100"]);
    let command: u32 = line(&mut tenure).await.parse().unwrap();
    signal(&tenure, Signal::KILL);
    assert!(exits(command).await);
    assert!(store.becomes_free("a").await, "the local store detects the death");
}

#[tokio::test]
async fn what_ends_the_hold_ends_the_wait_for_at_least() {
    let store = Store::new();
    let ran = store.run(&["run", "--at-least", "2s", "--max-hold", "1s", "a", "--", "true"]);
    assert!(ran.failed(64).contains("--max-hold"));
    // A command that cannot be started has not run.
    let missing = store.run(&["run", "--at-least", "1h", "a", "--", "/nowhere/command"]);
    assert_eq!(missing.code, Some(127));
    assert!(store.is_free("a"));
    // An eviction: nothing is left to keep.
    let shell = "echo ready; sleep 100";
    let mut tenure =
        store.start(&["run", "--at-least", "1h", "--grace", "100ms", "a", "-c", shell]);
    assert_eq!(line(&mut tenure).await, "ready");
    store.run(&["release", "a", "--force", "--reason", "test"]).ok();
    assert_eq!(code(&mut tenure).await, Some(76));
    assert!(store.is_free("a"));
    // A revocation: the lock is given back, however early.
    let mut tenure =
        store.start(&["run", "--at-least", "1h", "--grace", "100ms", "a", "-c", shell]);
    assert_eq!(line(&mut tenure).await, "ready");
    store.run(&["revoke", "a", "--reason", "test", "--grace", "1m"]).ok();
    assert_eq!(code(&mut tenure).await, Some(76));
    assert!(store.is_free("a"));
}

#[tokio::test]
async fn on_a_server_the_lock_stays_taken_although_its_ttl_is_shorter() {
    if lacks("redis-server", "--at-least on Redis") || lacks("etcd", "--at-least on etcd") {
        return;
    }
    let (redis, etcd) = (RedisServer::start(&[]).unwrap(), EtcdServer::start(&[]).unwrap());
    let urls = [("redis", redis.port()), ("etcd", etcd.port())];
    for url in urls.map(|(scheme, port)| format!("{scheme}://127.0.0.1:{port}")) {
        let (store, started) = (Store::new(), Instant::now());
        let options = ["--store", &url, "--ttl", "2s", "--at-least", "7s"];
        store.run(&[&["run"], &options[..], &["a", "--", "true"]].concat()).ok();
        store.run(&["run", "--store", &url, "a", "--", "true"]).ok();
        assert!(started.elapsed() >= Duration::from_secs(7), "{url}: {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_request_is_heard_and_a_period_is_kept_on_a_server() {
    if lacks("etcd", "--once-per and revoke on etcd") {
        return;
    }
    let (store, etcd) = (Store::new(), EtcdServer::start(&[]).unwrap());
    let url = format!("etcd://127.0.0.1:{}", etcd.port());
    let once = ["run", "--store", &url, "--once-per", "1h", "a", "--", "echo", "ran"];
    assert_eq!(store.run(&once).ok(), "ran\n");
    assert_eq!(store.run(&once).ok(), "");
    let (mut holder, ..) = store.hold(&["--store", &url], "b").await;
    let said = store.run(&["revoke", "b", "--reason", "x", "--store", &url]).ok();
    assert!(said.contains("let go of b"), "{said}");
    assert_eq!(code(&mut holder).await, Some(76));
}

#[tokio::test]
async fn a_command_runs_once_in_a_period_and_again_after_a_failure() {
    let store = Store::new();
    let count = "echo >> count; exit $(cat code)";
    let run = |options: &[&str]| {
        let all = [&["run", "--once-per", "1h"], options, &["a", "-c", count]].concat();
        let mut command = store.tenure(&all);
        crate::common::Ran::from(command.current_dir(store.scratch()).output().unwrap())
    };
    let runs = || std::fs::read_to_string(store.scratch().join("count")).unwrap().lines().count();
    std::fs::write(store.scratch().join("code"), "7").unwrap();
    assert_eq!(run(&[]).code, Some(7));
    assert_eq!(run(&[]).code, Some(7), "a run that failed does not count");
    std::fs::write(store.scratch().join("code"), "0").unwrap();
    assert_eq!((run(&[]).code, runs()), (Some(0), 3));
    let skipped = run(&[]);
    assert_eq!((skipped.code, runs()), (Some(0), 3));
    assert!(skipped.stderr.contains("\"a\" is not run: it ran "), "{}", skipped.stderr);
    assert!(skipped.stderr.contains("token ") && skipped.stderr.contains("--once-per 1h"));
    assert_eq!(run(&["-E", "9"]).code, Some(9));
    let quiet = run(&["-q"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
    assert_eq!(runs(), 3);
}

#[tokio::test]
async fn a_period_and_what_a_program_does_once_under_the_same_name_are_two_things() {
    let store = Store::new();
    store.run(&["run", "--once-per", "1h", "a", "--", "true"]).ok();
    let scratch = store.scratch();
    let url = format!("local:{}/store", scratch.parent().unwrap().display());
    let client = tenure::connect(&url).await.unwrap();
    assert_eq!(client.once::<String>("a").unwrap().get().await.unwrap(), None);
    client.close().await;
}

#[tokio::test]
async fn a_command_runs_again_when_the_period_is_over() {
    let store = Store::new();
    let run = || store.run(&["run", "--once-per", "1500ms", "a", "--", "echo", "ran"]).ok();
    let started = Instant::now();
    assert_eq!(run(), "ran\n");
    assert!(eventually(GENEROUS, || async { run() == "ran\n" }).await);
    assert!(started.elapsed() >= Duration::from_millis(1500));
}

#[tokio::test]
async fn of_two_at_once_one_runs_and_the_other_waits_and_skips_or_is_busy() {
    let store = Store::new();
    let once = ["run", "--once-per", "1h"];
    let mut first = store.start(&[&once[..], &["a", "-c", "echo ready; read x"]].concat());
    assert_eq!(line(&mut first).await, "ready");
    store.run(&[&once[..], &["-n", "a", "--", "true"]].concat()).failed_silently(75);
    let mut second = store.start(&[&once[..], &["a", "--", "echo", "ran twice"]].concat());
    store.wait_for_waiters("a", 1).await;
    first.send("").unwrap();
    assert_eq!(code(&mut first).await, Some(0));
    assert_eq!(code(&mut second).await, Some(0));
    assert_eq!(second.line(BRIEFLY).await, None, "the second one skips");
    let conflict = store.run(&[&once[..], &["--shared", "a", "--", "true"]].concat());
    assert_eq!(conflict.code, Some(64));
}

/// Carries connections to a server until a client asks for the last run for the `count`th time: from then
/// on nothing of that connection arrives. Returns the port, and how often it was asked for.
fn stall_at(count: usize, server: u16) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", server)).unwrap();
            let mut replies = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || io::copy(&mut replies.0, &mut replies.1));
            let asked = Arc::clone(&seen);
            std::thread::spawn(move || {
                let mut chunk = [0; 16 << 10];
                while let Ok(length @ 1..) = client.read(&mut chunk) {
                    let asks = chunk[..length].windows(5).any(|word| word == b":once");
                    asked.fetch_add(asks.into(), Ordering::SeqCst);
                    if asked.load(Ordering::SeqCst) < count {
                        server.write_all(&chunk[..length]).unwrap();
                    }
                }
            });
        }
    });
    (port, asked)
}

#[tokio::test]
async fn a_signal_interrupts_the_looks_for_the_last_run_before_and_under_the_lock() {
    if lacks("redis-server", "an interrupted --once-per on Redis") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    for count in [1, 2] {
        let (port, asked) = stall_at(count, server.port());
        let url = format!("redis://127.0.0.1:{port}");
        let store = Store::new();
        let mut run = store.start(&["run", "--store", &url, "--once-per", "1h", "a", "--", "true"]);
        let stalled = || async { asked.load(Ordering::SeqCst) >= count };
        assert!(eventually(GENEROUS, stalled).await);
        signal(&run, Signal::TERM);
        assert_eq!(exit_signal(&mut run).await, Some(Signal::TERM.as_raw()), "look {count}");
    }
}
