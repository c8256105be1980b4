//! What becomes of the command when its lock is about to be lost.

use std::path::Path;
use std::time::Duration;

use tenure_testkit::{GENEROUS, Process, RedisServer, eventually, lacks};

use crate::common::{Store, code, line};

/// Writes to the file `alive` as long as it lives, and does not heed SIGTERM.
const DEAF: &str = "trap '' TERM; echo ready; while :; do echo >> alive; sleep 0.02; done";

/// A Redis server, and a command line for `tenure` on it that runs in a directory of its own.
struct Case {
    server: RedisServer,
    store: Store,
}

impl Case {
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

    /// Starts it with its errors among its lines.
    fn start_with_errors(&self, arguments: &[&str]) -> Process {
        let tenure = self.tenure(arguments);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(tenure.get_program());
        command.args(tenure.get_args());
        Process::spawn(command).unwrap()
    }

    async fn waits(&self, name: &str) -> bool {
        eventually(GENEROUS, || async {
            let status = self.tenure(&["status", name, "--json"]).output().unwrap();
            let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
            status["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
        })
        .await
    }

    /// The server answers nothing for longer than the TTL of 2 s. Says how often a command that
    /// runs with these options gave a sign of life before, and after, the next holder's first.
    async fn signs_of_life_around_an_outage(mut self, options: &[&str]) -> (u64, u64) {
        let mut holder =
            self.start_tenure(&[&["run", "--ttl", "2s"], options, &["a", "-c", DEAF]].concat());
        assert_eq!(line(&mut holder).await, "ready");
        let mut rival = self.start_tenure(&["run", "a", "-c", "wc -c < alive"]);
        assert!(self.waits("a").await);
        self.server.stop().unwrap();
        tokio::time::sleep(Duration::from_millis(3500)).await;
        self.server.cont().unwrap();
        let before = line(&mut rival).await.trim().parse().unwrap();
        assert_eq!(code(&mut holder).await, Some(76));
        (before, size(&self.store.scratch().join("alive")) - before)
    }
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |data| data.len())
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_dead_before_the_next_holder_starts() {
    let Some(case) = Case::start("a command that ignores SIGTERM") else { return };
    let (before, after) = case.signs_of_life_around_an_outage(&[]).await;
    assert!(before > 0);
    assert_eq!(after, 0, "the command ran while another held the lock");
}

#[tokio::test]
async fn on_lost_kill_kills_before_the_next_holder_starts() {
    let Some(case) = Case::start("--on-lost kill in an outage") else { return };
    let (before, after) = case.signs_of_life_around_an_outage(&["--on-lost", "kill"]).await;
    assert!(before > 0);
    assert_eq!(after, 0, "the command ran while another held the lock");
}

/// The store answers again before the lease has ended: the lock is not lost, but the command was
/// told to end, and may have left its work undone.
#[tokio::test]
async fn a_command_that_was_told_to_end_is_not_called_a_success_when_the_store_answers_again() {
    let Some(mut case) = Case::start("a store that answers again after SIGTERM") else { return };
    let shell_line = "trap 'read word; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let options = ["run", "--ttl", "6s", "--grace", "10m", "a", "-c", shell_line];
    let mut run = case.start_with_errors(&options);
    assert_eq!(line(&mut run).await, "ready");
    case.server.stop().unwrap();
    while !line(&mut run).await.contains("sending SIGTERM to the command") {}
    case.server.cont().unwrap();
    // Beyond the old lease, within the renewed one.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(run.status().unwrap().is_none(), "the command was killed while the lock was held");
    run.close_input();
    assert_eq!(code(&mut run).await, Some(76));
}
