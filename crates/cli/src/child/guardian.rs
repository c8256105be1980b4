//! A small process that outlives us for a moment: when we die without a word, it kills the
//! command's process group.
//!
//! The kernel kills the command itself (its parent-death signal), but not what the command has
//! started. The guardian is this same program with a hidden argument. It listens on its standard
//! input: the command's process writes its id there before it becomes the command, so that no
//! moment is left unguarded; we write a zero when all is well; and when we die, the line closes.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::system;

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
        command.arg0("tenure").arg(ARGUMENT).env_clear().current_dir("/");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        system::prepare_guardian(&mut command);
        let process = command.spawn()?;
        Ok(Self { line, process })
    }

    /// The line, for the command's process to write to.
    pub(crate) fn line(&self) -> io::Result<OwnedFd> {
        Ok(self.line.try_clone()?.into())
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
    if let Some(group) = abandoned_group(&mut io::stdin().lock()) {
        // It fails if the group is gone already, which is as well.
        let _ = kill_process_group(group, Signal::KILL);
    }
    ExitCode::SUCCESS
}

/// Listens until the line closes. Returns the group that was announced and never called off.
fn abandoned_group(line: &mut impl Read) -> Option<Pid> {
    let mut group = None;
    let mut word = [0; 4];
    while line.read_exact(&mut word).is_ok() {
        // Zero is no process id.
        group = Pid::from_raw(i32::from_ne_bytes(word)).filter(|pid| !pid.is_init());
    }
    group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_group_that_was_never_called_off_is_killed() {
        let said = |words: &[i32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            abandoned_group(&mut bytes.as_slice())
        };
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[7, 0]), None);
        assert_eq!(said(&[7]), Pid::from_raw(7));
        assert_eq!(said(&[1]), None, "killing group 1 would be killing everybody");
        assert_eq!(said(&[0, 7]), Pid::from_raw(7));
        assert_eq!(abandoned_group(&mut &[7, 0][..]), None, "half a word says nothing");
    }
}
