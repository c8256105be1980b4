//! Helpers for the tests: a store per test, running `tenure` and other processes, and waiting.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_testkit::{GENEROUS, Process, TempDir, eventually, temp_dir, with_default_signals};

/// A local store for one test.
pub(crate) struct Store(TempDir);

impl Store {
    pub(crate) fn new() -> Self {
        Self(temp_dir())
    }

    /// A directory for other files of the test.
    pub(crate) fn scratch(&self) -> std::path::PathBuf {
        let scratch = self.0.path().join("scratch");
        fs::create_dir_all(&scratch).unwrap();
        scratch
    }

    /// A `tenure` command on this store, with the default actions of all signals.
    pub(crate) fn tenure<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments);
        self.set_environment(&mut command);
        with_default_signals(&mut command);
        command
    }

    /// Sets the environment of a command so that `tenure` uses this store in it.
    pub(crate) fn set_environment(&self, command: &mut Command) {
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy();
            if name == "NO_COLOR" || name.starts_with("TENURE_") {
                command.env_remove(variable);
            }
        }
        command.env("TENURE_DIR", self.0.path().join("store"));
    }

    /// Runs `tenure` and waits until it exits.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ran {
        self.tenure(arguments).stdin(Stdio::null()).output().unwrap().into()
    }

    /// Starts `tenure`.
    pub(crate) fn start<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Process {
        Process::spawn(self.tenure(arguments)).unwrap()
    }

    /// Starts `tenure hold NAME` and waits until it holds the lock. Returns its token and owner, too.
    pub(crate) async fn hold(&self, options: &[&str], name: &str) -> (Process, u64, String) {
        let mut holder = self.start(&[&["hold"], options, &[name]].concat());
        let line = holder.line(GENEROUS).await.expect("hold prints the lock");
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!((words.len(), words[0]), (3, name), "{line}");
        (holder, words[1].parse().unwrap(), words[2].into())
    }

    /// The output of `status --json`.
    pub(crate) fn status(&self, name: &str) -> Value {
        let ran = self.run(&["status", name, "--json"]);
        assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// Whether `status` shows no holder.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        self.status(name)["holders"].as_array().unwrap().is_empty()
    }

    /// Waits until `count` claims wait for the lock.
    pub(crate) async fn wait_for_waiters(&self, name: &str, count: usize) {
        let reached = || async { self.status(name)["waiters"].as_array().unwrap().len() == count };
        let status = || self.status(name);
        assert!(eventually(GENEROUS, reached).await, "never {count} waiters: {}", status());
    }
}

/// The result of a command that has exited.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Asserts success, and returns the standard output.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Asserts that it failed with this code and printed nothing.
    pub(crate) fn failed_silently(self, code: i32) {
        assert_eq!((self.code, &*self.stdout, &*self.stderr), (Some(code), "", ""));
    }

    /// Asserts that it failed with this code and one line on standard error, and returns that line.
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "");
        let one_line = self.stderr.ends_with('\n') && self.stderr.lines().count() == 1;
        assert!(one_line && self.stderr.starts_with("tenure: "), "{self:?}");
        self.stderr
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// Whether a process runs; a zombie does not.
pub(crate) fn runs(pid: u32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// Whether a process is stopped.
pub(crate) fn is_stopped(pid: u32) -> bool {
    state(pid) == Some('T')
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next())
}

/// The children of a process, zombies included.
pub(crate) fn children(process: &Process) -> Vec<u32> {
    children_of(process.pid())
}

/// The children of a process that the test has not started itself.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let pids = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Whether a process is a guardian.
pub(crate) fn is_guardian(pid: &u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.ends_with(b"\0__guardian\0")
}

/// Waits until a process has exited. Returns `false` if it does not.
pub(crate) async fn exits(pid: u32) -> bool {
    eventually(GENEROUS, || async { !runs(pid) }).await
}

/// Reads a line with two process ids.
pub(crate) async fn two_pids(process: &mut Process) -> Vec<u32> {
    let line = line(process).await;
    let pids: Vec<_> = line.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2, "{line}");
    pids
}

/// Sends a signal to a process that the test has started and not reaped.
pub(crate) fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_raw(process.pid().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The next line of a process's output, which must come.
pub(crate) async fn line(process: &mut Process) -> String {
    process.line(GENEROUS).await.expect("the process prints a line")
}

/// Waits for a process to exit, and returns its exit code.
pub(crate) async fn code(process: &mut Process) -> Option<i32> {
    process.wait(GENEROUS).await.expect("the process exits").code()
}

/// Waits for a process to exit, and returns the signal that ended it.
pub(crate) async fn exit_signal(process: &mut Process) -> Option<i32> {
    process.wait(GENEROUS).await.expect("the process exits").signal()
}

/// How long to wait for output that must not come.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(300);
