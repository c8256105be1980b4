//! What the tests share: claims, and child processes that can be killed.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use std::time::Duration;

use tenure_core::store::{Claim, ClaimOutcome, Grant, QueueTicket, Store, WaitPolicy};
use tenure_core::{LockName, Mode, Token};
use tenure_local::LocalStore;

pub const LONG: Duration = Duration::from_secs(600);
pub const QUEUE: WaitPolicy = WaitPolicy::queue(LONG);

pub fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

pub fn claim(lock: &str, mode: Mode) -> Claim {
    Claim::new(name(lock), mode, LONG).with_label("a test")
}

pub fn exclusive(lock: &str) -> Claim {
    claim(lock, Mode::Exclusive)
}

pub fn grant(answer: ClaimOutcome) -> Grant {
    match answer {
        ClaimOutcome::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub fn token(answer: ClaimOutcome) -> Token {
    grant(answer).token.unwrap()
}

pub fn place(answer: ClaimOutcome) -> QueueTicket {
    match answer {
        ClaimOutcome::Queued(place) => place,
        other => panic!("not queued: {other:?}"),
    }
}

/// Acquires as core does, but without polling: only a wake-up ends the wait.
pub async fn acquire(store: &LocalStore, claim: &Claim) -> Grant {
    let mut answer = store.claim(claim, QUEUE).await.unwrap();
    loop {
        answer = match answer {
            ClaimOutcome::Granted(grant) => return grant,
            ClaimOutcome::Queued(place) => match store.wait(claim, &place).await.unwrap() {
                ClaimOutcome::Queued(_) => store.claim(claim, QUEUE).await.unwrap(),
                other => other,
            },
            ClaimOutcome::Busy => panic!("busy, although the policy is to queue"),
        }
    }
}

/// Runs the same test binary again, in a role: see `child_entry` in each test file.
pub struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// A process that holds one permit of so many on the lock `pool`.
    pub fn holding_permit(dir: &Path, of: u32) -> Self {
        let permits = ("TENURE_TEST_PERMITS", of.to_string());
        let mut peer = Self::start_with("hold a permit", dir, [permits]);
        assert_eq!(peer.hear(), "held");
        peer
    }

    pub fn start(role: &str, dir: &Path) -> Self {
        Self::launch::<&str, &str>(&[], role, dir, [])
    }

    /// Starts it by another program, such as `unshare`, which is to run what follows its own
    /// arguments.
    pub fn start_under(program: &[&str], role: &str, dir: &Path) -> Self {
        Self::launch::<&str, &str>(program, role, dir, [])
    }

    /// Starts a process with these additional variables in its environment.
    pub fn start_with<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        role: &str,
        dir: &Path,
        environment: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        Self::launch(&[], role, dir, environment)
    }

    fn launch<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        program: &[&str],
        role: &str,
        dir: &Path,
        environment: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        // A signal that is ignored stays ignored in the program that follows: beyond a limit on
        // the size of files there is then an error, as on a full disk.
        let mut child = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .args(program)
            .arg(std::env::current_exe().unwrap())
            .args(["child_entry", "--exact", "--nocapture", "--test-threads=1"])
            .env("TENURE_TEST_ROLE", role)
            .env("TENURE_TEST_DIR", dir)
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next word the child says to us, past what the test harness prints.
    pub fn hear(&mut self) -> String {
        for _ in 0..1_000 {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the child ended");
            if let Some((_, said)) = line.trim_end().split_once("says ") {
                return said.to_owned();
            }
        }
        panic!("the child printed no word for the test");
    }

    pub fn tell(&mut self, word: &str) {
        writeln!(self.input, "{word}").unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end, within reason.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        let started = std::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < tenure_testkit::GENEROUS, "the child does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the child: what it is to do, if this process is one.
pub fn role() -> Option<(String, std::path::PathBuf)> {
    let role = std::env::var("TENURE_TEST_ROLE").ok()?;
    Some((role, std::env::var_os("TENURE_TEST_DIR")?.into()))
}

/// In the child.
pub fn say(word: &str) {
    println!("says {word}");
    std::io::stdout().flush().unwrap();
}

/// In the child: waits for a word; false when the parent is gone.
pub fn listen() -> bool {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap_or(0) > 0
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
