//! The guardian: a helper process that outlives a killed `tenure run`, kills the command's process
//! group, and then releases the lock. It also kills the group of a tenure that is stopped (SIGSTOP), and
//! so neither renews its lease nor ends its command, before the lease ends.
//!
//! The kernel kills the command itself (by its parent-death signal), but not the processes that the
//! command has started. The guardian is the same program with a hidden argument. It reads messages
//! from a socket on its standard input, each starting with a 32-bit number:
//!
//! - the lowest number: a [`Deadline`] follows, at which the group must be dead unless a later one comes;
//! - another negative number `-n`: `n` bytes of JSON follow, a [`PendingRelease`]. It contains the store's
//!   password, which must not be visible in arguments or environment;
//! - a positive number: the id of the command's process group. The child writes it between fork and
//!   exec, so that the command never runs unguarded;
//! - zero: the command has ended, and there is nothing to do.
//!
//! When tenure exits or dies, the socket closes, and the guardian acts on the messages it has read. Its
//! standard output may be a file with a locked byte, which it keeps locked as long as the group may run.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::stdio::dup2_stdout;
use serde::{Deserialize, Serialize};
use tenure::store::{Clock, Moment};
use tenure::{Guard, OwnerId, StoreUrl};

use super::{GROUP_POLL_INTERVAL, system};
use crate::connection::Connection;
use crate::exit::Failure;
use crate::output::report;
use crate::process;

/// The hidden first argument.
const ARGUMENT: &str = "__guardian";

/// A running guardian, as `tenure run` sees it.
#[derive(Debug)]
pub(crate) struct Guardian {
    socket: UnixStream,
    process: Child,
}

impl Guardian {
    /// Starts a guardian that keeps `kept` open until the command is dead.
    pub(crate) fn start(kept: Stdio) -> io::Result<Self> {
        // A socket rather than a pipe, because a write to it can be made without raising SIGPIPE.
        let (socket, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tenure").arg(ARGUMENT).env_clear();
        command.stdin(OwnedFd::from(theirs)).stdout(kept);
        system::prepare_guardian(&mut command);
        let process = command.spawn()?;
        Ok(Self { socket, process })
    }

    /// A copy of the socket, for the command's process to announce itself.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    /// Hands over the lock, to be released if tenure dies. Must be called before the command starts.
    pub(crate) fn hand_over(&self, pending: &PendingRelease) {
        let Ok(bytes) = serde_json::to_vec(pending) else { return };
        let Ok(length) = i32::try_from(bytes.len()) else { return };
        let message = [&(-length).to_ne_bytes()[..], &bytes].concat();
        // If the guardian is dead, the lock becomes free when its TTL has passed.
        let _ = (&self.socket).write_all(&message);
    }

    /// Has the guardian kill the command at this moment, unless it is told another one before; `None`:
    /// not at all, unless tenure dies.
    pub(crate) fn kill_at(&self, clock: Clock, at: Option<Moment>) {
        let deadline = Deadline { clock, at };
        let message = [&DEADLINE.to_ne_bytes()[..], &deadline.to_bytes()].concat();
        // Fails only if the guardian is dead, or does not read: then it would not act on it either.
        let _ = send(&self.socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Tells the guardian that there is nothing to do.
    pub(crate) fn dismiss(&self) {
        // Fails only if the guardian is dead, which has the same effect.
        let _ = (&self.socket).write_all(&0_i32.to_ne_bytes());
    }
}

impl Drop for Guardian {
    /// Closes the socket and waits until the guardian has exited; for a second at most, in case that
    /// it was stopped.
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        let start = Instant::now();
        while let Ok(None) = self.process.try_wait()
            && start.elapsed() < Duration::from_secs(1)
        {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Whether this process was started as a guardian.
pub(crate) fn is_guardian() -> bool {
    std::env::args_os().nth(1).as_deref() == Some(OsStr::new(ARGUMENT))
}

/// The main function of a guardian.
pub(crate) fn run_guardian() -> ExitCode {
    // Not through `io::stdin`, whose buffer would hide messages from the timeout.
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let tasks = read_tasks(UnixStream::from(socket));
    let ttl = tasks.pending.as_ref().map_or(Duration::ZERO, |pending| pending.ttl);
    // After the TTL the lock is free without a release.
    let limit = Instant::now() + ttl;
    let gone = tasks.group.is_none_or(|group| kill_group(group, tasks.pending.as_ref(), limit));
    if let Some(pending) = tasks.pending.filter(|pending| gone && !pending.is_kept()) {
        pending.release(limit);
    }
    ExitCode::SUCCESS
}

/// What a guardian has to do when tenure has died.
#[derive(Debug, Default)]
struct Tasks {
    /// The process group to kill.
    group: Option<Pid>,
    /// When it must be dead although tenure lives.
    deadline: Deadline,
    /// The lock to release afterwards.
    pending: Option<PendingRelease>,
}

/// Reads messages until the socket closes. Meanwhile kills the group when its deadline comes.
fn read_tasks(mut socket: UnixStream) -> Tasks {
    let mut tasks = Tasks::default();
    let mut number = [0; 4];
    loop {
        // Zero would be refused.
        let limit = tasks.deadline.left().map(|left| left.max(Duration::from_millis(1)));
        let _ = socket.set_read_timeout(limit);
        match socket.read_exact(&mut number) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                tasks.kill_at_deadline();
                continue;
            }
            Err(_) => return tasks,
        }
        // The rest of a message comes with its number.
        let _ = socket.set_read_timeout(None);
        match i32::from_ne_bytes(number) {
            0 => tasks = Tasks::default(),
            DEADLINE => {
                let mut bytes = [0; Deadline::BYTES];
                if socket.read_exact(&mut bytes).is_ok() {
                    tasks.deadline = Deadline::from_bytes(bytes);
                }
            }
            length @ ..0 => {
                let mut bytes = Vec::new();
                let length = u64::from(length.unsigned_abs());
                let read = Read::by_ref(&mut socket).take(length).read_to_end(&mut bytes);
                tasks.pending = read.ok().and_then(|_| serde_json::from_slice(&bytes).ok());
            }
            pid => tasks.group = Pid::from_raw(pid).filter(|pid| !pid.is_init()),
        }
    }
}

impl Tasks {
    /// Kills the group if its deadline has come: tenure is stopped.
    fn kill_at_deadline(&mut self) {
        if self.deadline.left().is_none_or(|left| !left.is_zero()) {
            return;
        }
        self.deadline = Deadline::default();
        let Some(group) = self.group.take() else { return };
        let lock =
            self.pending.as_ref().map_or_else(|| "its lock".into(), PendingRelease::describe);
        report(&format!(
            "tenure is stopped, and {lock} is about to be lost: its guardian kills the command"
        ));
        let limit = Instant::now() + KILL_WITHIN;
        if kill_group(group, self.pending.as_ref(), limit) {
            // Nothing of the command is left: another tenure may start its own.
            let _ = File::open("/dev/null").and_then(|null| Ok(dup2_stdout(null)?));
        } else {
            // Killed again when tenure dies.
            self.group = Some(group);
        }
    }
}

/// The first number of a message with a [`Deadline`].
const DEADLINE: i32 = i32::MIN;

/// How long a guardian tries to kill the group of a stopped tenure.
const KILL_WITHIN: Duration = Duration::from_secs(2);

/// When the command must be dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Deadline {
    clock: Clock,
    at: Option<Moment>,
}

impl Deadline {
    const BYTES: usize = 9;

    /// How long it is until then; `None` if there is none.
    fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.since(self.clock.now()))
    }

    /// The clock, and nanoseconds on it; zero for none.
    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = u8::from(self.clock == Clock::Monotonic);
        bytes[1..].copy_from_slice(&self.at.map_or(0, Moment::as_nanos).to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [clock, nanos @ ..] = bytes;
        let clock = if clock == 0 { Clock::Boot } else { Clock::Monotonic };
        let at = Some(u64::from_ne_bytes(nanos)).filter(|nanos| *nanos > 0);
        Self { clock, at: at.map(Moment::from_nanos) }
    }
}

/// Kills a process group and waits until it is gone, at most until `limit`. Returns whether it is
/// gone.
fn kill_group(group: Pid, pending: Option<&PendingRelease>, limit: Instant) -> bool {
    let mut reported = false;
    // A process that can be killed has exited by then. The call itself fails only if no process of
    // the group can be killed.
    let gone_by = Instant::now() + Duration::from_secs(1);
    loop {
        // Repeated, because a process may have started another since the last time.
        let killed = kill_process_group(group, Signal::KILL);
        if process::group_is_gone(group) {
            return true;
        }
        let refused = killed.err().filter(|error| *error != Errno::SRCH);
        let now = Instant::now();
        if !reported && (refused.is_some() || now >= gone_by) {
            reported = true;
            let lock = pending.map_or_else(|| "its lock".into(), PendingRelease::describe);
            let group = process::describe_group(group);
            let why = refused.map_or_else(|| "it does not exit".into(), |error| error.to_string());
            report(&format!(
                "tenure died, and its guardian could not kill {group}: {why}; it may still run \
                 without {lock}: end it manually"
            ));
        }
        if reported && now >= limit {
            return false;
        }
        std::thread::sleep(GROUP_POLL_INTERVAL);
    }
}

/// Everything that is needed to release a lock of a `tenure run` that has died.
#[derive(Deserialize, PartialEq, Serialize)]
pub(crate) struct PendingRelease {
    store: String,
    password: Option<String>,
    lock: String,
    owner: String,
    ttl: Duration,
    /// Until when `--at-least` keeps the lock taken, in milliseconds since the Unix epoch. Before that,
    /// the lock is left to its TTL.
    kept_until: Option<u64>,
}

impl PendingRelease {
    /// The release of a guard's lock, in the store of this resolved URL. From now on it stays taken for
    /// `at_least`.
    pub(crate) fn new(url: &StoreUrl, guard: &Guard, at_least: Option<Duration>) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let kept_until = at_least.map(|time| unix_ms().saturating_add(millis(time)));
        Self {
            kept_until,
            store: url.to_string(),
            password: url.password().map(str::to_owned),
            lock: guard.name().as_str().into(),
            owner: guard.owner().to_string(),
            ttl: guard.ttl(),
        }
    }

    fn is_kept(&self) -> bool {
        self.kept_until.is_some_and(|until| unix_ms() < until)
    }

    /// The lock, for a message.
    fn describe(&self) -> String {
        format!("the lock {:?}", self.lock)
    }

    /// Releases the lock; retries until the store has answered, at most until `limit`.
    fn release(&self, limit: Instant) {
        if let Some(password) = &self.password {
            system::set_variable("TENURE_PASSWORD", password);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        let retrying = async { tokio::time::timeout_at(limit.into(), self.retry()).await.is_ok() };
        let released = runtime.block_on(retrying);
        if !released {
            report(&format!(
                "could not release {} after tenure died; it becomes free when its TTL has passed",
                self.describe()
            ));
        }
        runtime.shutdown_background();
    }

    async fn retry(&self) {
        let mut pause = Duration::from_millis(100);
        while self.try_release().await.is_err() {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(Duration::from_secs(10));
        }
    }

    async fn try_release(&self) -> Result<(), Failure> {
        let owner = self.owner.parse::<OwnerId>()?;
        let connection = Connection::open(&self.store).await?;
        let released = connection.client.release(&self.lock, owner).await;
        connection.client.close().await;
        released?;
        Ok(())
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for PendingRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRelease").field("lock", &self.lock).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: &[i32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    /// What is to be done after these messages and the end of the socket.
    fn after(messages: &[u8]) -> Tasks {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(messages).unwrap();
        drop(ours);
        read_tasks(theirs)
    }

    #[test]
    fn a_group_is_killed_unless_the_guardian_is_dismissed() {
        let group = |numbers: &[i32]| after(&bytes(numbers)).group;
        assert_eq!(group(&[]), None);
        assert_eq!(group(&[7, 0]), None);
        assert_eq!(group(&[7]), Pid::from_raw(7));
        assert_eq!(group(&[1]), None, "killing group 1 would kill all processes");
        assert_eq!(group(&[0, 7]), Pid::from_raw(7));
        assert_eq!(after(&[7, 0]).group, None, "an incomplete number is ignored");
    }

    #[test]
    fn a_lock_is_released_unless_the_guardian_is_dismissed() {
        let pending = PendingRelease {
            store: "redis://127.0.0.1".into(),
            password: Some("secret".into()),
            lock: "a".into(),
            owner: "0".repeat(32),
            ttl: Duration::from_secs(30),
            kept_until: None,
        };
        let json = serde_json::to_vec(&pending).unwrap();
        let length = -i32::try_from(json.len()).unwrap();
        let handed = [&bytes(&[length])[..], &json].concat();
        assert_eq!(after(&handed).pending.as_ref(), Some(&pending));
        let then = |numbers: &[i32]| after(&[&handed[..], &bytes(numbers)].concat());
        let started = then(&[7]);
        assert_eq!((started.group, started.pending), (Pid::from_raw(7), Some(pending)));
        assert_eq!(then(&[7, 0]).pending, None);
        assert_eq!(after(&handed[..handed.len() - 1]).pending, None, "it is incomplete");
    }
    #[test]
    fn a_deadline_is_read_back_and_the_last_one_counts() {
        let at = |nanos| Deadline { clock: Clock::Monotonic, at: Some(Moment::from_nanos(nanos)) };
        let message = |deadline: Deadline| [&bytes(&[DEADLINE])[..], &deadline.to_bytes()].concat();
        let far = u64::MAX / 2;
        let messages = [message(at(far)), bytes(&[7]), message(at(far + 1))].concat();
        let tasks = after(&messages);
        assert_eq!((tasks.deadline, tasks.group), (at(far + 1), Pid::from_raw(7)));
        let none = Deadline { clock: Clock::Boot, at: None };
        assert_eq!(after(&[messages, message(none)].concat()).deadline.left(), None);
    }
}
