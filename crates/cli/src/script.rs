//! `tenure hold --fd N`: a lock for a part of a script.
//!
//! The command makes a copy of itself that holds the lock in the background, and ends when that has
//! got it. How does the copy know when to let go? Descriptor N is shared by the script and everything
//! that it starts. A byte of the file behind it is locked in the name of all who share it, and the
//! copy, which has the file open by itself, waits for that byte: the kernel grants it when the last of
//! them has closed the descriptor or has ended, by whatever signal. The byte's number is random, so
//! many scripts can use the same file; but a user who can open it can lock all of its bytes.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Signal, WaitOptions, getppid, set_parent_process_death_signal, setsid, waitpid,
};
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr};
use tenure::{LossReason, OwnerId};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::args::{self, OnLost};
use crate::child::{self, Fork};
use crate::exit::{self, Failure, Outcome};
use crate::held::Held;
use crate::hold::why;
use crate::output::{self, complain};
use crate::process::Tree;
use crate::schedule::{Schedule, Step};
use crate::signals::Signals;

/// The part of a script that a lock is held for, as the process in the background sees it.
#[derive(Debug)]
pub(crate) struct Script {
    /// The file behind the script's descriptor, opened anew.
    file: OwnedFd,
    /// The byte of it that is locked as long as the descriptor is open.
    byte: i64,
    /// The process that called us, and what it started.
    caller: Option<Tree>,
    /// `/dev/null`, opened before the lock is taken: later there may be no descriptor left.
    null: File,
}

/// A script that does not wait for this process any more.
#[derive(Debug)]
pub(crate) struct Background {
    /// Ends when the script's descriptor is closed everywhere.
    closed: JoinHandle<()>,
    caller: Option<Tree>,
    null: File,
}

/// Makes the process in the background, which does `hold`. Returns when the lock is held, or the
/// other has failed; in that other process, when all is over.
pub(crate) fn execute(fd: i32, hold: impl FnOnce(Script) -> Outcome) -> Outcome {
    let script = Script::of(fd)?;
    let fault = |error: io::Error| Failure::system("start a process in the background", &error);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| fault(errno.into()))?;
    let ours = rustix::process::getpid();
    match child::fork().map_err(fault)? {
        Fork::Parent { child } => {
            drop((writer, script));
            let mut said = Vec::new();
            File::from(reader).read_to_end(&mut said).map_err(fault)?;
            if !said.is_empty() {
                return match output::write(&said) {
                    Ok(()) => Ok(exit::OK),
                    Err(closed) => closed.outcome(),
                };
            }
            let (_, status) = waitpid(Some(child), WaitOptions::empty())
                .map_err(|errno| fault(errno.into()))?
                .ok_or_else(|| fault(io::ErrorKind::NotFound.into()))?;
            let by_signal =
                || status.terminating_signal().and_then(Signal::from_named_raw).map(exit::die_of);
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            Ok(code.or_else(by_signal).unwrap_or(exit::INTERNAL))
        }
        Fork::Child => {
            drop(reader);
            // Until the lock is held, a signal that ends the foreground process ends this one too.
            set_parent_process_death_signal(Some(Signal::TERM))
                .and_then(|()| match getppid() {
                    Some(parent) if parent == ours => Ok(()),
                    _ => Err(rustix::io::Errno::SRCH),
                })
                .map_err(|errno| fault(errno.into()))?;
            let kept = script.kept();
            child::close_all_but(&[&kept[..], &[writer.as_fd()]].concat()).map_err(fault)?;
            // What `hold` prints goes to the foreground process.
            dup2_stdout(&writer).map_err(|errno| fault(errno.into()))?;
            drop(writer);
            hold(script)
        }
    }
}

impl Script {
    fn of(fd: i32) -> Result<Self, Failure> {
        let unusable = |why: &str| {
            let why = format!(
                "descriptor {fd} {why}: open a private file for writing first, as with \
                 `exec {fd}>\"$(mktemp)\"`"
            );
            Failure::new(exit::USAGE, why)
        };
        let path = format!("/proc/self/fd/{fd}");
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        if !std::path::Path::new(&path).exists() {
            return Err(unusable("is not open"));
        }
        let file = open(&path, flags, Mode::empty())
            .map_err(|errno| unusable(&format!("leads to nothing that can be opened ({errno})")))?;
        let random = OwnerId::random();
        let half: [u8; 8] = std::array::from_fn(|place| random.as_bytes()[place]);
        // Room for the byte's end below the largest offset.
        let byte = i64::from_be_bytes(half) & (i64::MAX >> 1);
        child::lock_byte(fd, byte)
            .map_err(|error| unusable(&format!("cannot be locked ({error})")))?;
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|error| Failure::system("open /dev/null", &error))?;
        Ok(Self { file, byte, caller: Tree::of_parent(), null })
    }

    /// The descriptors that must stay open.
    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        let caller = self.caller.as_ref().map(AsFd::as_fd);
        [self.file.as_fd(), self.null.as_fd()].into_iter().chain(caller).collect()
    }

    /// The lock is held: from now on this process does not end with the foreground process, and has
    /// left its terminal. To be called before the script is told: it does all that can fail.
    pub(crate) fn settle(self) -> Result<Background, Failure> {
        let fault =
            |errno: rustix::io::Errno| Failure::system("go to the background", &errno.into());
        set_parent_process_death_signal(None).map_err(fault)?;
        setsid().map_err(fault)?;
        let Self { file, byte, caller, null } = self;
        let closed = spawn_blocking(move || {
            // An error would mean that the file cannot be locked, which it could when we began.
            let _ = child::wait_for_byte(file, byte);
        });
        Ok(Background { closed, caller, null })
    }
}

impl Background {
    /// Holds the lock until the descriptor is closed or the lock is lost.
    pub(crate) async fn hold(
        self,
        guard: Held,
        mut signals: Signals,
        arguments: &args::Hold,
    ) -> Outcome {
        self.let_go_of_output().map_err(|error| Failure::system("go to the background", &error))?;
        let mut closed = self.closed;
        let ttl = guard.ttl();
        let schedule = Schedule { ttl, grace: arguments.grace };
        let (why, grace) = tokio::select! {
            biased;
            _ = &mut closed => {
                guard.release().await?;
                return Ok(exit::OK);
            }
            reason = guard.lost() => (why(reason), match reason {
                LossReason::NotHeld => arguments.grace,
                // The store keeps others out until the lease ends.
                LossReason::MaxHold => arguments.grace.min(ttl / 2),
                _ => Duration::ZERO,
            }),
            left = in_danger(&guard, schedule, arguments.on_lost) => {
                ("the store does not confirm it", schedule.until(Step::Kill, left))
            }
            _ = signals.request_to_end() => {
                ("a signal ended the process that held it", arguments.grace)
            }
        };
        let name = guard.name();
        let mut caller = self.caller;
        let what = match (&caller, arguments.on_lost) {
            (None, _) | (_, OnLost::Nothing) => "the script goes on without it",
            (_, OnLost::Term) => "stopping the script",
            (_, OnLost::Kill) => "killing the script",
        };
        complain(&format!("lost the lock {name:?}: {why}; {what}"));
        if let (Some(caller), OnLost::Term | OnLost::Kill) = (&mut caller, arguments.on_lost) {
            let mut ended = false;
            if arguments.on_lost == OnLost::Term {
                caller.signal(Signal::TERM);
                ended = timeout(grace, &mut closed).await.is_ok();
            }
            if !ended {
                caller.signal(Signal::KILL);
                // If the lock is still ours, it is given back only when the script has ended; but
                // processes that it left behind are not waited for.
                let _ = timeout(Duration::from_secs(1), &mut closed).await;
            }
        }
        drop(guard);
        Ok(exit::LOST)
    }

    /// Redirects standard output to `/dev/null`, and standard error unless it is the script's own: a
    /// reader of stdout or stderr would wait for this process to exit.
    fn let_go_of_output(&self) -> io::Result<()> {
        dup2_stdout(&self.null)?;
        if !self.caller.as_ref().is_some_and(|caller| caller.has_stderr(stderr())) {
            dup2_stderr(&self.null)?;
        }
        Ok(())
    }
}

/// Resolves when the script must be told that the lock is about to be lost, with what is left of the
/// lease.
async fn in_danger(guard: &Held, schedule: Schedule, on_lost: OnLost) -> Duration {
    let step = match on_lost {
        OnLost::Term => Step::Term,
        OnLost::Kill => Step::Kill,
        // The loss itself is soon enough for a message.
        OnLost::Nothing => return std::future::pending().await,
    };
    loop {
        guard.danger().await;
        let left = guard.remaining();
        match schedule.until(step, left) {
            Duration::ZERO => return left,
            wait => sleep(wait).await,
        }
    }
}
