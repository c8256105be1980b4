//! `tenure elect`: the command runs in one process at a time, and moves.

use std::process::Command;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_testkit::{
    EtcdServer, GENEROUS, Process, RedisServer, ZooKeeperServer, eventually, lacks,
};

use crate::common::{Store, children, code, exit_signal, is_guardian, line, runs, signal};

/// Prints its token and runs until it is ended. The kernel frees its lock on the file `alone` when it and
/// its child are dead: if that is locked, another command of the election still runs.
const SERVICE: &str = "exec 9>alone; flock -n 9 && echo alone $TENURE_TOKEN || echo overlap; \
                       while :; do sleep 100; done";

/// Several processes that stand in one election.
struct Candidates {
    store: Store,
    url: Option<String>,
}

impl Candidates {
    fn on(url: Option<String>) -> Self {
        Self { store: Store::new(), url }
    }

    fn command(&self, options: &[&str], shell_line: &str) -> Command {
        let arguments = [&["elect"], options, &["a", "-c", shell_line]].concat();
        let mut command = self.store.tenure(&arguments);
        command.current_dir(self.store.scratch());
        if let Some(url) = &self.url {
            command.env("TENURE_STORE", url);
        }
        command
    }

    fn start(&self, options: &[&str], shell_line: &str) -> Process {
        Process::spawn(self.command(options, shell_line)).unwrap()
    }

    /// Starts a process with its standard error among the lines of its output.
    fn start_with_messages(&self, options: &[&str], shell_line: &str) -> Process {
        let tenure = self.command(options, shell_line);
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(tenure.get_program());
        command.args(tenure.get_args()).current_dir(self.store.scratch());
        for (name, value) in tenure.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Process::spawn(command).unwrap()
    }

    async fn wait_for_candidates(&self, count: usize) {
        let reached = || async {
            let mut status = self.store.tenure(&["status", "a", "--json"]);
            if let Some(url) = &self.url {
                status.env("TENURE_STORE", url);
            }
            let status = status.output().unwrap();
            let status: Value = serde_json::from_slice(&status.stdout).unwrap();
            status["waiters"].as_array().is_some_and(|waiters| waiters.len() == count)
        };
        assert!(eventually(GENEROUS, reached).await, "never {count} candidates");
    }
}

/// The token of a command that was started while no other one ran.
async fn started_alone(leader: &mut Process) -> u64 {
    let line = line(leader).await;
    line.strip_prefix("alone ").unwrap_or_else(|| panic!("{line}")).parse().unwrap()
}

/// Two processes: the leader is killed, and then the next one is stopped. The command moves both times,
/// and never runs twice.
async fn the_command_moves(url: Option<String>, ttl: &str) {
    let store = url.clone().unwrap_or_else(|| "local".into());
    let candidates = Candidates::on(url);
    let options = ["--ttl", ttl];
    let mut first = candidates.start(&options, SERVICE);
    let token = started_alone(&mut first).await;
    let mut second = candidates.start(&options, SERVICE);
    if !store.starts_with("redlock") {
        candidates.wait_for_candidates(1).await;
    }
    let moment = Instant::now();
    first.kill9().unwrap();
    let next = started_alone(&mut second).await;
    println!("{store}: the command moved {:?} after kill -9", moment.elapsed());
    assert!(token < next);
    let mut third = candidates.start(&options, SERVICE);
    if !store.starts_with("redlock") {
        candidates.wait_for_candidates(1).await;
    }
    let moment = Instant::now();
    second.stop().unwrap();
    let last = started_alone(&mut third).await;
    println!("{store}: the command moved {:?} after SIGSTOP", moment.elapsed());
    assert!(next < last);
    // It stands by again, and does not disturb the leader.
    second.cont().unwrap();
    if !store.starts_with("redlock") {
        candidates.wait_for_candidates(1).await;
    }
    signal(&third, Signal::TERM);
    assert_eq!(exit_signal(&mut third).await, Some(Signal::TERM.as_raw()));
    assert!(last < started_alone(&mut second).await);
    signal(&second, Signal::TERM);
    assert_eq!(exit_signal(&mut second).await, Some(Signal::TERM.as_raw()));
}

#[tokio::test]
async fn the_command_moves_on_the_local_store() {
    the_command_moves(None, "2s").await;
}

#[tokio::test]
async fn the_command_moves_on_redis() {
    if lacks("redis-server", "an election on Redis") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    the_command_moves(Some(format!("redis://127.0.0.1:{}", server.port())), "2s").await;
}

#[tokio::test]
async fn the_command_moves_on_a_quorum() {
    if lacks("redis-server", "an election on Redlock") {
        return;
    }
    let servers = [(); 3].map(|()| RedisServer::start(&[]).unwrap());
    let hosts = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port()));
    the_command_moves(Some(format!("redlock://{}", hosts.join(","))), "2s").await;
}

#[tokio::test]
async fn the_command_moves_on_etcd() {
    if lacks("etcd", "an election on etcd") {
        return;
    }
    let server = EtcdServer::start(&[]).unwrap();
    the_command_moves(Some(format!("etcd://127.0.0.1:{}", server.port())), "2s").await;
}

#[tokio::test]
async fn the_command_moves_on_zookeeper() {
    if ZooKeeperServer::is_missing("an election on ZooKeeper") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    the_command_moves(Some(format!("zk://127.0.0.1:{}", server.port())), "4s").await;
}

/// On the local store the lock of a killed leader is free before its command is dead.
#[tokio::test]
async fn a_new_leader_waits_until_the_command_of_a_killed_one_is_dead() {
    let candidates = Candidates::on(None);
    let mut first = candidates.start(&["--ttl", "10m"], SERVICE);
    started_alone(&mut first).await;
    let guardian = children(&first).into_iter().find(is_guardian).expect("it has a guardian");
    let guardian = Pid::from_raw(guardian.try_into().unwrap()).unwrap();
    let mut second = candidates.start_with_messages(&[], SERVICE);
    candidates.wait_for_candidates(1).await;
    kill_process(guardian, Signal::STOP).unwrap();
    first.kill9().unwrap();
    while !line(&mut second).await.contains("the command of the last leader still runs") {}
    kill_process(guardian, Signal::CONT).unwrap();
    started_alone(&mut second).await;
}

#[tokio::test]
async fn a_command_that_exits_is_started_again_by_the_same_leader() {
    let candidates = Candidates::on(None);
    let service =
        "echo $TENURE_TOKEN $TENURE_LOCK; [ -e again ] && exec sleep 100; touch again; exit 3";
    let mut leader = candidates.start(&[], service);
    let first = line(&mut leader).await;
    assert!(first.ends_with(" a"), "{first}");
    assert_eq!(line(&mut leader).await, first, "it leads on, with the same token");
    signal(&leader, Signal::TERM);
    assert_eq!(exit_signal(&mut leader).await, Some(Signal::TERM.as_raw()));
    assert!(candidates.store.is_free("a"));
}

#[tokio::test]
async fn with_on_exit_resign_a_command_that_exits_moves_to_the_next_candidate() {
    let candidates = Candidates::on(None);
    let resign = ["--on-exit", "resign"];
    let mut first = candidates.start(&resign, "echo $TENURE_TOKEN; read word; exit 3");
    let token: u64 = line(&mut first).await.parse().unwrap();
    let mut second = candidates.start(&resign, "echo $TENURE_TOKEN; read word; exit 3");
    candidates.wait_for_candidates(1).await;
    first.send("go").unwrap();
    let next: u64 = line(&mut second).await.parse().unwrap();
    assert!(token < next);
    candidates.wait_for_candidates(1).await;
    second.send("go").unwrap();
    let last: u64 = line(&mut first).await.parse().unwrap();
    assert!(next < last);
}

#[tokio::test]
async fn with_on_exit_exit_tenure_exits_with_the_code_of_the_command() {
    let candidates = Candidates::on(None);
    let mut leader = candidates.start(&["--on-exit", "exit"], "exit 42");
    assert_eq!(code(&mut leader).await, Some(42));
    assert!(candidates.store.is_free("a"));
}

#[tokio::test]
async fn a_leader_resigns_only_after_its_command_has_ended() {
    let candidates = Candidates::on(None);
    let slow = "trap 'echo draining; read word; exit 7' TERM; echo $$; while :; do sleep 0.1; done";
    let mut leader = candidates.start(&[], slow);
    let command: u32 = line(&mut leader).await.parse().unwrap();
    signal(&leader, Signal::TERM);
    assert_eq!(line(&mut leader).await, "draining");
    assert!(!candidates.store.is_free("a"));
    leader.send("done").unwrap();
    assert_eq!(code(&mut leader).await, Some(7));
    assert!(!runs(command) && candidates.store.is_free("a"));
}

#[tokio::test]
async fn a_leader_that_is_deposed_stops_its_command_and_stands_again() {
    let candidates = Candidates::on(None);
    let mut leader = candidates.start(&["--ttl", "1s"], SERVICE);
    let token = started_alone(&mut leader).await;
    candidates.store.run(&["release", "a", "--force", "--reason", "test"]).ok();
    assert!(token < started_alone(&mut leader).await);
}

#[tokio::test]
async fn a_leader_that_is_asked_to_let_go_stops_its_command_and_stands_again_at_the_end() {
    let candidates = Candidates::on(None);
    let mut first = candidates.start(&[], SERVICE);
    let token = started_alone(&mut first).await;
    let mut second = candidates.start(&[], SERVICE);
    candidates.wait_for_candidates(1).await;
    candidates.store.run(&["revoke", "a", "--reason", "deploy"]).ok();
    let next = started_alone(&mut second).await;
    assert!(token < next);
    candidates.wait_for_candidates(1).await;
    candidates.store.run(&["revoke", "a", "--reason", "deploy"]).ok();
    assert!(next < started_alone(&mut first).await);
}

#[tokio::test]
async fn a_leader_that_is_deposed_between_two_runs_does_not_start_its_command_again() {
    if lacks("redis-server", "a deposed leader on Redis") {
        return;
    }
    let server = RedisServer::start(&[]).unwrap();
    let candidates = Candidates::on(Some(format!("redis://127.0.0.1:{}", server.port())));
    // No renewal tells it within the test.
    let options = ["--ttl", "10m"];
    let deposed = format!(
        "[ -e again ] && {{ {SERVICE}; }}; touch again; echo first; read word; \
         {} release a --force --reason test >out 2>&1; exit 3",
        env!("CARGO_BIN_EXE_tenure")
    );
    let mut first = candidates.start_with_messages(&options, &deposed);
    assert!(line(&mut first).await.starts_with("tenure: leading"));
    assert_eq!(line(&mut first).await, "first");
    let mut second = candidates.start(&options, SERVICE);
    candidates.wait_for_candidates(1).await;
    first.send("go").unwrap();
    let message = line(&mut first).await;
    assert!(message.contains("the command exited with 3"), "{message}");
    let token = started_alone(&mut second).await;
    let message = line(&mut first).await;
    assert!(message.contains("no longer holds it"), "{message}");
    let message = line(&mut first).await;
    assert!(message.starts_with("tenure: no longer leading"), "{message}");
    candidates.wait_for_candidates(1).await;
    signal(&second, Signal::TERM);
    assert_eq!(exit_signal(&mut second).await, Some(Signal::TERM.as_raw()));
    let started = loop {
        let line = line(&mut first).await;
        if !line.starts_with("tenure: ") {
            break line;
        }
    };
    let next = started.strip_prefix("alone ").unwrap_or_else(|| panic!("{started}"));
    assert!(token < next.parse().unwrap());
}

#[tokio::test]
async fn a_leader_that_is_asked_to_let_go_between_two_runs_resigns_and_stands_again() {
    let candidates = Candidates::on(None);
    let mut leader = candidates.start_with_messages(&[], "echo run; exit 3");
    while !line(&mut leader).await.contains("starting it again in 4") {}
    candidates.store.run(&["revoke", "a", "--reason", "deploy", "--wait", "20s"]).ok();
    let message = line(&mut leader).await;
    assert!(
        message.contains(" asks for the lock \"a\"") && message.ends_with("deploy"),
        "{message}"
    );
    assert_eq!(line(&mut leader).await, "tenure: resigned from \"a\"");
    assert!(line(&mut leader).await.starts_with("tenure: leading \"a\""));
}

#[tokio::test]
async fn messages_say_which_process_leads() {
    let candidates = Candidates::on(None);
    let mut leader = candidates.start_with_messages(&[], "echo ready; exec sleep 100");
    let message = line(&mut leader).await;
    assert!(message.starts_with("tenure: leading \"a\", token "), "{message}");
    assert_eq!(line(&mut leader).await, "ready");
    let mut follower = candidates.start_with_messages(&["--json"], "echo ready; exec sleep 100");
    let message: Value = serde_json::from_str(&line(&mut follower).await).unwrap();
    assert_eq!((&message["election"], &message["event"]), (&"a".into(), &"following".into()));
    assert_eq!(message["pid"], leader.pid());
    assert_eq!(message["label"], "sh");
    leader.kill9().unwrap();
    let message: Value = serde_json::from_str(&line(&mut follower).await).unwrap();
    assert_eq!(message["event"], "leading");
    assert!(message["token"].is_u64(), "{message}");
}

#[test]
fn a_command_that_cannot_be_started_and_a_bad_option_are_refused() {
    let store = Store::new();
    store.run(&["elect", "a", "--", "/no/such/program"]).failed(127);
    assert_eq!(store.run(&["elect", "a"]).code, Some(64));
    assert_eq!(store.run(&["elect", "--on-exit", "dance", "a", "-c", "true"]).code, Some(64));
    store.run(&["elect", "a{b}", "-c", "true"]).failed(64);
}
