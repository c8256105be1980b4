//! A child process that is talked to by lines, and can be stopped and killed.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;

use crate::{GENEROUS, eventually};

/// A child process with piped standard input and output, read line by line.
///
/// Dropping it kills it, also when it is stopped. Every signal goes to its own process id, and
/// only while the child has not been waited for, so never to a stranger that got the same id.
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Process {
    /// Starts `program`. Its errors go to the test's own standard error.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start<A: AsRef<OsStr>>(program: &Path, args: &[A]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(args);
        Self::spawn(command)
    }

    /// Starts a command that was prepared by the caller, with both pipes attached to it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let (sender, lines) = mpsc::unbounded_channel();
        if let Some(output) = child.stdout.take() {
            // Ends with the pipe: when the child, and whoever inherited its output, is gone.
            std::thread::spawn(move || {
                let mut read = BufReader::new(output).lines().map_while(Result::ok);
                read.try_for_each(|line| sender.send(line).map_err(drop))
            });
        }
        Ok(Self { child, input, lines })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes one line to its standard input.
    ///
    /// # Errors
    /// If the process does not read any more.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{line}")?;
        input.flush()
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// The next line of its standard output; `None` if none comes within `limit` or the output
    /// has ended.
    ///
    /// # Cancel safety
    /// A dropped call loses no line.
    pub async fn line(&mut self, limit: Duration) -> Option<String> {
        tokio::time::timeout(limit, self.lines.recv()).await.ok().flatten()
    }

    /// Kills it with SIGKILL, and waits until it is gone. Does nothing to one that has ended.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill9(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// Stops it with SIGSTOP: it stands still until [`cont`](Self::cont).
    ///
    /// # Errors
    /// If it has ended.
    pub fn stop(&mut self) -> io::Result<()> {
        halt(&mut self.child)
    }

    /// Lets a stopped process continue.
    ///
    /// # Errors
    /// If it has ended.
    pub fn cont(&mut self) -> io::Result<()> {
        signal(&mut self.child, Signal::CONT)
    }

    /// Its exit status, once it ends by itself; `None` if it does not within `limit`.
    pub async fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        let child = &mut self.child;
        let _ended = eventually(limit, || {
            status = child.try_wait().ok().flatten();
            std::future::ready(status.is_some())
        })
        .await;
        status
    }
}

/// Signals a child of ours by its id, which it no longer owns once it was waited for.
pub(crate) fn signal(child: &mut Child, signal: Signal) -> io::Result<()> {
    if child.try_wait()?.is_some() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, signal)?)
}

/// Stops a child, and returns when it stands still: a signal is only on its way at first.
pub(crate) fn halt(child: &mut Child) -> io::Result<()> {
    signal(child, Signal::STOP)?;
    let start = Instant::now();
    while !stands_still(child.id())? {
        if start.elapsed() > GENEROUS {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Whether every thread of a process is stopped.
fn stands_still(pid: u32) -> io::Result<bool> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let stat = std::fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
        // The name before the state is in brackets, and may hold anything.
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        if state.is_some_and(|state| state != "T") {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors only say that it has ended already.
        let _gone = self.kill9();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cat() -> Process {
        Process::start::<&str>(Path::new("cat"), &[]).unwrap()
    }

    #[tokio::test]
    async fn lines_go_in_and_come_out_until_the_input_is_closed() {
        let mut cat = cat();
        cat.send("one").unwrap();
        cat.send("two").unwrap();
        assert_eq!(cat.line(GENEROUS).await.as_deref(), Some("one"));
        assert_eq!(cat.line(GENEROUS).await.as_deref(), Some("two"));
        cat.close_input();
        assert!(cat.wait(GENEROUS).await.unwrap().success());
        assert_eq!(cat.line(GENEROUS).await, None);
        assert!(cat.send("three").is_err());
    }

    #[tokio::test]
    async fn a_stopped_process_says_nothing_until_it_continues() {
        let mut cat = cat();
        cat.stop().unwrap();
        cat.send("hello").unwrap();
        assert_eq!(cat.line(Duration::from_millis(100)).await, None);
        cat.cont().unwrap();
        assert_eq!(cat.line(GENEROUS).await.as_deref(), Some("hello"));
    }

    #[tokio::test]
    async fn a_stopped_process_is_killed_when_it_is_dropped() {
        let mut cat = cat();
        let pid = cat.pid();
        cat.stop().unwrap();
        drop(cat);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[tokio::test]
    async fn a_process_that_has_ended_gets_no_signal() {
        let mut cat = cat();
        cat.kill9().unwrap();
        assert!(cat.stop().is_err());
        assert!(cat.kill9().is_ok());
    }
}
