//! The processes of a group: whether one is left, and which.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

/// Whether no process of the group runs any more. A dead one that its parent has not waited for
/// does not run.
pub(crate) fn is_gone(group: Pid) -> bool {
    if test_kill_process_group(group) == Err(Errno::SRCH) {
        return true;
    }
    // If `/proc` shows none at all, it hides other users' processes.
    let members = members(group);
    !members.is_empty() && members.iter().all(|member| !member.lives)
}

/// The group and its living processes, for a message.
pub(crate) fn describe(group: Pid) -> String {
    let living = members(group).into_iter().filter(|member| member.lives);
    let pids: Vec<_> = living.map(|member| member.pid.to_string()).collect();
    let group = group.as_raw_nonzero();
    match pids.is_empty() {
        true => format!("the process group {group}"),
        false => format!("the process group {group} (pid {})", pids.join(", ")),
    }
}

#[derive(Debug)]
struct Member {
    pid: i32,
    lives: bool,
}

/// The processes of the group, dead or alive, as far as `/proc` shows them.
fn members(group: Pid) -> Vec<Member> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let member = |pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (lives, of) = parse(&stat)?;
        (of == group.as_raw_nonzero().get()).then_some(Member { pid, lives })
    };
    pids.filter_map(member).collect()
}

/// What `/proc/PID/stat` says: whether the process lives, and its group.
fn parse(stat: &str) -> Option<(bool, i32)> {
    // The name before the state is in brackets, and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let (state, _parent, group) = (words.next()?, words.next()?, words.next()?);
    Some((!matches!(state, "Z" | "X"), group.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getpgrp, getpid};

    #[test]
    fn a_dead_process_that_nobody_waited_for_does_not_live() {
        assert_eq!(parse("7 (a) S) S 1 42 42 0"), Some((true, 42)));
        assert_eq!(parse("7 (a) S) Z 1 42 42 0"), Some((false, 42)));
        assert_eq!(parse("7 (sleep) T 1 41 42 0"), Some((true, 41)));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_group_is_shown_with_its_processes() {
        let group = getpgrp();
        assert!(!is_gone(group));
        let me = getpid().as_raw_nonzero().to_string();
        assert!(describe(group).contains(&me), "{}", describe(group));
    }
}
