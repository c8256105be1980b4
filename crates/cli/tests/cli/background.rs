//! `tenure hold --fd`: a lock that a background process holds for a part of a shell script.

use std::process::Command;

use rustix::process::Signal;
use tenure_testkit::{GENEROUS, Process, eventually};

use crate::common::{Ran, Store, code, exits, line, runs, signal};

const SHELLS: [&str; 2] = ["dash", "bash"];

fn script(store: &Store, shell: &str, text: &str) -> Command {
    let mut command = Command::new(shell);
    command.args(["-c", text]).env("TENURE", env!("CARGO_BIN_EXE_tenure"));
    store.set_environment(&mut command);
    command
}

fn start(store: &Store, shell: &str, text: &str) -> Process {
    Process::spawn(script(store, shell, text)).unwrap()
}

fn shells(test: &str) -> impl Iterator<Item = &'static str> {
    let installed = |shell: &&str| !tenure_testkit::lacks(shell, test);
    SHELLS.into_iter().filter(installed).collect::<Vec<_>>().into_iter()
}

fn is_held(store: &Store) -> bool {
    !store.is_free("a")
}

async fn becomes_free(store: &Store) -> bool {
    eventually(GENEROUS, || async { !is_held(store) }).await
}

#[tokio::test]
async fn a_script_holds_the_lock_until_it_closes_the_descriptor() {
    for shell in shells("a_script_holds_the_lock_until_it_closes_the_descriptor") {
        let store = Store::new();
        // Both outputs are captured: the background process must keep neither of them open.
        let text = "file=$(mktemp) && exec 9>\"$file\" && rm \"$file\" || exit; \
                    printed=$(\"$TENURE\" hold --fd 9 a 2>&1) || exit; echo $printed; \
                    read word; exec 9>&-; echo closed; read word; exit 5";
        let mut script = start(&store, shell, text);
        let printed = line(&mut script).await;
        let words: Vec<_> = printed.split(' ').collect();
        assert_eq!((words.len(), words[0]), (3, "a"), "{printed}");
        assert_eq!(store.status("a")["holders"][0]["owner"], words[2]);
        script.send("go on").unwrap();
        assert_eq!(line(&mut script).await, "closed");
        assert!(becomes_free(&store).await, "{shell}");
        script.send("go on").unwrap();
        assert_eq!(code(&mut script).await, Some(5));
    }
}

#[tokio::test]
async fn a_subshell_holds_the_lock_until_it_exits() {
    for shell in shells("a_subshell_holds_the_lock_until_it_exits") {
        let store = Store::new();
        let file = store.scratch().join("any");
        let text = format!(
            "( \"$TENURE\" hold --fd 9 a || exit; read word ) 9>{}; echo over; read word",
            file.display()
        );
        let mut script = start(&store, shell, &text);
        assert!(line(&mut script).await.starts_with("a "));
        assert!(is_held(&store));
        script.send("go on").unwrap();
        assert_eq!(line(&mut script).await, "over");
        assert!(becomes_free(&store).await, "{shell}");
    }
}

#[tokio::test]
async fn the_lock_of_a_killed_script_is_released_when_its_children_have_exited() {
    for shell in shells("the_lock_of_a_killed_script_is_released_when_its_children_have_exited") {
        let store = Store::new();
        let text = "exec 9>/dev/null; \"$TENURE\" hold --fd 9 a || exit; sleep 100 & echo $!; wait";
        let mut script = start(&store, shell, text);
        assert!(line(&mut script).await.starts_with("a "));
        let child: u32 = line(&mut script).await.parse().unwrap();
        signal(&script, Signal::KILL);
        script.wait(GENEROUS).await.unwrap();
        assert!(is_held(&store) && runs(child), "a child of the script still runs");
        let pid = rustix::process::Pid::from_raw(child.try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        assert!(becomes_free(&store).await, "{shell}");
    }
}

#[tokio::test]
async fn hold_fd_fails_if_the_lock_cannot_be_acquired() {
    let store = Store::new();
    let (_holder, ..) = store.hold(&[], "a").await;
    let run = |text: &str| Ran::from(script(&store, "sh", text).output().unwrap());
    run("exec 9>/dev/null; \"$TENURE\" hold -n --fd 9 a || exit; echo on").failed_silently(75);
    let late = "exec 9>/dev/null; \"$TENURE\" hold -w 10ms --fd 9 a || exit; echo on";
    run(late).failed(75);
    for unusable in ["exec 9>&-; ", "exec 9</dev/null; "] {
        let printed =
            run(&format!("{unusable}\"$TENURE\" hold --fd 9 b || exit; echo on")).failed(64);
        assert!(printed.contains("exec 9>\"$(mktemp)\""), "{printed}");
    }
    let nowhere = "\"$TENURE\" --store redis://127.0.0.1:1?timeout=100ms hold --fd 9 a";
    run(&format!("exec 9>/dev/null; {nowhere} || exit; echo on")).failed(69);
}

#[tokio::test]
async fn a_killed_hold_fd_leaves_no_waiter_behind() {
    let store = Store::new();
    let (_holder, ..) = store.hold(&[], "a").await;
    for number in [Signal::TERM, Signal::KILL] {
        let text =
            "exec 9>/dev/null; \"$TENURE\" hold --fd 9 a & echo $!; wait $!; echo ended; read w";
        let mut script = start(&store, "sh", text);
        let front = line(&mut script).await.parse().unwrap();
        store.wait_for_waiters("a", 1).await;
        let front = rustix::process::Pid::from_raw(front).unwrap();
        rustix::process::kill_process(front, number).unwrap();
        assert_eq!(line(&mut script).await, "ended");
        store.wait_for_waiters("a", 0).await;
    }
}

#[tokio::test]
async fn a_loss_ends_the_script_and_its_children() {
    for shell in shells("a_loss_ends_the_script_and_its_children") {
        let store = Store::new();
        let hold = "exec 9>/dev/null; \"$TENURE\" hold --ttl 600ms --grace 100ms --fd 9 a || exit";
        let stubborn = "sh -c 'trap \"\" TERM; while :; do sleep 0.05; done'";
        let text = format!("{hold}; {stubborn} & echo $!; wait; echo went-on");
        let mut script = start(&store, shell, &text);
        assert!(line(&mut script).await.starts_with("a "));
        let child = line(&mut script).await.parse().unwrap();
        store.run(&["release", "a", "--force", "--reason", "test"]).ok();
        assert!(exits(child).await, "{shell}");
        let status = script.wait(GENEROUS).await.unwrap();
        assert_eq!(status.code(), None, "a signal ended it");
    }
}

#[tokio::test]
async fn a_script_can_clean_up_or_continue_after_a_loss() {
    let store = Store::new();
    let hold = "exec 9>/dev/null; \"$TENURE\" hold --max-hold 200ms --fd 9 a || exit";
    let text = format!("trap 'echo cleaned; exit 7' TERM; {hold}; while :; do sleep 0.05; done");
    let mut script = start(&store, "sh", &text);
    assert!(line(&mut script).await.starts_with("a "));
    assert_eq!(line(&mut script).await, "cleaned");
    assert_eq!(code(&mut script).await, Some(7));
    let text = format!("{hold} --on-lost nothing; read word; echo $word")
        .replace(" || exit --on-lost nothing", " --on-lost nothing || exit");
    let mut script = start(&store, "sh", &text);
    assert!(line(&mut script).await.starts_with("a "));
    assert!(becomes_free(&store).await);
    script.send("went-on").unwrap();
    assert_eq!(line(&mut script).await, "went-on");
}

#[tokio::test]
async fn a_fifo_without_a_reader_as_stderr_does_not_delay_the_release() {
    let store = Store::new();
    let fifo = store.scratch().join("fifo");
    let text = format!(
        "mkfifo {fifo}; head -n 1 {fifo} & exec 2>{fifo}; echo read >&2; wait; \
         exec 9>/dev/null; \"$TENURE\" hold --fd 9 a || exit; exec 9>&-; read word",
        fifo = fifo.display()
    );
    let mut script = start(&store, "sh", &text);
    assert_eq!(line(&mut script).await, "read", "the reader has exited");
    assert!(line(&mut script).await.starts_with("a "));
    assert!(becomes_free(&store).await, "the background process hangs");
}

#[tokio::test]
async fn with_few_descriptors_hold_fd_fails_at_once_or_keeps_the_lock() {
    let store = Store::new();
    let (mut refused, mut held) = (0, 0);
    for files in 10..60 {
        let text = format!(
            "exec 9>/dev/null; ulimit -n {files}; \"$TENURE\" hold --fd 9 a 2>/dev/null || exit; read word"
        );
        let mut script = start(&store, "sh", &text);
        let Some(_announcement) = script.line(GENEROUS).await else {
            refused += 1;
            continue;
        };
        held += 1;
        store.run(&["run", "-w", "300ms", "a", "--", "true"]).failed(75);
        script.close_input();
        script.wait(GENEROUS).await.unwrap();
        assert!(becomes_free(&store).await);
        if held == 3 {
            break;
        }
    }
    assert!(refused > 0 && held == 3, "{refused} refused, {held} held");
}

#[tokio::test]
async fn two_locks_of_one_script_are_released_independently() {
    let store = Store::new();
    let text = "exec 8>/dev/null; \"$TENURE\" hold --fd 8 a; exec 9>/dev/null; \"$TENURE\" hold --fd 9 b; \
                exec 8>&-; read word";
    let mut script = start(&store, "sh", text);
    assert!(line(&mut script).await.starts_with("a "));
    assert!(line(&mut script).await.starts_with("b "));
    assert!(becomes_free(&store).await);
    assert_eq!(store.status("b")["holders"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_outage_of_the_store_ends_the_script() {
    if tenure_testkit::lacks("redis-server", "an_outage_of_the_store_ends_the_script") {
        return;
    }
    let store = Store::new();
    let mut server = tenure_testkit::RedisServer::start(&[]).unwrap();
    let hold = format!(
        "exec 9>/dev/null; \"$TENURE\" --store redis://127.0.0.1:{} hold --ttl 2s --fd 9 a",
        server.port()
    );
    let stubborn = "trap '' TERM; while :; do sleep 0.05; done";
    let mut script = start(&store, "sh", &format!("{hold} || exit; {stubborn}"));
    assert!(line(&mut script).await.starts_with("a "));
    server.stop().unwrap();
    let status = script.wait(GENEROUS).await.unwrap();
    assert_eq!(status.code(), None, "SIGKILL ended it");
    server.cont().unwrap();
}
