//! The command that runs under the lock: starts it in a process group of its own, in the foreground
//! of the terminal if tenure is there, with a guardian that ends it if tenure dies; and waits for it.

mod guardian;
mod program;
mod system;
mod terminal;

use std::cell::Cell;
use std::io;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_current_process_group, kill_process,
    kill_process_group, set_child_subreaper, wait,
};

use crate::{exit, process};
use terminal::Terminal;

pub(crate) use guardian::{Guardian, PendingRelease, is_guardian, run_guardian};
pub(crate) use program::{check_program, start_failure};
pub(crate) use system::{
    Fork, SignalFd, close, close_all_but, fork, is_ignored, lock_byte, open_descriptors,
    raise_with_default_action, wait_for_byte,
};

/// How often the end of a process group is checked; no signal reports it.
pub(crate) const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running command and its process group.
#[derive(Debug)]
pub(crate) struct Job {
    /// The command's process, which is also the id of its process group.
    pid: Pid,
    terminal: Option<Terminal>,
    /// Whether the command was started in the foreground of the terminal, or has tried to use it.
    uses_terminal: Cell<bool>,
    guardian: Guardian,
}

/// A change of the command's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Ended(Ending),
    /// Stopped by this signal.
    Stopped(Signal),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// The exit code as a shell shows it.
    pub(crate) code: u8,
    /// The signal that ended the command, if one did.
    pub(crate) signal: Option<Signal>,
}

impl Job {
    /// Starts a command. Must be called on the main thread: the kernel kills the command when the
    /// thread that started it ends.
    pub(crate) fn start(mut command: Command, guardian: Guardian) -> io::Result<Self> {
        let terminal = Terminal::controlling();
        let foreground = terminal.as_ref().filter(|terminal| terminal.should_be_given());
        let foreground = foreground.map(Terminal::handle).transpose()?;
        let uses_terminal = Cell::new(foreground.is_some());
        system::prepare_command(&mut command, guardian.socket()?, foreground);
        let child = command.spawn().inspect_err(|_| guardian.dismiss())?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { pid, terminal, uses_terminal, guardian })
    }

    /// The next state change of the command, if any. Must be called after every SIGCHLD until it
    /// returns `None`. Reaps other children as well: the first process of a container inherits all
    /// orphans.
    pub(crate) fn next_change(&self) -> io::Result<Option<Change>> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Some((pid, status)) = retry(|| wait(options))? {
            if pid == self.pid
                && let Some(change) = change(status)
            {
                return Ok(Some(change));
            }
        }
        Ok(None)
    }

    /// Forwards a signal that tenure has received. Termination and terminal signals go to the whole
    /// process group, which must not continue without the lock; the others to the command alone.
    pub(crate) fn forward(&self, signal: Signal) -> io::Result<()> {
        match signal {
            // The command has not been reaped, so its pid has not been reused.
            Signal::USR1 | Signal::USR2 | Signal::ALARM => Ok(kill_process(self.pid, signal)?),
            _ => self.signal_group(signal),
        }
    }

    /// Sends a signal to all processes of the group. An empty group is not an error.
    pub(crate) fn signal_group(&self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.pid, signal) {
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Handles a stop of the command. If the terminal stopped it (^Z, or use of the terminal in the
    /// background), tenure stops as well, so that the shell sees a stopped job. Returns when tenure is
    /// continued; `true` if the command must be continued, too.
    pub(crate) fn follow_into_stop(&self, signal: Signal) -> bool {
        let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        if !wants_terminal && signal != Signal::TSTP {
            // SIGSTOP was sent to the command only: tenure continues and keeps the lock.
            return false;
        }
        let Some(terminal) = &self.terminal else {
            return false;
        };
        self.uses_terminal.set(self.uses_terminal.get() || wants_terminal);
        if wants_terminal && terminal.is_ours() && terminal.give_to(self.pid) {
            return true;
        }
        terminal.take_back_from(self.pid);
        if wants_terminal && terminal::is_orphaned() {
            // No shell would continue an orphaned process group. The kernel, too, ends such groups by
            // SIGHUP.
            let _ = self.signal_group(Signal::HUP);
            return true;
        }
        system::stop_own_group(signal);
        true
    }

    /// Continues a stopped command, in the foreground if it uses the terminal and tenure is there.
    pub(crate) fn resume(&self) {
        let ours = |terminal: &&Terminal| self.uses_terminal.get() && terminal.is_ours();
        if let Some(terminal) = self.terminal.as_ref().filter(ours) {
            terminal.give_to(self.pid);
        }
        // An error was already reported for the signal before it.
        let _ = self.signal_group(Signal::CONT);
    }

    /// Makes this process the parent of orphans of the group from now on, so that it can reap them
    /// and [`is_gone`](Self::is_gone) is not delayed by zombies.
    pub(crate) fn adopt_orphans() {
        // If it fails, the end of the group is only seen later.
        let _ = set_child_subreaper(Some(getpid()));
    }

    /// The process that kills the command if this one cannot.
    pub(crate) const fn guardian(&self) -> &Guardian {
        &self.guardian
    }

    /// Whether no process of the group is left.
    pub(crate) fn is_gone(&self) -> bool {
        reap();
        process::group_is_gone(self.pid)
    }

    /// The group and its running processes, for a message.
    pub(crate) fn survivors(&self) -> String {
        process::describe_group(self.pid)
    }

    /// Takes back the terminal and dismisses the guardian, after the command has ended. If a job is
    /// dropped without this call, the guardian kills it.
    ///
    /// ^C and ^\ reach only the foreground process group, which is the command's. If one of them
    /// `ended` the command, this sends it to the rest of tenure's own process group (the script that
    /// called tenure), as the terminal would have done without tenure. Returns the signal: tenure
    /// should end by it, too.
    pub(crate) fn finish(&self, ended: Option<Signal>) -> Option<Signal> {
        self.guardian.dismiss();
        let in_foreground = |terminal: &&Terminal| terminal.is_of(self.pid);
        let terminal = self.terminal.as_ref().filter(in_foreground)?;
        terminal.take_back_from(self.pid);
        let signal = ended.filter(|signal| matches!(*signal, Signal::INT | Signal::QUIT))?;
        // tenure handles this signal, so it ends only the other processes of the group.
        let _ = kill_current_process_group(signal);
        Some(signal)
    }
}

/// Reaps all children that have exited.
pub(crate) fn reap() {
    while let Ok(Some(_)) = retry(|| wait(WaitOptions::NOHANG)) {}
}

fn change(status: WaitStatus) -> Option<Change> {
    if let Some(code) = status.exit_status() {
        let code = u8::try_from(code).unwrap_or(u8::MAX);
        return Some(Change::Ended(Ending { code, signal: None }));
    }
    if let Some(signal) = status.terminating_signal() {
        let (code, signal) = (exit::by_signal(signal), Signal::from_named_raw(signal));
        return Some(Change::Ended(Ending { code, signal }));
    }
    let signal = status.stopping_signal().and_then(Signal::from_named_raw);
    signal.map(Change::Stopped)
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}
