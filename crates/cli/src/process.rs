//! Other processes, through `/proc` and pidfds: ancestors, process groups, and the calling process
//! with its descendants.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, test_kill_process_group,
};
use tokio::task::spawn_blocking;

/// A handle on an ancestor of this process; `None` if `pid` is not an ancestor, or is not visible.
pub(crate) fn open_ancestor(pid: u32) -> Option<OwnedFd> {
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    // Opened before the ancestors are checked: if the pid is an ancestor's then, the handle is, too.
    let handle = pidfd_open(raw, PidfdFlags::empty()).ok()?;
    let mut descendant = std::process::id();
    // The parent of the first process is 0, which `/proc` does not show.
    while let Some(Stat { parent, .. }) = Stat::of(descendant) {
        if parent == pid {
            return Some(handle);
        }
        descendant = parent;
    }
    None
}

/// Resolves when the process exits; never if there is none.
pub(crate) async fn wait_for_exit(process: Option<OwnedFd>) {
    let Some(process) = process else {
        return std::future::pending().await;
    };
    // If the caller drops this future, the thread is abandoned.
    let exited = spawn_blocking(move || {
        let mut exited = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut exited, None).is_err() {}
    });
    let _ = exited.await;
}

/// Whether no process of the group runs any more. Zombies do not count.
pub(crate) fn group_is_gone(group: Pid) -> bool {
    if test_kill_process_group(group) == Err(Errno::SRCH) {
        return true;
    }
    // If `/proc` shows no member at all, it hides the processes of other users.
    let members = group_members(group);
    !members.is_empty() && members.iter().all(|(_, stat)| !stat.is_alive)
}

/// The group and its running processes, for a message.
pub(crate) fn describe_group(group: Pid) -> String {
    let running = group_members(group).into_iter().filter(|(_, stat)| stat.is_alive);
    let pids: Vec<_> = running.map(|(pid, _)| pid.to_string()).collect();
    let group = group.as_raw_nonzero();
    match pids.is_empty() {
        true => format!("the process group {group}"),
        false => format!("the process group {group} (pid {})", pids.join(", ")),
    }
}

/// The processes of the group, zombies included, as far as `/proc` shows them.
fn group_members(group: Pid) -> Vec<(u32, Stat)> {
    let group = group.as_raw_nonzero().get();
    all_processes().filter(|(_, stat)| stat.group == group).collect()
}

/// A part of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    /// False for a zombie.
    is_alive: bool,
    parent: u32,
    group: i32,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name before the state is in parentheses, and may contain any character.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut words = rest.split_whitespace();
        let (state, parent, group) = (words.next()?, words.next()?, words.next()?);
        let is_alive = !matches!(state, "Z" | "X");
        Some(Self { is_alive, parent: parent.parse().ok()?, group: group.parse().ok()? })
    }
}

/// All processes, zombies included, as far as `/proc` shows them.
fn all_processes() -> impl Iterator<Item = (u32, Stat)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?)))
}

/// A process and its descendants.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    /// The first is the root. A process stays in the list once it was found: after the exit of its
    /// parent it cannot be found as a descendant any more.
    members: Vec<Process>,
}

impl ProcessTree {
    /// The tree of the process that started this one; `None` if that is not visible.
    pub(crate) fn of_parent() -> Option<Self> {
        let parent = getppid()?;
        let root = Process::open(parent.as_raw_nonzero().get().try_into().ok()?)?;
        (getppid() == Some(parent)).then(|| Self { members: vec![root] })
    }

    /// Sends a signal to all processes of the tree except this one. Does not reach a descendant whose
    /// parent had exited before the first call.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.find_descendants();
        for member in &self.members {
            // Fails if the process has exited, which is as good.
            let _ = pidfd_send_signal(&member.handle, signal);
        }
    }

    fn find_descendants(&mut self) {
        let ours = std::process::id();
        let all: Vec<_> = all_processes().collect();
        let mut next = 0;
        while let Some(parent) = self.members.get(next) {
            let is_known =
                |pid| self.members.iter().any(|member| member.pid == pid && !member.has_exited());
            let children = all.iter().filter(|(_, stat)| stat.parent == parent.pid);
            let unknown = children.filter(|(pid, _)| *pid != ours && !is_known(*pid));
            let new: Vec<_> = unknown.filter_map(|(pid, _)| parent.open_child(*pid)).collect();
            self.members.extend(new);
            next += 1;
        }
    }

    /// Whether `file` is the standard error of the root process.
    pub(crate) fn root_has_stderr(&self, file: BorrowedFd<'_>) -> bool {
        let root = &self.members[0];
        // Compared without opening it, because opening a FIFO for writing waits for a reader.
        let theirs = fs::metadata(format!("/proc/{}/fd/2", root.pid));
        theirs.is_ok_and(|theirs| {
            fstat(file).is_ok_and(|ours| (ours.st_dev, ours.st_ino) == (theirs.dev(), theirs.ino()))
        }) && !root.has_exited()
    }
}

/// The handle on the root process.
impl AsFd for ProcessTree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.members[0].handle.as_fd()
    }
}

/// A process, with a handle that stays its own when the pid is reused.
#[derive(Debug)]
struct Process {
    pid: u32,
    handle: OwnedFd,
}

impl Process {
    fn open(pid: u32) -> Option<Self> {
        let raw = Pid::from_raw(pid.try_into().ok()?)?;
        Some(Self { pid, handle: pidfd_open(raw, PidfdFlags::empty()).ok()? })
    }

    /// Opens a child of this process; `None` if `pid` is not its child any more.
    fn open_child(&self, pid: u32) -> Option<Self> {
        let child = Self::open(pid)?;
        let is_child = Stat::of(pid).is_some_and(|stat| stat.parent == self.pid);
        // Checked last: while neither process has exited, neither pid can have been reused.
        (is_child && !child.has_exited() && !self.has_exited()).then_some(child)
    }

    fn has_exited(&self) -> bool {
        let mut exited = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut exited, Some(&Timespec::default())) != Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that has a child and waits for it.
    struct Shell {
        process: std::process::Child,
        child: u32,
    }

    impl Shell {
        fn start() -> Self {
            let mut process = std::process::Command::new("sh")
                .args(["-c", "sleep 100 & echo $!; wait"])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let output = process.stdout.take().unwrap();
            std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
            Self { process, child: line.trim().parse().unwrap() }
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            // Errors mean that the processes have exited.
            let child = self.child.try_into().ok().and_then(Pid::from_raw).unwrap();
            let _ = rustix::process::kill_process(child, Signal::KILL);
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let stat = |is_alive, parent, group| Some(Stat { is_alive, parent, group });
        assert_eq!(Stat::parse("7 (a) S) S 1 42 42 0"), stat(true, 1, 42));
        assert_eq!(Stat::parse("7 (a) S) Z 1 42 42 0"), stat(false, 1, 42));
        assert_eq!(Stat::parse("7 (sleep) T 3 41 42 0"), stat(true, 3, 41));
        assert_eq!(Stat::parse(""), None);
    }

    fn tree_of(pid: u32) -> ProcessTree {
        ProcessTree { members: vec![Process::open(pid).unwrap()] }
    }

    fn pids(tree: &ProcessTree) -> Vec<u32> {
        tree.members.iter().map(|member| member.pid).collect()
    }

    #[test]
    fn a_tree_contains_all_descendants_and_no_other_process() {
        let shell = Shell::start();
        let mut tree = tree_of(shell.process.id());
        for _ in 0..2 {
            tree.find_descendants();
            assert_eq!(pids(&tree), [shell.process.id(), shell.child]);
        }
        let mut ours = tree_of(std::process::id());
        ours.find_descendants();
        assert!([shell.process.id(), shell.child].iter().all(|pid| pids(&ours).contains(pid)));
    }

    #[test]
    fn children_of_a_process_that_reuses_the_pid_of_a_member_get_no_signal() {
        let mut shell = Shell::start();
        let mut ended = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let handle = Process::open(ended.id()).unwrap().handle;
        ended.kill().unwrap();
        ended.wait().unwrap();
        let mut tree = ProcessTree { members: vec![Process { pid: shell.process.id(), handle }] };
        tree.signal(Signal::KILL);
        assert_eq!(tree.members.len(), 1);
        assert!(shell.process.try_wait().unwrap().is_none());
    }

    #[test]
    fn a_process_that_reuses_the_pid_of_a_member_is_found_if_it_is_a_descendant() {
        let shell = Shell::start();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let handle = Process::open(ended.id()).unwrap().handle;
        ended.wait().unwrap();
        let mut tree = tree_of(shell.process.id());
        tree.members.push(Process { pid: shell.child, handle });
        tree.find_descendants();
        assert_eq!(pids(&tree), [shell.process.id(), shell.child, shell.child]);
    }

    #[test]
    fn only_current_children_are_opened_as_children() {
        let shell = Shell::start();
        let (ours, theirs) = (std::process::id(), shell.process.id());
        let open = |pid| Process::open(pid).unwrap();
        assert!(open(ours).open_child(theirs).is_some());
        assert!(open(theirs).open_child(shell.child).is_some());
        assert!(open(ours).open_child(shell.child).is_none());
        assert!(open(theirs).open_child(ours).is_none());
    }

    #[test]
    fn only_ancestors_of_this_process_are_opened_as_ancestors() {
        let parent = Stat::of(std::process::id()).unwrap().parent;
        assert!(open_ancestor(parent).is_some());
        assert!(open_ancestor(std::process::id()).is_none());
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(open_ancestor(child.id()).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(open_ancestor(0).is_none() && open_ancestor(u32::MAX).is_none());
    }

    #[tokio::test]
    async fn the_exit_of_a_process_ends_the_wait() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let ended = tokio::spawn(wait_for_exit(Some(handle)));
        tokio::task::yield_now().await;
        assert!(!ended.is_finished());
        child.kill().unwrap();
        ended.await.unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_description_of_a_group_lists_its_processes() {
        let group = rustix::process::getpgrp();
        assert!(!group_is_gone(group));
        let me = rustix::process::getpid().as_raw_nonzero().to_string();
        assert!(describe_group(group).contains(&me), "{}", describe_group(group));
    }
}
