//! The terminal, and whose turn it is.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, Signal, getpgrp, getpid, getppid, getsid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::system;

/// The terminal that controls our session, whether or not standard input is it: a command may
/// ask for a password there with its input coming from a file.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// `None` if there is none.
    pub(crate) fn ours() -> Option<Self> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Self)
    }

    /// The same terminal, for a new process to put itself in front of it.
    pub(crate) fn handle(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// Whether our process group is in its foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_of(getpgrp())
    }

    /// Whether this process group is in its foreground.
    pub(crate) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|front| front == group)
    }

    /// Whether a new command should be put in the foreground at once, as it would be without us.
    /// Otherwise it gets the terminal when it asks for it: when SIGTTIN or SIGTTOU stops it.
    ///
    /// A shell with job control starts a command in a process group of its own, which we lead: then
    /// the terminal is ours to give, unless others of a pipeline (`tenure run a -- make | less`)
    /// need it more. A script shares its group with what it starts, also in the background: if the
    /// command took the terminal, the script could not read from it. But a background job of a
    /// script ignores SIGINT, and does not read from the terminal.
    pub(crate) fn should_be_given(&self) -> bool {
        let leads = getpgrp() == getpid();
        let in_front_of_script = || io::stdin().is_terminal() && !system::is_ignored(libc::SIGINT);
        self.is_ours()
            && !is_pipe(io::stdin())
            && !is_pipe(io::stdout())
            && (leads || in_front_of_script())
    }

    /// Puts a group in the foreground, and says whether that worked.
    pub(crate) fn give_to(&self, group: Pid) -> bool {
        // A background process that asks for the terminal would be stopped by SIGTTOU.
        system::blocking(Signal::TTOU, || tcsetpgrp(&self.0, group)).is_ok()
    }

    /// Puts us in the foreground again, if `group` is there now. A terminal that the shell has
    /// given to another meanwhile is left alone.
    pub(crate) fn take_back_from(&self, group: Pid) {
        if self.is_of(group) {
            self.give_to(getpgrp());
        }
    }
}

/// Whether our group has no shell above it that could continue it when it is stopped.
pub(crate) fn is_orphaned() -> bool {
    let session = |of: Option<Pid>| getsid(of).ok();
    getppid().is_none_or(|parent| session(Some(parent)) != session(None))
}

fn is_pipe(file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}
