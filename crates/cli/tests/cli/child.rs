//! `tenure run`: the environment, input, signals and exit code of its command.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tenure_testkit::{GENEROUS, eventually};

use crate::common::{Ran, Store, children, code, exit_signal, is_stopped, line, runs, signal};

const SHOW: &str =
    "echo $TENURE_LOCK $TENURE_TOKEN $TENURE_OWNER $TENURE_STORE ${TENURE_PASSWORD-none}";

#[test]
fn the_environment_of_the_command_has_lock_token_owner_and_store() {
    let store = Store::new();
    let show = |store: &Store| {
        let mut command = store.tenure(&["run", "a", "-c", SHOW]);
        Ran::from(command.env("TENURE_PASSWORD", "hunter2").output().unwrap()).ok()
    };
    let (first, second) = (show(&store), show(&store));
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    let (first, second) = (words(&first), words(&second));
    assert_eq!(first.len(), 5, "{first:?}");
    assert_eq!(first[0], "a");
    let token = |words: &[String]| words[1].parse::<u64>().unwrap();
    assert!(token(&first) < token(&second), "{first:?} {second:?}");
    assert_eq!(first[2].len(), 32);
    assert_ne!(first[2], second[2]);
    assert!(first[3].starts_with("local:/"), "{first:?}");
    assert_eq!(first[4], "hunter2", "TENURE_PASSWORD is unchanged");
}

#[test]
fn run_exits_with_the_code_of_its_command() {
    let store = Store::new();
    for (shell_line, code) in
        [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
    {
        let ran = store.run(&["run", "a", "-c", shell_line]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(code), ""), "{shell_line}");
        assert!(store.is_free("a"));
    }
}

#[test]
fn the_command_reads_the_standard_input_of_tenure() {
    let store = Store::new();
    let mut command = store.tenure(&["run", "a", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"one\0two\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"one\0two\n");
}

#[test]
fn arguments_that_are_not_utf8_reach_the_command_unchanged() {
    let store = Store::new();
    let odd = OsStr::from_bytes(b"\xff\xfe x");
    let words = ["run", "a", "--", "printf", "%s"].map(OsStr::new);
    let output = store.tenure(&[&words[..], &[odd]].concat()).output().unwrap();
    assert_eq!(output.stdout, odd.as_bytes());
    let ran = store
        .tenure(&[
            OsStr::new("run"),
            OsStr::new("a"),
            OsStr::new("-c"),
            OsStr::from_bytes(b"printf %s \xff"),
        ])
        .output()
        .unwrap();
    assert_eq!(ran.stdout, b"\xff");
}

#[tokio::test]
async fn signals_sent_to_tenure_reach_the_command() {
    let store = Store::new();
    for (name, number) in [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("TERM", Signal::TERM),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let shell_line = format!(
            "trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let mut run = store.start(&["run", "a", "-c", &shell_line]);
        assert_eq!(line(&mut run).await, "ready");
        signal(&run, number);
        assert_eq!(line(&mut run).await, format!("got {name}"));
        assert_eq!(code(&mut run).await, Some(9), "{name}");
    }
}

/// systemd counts the exit code 143 as a failure, but a process that SIGTERM ended as a success.
#[tokio::test]
async fn a_forwarded_signal_that_ends_the_command_ends_tenure() {
    let store = Store::new();
    for number in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut run = store.start(&["run", "a", "-c", "echo ready; exec sleep 100"]);
        assert_eq!(line(&mut run).await, "ready");
        signal(&run, number);
        assert_eq!(exit_signal(&mut run).await, Some(number.as_raw()));
        assert!(store.is_free("a"));
    }
}

#[tokio::test]
async fn a_termination_signal_continues_a_stopped_command() {
    let store = Store::new();
    let shell_line = "trap 'echo cleaned; exit 9' TERM; echo $$; kill -STOP $$; sleep 100";
    let mut run = store.start(&["run", "a", "-c", shell_line]);
    let command = line(&mut run).await.parse().unwrap();
    assert!(eventually(GENEROUS, || async { is_stopped(command) }).await);
    signal(&run, Signal::TERM);
    assert_eq!(line(&mut run).await, "cleaned");
    assert_eq!(code(&mut run).await, Some(9));
}

#[tokio::test]
async fn a_signal_that_the_parent_ignores_stays_ignored() {
    let store = Store::new();
    let binary = env!("CARGO_BIN_EXE_tenure");
    let shell_line = "trap '' HUP; exec \"$0\" run a -c 'echo ready; kill -HUP $$; kill -HUP $PPID; read word; echo $word'";
    let mut command = Command::new("sh");
    command
        .args(["-c", shell_line, binary])
        .env("TENURE_DIR", store.scratch())
        .env_remove("TENURE_STORE");
    let mut run = tenure_testkit::Process::spawn(command).unwrap();
    assert_eq!(line(&mut run).await, "ready");
    run.send("alive").unwrap();
    assert_eq!(line(&mut run).await, "alive");
    assert_eq!(code(&mut run).await, Some(0));
}

#[test]
fn signals_that_the_parent_blocks_stay_blocked_in_the_command() {
    let store = Store::new();
    let mut command = Command::new("env");
    command.args(["--block-signal=USR2", env!("CARGO_BIN_EXE_tenure"), "run", "a", "--"]);
    command.args(["grep", "SigBlk", "/proc/self/status"]).env("TENURE_DIR", store.scratch());
    let shown = Ran::from(command.env_remove("TENURE_STORE").output().unwrap()).ok();
    assert_eq!(shown.trim(), format!("SigBlk:\t{:016x}", 1 << (Signal::USR2.as_raw() - 1)));
}

#[test]
fn a_broken_pipe_ends_the_command_by_sigpipe() {
    let store = Store::new();
    let ran = store.run(&[
        "run",
        "a",
        "-c",
        "sh -c 'sleep 0.1; exec yes' | head -1; true; yes | head -1",
    ]);
    assert_eq!(ran.stdout, "y\ny\n");
    assert_eq!(ran.stderr, "", "no message about a broken pipe");
}

#[test]
fn a_missing_command_is_reported_before_the_lock_is_waited_for() {
    let store = Store::new();
    let file = store.scratch().join("plain");
    std::fs::write(&file, "echo hello\n").unwrap();
    let plain = file.to_str().unwrap();
    store.run(&["run", "a", "--", "no-such-command"]).failed(127);
    store.run(&["run", "a", "--", "/no/such/command"]).failed(127);
    store.run(&["run", "a", "--", plain]).failed(126);
    assert!(!store.scratch().parent().unwrap().join("store").exists(), "no store was opened");
    // The file exists and is executable, but its interpreter does not exist.
    std::fs::write(&file, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    store.run(&["run", "a", "--", plain]).failed(127);
    assert!(store.is_free("a"));
}

#[tokio::test]
async fn no_process_of_tenure_is_left_after_the_command_has_ended() {
    let store = Store::new();
    let mut run = store.start(&["run", "a", "-c", "echo ready; read word; exit 3"]);
    assert_eq!(line(&mut run).await, "ready");
    let children = children(&run);
    assert_eq!(children.len(), 2, "the command and its guardian");
    run.close_input();
    assert_eq!(run.wait(GENEROUS).await.unwrap().code(), Some(3));
    assert!(!children.into_iter().any(runs));
}

#[test]
fn background_processes_of_the_command_keep_no_descriptor_of_tenure_open() {
    let store = Store::new();
    // `run` returns only when every copy of both pipes is closed.
    let ran = store.run(&["run", "a", "-c", "sleep 100 >/dev/null 2>&1 & echo $!"]);
    let pid: u32 = ran.ok().trim().parse().unwrap();
    assert!(runs(pid), "tenure does not kill background processes of a successful command");
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

/// The shell exits at once and leaves a process behind that ignores the signal.
#[tokio::test]
async fn a_signal_that_ends_the_command_ends_its_group_before_the_release() {
    let store = Store::new();
    let stubborn = "sh -c 'trap \"\" TERM; echo $$; exec sleep 100' & wait";
    let mut run = store.start(&["run", "--grace", "300ms", "a", "-c", stubborn]);
    let left_behind: u32 = line(&mut run).await.parse().unwrap();
    signal(&run, Signal::TERM);
    // A zombie counts as gone.
    let status = format!("/proc/{left_behind}/status");
    let check = format!("grep -q 'State:.[RSD]' {status} 2>/dev/null && echo alive || echo gone");
    let printed = store.run(&["run", "-w", "20s", "a", "-c", &check]).ok();
    assert_eq!(printed.trim(), "gone");
    assert_eq!(exit_signal(&mut run).await, Some(Signal::TERM.as_raw()));
}

#[tokio::test]
async fn the_lock_is_free_after_max_hold_although_the_command_continues() {
    let store = Store::new();
    let options = ["--max-hold", "300ms", "--on-lost", "nothing"];
    let mut run =
        store.start(&[&["run"], &options[..], &["a", "-c", "echo $$; exec cat"]].concat());
    let command: u32 = line(&mut run).await.parse().unwrap();
    store.run(&["run", "-w", "10s", "a", "--", "true"]).ok();
    assert!(runs(command), "the command continues");
}

#[tokio::test]
async fn after_a_termination_the_rest_of_the_group_has_its_grace_beyond_one_ttl() {
    let store = Store::new();
    let shell_line = "trap 'exit 3' TERM; \
                      (trap 'sleep 3; echo cleaned; exit' TERM; echo ready; \
                       while :; do sleep 0.02; done) & wait";
    let mut run = store.start(&["run", "--ttl", "1s", "--grace", "30s", "a", "-c", shell_line]);
    assert_eq!(line(&mut run).await, "ready");
    signal(&run, Signal::TERM);
    assert_eq!(line(&mut run).await, "cleaned");
    assert_eq!(code(&mut run).await, Some(3));
}
