//! A command that has become root: `tenure`, as an ordinary user, cannot kill it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::{Process, RedisServer, TempDir, lacks, skip, temp_dir};

use crate::common::{Store, code, line, runs};

/// A directory for the user `nobody`, with a setuid program that makes it root.
struct Case {
    directory: TempDir,
    become_root: PathBuf,
}

impl Case {
    fn start() -> Option<Self> {
        let directory = temp_dir();
        let copy = |from: &Path, name: &str, mode| {
            let to = directory.path().join(name);
            fs::copy(from, &to).unwrap();
            fs::set_permissions(&to, Permissions::from_mode(mode)).unwrap();
            to
        };
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        copy(Path::new(env!("CARGO_BIN_EXE_tenure")), "tenure", 0o755);
        let become_root = copy(Path::new("/usr/bin/setpriv"), "become-root", 0o4755);
        let case = Self { directory, become_root };
        let mut command = case.as_nobody();
        let output = command.arg(&case.become_root).args(ROOT).args(["id", "-u"]).output();
        let is_root = output.is_ok_and(|output| output.stdout == b"0\n");
        if !is_root {
            skip("a command with more privileges", "this needs root, setpriv and setuid programs");
        }
        is_root.then_some(case)
    }

    fn as_nobody(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.current_dir(self.directory.path());
        command
    }

    /// Starts `tenure run` as the user `nobody`, with a command that becomes root. Its standard error
    /// is among the lines of its output.
    fn run_on(&self, store: &str, options: &[&str], shell_line: &str) -> Process {
        let mut command = self.as_nobody();
        command.args(["sh", "-c", "exec ./tenure run \"$@\" 2>&1", "sh"]);
        command.env("TENURE_STORE", store);
        command.args(options).args(["a", "--"]).arg(&self.become_root).args(ROOT);
        command.args(["sh", "-c", shell_line]);
        Process::spawn(command).unwrap()
    }

    /// The same on a local store in the directory.
    fn run(&self, options: &[&str], shell_line: &str) -> Process {
        let store = format!("local:{}/store", self.directory.path().display());
        self.run_on(&store, options, shell_line)
    }
}

const ROOT: [&str; 3] = ["--reuid=0", "--regid=0", "--clear-groups"];

/// A shell command that prints its pid and keeps running.
const STAY: &str = "echo $$; exec sleep 100";

/// Kills a process when it is dropped.
struct KillOnDrop(u32);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let pid = self.0.try_into().ok().and_then(Pid::from_raw);
        let _ = kill_process(pid.unwrap(), Signal::KILL);
    }
}

#[tokio::test]
async fn a_command_that_cannot_be_killed_on_loss_is_reported() {
    let Some(case) = Case::start() else { return };
    for on_lost in ["term", "kill"] {
        let mut run =
            case.run(&["--max-hold", "300ms", "--grace", "300ms", "--on-lost", on_lost], STAY);
        let command = KillOnDrop(line(&mut run).await.parse().unwrap());
        let report = loop {
            let line = line(&mut run).await;
            if line.contains("may still run without the lock \"a\"") {
                break line;
            }
        };
        assert!(report.contains(&command.0.to_string()), "{report}");
        assert_eq!(code(&mut run).await, Some(76));
        assert!(runs(command.0));
    }
}

#[tokio::test]
async fn a_signal_that_cannot_be_forwarded_is_reported() {
    let Some(case) = Case::start() else { return };
    let mut run = case.run(&[], STAY);
    let _command = KillOnDrop(line(&mut run).await.parse().unwrap());
    crate::common::signal(&run, Signal::TERM);
    let report = line(&mut run).await;
    assert!(report.contains("could not send signal 15"), "{report}");
}

#[tokio::test]
async fn a_command_that_the_guardian_cannot_kill_is_reported() {
    let Some(case) = Case::start() else { return };
    let mut run = case.run(&[], STAY);
    let command = KillOnDrop(line(&mut run).await.parse().unwrap());
    run.kill9().unwrap();
    let report = line(&mut run).await;
    assert!(report.contains("may still run without") && report.contains(&command.0.to_string()));
}

/// The guardian can kill the shell, but not its child.
#[tokio::test]
async fn a_process_of_the_group_that_the_guardian_cannot_kill_is_reported() {
    let Some(case) = Case::start() else { return };
    let store = format!("local:{}/store", case.directory.path().display());
    let mut command = case.as_nobody();
    command.args(["sh", "-c", "exec ./tenure run a -c \"$0\" 2>&1"]);
    let root = ROOT.join(" ");
    command.arg(format!("./become-root {root} sh -c '{STAY}'; true")).env("TENURE_STORE", store);
    let mut run = Process::spawn(command).unwrap();
    let command = KillOnDrop(line(&mut run).await.parse().unwrap());
    run.kill9().unwrap();
    let report = line(&mut run).await;
    assert!(report.contains("may still run without") && report.contains(&command.0.to_string()));
}

/// No process of the group may run when the lock is granted to another owner.
#[tokio::test]
async fn the_guardian_does_not_release_the_lock_while_the_command_runs() {
    let test = "a lock whose command outlives tenure";
    let Some(case) = Case::start().filter(|_| !lacks("redis-server", test)) else { return };
    let server = RedisServer::start(&[]).unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let mut run = case.run_on(&url, &["--ttl", "10m"], STAY);
    let command = KillOnDrop(line(&mut run).await.parse().unwrap());
    run.kill9().unwrap();
    let report = line(&mut run).await;
    assert!(report.contains("may still run without the lock \"a\""), "{report}");
    let store = Store::new();
    let next = |options: &[&str]| {
        let arguments = [&["--store", &url, "run"], options, &["a", "--", "true"]].concat();
        store.run(&arguments).code
    };
    assert_eq!(next(&["-w", "500ms"]), Some(75));
    drop(command);
    assert_eq!(next(&["-w", "20s"]), Some(0));
}
