//! Child processes that can be stopped and killed, and that end with this process, however it ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{GENEROUS, with_default_signals};

type Request = (Command, io::Result<CpuSet>, Sender<io::Result<Child>>);

/// Starts all children. The kernel kills a child when the *thread* that started it ends, so this thread
/// lasts as long as the process.
static STARTER: LazyLock<Sender<Request>> = LazyLock::new(|| {
    let (sender, requests) = channel::<Request>();
    std::thread::spawn(move || {
        for (mut command, cores, reply) in requests {
            // The child inherits the CPU affinity, which must be the caller's and not this thread's.
            let started = cores
                .and_then(|cores| Ok(sched_setaffinity(None, &cores)?))
                .and_then(|()| command.spawn());
            let _ = reply.send(started);
        }
    });
    sender
});

/// A child process that can be stopped and killed.
///
/// Dropping it kills it, even if it is stopped. A signal is sent only while the child has not been waited
/// for, so it never reaches another process that got the same id.
#[derive(Debug)]
pub struct ChildProcess(Child);

impl ChildProcess {
    /// Starts a command. Its process is killed when this one ends, even by `kill -9`. All signals have
    /// their default action there.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        with_default_signals(&mut command);
        let end_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: between fork and exec only one system call is made; it allocates nothing and takes
        // no lock.
        #[allow(unsafe_code, reason = "the only way to do something in the child before it starts")]
        unsafe {
            command.pre_exec(end_with_parent);
        }
        let (reply, started) = channel();
        let cores = sched_getaffinity(None).map_err(io::Error::from);
        let gone = || io::Error::other("the thread that starts processes is gone");
        STARTER.send((command, cores, reply)).map_err(|_| gone())?;
        started.recv().map_err(|_| gone())?.map(Self)
    }

    /// Its standard input and output, if they are pipes and were not taken before.
    pub(crate) fn take_pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.0.stdin.take(), self.0.stdout.take())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Kills it with SIGKILL and waits until it has ended. Does nothing if it has ended already.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill9(&mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }

    /// Stops it with SIGSTOP until [`cont`](Self::cont). Returns when all its threads are stopped,
    /// because the signal takes effect some time after it was sent.
    ///
    /// # Errors
    /// If it has ended.
    pub fn stop(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let start = Instant::now();
        while !is_stopped(self.pid())? {
            if start.elapsed() > GENEROUS {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Continues a stopped process.
    ///
    /// # Errors
    /// If it has ended.
    pub fn cont(&mut self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.status()?.is_some() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _gone = self.kill9();
    }
}

/// Implements `Deref` to [`ChildProcess`] for a type with a field `child`.
macro_rules! deref_to_child {
    ($type:ty) => {
        impl std::ops::Deref for $type {
            type Target = crate::ChildProcess;

            fn deref(&self) -> &crate::ChildProcess {
                &self.child
            }
        }

        impl std::ops::DerefMut for $type {
            fn deref_mut(&mut self) -> &mut crate::ChildProcess {
                &mut self.child
            }
        }
    };
}

pub(crate) use deref_to_child;

/// Whether every thread of a process is stopped.
fn is_stopped(pid: u32) -> io::Result<bool> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended meanwhile.
        let stat = std::fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
        // The name before the state is in brackets and may contain anything.
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        if state.is_some_and(|state| state != "T") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventually;
    use std::process::Stdio;

    const PARENT: &str = "TENURE_TESTKIT_PARENT";

    /// Not a test of its own: the parent. It starts a child from a thread that ends, writes down its pid, and
    /// waits.
    #[test]
    fn parent() {
        if std::env::var_os(PARENT).is_none() {
            return;
        }
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("600").stdin(Stdio::null()).stdout(Stdio::null());
            ChildProcess::spawn(command).unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        std::fs::write(std::env::var_os(PARENT).unwrap(), child.pid().to_string()).unwrap();
        child.0.wait().unwrap();
    }

    #[tokio::test]
    async fn a_child_outlives_the_thread_that_started_it_but_not_the_process() {
        let folder = crate::temp_dir();
        let told = folder.path().join("pid");
        let mut parent = Command::new(std::env::current_exe().unwrap());
        parent.args(["--exact", "child_process::tests::parent"]).env(PARENT, &told);
        let mut parent = parent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let written = || async { std::fs::read_to_string(&told).is_ok_and(|pid| !pid.is_empty()) };
        assert!(eventually(crate::GENEROUS, written).await);
        let pid = std::fs::read_to_string(&told).unwrap();
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // A zombie is dead. Another process reaps it.
            stat.split(' ').nth(2).is_some_and(|state| state != "Z")
        };
        assert!(runs(), "the child outlives the thread that started it");
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert!(
            eventually(crate::GENEROUS, || async { !runs() }).await,
            "the child outlived its parent"
        );
    }
}
