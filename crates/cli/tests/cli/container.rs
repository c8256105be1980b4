//! `tenure` as the first process of a container: it must reap orphans, and handle signals that would
//! not end it by default.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::{GENEROUS, Process, eventually, skip, with_default_signals};

use crate::common::{BRIEFLY, Store, children, code, line};

/// Starts `tenure` as the first process of a new pid namespace. `None` if that is not permitted.
fn first_process(store: &Store, arguments: &[&str]) -> Option<Process> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        with_default_signals(&mut command);
        command
    };
    if !unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
        skip("tenure as the first process of a container", "no permission to unshare namespaces");
        return None;
    }
    let tenure = store.tenure(arguments);
    let mut command = unshare();
    command.arg(tenure.get_program()).args(tenure.get_args());
    store.set_environment(&mut command);
    Some(Process::spawn(command).unwrap())
}

/// Sends a signal to the first process of the namespace that `unshare` has made.
fn signal(unshare: &Process, signal: Signal) {
    let pid = children(unshare)[0];
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Creates five orphans, waits until all have exited, and prints how many of them stay zombies. `cat` ends
/// when the last orphan has closed its standard output, so none becomes a zombie after that.
const ORPHANS: &str = "\
    for i in 1 2 3 4 5; do (setsid true &); done | cat
    zombies() { cat /proc/[0-9]*/stat 2>/dev/null | grep -c '^[0-9]* (true) Z'; }
    for i in $(seq 600); do left=$(zombies); test $left = 0 && break; sleep 0.05; done
    echo zombies-$left";

#[tokio::test]
async fn the_first_process_reaps_orphans_while_its_command_runs() {
    let store = Store::new();
    let Some(mut run) = first_process(&store, &["run", "a", "-c", ORPHANS]) else { return };
    assert_eq!(line(&mut run).await, "zombies-0");
    assert_eq!(code(&mut run).await, Some(0));
}

#[tokio::test]
async fn the_first_process_reaps_orphans_while_it_waits_for_the_lock_or_holds_it() {
    let store = Store::new();
    let Some(mut holder) = first_process(&store, &["hold", "a"]) else { return };
    line(&mut holder).await;
    let Some(waiter) = first_process(&store, &["run", "a", "--", "true"]) else { return };
    store.wait_for_waiters("a", 1).await;
    for unshare in [&holder, &waiter] {
        let pid = children(unshare)[0].to_string();
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &pid, "--pid", "--mount", "sh", "-c", ORPHANS]);
        let output = enter.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "zombies-0\n", "{output:?}");
    }
}

#[tokio::test]
async fn the_first_process_forwards_signals_to_its_command() {
    let store = Store::new();
    let shell_line = "trap 'echo got; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let Some(mut run) = first_process(&store, &["run", "a", "-c", shell_line]) else { return };
    assert_eq!(line(&mut run).await, "ready");
    signal(&run, Signal::TERM);
    assert_eq!(line(&mut run).await, "got");
    assert_eq!(code(&mut run).await, Some(9));
}

#[tokio::test]
async fn a_signal_ends_the_first_process_while_it_waits_or_holds() {
    let store = Store::new();
    let Some(mut holder) = first_process(&store, &["hold", "a"]) else { return };
    line(&mut holder).await;
    let Some(mut waiter) = first_process(&store, &["run", "a", "--", "true"]) else { return };
    store.wait_for_waiters("a", 1).await;
    signal(&waiter, Signal::TERM);
    // Its own signals do not end a first process, so it exits with the code that a shell shows.
    assert_eq!(code(&mut waiter).await, Some(143));
    signal(&holder, Signal::TERM);
    assert_eq!(code(&mut holder).await, Some(0));
    let free = || async { store.is_free("a") };
    assert!(eventually(GENEROUS, free).await);
}

/// A container ends with its first process, and with it a process in the background.
#[tokio::test]
async fn the_first_process_keeps_the_lock_itself_if_it_must_stay_taken() {
    let store = Store::new();
    let arguments = ["run", "--at-least", "1h", "a", "-c", "echo ended; exit 3"];
    let Some(mut run) = first_process(&store, &arguments) else { return };
    assert_eq!(line(&mut run).await, "ended");
    tokio::time::sleep(BRIEFLY).await;
    assert!(!store.is_free("a"));
    store.run(&["revoke", "a", "--reason", "the test is over"]).ok();
    assert_eq!(code(&mut run).await, Some(3));
}
