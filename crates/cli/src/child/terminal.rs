//! The controlling terminal and its foreground process group.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, Signal, getpgrp, getpid, getppid, getsid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::system;

/// The controlling terminal of this session. Standard input may be something else: a command whose
/// input is a file may still ask for a password on the terminal.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// The controlling terminal; `None` if there is none.
    pub(crate) fn controlling() -> Option<Self> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Self)
    }

    /// A descriptor of the terminal, for a new process to put itself in the foreground.
    pub(crate) fn handle(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// Whether tenure's own process group is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_of(getpgrp())
    }

    /// Whether this process group is in the foreground.
    pub(crate) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == group)
    }

    /// Whether a new command should start in the foreground, as it would without tenure. Otherwise it
    /// gets the terminal when it tries to use it, that is, when SIGTTIN or SIGTTOU stops it.
    ///
    /// A shell with job control starts tenure as the leader of a process group: then tenure may give
    /// the terminal away, unless another program of the pipeline (`tenure run a -- make | less`)
    /// needs it. A script shares its process group with the commands that it starts, also those in
    /// the background: if such a command took the terminal, the script could not read from it any
    /// more. The shell of a script starts background commands with SIGINT ignored and without the
    /// terminal as standard input: by that they are recognized.
    pub(crate) fn should_be_given(&self) -> bool {
        let leads = getpgrp() == getpid();
        let in_foreground_of_script =
            || io::stdin().is_terminal() && !system::is_ignored(libc::SIGINT);
        self.is_ours()
            && !is_pipe(io::stdin())
            && !is_pipe(io::stdout())
            && (leads || in_foreground_of_script())
    }

    /// Puts a group in the foreground. Returns whether that succeeded.
    pub(crate) fn give_to(&self, group: Pid) -> bool {
        // Without the block, SIGTTOU would stop tenure if it is in the background.
        system::with_signal_blocked(Signal::TTOU, || tcsetpgrp(&self.0, group)).is_ok()
    }

    /// Puts tenure's own group in the foreground if `group` is there now; not if the shell has given
    /// the terminal to another group in the meantime.
    pub(crate) fn take_back_from(&self, group: Pid) {
        if self.is_of(group) {
            self.give_to(getpgrp());
        }
    }
}

/// Whether tenure's process group is orphaned: no shell above it could continue it after a stop.
pub(crate) fn is_orphaned() -> bool {
    let session = |of: Option<Pid>| getsid(of).ok();
    getppid().is_none_or(|parent| session(Some(parent)) != session(None))
}

fn is_pipe(file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}
