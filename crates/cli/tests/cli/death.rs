//! Killing `tenure`: the lock is released, and the command is killed.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Store, children, code, exits, is_guardian, line, runs, two_pids};

#[tokio::test]
async fn a_waiter_gets_the_lock_of_a_killed_holder_long_before_the_ttl() {
    let store = Store::new();
    let (mut holder, ..) = store.hold(&["--ttl", "10m"], "a").await;
    let mut waiter = store.start(&["run", "a", "--", "echo", "started"]);
    store.wait_for_waiters("a", 1).await;
    holder.kill9().unwrap();
    assert_eq!(line(&mut waiter).await, "started");
    assert_eq!(code(&mut waiter).await, Some(0));
}

#[tokio::test]
async fn killing_tenure_kills_the_command_and_its_children() {
    let store = Store::new();
    let mut run = store.start(&["run", "a", "-c", "sleep 100 & echo $$ $!; wait"]);
    let pids = two_pids(&mut run).await;
    assert!(pids.iter().all(|pid| runs(*pid)));
    run.kill9().unwrap();
    for pid in pids {
        assert!(exits(pid).await, "{pid}");
    }
}

#[tokio::test]
async fn killing_tenure_kills_the_command_even_without_a_guardian() {
    let store = Store::new();
    let mut run = store.start(&["run", "a", "-c", "echo $$; exec sleep 100"]);
    let command: u32 = line(&mut run).await.parse().unwrap();
    let guardian = children(&run).into_iter().find(is_guardian).expect("tenure run has a guardian");
    kill_process(Pid::from_raw(guardian.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert!(exits(guardian).await && runs(command));
    run.kill9().unwrap();
    assert!(exits(command).await);
}

#[tokio::test]
async fn killing_tenure_kills_the_children_of_a_stopped_command() {
    let store = Store::new();
    let mut run = store.start(&["run", "a", "-c", "sleep 100 & echo $$ $!; kill -STOP $$; wait"]);
    let pids = two_pids(&mut run).await;
    run.kill9().unwrap();
    for pid in pids {
        assert!(exits(pid).await, "{pid}");
    }
}

#[tokio::test]
async fn the_command_of_a_stopped_tenure_is_dead_before_another_one_holds_the_lock() {
    let store = Store::new();
    let start = Instant::now();
    let mut holder =
        store.start(&["run", "--ttl", "2s", "a", "-c", "sleep 100 & echo $$ $!; wait"]);
    let pids = two_pids(&mut holder).await;
    holder.stop().unwrap();
    let mut waiter = store.start(&["run", "a", "-c", "echo in; read word; true"]);
    assert_eq!(line(&mut waiter).await, "in");
    // The lease began after `start`, however slow the machine is.
    assert!(start.elapsed() >= Duration::from_millis(1900), "{:?}", start.elapsed());
    for pid in pids {
        assert!(!runs(pid), "{pid} runs although its lock was lost");
    }
    holder.cont().unwrap();
    assert_eq!(code(&mut holder).await, Some(76));
    waiter.close_input();
    assert_eq!(code(&mut waiter).await, Some(0));
}
