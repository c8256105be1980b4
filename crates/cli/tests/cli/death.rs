//! Deaths and stops: who is freed, who is killed, and who is told.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::{GENEROUS, Process};

use crate::common::{Store, children, code, ends, is_guardian, line, runs};

#[tokio::test]
async fn the_death_of_a_holder_lets_the_next_one_in_long_before_the_ttl() {
    let store = Store::new();
    let (mut holder, ..) = store.hold(&["--ttl", "10m"], "a").await;
    let mut waiter = store.start(&["run", "a", "--", "echo", "in"]);
    store.waiters("a", 1).await;
    holder.kill9().unwrap();
    assert_eq!(line(&mut waiter).await, "in");
    assert_eq!(code(&mut waiter).await, Some(0));
}

#[tokio::test]
async fn our_death_kills_the_command_and_what_it_has_started() {
    let store = Store::new();
    let mut run = store.start(&["run", "a", "-c", "sleep 100 & echo $$ $!; wait"]);
    let pids = pids(&mut run).await;
    assert!(pids.iter().all(|pid| runs(*pid)));
    run.kill9().unwrap();
    for pid in pids {
        assert!(ends(pid).await, "{pid}");
    }
}

#[tokio::test]
async fn our_death_kills_the_command_even_if_its_guardian_died_before() {
    let store = Store::new();
    let mut run = store.start(&["run", "a", "-c", "echo $$; exec sleep 100"]);
    let command: u32 = line(&mut run).await.parse().unwrap();
    let guardian = children(&run).into_iter().find(is_guardian).expect("there is a guardian");
    kill_process(Pid::from_raw(guardian.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert!(ends(guardian).await && runs(command));
    run.kill9().unwrap();
    assert!(ends(command).await);
}

#[tokio::test]
async fn our_death_kills_what_a_stopped_command_has_started() {
    let store = Store::new();
    let mut run = store.start(&["run", "a", "-c", "sleep 100 & echo $$ $!; kill -STOP $$; wait"]);
    let pids = pids(&mut run).await;
    run.kill9().unwrap();
    for pid in pids {
        assert!(ends(pid).await, "{pid}");
    }
}

#[tokio::test]
async fn a_stopped_holder_loses_the_lock_after_its_ttl_and_its_command_when_it_wakes() {
    let store = Store::new();
    let start = Instant::now();
    let mut holder =
        store.start(&["run", "--ttl", "2s", "a", "-c", "sleep 100 & echo $$ $!; wait"]);
    let pids = pids(&mut holder).await;
    holder.stop().unwrap();
    let mut waiter = store.start(&["run", "a", "-c", "echo in; read word; true"]);
    assert_eq!(line(&mut waiter).await, "in");
    // The term began after `start`, however slow the machine is.
    assert!(start.elapsed() >= Duration::from_millis(1900), "{:?}", start.elapsed());
    holder.cont().unwrap();
    assert_eq!(code(&mut holder).await, Some(76));
    for pid in pids {
        assert!(!runs(pid), "{pid} runs on although its lock was lost");
    }
    waiter.close_input();
    assert_eq!(code(&mut waiter).await, Some(0));
}

#[tokio::test]
async fn a_command_that_does_not_heed_the_term_signal_is_killed_after_the_grace() {
    let store = Store::new();
    let shell_line = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done";
    let mut run =
        store.start(&["run", "--max-hold", "200ms", "--grace", "300ms", "a", "-c", shell_line]);
    assert_eq!(line(&mut run).await, "ready");
    assert_eq!(line(&mut run).await, "asked");
    assert_eq!(code(&mut run).await, Some(76));
}

#[tokio::test]
async fn what_the_command_has_started_gets_the_grace_too() {
    let store = Store::new();
    // The shell dies of SIGTERM at once; its child cleans up. Its orphan becomes ours, and we wait
    // for nobody, as the first process of many containers: that must not cost the whole grace.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let cleaner =
        "trap 'sleep 0.3; echo clean; exit' TERM; echo ready; while :; do sleep 0.05; done";
    let shell_line = format!("sh -c \"{cleaner}\" & wait");
    let mut run =
        store.start(&["run", "--max-hold", "500ms", "--grace", "10m", "a", "-c", &shell_line]);
    assert_eq!(line(&mut run).await, "ready");
    assert_eq!(line(&mut run).await, "clean");
    assert_eq!(code(&mut run).await, Some(76));
}

/// A stopped process does not see that it should end, and the grace is far away.
#[tokio::test]
async fn a_loss_ends_a_command_that_is_stopped() {
    let store = Store::new();
    let options = ["run", "--ttl", "10m", "--max-hold", "300ms", "--grace", "5m", "a"];
    let mut run = store.start(&[&options[..], &["-c", "kill -STOP $$; sleep 100"]].concat());
    assert_eq!(code(&mut run).await, Some(76));
}

/// The command ends at once; what it started does not listen, and must be gone with the lock.
#[tokio::test]
async fn a_loss_ends_what_the_command_has_started() {
    let store = Store::new();
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    let shell_line = format!("sh -c \"{deaf}\" & echo $$ $!; wait");
    let options = ["run", "--max-hold", "500ms", "--grace", "200ms", "a", "-c"];
    let mut run = store.start(&[&options[..], &[shell_line.as_str()]].concat());
    let pids = pids(&mut run).await;
    assert_eq!(code(&mut run).await, Some(76));
    for pid in pids {
        assert!(!runs(pid), "{pid} is gone before the lock is given back");
    }
}

#[tokio::test]
async fn on_lost_decides_what_happens_to_the_command() {
    let store = Store::new();
    let shell_line = "trap 'echo asked' TERM; echo ready; sleep 0.6; echo done";
    let run = |what: &str| {
        store.start(&["run", "--max-hold", "200ms", "--on-lost", what, "a", "-c", shell_line])
    };
    let mut killed = run("kill");
    assert_eq!(line(&mut killed).await, "ready");
    assert_eq!(code(&mut killed).await, Some(76));
    assert_eq!(killed.line(GENEROUS).await, None, "killed without being asked");
    let mut left_alone = run("nothing");
    assert_eq!(line(&mut left_alone).await, "ready");
    assert_eq!(line(&mut left_alone).await, "done");
    assert_eq!(code(&mut left_alone).await, Some(76));
}

#[test]
fn a_store_that_vanishes_is_a_loss_at_the_next_renewal() {
    let store = Store::new();
    let shell_line = "rm -rf \"$TENURE_DIR\"; exec sleep 100";
    let ran = store.run(&["run", "--ttl", "2s", "a", "-c", shell_line]);
    assert_eq!(ran.code, Some(76), "{ran:?}");
    assert!(ran.stderr.contains("no longer holds the lock"), "{ran:?}");
}

#[test]
fn a_store_that_falls_silent_is_a_danger_first_and_then_an_end() {
    if tenure_testkit::lacks("redis-server", "a store that falls silent") {
        return;
    }
    let mut server = tenure_testkit::RedisServer::start(&[]).unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    // The command itself silences the server, so that nothing is said before it is held.
    let shell_line = format!("kill -STOP {}; exec sleep 100", server.pid());
    let arguments = ["--store", &url, "run", "--ttl", "2s", "a", "-c", &shell_line];
    let ran = Store::new().run(&arguments);
    server.cont().unwrap();
    assert_eq!(ran.code, Some(76), "{ran:?}");
    let danger = ran.stderr.find("half its TTL");
    assert!(danger.is_some() && danger < ran.stderr.find("about to be lost"), "{ran:?}");
}

#[test]
fn a_loss_that_only_the_release_finds_out_is_a_loss() {
    let store = Store::new();
    let shell_line = r#""$0" release a --owner $TENURE_OWNER >&2; exit 3"#;
    let binary = env!("CARGO_BIN_EXE_tenure");
    let ran = store.run(&["run", "a", "--", "sh", "-c", shell_line, binary]);
    assert_eq!(ran.code, Some(76), "{ran:?}");
    assert!(ran.stderr.contains("lost the lock \"a\" before the command ended"), "{ran:?}");
}

#[test]
fn a_loss_is_told_in_one_line() {
    let store = Store::new();
    let ran = store.run(&["run", "--max-hold", "100ms", "a", "--", "sleep", "100"]);
    assert!(ran.failed(76).contains("--max-hold"));
    let ran = store.run(&["-q", "run", "--max-hold", "100ms", "a", "--", "sleep", "100"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(76), ""), "-q says nothing");
}

async fn pids(process: &mut Process) -> Vec<u32> {
    let line = line(process).await;
    let pids: Vec<_> = line.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    pids
}
