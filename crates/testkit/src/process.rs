//! A child process with line-based input and output, which can be stopped and killed.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::child_process::ChildProcess;
use crate::eventually;

/// A child process with piped standard input and output, read line by line.
#[derive(Debug)]
pub struct Process {
    child: ChildProcess,
    input: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Process {
    /// Starts `program`. Its standard error is the test's.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start<A: AsRef<OsStr>>(program: &Path, args: &[A]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(args);
        Self::spawn(command)
    }

    /// Starts a command with both pipes, and with the default action for all signals. Its process is killed when
    /// this one ends, also while it is stopped.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ChildProcess::spawn(command)?;
        let (input, output) = child.take_pipes();
        let (sender, lines) = mpsc::unbounded_channel();
        if let Some(output) = output {
            // Ends with the pipe: when the child, and every process that inherited its output, has ended.
            std::thread::spawn(move || {
                let mut read = BufReader::new(output).lines().map_while(Result::ok);
                read.try_for_each(|line| sender.send(line).map_err(drop))
            });
        }
        Ok(Self { child, input, lines })
    }

    /// Writes one line to its standard input.
    ///
    /// # Errors
    /// If the process no longer reads.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{line}")?;
        input.flush()
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// The next line of its standard output. `None` if none comes within `limit`, or if the output has
    /// ended.
    ///
    /// # Cancel safety
    /// A dropped call loses no line.
    pub async fn line(&mut self, limit: Duration) -> Option<String> {
        tokio::time::timeout(limit, self.lines.recv()).await.ok().flatten()
    }

    /// Waits until it ends, and returns its exit status. `None` if it does not end within `limit`.
    pub async fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        let child = &mut self.child;
        let _ended = eventually(limit, || {
            status = child.status().ok().flatten();
            std::future::ready(status.is_some())
        })
        .await;
        status
    }
}

crate::child_process::deref_to_child!(Process);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GENEROUS;

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
