//! `tenure hold --fd N`: holds a lock in a background process for a part of a script.
//!
//! The command forks, and exits when its child holds the lock. The child learns as follows when to
//! release it. Descriptor N is shared by the script and all processes that the script starts. The
//! command locks one byte of the file on that shared open file description (`F_OFD_SETLK`). The child
//! opens the file again and waits for a lock on the same byte: the kernel grants it when the last
//! process that shares the descriptor has closed it or exited, by whatever signal. The byte's offset
//! is random, so many scripts can use the same file; but a user that can open the file can lock all of
//! its bytes.

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
use crate::lock::{self, Held};
use crate::loss_schedule::{LossSchedule, Step};
use crate::output::{self, report};
use crate::process::ProcessTree;
use crate::signals::Signals;

/// Forks a background process that calls `hold`. In the foreground process, returns when the lock is
/// held or could not be acquired; in the background process, when `hold` returns.
pub(crate) fn execute(fd: i32, hold: impl FnOnce(Caller) -> Outcome) -> Outcome {
    let caller = Caller::of_descriptor(fd)?;
    let fault = |error: io::Error| Failure::system("start a background process", &error);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| fault(errno.into()))?;
    let ours = rustix::process::getpid();
    match child::fork().map_err(fault)? {
        Fork::Parent { child } => {
            drop((writer, caller));
            let mut announcement = Vec::new();
            File::from(reader).read_to_end(&mut announcement).map_err(fault)?;
            if !announcement.is_empty() {
                return output::exit_code(output::write(&announcement), exit::OK);
            }
            let (_, status) = waitpid(Some(child), WaitOptions::empty())
                .map_err(|errno| fault(errno.into()))?
                .ok_or_else(|| fault(io::ErrorKind::NotFound.into()))?;
            Ok(exit::of_process(status))
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
            let kept = caller.descriptors();
            child::close_all_but(&[&kept[..], &[writer.as_fd()]].concat()).map_err(fault)?;
            // The foreground process prints what `hold` writes.
            dup2_stdout(&writer).map_err(|errno| fault(errno.into()))?;
            drop(writer);
            hold(caller)
        }
    }
}

/// The script that called `tenure hold --fd`, as the background process sees it.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The file of the script's descriptor, opened again.
    file: OwnedFd,
    /// The offset of the byte that is locked while the descriptor is open.
    byte: i64,
    /// The calling process and its descendants.
    processes: Option<ProcessTree>,
    /// `/dev/null`, opened before the lock is acquired: later there may be no free descriptor.
    null: File,
}

/// A background process that no longer depends on the foreground process and its terminal.
#[derive(Debug)]
pub(crate) struct DetachedHolder {
    /// Finishes when all processes have closed the script's descriptor.
    closed: JoinHandle<()>,
    processes: Option<ProcessTree>,
    null: File,
}

impl Caller {
    fn of_descriptor(fd: i32) -> Result<Self, Failure> {
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
            .map_err(|errno| unusable(&format!("cannot be opened again ({errno})")))?;
        let random = OwnerId::random();
        let half: [u8; 8] = std::array::from_fn(|index| random.as_bytes()[index]);
        // At most half the largest offset, so that the end of the byte is in range as well.
        let byte = i64::from_be_bytes(half) & (i64::MAX >> 1);
        child::lock_byte(fd, byte)
            .map_err(|error| unusable(&format!("cannot be locked ({error})")))?;
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|error| Failure::system("open /dev/null", &error))?;
        Ok(Self { file, byte, processes: ProcessTree::of_parent(), null })
    }

    /// The descriptors that must stay open in the background process.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let processes = self.processes.as_ref().map(AsFd::as_fd);
        [self.file.as_fd(), self.null.as_fd()].into_iter().chain(processes).collect()
    }

    /// Detaches this process from the foreground process and its terminal. Called once the lock is
    /// held and before that is announced, because it can fail.
    pub(crate) fn detach(self) -> Result<DetachedHolder, Failure> {
        let fault =
            |errno: rustix::io::Errno| Failure::system("go to the background", &errno.into());
        set_parent_process_death_signal(None).map_err(fault)?;
        setsid().map_err(fault)?;
        let Self { file, byte, processes, null } = self;
        let closed = spawn_blocking(move || {
            // Does not fail: the same file could be locked when this process started.
            let _ = child::wait_for_byte(file, byte);
        });
        Ok(DetachedHolder { closed, processes, null })
    }
}

impl DetachedHolder {
    /// Holds the lock until the descriptor is closed or the lock is lost.
    pub(crate) async fn hold(
        self,
        guard: Held,
        mut signals: Signals,
        arguments: &args::Hold,
    ) -> Outcome {
        self.redirect_output().map_err(|error| Failure::system("go to the background", &error))?;
        let mut closed = self.closed;
        let ttl = guard.ttl();
        let schedule = LossSchedule { ttl, grace: arguments.grace };
        let name = guard.name().clone();
        let (what, grace) = tokio::select! {
            biased;
            _ = &mut closed => {
                guard.release().await?;
                return Ok(exit::OK);
            }
            reason = guard.lost() => (lock::describe_loss(&name, reason), match reason {
                LossReason::NotHeld => arguments.grace,
                // The lease still lasts for at least half the TTL.
                LossReason::MaxHold => arguments.grace.min(ttl / 2),
                _ => Duration::ZERO,
            }),
            left = until_step_is_due(&guard, schedule, arguments.on_lost) => {
                let what = format!("lost the lock {name:?}: the store does not confirm it");
                (what, schedule.until(Step::Kill, left))
            }
            request = guard.revoked(), if arguments.on_lost != OnLost::Nothing => {
                let grace = request.remaining().unwrap_or(arguments.grace);
                (lock::describe_revocation(&name, &request), schedule.within(grace))
            }
            _ = signals.termination() => {
                let what = format!("lost the lock {name:?}: a signal ended the background process");
                (what, arguments.grace)
            }
        };
        let mut processes = self.processes;
        let then = match (&processes, arguments.on_lost) {
            (None, _) | (_, OnLost::Nothing) => "the script continues without it",
            (_, OnLost::Term) => "stopping the script",
            (_, OnLost::Kill) => "killing the script",
        };
        report(&format!("{what}; {then}"));
        if let (Some(processes), OnLost::Term | OnLost::Kill) = (&mut processes, arguments.on_lost)
        {
            let mut ended = false;
            if arguments.on_lost == OnLost::Term {
                processes.signal(Signal::TERM);
                ended = timeout(grace, &mut closed).await.is_ok();
            }
            if !ended {
                processes.signal(Signal::KILL);
                // A lock that is still held is released only after the script has ended. Processes
                // that the signal did not reach delay that by a second at most.
                let _ = timeout(Duration::from_secs(1), &mut closed).await;
            }
        }
        drop(guard);
        Ok(exit::LOST)
    }

    /// Redirects standard output to `/dev/null`, and standard error unless it is the script's own: a
    /// reader of stdout or stderr would wait for this process to exit.
    fn redirect_output(&self) -> io::Result<()> {
        dup2_stdout(&self.null)?;
        if !self.processes.as_ref().is_some_and(|caller| caller.root_has_stderr(stderr())) {
            dup2_stderr(&self.null)?;
        }
        Ok(())
    }
}

/// Resolves when the script must be signalled because the lock is about to be lost. Returns what is
/// left of the lease.
async fn until_step_is_due(guard: &Held, schedule: LossSchedule, on_lost: OnLost) -> Duration {
    let step = match on_lost {
        OnLost::Term => Step::Term,
        OnLost::Kill => Step::Kill,
        // Nothing is done before the loss itself.
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
