//! The command that runs under the lock: started in a process group of its own, in front of the
//! terminal if we were, guarded against our death, and waited for.

mod find;
mod group;
mod guardian;
mod pending_release;
mod system;
mod terminal;

use std::cell::Cell;
use std::io;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    self, Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait,
};

use crate::exit;
use terminal::Terminal;

pub(crate) use find::{find, not_started};
pub(crate) use guardian::{Guardian, is_guardian, stand_guard};
pub(crate) use pending_release::PendingRelease;
pub(crate) use system::{Fork, close_all_but, die_of, fork, is_ignored, lock_byte, wait_for_byte};

/// A running command, and every process of its group.
#[derive(Debug)]
pub(crate) struct Job {
    /// The command's process, and by that the id of its group.
    pid: Pid,
    terminal: Option<Terminal>,
    /// Whether the command was given the terminal, or has asked for it.
    uses_terminal: Cell<bool>,
    guardian: Guardian,
}

/// What became of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It ended.
    Ended(Ending),
    /// A signal stopped it.
    Stopped(Signal),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// What a shell would call its exit code.
    pub(crate) code: u8,
    /// The signal that ended it, if one did.
    pub(crate) signal: Option<Signal>,
}

impl Job {
    /// Starts a command. Must be called on the main thread: the command dies with the thread that
    /// started it.
    pub(crate) fn start(mut command: Command, guardian: Guardian) -> io::Result<Self> {
        let terminal = Terminal::ours();
        let to_give = terminal.as_ref().filter(|terminal| terminal.should_be_given());
        let to_give = to_give.map(Terminal::handle).transpose()?;
        let uses_terminal = Cell::new(to_give.is_some());
        system::prepare_command(&mut command, guardian.line()?, to_give);
        let child = command.spawn().inspect_err(|_| guardian.call_off())?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { pid, terminal, uses_terminal, guardian })
    }

    /// The next thing that happened to the command, if any. To be asked after every SIGCHLD until
    /// it says `None`. Waits for every other child that has ended on the way: the first process of a
    /// container inherits all that lose their parent.
    pub(crate) fn change(&self) -> io::Result<Option<Change>> {
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

    /// Hands a signal on that was sent to us. What asks for an end or comes from the terminal goes
    /// to the whole group: it would run on without the lock. The others mean the command alone.
    pub(crate) fn pass_on(&self, signal: Signal) -> io::Result<()> {
        match signal {
            // The command has not been waited for, so the id is still its own.
            Signal::USR1 | Signal::USR2 | Signal::ALARM => Ok(kill_process(self.pid, signal)?),
            _ => self.tell_all(signal),
        }
    }

    /// Sends a signal to all processes of the group. That there are none is no error.
    pub(crate) fn tell_all(&self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.pid, signal) {
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Answers a stop of the command: the terminal's stops (^Z, reading in the background) stop us
    /// too, so that the shell sees what it would have seen without us. Returns when we are
    /// continued; says whether the command is to be continued as well.
    pub(crate) fn follow_into_stop(&self, signal: Signal) -> bool {
        let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        if !wants_terminal && signal != Signal::TSTP {
            // Somebody stopped the command, not the job: the lock stays held.
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
            // An orphaned process group is never continued. The kernel ends such groups in the same way.
            let _ = self.tell_all(Signal::HUP);
            return true;
        }
        system::stop_our_group(signal);
        true
    }

    /// Lets a stopped command continue, in front of the terminal if it uses it and we are there.
    pub(crate) fn resume(&self) {
        let ours = |terminal: &&Terminal| self.uses_terminal.get() && terminal.is_ours();
        if let Some(terminal) = self.terminal.as_ref().filter(ours) {
            terminal.give_to(self.pid);
        }
        // What cannot be continued could not be told to end either, which has been said.
        let _ = self.tell_all(Signal::CONT);
    }

    /// From now on processes of the group that lose their parent become ours to wait for, so that
    /// [`is_gone`](Self::is_gone) is not deceived by dead ones that nobody waits for.
    pub(crate) fn adopt_orphans() {
        // Without it the end of the group is merely seen later.
        let _ = process::set_child_subreaper(Some(process::getpid()));
    }

    /// Whether no process of the group is left.
    pub(crate) fn is_gone(&self) -> bool {
        reap();
        group::is_gone(self.pid)
    }

    /// The group and its living processes, for a message.
    pub(crate) fn survivors(&self) -> String {
        group::describe(self.pid)
    }

    /// The command has ended: takes back the terminal and calls off the guardian. A job that is
    /// dropped without it is killed.
    ///
    /// ^C and ^\ reach the group in front only. When one of them, and not we, has `ended` the
    /// command, the others of our group (the script that called us) get it now, as they would have
    /// without us; and we should die of it, too: it is the answer.
    pub(crate) fn finish(&self, ended: Option<Signal>) -> Option<Signal> {
        self.guardian.call_off();
        let in_front = |terminal: &&Terminal| terminal.is_of(self.pid);
        let terminal = self.terminal.as_ref().filter(in_front)?;
        terminal.take_back_from(self.pid);
        let signal = ended.filter(|signal| matches!(*signal, Signal::INT | Signal::QUIT))?;
        // We listen to it ourselves, so it ends only the others.
        let _ = process::kill_current_process_group(signal);
        Some(signal)
    }
}

/// Waits for every child that has ended, whichever it is.
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
            answer => return Ok(answer?),
        }
    }
}

/// How often the end of a group is looked for; no signal tells it.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);
