//! Other processes: which are above this one, and when they end.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
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

/// The process that started this one, and everything that it has started.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The first is the process that started this one. Once seen, a process stays in the list: when
    /// its parent has ended, nothing else says where it belongs.
    members: Vec<(u32, OwnedFd)>,
}

impl Tree {
    /// `None` where the parent cannot be seen from here.
    pub(crate) fn of_parent() -> Option<Self> {
        let parent = getppid()?;
        let handle = pidfd_open(parent, PidfdFlags::empty()).ok()?;
        let pid = parent.as_raw_nonzero().get().try_into().ok()?;
        (getppid() == Some(parent)).then(|| Self { members: vec![(pid, handle)] })
    }

    /// Sends a signal to all of them, but not to this process. Those whose parents had ended when
    /// the first signal was sent are not known.
    pub(crate) fn signal(&mut self, signal: Signal) {
        let ours = std::process::id();
        for pid in descendants(self.members.iter().map(|(pid, _)| *pid).collect()) {
            let known = pid == ours || self.members.iter().any(|(member, _)| *member == pid);
            let raw = pid.try_into().ok().and_then(Pid::from_raw).filter(|_| !known);
            if let Some(Ok(handle)) = raw.map(|raw| pidfd_open(raw, PidfdFlags::empty())) {
                self.members.push((pid, handle));
            }
        }
        for (_, handle) in &self.members {
            // It fails if the process has ended, which is as well.
            let _ = pidfd_send_signal(handle, signal);
        }
    }

    /// Whether this is the standard error of the process that started this one.
    pub(crate) fn has_stderr(&self, file: BorrowedFd<'_>) -> bool {
        let theirs = File::options().write(true).open(format!("/proc/{}/fd/2", self.members[0].0));
        let identity = |file: BorrowedFd<'_>| fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
        theirs
            .is_ok_and(|theirs| identity(theirs.as_fd()).is_ok_and(|one| Ok(one) == identity(file)))
    }
}

impl AsFd for Tree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.members[0].1.as_fd()
    }
}

/// Everything that these processes have started and that has not ended.
fn descendants(mut found: Vec<u32>) -> Vec<u32> {
    let roots = found.len();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let all: Vec<(u32, u32)> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut next = 0;
    while let Some(&above) = found.get(next) {
        let below = all.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid);
        let new: Vec<u32> = below.filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
        next += 1;
    }
    found.split_off(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_all_below_and_only_these() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 100 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        let below: u32 = line.trim().parse().unwrap();
        assert_eq!(descendants(vec![child.id()]), [below]);
        let ours = descendants(vec![std::process::id()]);
        assert!(ours.contains(&child.id()) && ours.contains(&below));
        rustix::process::kill_process(
            Pid::from_raw(below.try_into().unwrap()).unwrap(),
            Signal::KILL,
        )
        .unwrap();
        child.wait().unwrap();
    }

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
