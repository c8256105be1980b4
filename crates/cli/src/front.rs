//! The foreground process of `tenure run --at-least`.
//!
//! A lock must stay taken after the command has ended, and on some stores it ends with the process that
//! holds it. So the command forks: the child does everything that `tenure run` does, and stays after the
//! command, in the background, for as long as the lock must stay taken; the parent is what the shell
//! sees. It forwards signals to the child, and exits as the child says.
//!
//! Both are in one process group: a signal of the terminal, and a stop, reach both.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_parent_process_death_signal,
    setsid, waitpid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use tokio::time::{Instant, sleep};

use crate::child::{self, Fork, SignalFd};
use crate::exit::{self, Failure, Outcome};

/// The signals that are passed on, if a process sent them.
const FORWARDED: [Signal; 7] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
];

/// How long the foreground process may take to exit: it may be stopped.
const PARENT_EXITS_WITHIN: Duration = Duration::from_secs(1);

/// Forks. `run` is called in the child; the parent returns when the child exits, or says that it stays
/// in the background.
pub(crate) fn execute(run: impl FnOnce(Front) -> Outcome) -> Outcome {
    let fault = |error: io::Error| Failure::system("start the foreground process", &error);
    // Before this process opens any itself.
    let inherited = child::open_descriptors().map_err(fault)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| fault(errno.into()))?;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(fault)?;
    let ours = getpid();
    match child::fork().map_err(fault)? {
        Fork::Parent { child } => {
            drop((writer, null));
            relay(child, reader).map_err(fault)
        }
        Fork::Child => {
            drop(reader);
            // If the foreground process is killed, this one is, and its guardian kills the command.
            set_parent_process_death_signal(Some(Signal::KILL))
                .and_then(|()| match getppid() {
                    Some(parent) if parent == ours => Ok(()),
                    _ => Err(Errno::SRCH),
                })
                .map_err(|errno| fault(errno.into()))?;
            run(Front { report: File::from(writer), null, inherited })
        }
    }
}

/// The foreground process, as its child sees it.
#[derive(Debug)]
pub(crate) struct Front {
    report: File,
    /// Opened early: later there may be no free descriptor.
    null: File,
    /// The descriptors, besides the standard ones, that the caller left open.
    inherited: Vec<i32>,
}

impl Front {
    /// Lets the foreground process exit with this code, or by the signal of [`exit::with_signal`], and goes
    /// to the background. Returns when the foreground process has exited, and forwards no signals any
    /// more.
    pub(crate) async fn dismiss(self, code: u8) -> io::Result<()> {
        let parent = getppid();
        let Self { mut report, null, inherited } = self;
        set_parent_process_death_signal(None)?;
        let signal = exit::take_final_signal().unwrap_or(0);
        let [a, b, c, d] = signal.to_ne_bytes();
        report.write_all(&[code, a, b, c, d])?;
        // A session of its own, without the terminal: the end of the session does not end it.
        setsid()?;
        // A reader of a pipe would wait for this process.
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        dup2_stderr(&null)?;
        child::close(&inherited);
        let start = Instant::now();
        while getppid() == parent && start.elapsed() < PARENT_EXITS_WITHIN {
            sleep(Duration::from_millis(2)).await;
        }
        // For signals that have arrived to be read.
        sleep(Duration::from_millis(2)).await;
        Ok(())
    }
}

/// Forwards signals to the child until it exits or reports. Returns the exit code.
fn relay(child: Pid, report: OwnedFd) -> io::Result<u8> {
    let signals = SignalFd::block(&FORWARDED)?;
    loop {
        let mut ready = [&report, signals.as_ref()].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let reported = !ready[0].revents().is_empty();
        while let Some((signal, sender)) = signals.next() {
            // A terminal signals the whole process group, and so the child as well.
            if sender.is_some_and(|sender| sender != child) {
                // Fails if the child has exited: then the pipe is closed.
                let _ = kill_process(child, signal);
            }
        }
        if reported {
            break;
        }
    }
    // Closed without a report: the child exits.
    let mut bytes = [0; 5];
    if File::from(report).read_exact(&mut bytes).is_ok() {
        let [code, signal @ ..] = bytes;
        let signal = Signal::from_named_raw(i32::from_ne_bytes(signal));
        return Ok(signal.map_or(code, exit::with_signal));
    }
    let status = loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            waited => break waited?.ok_or(io::ErrorKind::NotFound)?.1,
        }
    };
    Ok(exit::of_process(status))
}
