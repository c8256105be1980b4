//! Other processes: which are above this one, and when they end.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use tokio::task::spawn_blocking;

/// A handle on a process that is above this one; `None` if it is not, or cannot be seen from here.
pub(crate) fn ancestor(pid: u32) -> Option<OwnedFd> {
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    // Looked for only now: an ancestor cannot have ended and left its id to another before that.
    let handle = pidfd_open(raw, PidfdFlags::empty()).ok()?;
    let mut above = std::process::id();
    // The parent of the first process is 0, which `/proc` does not show.
    while let Some(Stat { parent, .. }) = Stat::of(above) {
        if parent == pid {
            return Some(handle);
        }
        above = parent;
    }
    None
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// False for a dead process that its parent has not waited for.
    pub(crate) lives: bool,
    pub(crate) parent: u32,
    pub(crate) group: i32,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name before the state is in parentheses, and may hold anything.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut words = rest.split_whitespace();
        let (state, parent, group) = (words.next()?, words.next()?, words.next()?);
        let lives = !matches!(state, "Z" | "X");
        Some(Self { lives, parent: parent.parse().ok()?, group: group.parse().ok()? })
    }
}

/// All processes, dead or alive, as far as `/proc` shows them.
pub(crate) fn all() -> impl Iterator<Item = (u32, Stat)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?)))
}

/// Resolves when the process ends; never without one.
pub(crate) async fn end_of(process: Option<OwnedFd>) {
    let Some(process) = process else {
        return std::future::pending().await;
    };
    // The thread stays behind when the answer is no longer of interest.
    let ended = spawn_blocking(move || {
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut ended, None).is_err() {}
    });
    let _ = ended.await;
}

/// The process that started this one, and everything that it has started.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The first is the process that started this one. Once seen, a process stays in the list: when
    /// its parent has ended, nothing else says where it belongs.
    members: Vec<Process>,
}

impl Tree {
    /// `None` where the parent cannot be seen from here.
    pub(crate) fn of_parent() -> Option<Self> {
        let parent = getppid()?;
        let root = Process::open(parent.as_raw_nonzero().get().try_into().ok()?)?;
        (getppid() == Some(parent)).then(|| Self { members: vec![root] })
    }

    /// Sends a signal to all of them, but not to this process. A process is not found if its parent
    /// has ended before the first signal is sent.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.find_descendants();
        for member in &self.members {
            // It fails if the process has ended, which is as well.
            let _ = pidfd_send_signal(&member.handle, signal);
        }
    }

    fn find_descendants(&mut self) {
        let ours = std::process::id();
        let all: Vec<_> = all().collect();
        let mut next = 0;
        while let Some(above) = self.members.get(next) {
            let is_known =
                |pid| self.members.iter().any(|member| member.pid == pid && !member.has_ended());
            let below = all.iter().filter(|(_, stat)| stat.parent == above.pid);
            let unknown = below.filter(|(pid, _)| *pid != ours && !is_known(*pid));
            let new: Vec<_> = unknown.filter_map(|(pid, _)| above.child(*pid)).collect();
            self.members.extend(new);
            next += 1;
        }
    }

    /// Whether this is the standard error of the process that started this one.
    pub(crate) fn has_stderr(&self, file: BorrowedFd<'_>) -> bool {
        let caller = &self.members[0];
        // Not opened: to open a FIFO for writing waits for a reader.
        let theirs = fs::metadata(format!("/proc/{}/fd/2", caller.pid));
        theirs.is_ok_and(|theirs| {
            fstat(file).is_ok_and(|ours| (ours.st_dev, ours.st_ino) == (theirs.dev(), theirs.ino()))
        }) && !caller.has_ended()
    }
}

impl AsFd for Tree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.members[0].handle.as_fd()
    }
}

/// A process whose id may be reused after its end, and a handle that stays its own.
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

    /// A process that was seen as a child of this one; `None` if it no longer is.
    fn child(&self, pid: u32) -> Option<Self> {
        let child = Self::open(pid)?;
        let is_child = Stat::of(pid).is_some_and(|stat| stat.parent == self.pid);
        // Both are looked at last: as long as they have not ended, the ids are their own.
        (is_child && !child.has_ended() && !self.has_ended()).then_some(child)
    }

    fn has_ended(&self) -> bool {
        let mut ended = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec::default())) != Ok(0)
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
            // Errors mean that they have ended.
            let child = self.child.try_into().ok().and_then(Pid::from_raw).unwrap();
            let _ = rustix::process::kill_process(child, Signal::KILL);
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    fn a_dead_process_that_its_parent_has_not_waited_for_does_not_live() {
        let stat = |lives, parent, group| Some(Stat { lives, parent, group });
        assert_eq!(Stat::parse("7 (a) S) S 1 42 42 0"), stat(true, 1, 42));
        assert_eq!(Stat::parse("7 (a) S) Z 1 42 42 0"), stat(false, 1, 42));
        assert_eq!(Stat::parse("7 (sleep) T 3 41 42 0"), stat(true, 3, 41));
        assert_eq!(Stat::parse(""), None);
    }

    fn tree_of(pid: u32) -> Tree {
        Tree { members: vec![Process::open(pid).unwrap()] }
    }

    fn pids(tree: &Tree) -> Vec<u32> {
        tree.members.iter().map(|member| member.pid).collect()
    }

    #[test]
    fn descendants_are_all_below_and_only_these() {
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
    fn the_children_of_a_process_that_reuses_the_pid_of_a_member_get_no_signal() {
        let mut shell = Shell::start();
        let mut ended = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let handle = Process::open(ended.id()).unwrap().handle;
        ended.kill().unwrap();
        ended.wait().unwrap();
        let mut tree = Tree { members: vec![Process { pid: shell.process.id(), handle }] };
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
    fn a_process_that_is_no_longer_a_child_is_not_taken_for_one() {
        let shell = Shell::start();
        let (ours, theirs) = (std::process::id(), shell.process.id());
        let open = |pid| Process::open(pid).unwrap();
        assert!(open(ours).child(theirs).is_some() && open(theirs).child(shell.child).is_some());
        assert!(open(ours).child(shell.child).is_none() && open(theirs).child(ours).is_none());
    }

    #[test]
    fn only_processes_above_this_one_are_ancestors() {
        let parent = Stat::of(std::process::id()).unwrap().parent;
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
