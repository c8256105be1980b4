//! What happens to the command when its lock is lost or about to be lost.

use std::path::Path;
use std::time::Duration;

use tenure_testkit::{GENEROUS, Process, RedisServer, eventually, lacks};

use crate::common::{Store, code, line, runs, two_pids};

/// A shell command that ignores SIGTERM and appends to the file `alive` while it runs.
const STUBBORN: &str = "trap '' TERM; echo ready; while :; do echo >> alive; sleep 0.02; done";

/// A Redis server and a directory for the commands of `tenure` on it.
struct RedisCase {
    server: RedisServer,
    store: Store,
}

impl RedisCase {
    fn start(test: &str) -> Option<Self> {
        if lacks("redis-server", test) {
            return None;
        }
        Some(Self { server: RedisServer::start(&[]).unwrap(), store: Store::new() })
    }

    fn tenure(&self, arguments: &[&str]) -> std::process::Command {
        let url = format!("redis://127.0.0.1:{}", self.server.port());
        let mut command = self.store.tenure(&[&["--store", url.as_str()], arguments].concat());
        command.current_dir(self.store.scratch());
        command
    }

    fn start_tenure(&self, arguments: &[&str]) -> Process {
        Process::spawn(self.tenure(arguments)).unwrap()
    }

    /// Starts `tenure` with its standard error among the lines of its output.
    fn start_with_errors(&self, arguments: &[&str]) -> Process {
        let tenure = self.tenure(arguments);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(tenure.get_program());
        command.args(tenure.get_args());
        Process::spawn(command).unwrap()
    }

    async fn has_waiter(&self, name: &str) -> bool {
        eventually(GENEROUS, || async {
            let status = self.tenure(&["status", name, "--json"]).output().unwrap();
            let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
            status["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
        })
        .await
    }

    /// Stops the server for longer than the TTL of 2 s, while a command with these options runs and
    /// another one waits. Returns how often the first command wrote to its file before the second
    /// one started, and after that.
    async fn writes_around_an_outage(mut self, options: &[&str]) -> (u64, u64) {
        let mut holder =
            self.start_tenure(&[&["run", "--ttl", "2s"], options, &["a", "-c", STUBBORN]].concat());
        assert_eq!(line(&mut holder).await, "ready");
        let mut next = self.start_tenure(&["run", "a", "-c", "wc -c < alive"]);
        assert!(self.has_waiter("a").await);
        self.server.stop().unwrap();
        tokio::time::sleep(Duration::from_millis(3500)).await;
        self.server.cont().unwrap();
        let before = line(&mut next).await.trim().parse().unwrap();
        assert_eq!(code(&mut holder).await, Some(76));
        (before, size(&self.store.scratch().join("alive")) - before)
    }
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |data| data.len())
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_dead_before_the_next_holder_starts() {
    let Some(case) = RedisCase::start("a command that ignores SIGTERM") else { return };
    let (before, after) = case.writes_around_an_outage(&[]).await;
    assert!(before > 0);
    assert_eq!(after, 0, "the command ran while the next one held the lock");
}

#[tokio::test]
async fn with_on_lost_kill_the_command_is_dead_before_the_next_holder_starts() {
    let Some(case) = RedisCase::start("--on-lost kill in an outage") else { return };
    let (before, after) = case.writes_around_an_outage(&["--on-lost", "kill"]).await;
    assert!(before > 0);
    assert_eq!(after, 0, "the command ran while the next one held the lock");
}

/// The store answers again before the lease has ended: the lock is not lost, but the command got
/// SIGTERM and may have left its work unfinished.
#[tokio::test]
async fn a_command_that_got_sigterm_is_a_loss_even_if_the_store_answers_again() {
    let Some(mut case) = RedisCase::start("a store that answers again after SIGTERM") else {
        return;
    };
    let shell_line = "trap 'read word; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let options = ["run", "--ttl", "6s", "--grace", "10m", "a", "-c", shell_line];
    let mut run = case.start_with_errors(&options);
    assert_eq!(line(&mut run).await, "ready");
    case.server.stop().unwrap();
    while !line(&mut run).await.contains("sending SIGTERM to the command") {}
    case.server.cont().unwrap();
    // Longer than the old lease, shorter than the renewed one.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(run.status().unwrap().is_none(), "the command was killed while the lock was held");
    run.close_input();
    assert_eq!(code(&mut run).await, Some(76));
}

#[tokio::test]
async fn a_command_that_handles_sigterm_without_exiting_is_killed_after_the_grace() {
    let store = Store::new();
    let shell_line = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done";
    let mut run =
        store.start(&["run", "--max-hold", "200ms", "--grace", "300ms", "a", "-c", shell_line]);
    assert_eq!(line(&mut run).await, "ready");
    assert_eq!(line(&mut run).await, "asked");
    assert_eq!(code(&mut run).await, Some(76));
}

#[tokio::test]
async fn children_of_the_command_get_the_grace_too() {
    let store = Store::new();
    // SIGTERM ends the shell at once; its child cleans up. The orphan becomes a child of this test,
    // which does not reap it, like the first process of many containers: tenure must not wait for the
    // whole grace period because of the zombie.
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

/// A stopped process does not handle SIGTERM, and the grace period is long.
#[tokio::test]
async fn a_loss_ends_a_stopped_command() {
    let store = Store::new();
    let options = ["run", "--ttl", "10m", "--max-hold", "300ms", "--grace", "5m", "a"];
    let mut run = store.start(&[&options[..], &["-c", "kill -STOP $$; sleep 100"]].concat());
    assert_eq!(code(&mut run).await, Some(76));
}

/// The command exits at once; its child ignores SIGTERM, and must have ended before the release.
#[tokio::test]
async fn a_loss_ends_the_children_of_the_command() {
    let store = Store::new();
    let stubborn = "trap '' TERM; while :; do sleep 0.1; done";
    let shell_line = format!("sh -c \"{stubborn}\" & echo $$ $!; wait");
    let options = ["run", "--max-hold", "500ms", "--grace", "200ms", "a", "-c"];
    let mut run = store.start(&[&options[..], &[shell_line.as_str()]].concat());
    let pids = two_pids(&mut run).await;
    assert_eq!(code(&mut run).await, Some(76));
    for pid in pids {
        assert!(!runs(pid), "{pid} still runs after the lock was released");
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
    assert_eq!(killed.line(GENEROUS).await, None, "killed without SIGTERM");
    let mut continued = run("nothing");
    assert_eq!(line(&mut continued).await, "ready");
    assert_eq!(line(&mut continued).await, "done");
    assert_eq!(code(&mut continued).await, Some(76));
}

#[test]
fn a_deleted_store_is_a_loss_at_the_next_renewal() {
    let store = Store::new();
    let shell_line = "rm -rf \"$TENURE_DIR\"; exec sleep 100";
    let ran = store.run(&["run", "--ttl", "2s", "a", "-c", shell_line]);
    assert_eq!(ran.code, Some(76), "{ran:?}");
    assert!(ran.stderr.contains("lost the lock \"a\": the store reports"), "{ran:?}");
}

#[test]
fn an_outage_is_reported_before_the_command_is_stopped() {
    if tenure_testkit::lacks("redis-server", "a store that falls silent") {
        return;
    }
    let mut server = tenure_testkit::RedisServer::start(&[]).unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    // The command itself stops the server, so that the outage begins after the lock is held.
    let shell_line = format!("kill -STOP {}; exec sleep 100", server.pid());
    let arguments = ["--store", &url, "run", "--ttl", "2s", "a", "-c", &shell_line];
    let ran = Store::new().run(&arguments);
    server.cont().unwrap();
    assert_eq!(ran.code, Some(76), "{ran:?}");
    let danger = ran.stderr.find("half its TTL");
    assert!(danger.is_some() && danger < ran.stderr.find("about to be lost"), "{ran:?}");
}

#[test]
fn a_loss_that_only_the_release_detects_is_reported() {
    let store = Store::new();
    let shell_line = r#""$0" release a --owner $TENURE_OWNER >&2; exit 3"#;
    let binary = env!("CARGO_BIN_EXE_tenure");
    let ran = store.run(&["run", "a", "--", "sh", "-c", shell_line, binary]);
    assert_eq!(ran.code, Some(76), "{ran:?}");
    assert!(ran.stderr.contains("lost the lock \"a\" before the command ended"), "{ran:?}");
}

#[test]
fn a_loss_is_reported_in_one_line() {
    let store = Store::new();
    for options in [&[][..], &["-q"]] {
        let run = ["run", "--max-hold", "100ms", "a", "--", "sleep", "100"];
        let ran = store.run(&[options, &run].concat());
        assert!(ran.failed(76).contains("--max-hold"));
    }
}
