//! What the tests share.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_testkit::{GENEROUS, Process, TempDir, eventually, temp_dir, with_default_signals};

/// A store of one's own.
pub(crate) struct Store(TempDir);

impl Store {
    pub(crate) fn new() -> Self {
        Self(temp_dir())
    }

    /// A directory of one's own for other things.
    pub(crate) fn scratch(&self) -> std::path::PathBuf {
        let scratch = self.0.path().join("scratch");
        fs::create_dir_all(&scratch).unwrap();
        scratch
    }

    /// A `tenure` command line on this store, with every signal at its default.
    pub(crate) fn tenure<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments);
        self.set_environment(&mut command);
        with_default_signals(&mut command);
        command
    }

    /// Makes this store the one of the `tenure` commands that a command starts.
    pub(crate) fn set_environment(&self, command: &mut Command) {
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy();
            if name == "NO_COLOR" || name.starts_with("TENURE_") {
                command.env_remove(variable);
            }
        }
        command.env("TENURE_DIR", self.0.path().join("store"));
    }

    /// Runs it to its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ran {
        self.tenure(arguments).stdin(Stdio::null()).output().unwrap().into()
    }

    /// Starts it, to be talked to.
    pub(crate) fn start<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Process {
        Process::spawn(self.tenure(arguments)).unwrap()
    }

    /// Starts `tenure hold NAME` and waits until it holds. Also returns its token and owner.
    pub(crate) async fn hold(&self, options: &[&str], name: &str) -> (Process, u64, String) {
        let mut holder = self.start(&[&["hold"], options, &[name]].concat());
        let line = holder.line(GENEROUS).await.expect("hold says that it holds");
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!((words.len(), words[0]), (3, name), "{line}");
        (holder, words[1].parse().unwrap(), words[2].into())
    }

    /// What `status --json` says.
    pub(crate) fn status(&self, name: &str) -> Value {
        let ran = self.run(&["status", name, "--json"]);
        assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// Waits until so many claims wait for the lock.
    pub(crate) async fn waiters(&self, name: &str, count: usize) {
        let there = || async { self.status(name)["waiters"].as_array().unwrap().len() == count };
        assert!(eventually(GENEROUS, there).await, "{count} never wait: {}", self.status(name));
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// What it printed, if all went well.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// It failed with this code and without a word.
    pub(crate) fn failed_silently(self, code: i32) {
        assert_eq!((self.code, &*self.stdout, &*self.stderr), (Some(code), "", ""));
    }

    /// It failed with this code and one line about it.
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

/// Whether a process runs (a dead one that nobody waited for does not).
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

/// The processes that a process has started and not waited for.
pub(crate) fn children(process: &Process) -> Vec<u32> {
    children_of(process.pid())
}

/// The same of a process that another has started.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let pids = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Whether a process is a guardian.
pub(crate) fn is_guardian(pid: &u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.ends_with(b"\0__guardian\0")
}

/// Waits until a process no longer runs.
pub(crate) async fn ends(pid: u32) -> bool {
    eventually(GENEROUS, || async { !runs(pid) }).await
}

/// Sends a signal to a process that the test has started and not waited for.
pub(crate) fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_raw(process.pid().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The next line, which must come.
pub(crate) async fn line(process: &mut Process) -> String {
    process.line(GENEROUS).await.expect("a line comes")
}

/// The exit code of a process that must end by itself.
pub(crate) async fn code(process: &mut Process) -> Option<i32> {
    process.wait(GENEROUS).await.expect("it ends").code()
}

/// The signal that a process died of, which must end by itself.
pub(crate) async fn died_of(process: &mut Process) -> Option<i32> {
    process.wait(GENEROUS).await.expect("it ends").signal()
}

/// Long enough for a wrong thing to show, short enough to be paid in every run.
pub(crate) const A_MOMENT: Duration = Duration::from_millis(300);
