//! Other processes: which are above this one, and when they end.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::oneshot;

/// A handle on a process that is above this one; `None` if it is not, or cannot be seen from here.
pub(crate) fn ancestor(pid: u32) -> Option<OwnedFd> {
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    // Looked for only now: an ancestor cannot have ended and left its id to another before that.
    let handle = pidfd_open(raw, PidfdFlags::empty()).ok()?;
    let mut above = std::process::id();
    while let Some(parent) = parent(above) {
        if parent == pid {
            return Some(handle);
        }
        above = parent;
    }
    None
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent != 0)
}

/// Resolves when the process ends; never without one.
pub(crate) async fn end_of(process: Option<OwnedFd>) {
    let Some(process) = process else {
        return std::future::pending().await;
    };
    let (sender, receiver) = oneshot::channel::<()>();
    // The thread stays behind when the answer is no longer of interest.
    std::thread::spawn(move || {
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut ended, None).is_err() {}
        drop(sender);
    });
    // The sender is dropped, never used: the error is the news.
    let _ = receiver.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_above_this_one_are_ancestors() {
        let parent = parent(std::process::id()).unwrap();
        assert!(ancestor(parent).is_some());
        assert!(ancestor(std::process::id()).is_none());
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(ancestor(child.id()).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ancestor(0).is_none() && ancestor(u32::MAX).is_none());
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_noticed() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let ended = tokio::spawn(end_of(Some(handle)));
        tokio::task::yield_now().await;
        assert!(!ended.is_finished());
        child.kill().unwrap();
        ended.await.unwrap();
        child.wait().unwrap();
    }
}
