//! A small process that outlives us for a moment: when we die without a word, it kills the
//! command's process group, and then gives the lock back.
//!
//! The kernel kills the command itself (its parent-death signal), but not what the command has
//! started. The guardian is this same program with a hidden argument. It listens on its standard
//! input, to words of four bytes: the command's process writes its id there before it becomes the
//! command, so that no moment is left unguarded; before that we hand over the lock, as a negative
//! length and so many bytes; we write a zero when all is well; and when we die, the line closes.
//! The lock's store comes with its password, which neither arguments nor environment may show.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use super::pending_release::PendingRelease;
use super::{LOOK_EVERY, group, system};
use crate::output::complain;

/// The hidden first argument.
const ARGUMENT: &str = "__guardian";

/// Our end of the line.
#[derive(Debug)]
pub(crate) struct Guardian {
    line: UnixStream,
    process: Child,
}

impl Guardian {
    /// Starts it.
    pub(crate) fn start() -> io::Result<Self> {
        // A socket rather than a pipe: writing to one whose reader died can be had without SIGPIPE.
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tenure").arg(ARGUMENT).env_clear();
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        system::prepare_guardian(&mut command);
        let process = command.spawn()?;
        Ok(Self { line, process })
    }

    /// The line, for the command's process to write to.
    pub(crate) fn line(&self) -> io::Result<OwnedFd> {
        Ok(self.line.try_clone()?.into())
    }

    /// Hands over the lock, to be given back if we die. Must come before the command's process
    /// writes to the line.
    pub(crate) fn hand_over(&self, pending: &PendingRelease) {
        let Ok(bytes) = serde_json::to_vec(pending) else { return };
        let Ok(length) = i32::try_from(bytes.len()) else { return };
        let message = [&(-length).to_ne_bytes()[..], &bytes].concat();
        // If it is dead, the lock is free when its TTL has passed.
        let _ = (&self.line).write_all(&message);
    }

    /// Tells it that all is well.
    pub(crate) fn call_off(&self) {
        // If it is dead there is nothing to call off.
        let _ = (&self.line).write_all(&0_i32.to_ne_bytes());
    }
}

impl Drop for Guardian {
    /// Closes the line, and waits until the guardian has done its duty and is gone, so that nothing
    /// is left of us; but not for ever, should somebody have stopped it.
    fn drop(&mut self) {
        let _ = self.line.shutdown(Shutdown::Write);
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

/// A guardian's life.
pub(crate) fn stand_guard() -> ExitCode {
    let left = listen(&mut io::stdin().lock());
    let limit = Instant::now() + left.pending.as_ref().map_or(Duration::ZERO, PendingRelease::ttl);
    let gone = left.group.is_none_or(|group| end(group, left.pending.as_ref(), limit));
    if let Some(pending) = left.pending.filter(|_| gone) {
        pending.give_back(limit);
    }
    ExitCode::SUCCESS
}

/// Kills a group, and stays until no process of it is left, at most until `limit`. Says whether it
/// is gone.
fn end(group: Pid, pending: Option<&PendingRelease>, limit: Instant) -> bool {
    let mut told = false;
    // What can be killed is gone by then. The call fails only if none of the group can be killed.
    let gone_by = Instant::now() + Duration::from_secs(1);
    loop {
        // A process may have started another since the last time.
        let killed = kill_process_group(group, Signal::KILL);
        if group::is_gone(group) {
            return true;
        }
        let refused = killed.err().filter(|error| *error != Errno::SRCH);
        let now = Instant::now();
        if !told && (refused.is_some() || now >= gone_by) {
            told = true;
            let lock = pending.map_or_else(|| "its lock".into(), PendingRelease::describe);
            let group = group::describe(group);
            let why = refused.map_or_else(|| "it does not end".into(), |error| error.to_string());
            complain(&format!(
                "tenure died, and could not kill {group}: {why}; it may still run without {lock}: \
                 end it by hand"
            ));
        }
        if told && now >= limit {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What was announced to a guardian and never called off.
#[derive(Debug, Default)]
struct Left {
    group: Option<Pid>,
    pending: Option<PendingRelease>,
}

/// Listens until the line closes.
fn listen(line: &mut impl Read) -> Left {
    let mut left = Left::default();
    let mut word = [0; 4];
    while line.read_exact(&mut word).is_ok() {
        match i32::from_ne_bytes(word) {
            0 => left = Left::default(),
            length @ ..0 => {
                let mut bytes = Vec::new();
                let length = u64::from(length.unsigned_abs());
                let read = line.by_ref().take(length).read_to_end(&mut bytes);
                left.pending = read.ok().and_then(|_| serde_json::from_slice(&bytes).ok());
            }
            pid => left.group = Pid::from_raw(pid).filter(|pid| !pid.is_init()),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[i32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn only_a_group_that_was_never_called_off_is_killed() {
        let said = |said: &[i32]| listen(&mut words(said).as_slice()).group;
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[7, 0]), None);
        assert_eq!(said(&[7]), Pid::from_raw(7));
        assert_eq!(said(&[1]), None, "killing group 1 would be killing everybody");
        assert_eq!(said(&[0, 7]), Pid::from_raw(7));
        assert_eq!(listen(&mut &[7, 0][..]).group, None, "half a word says nothing");
    }

    #[test]
    fn only_a_lock_that_was_never_called_off_is_given_back() {
        let pending = PendingRelease::sample();
        let bytes = serde_json::to_vec(&pending).unwrap();
        let length = -i32::try_from(bytes.len()).unwrap();
        let handed = [&words(&[length])[..], &bytes].concat();
        assert_eq!(listen(&mut handed.as_slice()).pending.as_ref(), Some(&pending));
        let then = |said: &[i32]| listen(&mut [&handed[..], &words(said)].concat().as_slice());
        let started = then(&[7]);
        assert_eq!((started.group, started.pending), (Pid::from_raw(7), Some(pending)));
        assert_eq!(then(&[7, 0]).pending, None);
        assert_eq!(listen(&mut &handed[..handed.len() - 1]).pending, None, "it was cut off");
    }
}
