//! A thread for work that must go on whatever becomes of the user's runtime.

use std::io;
use std::sync::{Arc, Weak, mpsc};
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::{Error, ErrorKind, Result};

/// A thread with a Tokio runtime of its own. Work spawned here goes on while the user's runtime is
/// blocked, is not polled, or has ended.
///
/// Clones share the thread, which ends with the last of them: a task that must finish keeps one.
/// The thread takes no signals that are meant for the process.
#[derive(Clone, Debug)]
pub struct Background {
    runtime: Handle,
    /// Closed when the last clone is dropped, which ends the thread.
    running: Arc<oneshot::Sender<()>>,
}

/// A [`Background`] that does not keep its thread running.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeakBackground(Option<(Handle, Weak<oneshot::Sender<()>>)>);

impl WeakBackground {
    /// The thread, unless it has ended or is about to.
    pub(crate) fn upgrade(&self) -> Option<Background> {
        let (runtime, running) = self.0.as_ref()?;
        Some(Background { runtime: runtime.clone(), running: running.upgrade()? })
    }
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] where the system has no thread or no file descriptors left.
    pub fn start(name: &str) -> Result<Self> {
        let failed = |error: io::Error| {
            let why =
                format!("the thread {name:?} could not be started ({error}): raise the limit");
            Error::new(ErrorKind::Internal, "start a background thread", why).caused_by(error)
        };
        let (running, ended) = oneshot::channel();
        let (sender, made) = mpsc::channel();
        // The runtime is made, and dropped, on the thread: in an async context neither is allowed.
        let serve = move || {
            let runtime = match build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(sender.send(Err(error))),
            };
            let _ = sender.send(Ok(runtime.handle().clone()));
            // Resolves when the sender is dropped: nothing is ever sent.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        };
        let builder = thread::Builder::new().name(name.to_owned());
        signals::blocked(|| builder.spawn(serve)).map_err(failed)?;
        let gone = |_| io::Error::other("it ended at once");
        let runtime = made.recv().map_err(gone).flatten().map_err(failed)?;
        Ok(Self { runtime, running: Arc::new(running) })
    }

    /// The runtime on that thread.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn downgrade(&self) -> WeakBackground {
        WeakBackground(Some((self.runtime.clone(), Arc::downgrade(&self.running))))
    }

    /// Does a piece of work on the thread, and awaits its end.
    ///
    /// Stores use it for work that several calls wait for, such as keeping a shared session alive:
    /// it goes on even if the caller that started it is no longer polled.
    ///
    /// # Errors
    /// Those of the work; [`ErrorKind::Internal`] if it panicked.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the work.
    pub async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        // Dropping the set aborts its tasks.
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn_on(work, &self.runtime);
        match tasks.join_next().await {
            Some(Ok(outcome)) => outcome,
            _ => {
                let why = "a task of the store ended early: try again, and report it";
                Err(Error::new(ErrorKind::Internal, operation, why).with_unknown_effect())
            }
        }
    }
}

/// Refuses a call outside a Tokio runtime, where Tokio's timers and sockets would panic.
///
/// # Errors
/// [`ErrorKind::Invalid`] outside a runtime.
pub fn require_runtime(operation: &'static str) -> Result<()> {
    if Handle::try_current().is_ok() {
        return Ok(());
    }
    let why = "this call needs a Tokio runtime: make it inside one, as with #[tokio::main]";
    Err(Error::new(ErrorKind::Invalid, operation, why))
}

/// Tokio panics if its signal driver finds no free descriptors, so this looks for some first.
fn build() -> io::Result<Runtime> {
    #[cfg(unix)]
    {
        const PAIRS: usize = 4;
        let spare: rustix::io::Result<Vec<_>> = (0..PAIRS).map(|_| rustix::pipe::pipe()).collect();
        drop(spare?);
    }
    Builder::new_current_thread().enable_all().build()
}

#[cfg(unix)]
mod signals {
    #![allow(unsafe_code)]

    use std::mem::MaybeUninit;
    use std::ptr;

    /// Signals that the kernel sends to the thread that caused them: these stay unblocked.
    const OWN: [libc::c_int; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

    /// Runs `start` with all signals blocked that are meant for the process. A thread started
    /// there inherits the mask, so that the program's own threads go on handling its signals.
    pub(super) fn blocked<T>(start: impl FnOnce() -> T) -> T {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `sigfillset` makes a valid set of the memory before anything reads it, the old
        // mask is written to memory of the right size, and a set of zeroes is a valid one.
        let _before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in OWN {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            Mask(before.assume_init())
        };
        start()
    }

    /// The thread's mask, put back when this is dropped.
    struct Mask(libc::sigset_t);

    impl Drop for Mask {
        fn drop(&mut self) {
            // SAFETY: the mask is one that was read from this thread.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
        }
    }
}

#[cfg(not(unix))]
mod signals {
    pub(super) fn blocked<T>(start: impl FnOnce() -> T) -> T {
        start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The thread's masks, from the kernel: blocked signals as hexadecimal digits.
    fn blocked_here() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }

    #[tokio::test]
    async fn the_thread_leaves_signals_to_the_program_and_the_starter_keeps_its_mask() {
        let before = blocked_here();
        let background = Background::start("tenure-test").unwrap();
        assert_eq!(blocked_here(), before);
        let mask = background.run("look", async { Ok(blocked_here()) }).await.unwrap();
        let bit = |signal: libc::c_int| 1u64 << (signal - 1);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD, libc::SIGTSTP] {
            assert_ne!(mask & bit(signal), 0, "{signal}");
        }
        assert_eq!(mask & bit(libc::SIGSEGV), 0);
    }

    #[test]
    fn the_thread_ends_with_the_last_clone() {
        struct Gone(std::sync::mpsc::Sender<()>);
        impl Drop for Gone {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let background = Background::start("tenure-test").unwrap();
        let (sender, gone) = std::sync::mpsc::channel();
        let kept = Gone(sender);
        background.runtime().spawn(async move {
            let _kept = kept;
            std::future::pending::<()>().await;
        });
        let clone = background.clone();
        drop(background);
        assert!(gone.recv_timeout(Duration::from_millis(50)).is_err());
        drop(clone);
        assert!(gone.recv_timeout(Duration::from_secs(20)).is_ok());
    }
}
