//! Children that do not outlive this process, however it ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

type Order = (Command, io::Result<CpuSet>, Sender<io::Result<Child>>);

/// A child is told of its parent's death when the *thread* that started it ends. So one thread,
/// which lasts as long as the process, starts them all.
static STARTER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (sender, orders) = channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, cores, reply) in orders {
            // The child inherits where it may run: that is for the caller to say.
            let started = cores
                .and_then(|cores| Ok(sched_setaffinity(None, &cores)?))
                .and_then(|()| command.spawn());
            let _ = reply.send(started);
        }
    });
    sender
});

/// Starts a command whose process is killed when this one ends, also by `kill -9`.
///
/// # Errors
/// If it cannot be started.
pub fn spawn_servant(mut command: Command) -> io::Result<Child> {
    let mortal = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec only one system call is made; it allocates nothing and takes
    // no lock.
    #[allow(unsafe_code, reason = "the only way to do something in the child before it starts")]
    unsafe {
        command.pre_exec(mortal);
    }
    let (reply, started) = channel();
    let cores = sched_getaffinity(None).map_err(io::Error::from);
    let gone = || io::Error::other("the thread that starts processes is gone");
    STARTER.send((command, cores, reply)).map_err(|_| gone())?;
    started.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventually;
    use std::process::Stdio;

    const PARENT: &str = "TENURE_TESTKIT_PARENT";

    /// Plays the parent: starts a servant from a thread that ends, tells its pid, and stays.
    #[test]
    fn parent() {
        if std::env::var_os(PARENT).is_none() {
            return;
        }
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("600").stdin(Stdio::null()).stdout(Stdio::null());
            spawn_servant(command).unwrap()
        };
        let mut servant = std::thread::spawn(start).join().unwrap();
        std::fs::write(std::env::var_os(PARENT).unwrap(), servant.id().to_string()).unwrap();
        servant.wait().unwrap();
    }

    #[tokio::test]
    async fn a_servant_outlives_its_thread_but_not_its_process() {
        let folder = crate::temp_dir();
        let told = folder.path().join("pid");
        let mut parent = Command::new(std::env::current_exe().unwrap());
        parent.args(["--exact", "servant::tests::parent"]).env(PARENT, &told);
        let mut parent = parent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let written = || async { std::fs::read_to_string(&told).is_ok_and(|pid| !pid.is_empty()) };
        assert!(eventually(crate::GENEROUS, written).await);
        let pid = std::fs::read_to_string(&told).unwrap();
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // A zombie is dead; who reaps it is not our affair.
            stat.split(' ').nth(2).is_some_and(|state| state != "Z")
        };
        assert!(runs(), "it outlives the thread that started it");
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert!(eventually(crate::GENEROUS, || async { !runs() }).await, "it outlived its parent");
    }
}
