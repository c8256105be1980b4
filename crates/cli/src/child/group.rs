//! The processes of a group: whether one is left, and which.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

/// Whether no process of the group runs any more. A dead one that its parent has not waited for
/// does not run.
pub(crate) fn is_gone(group: Pid) -> bool {
    match test_kill_process_group(group) {
        Err(Errno::SRCH) => true,
        Ok(()) => members(group).is_empty(),
        // They are another user's, whose processes `/proc` may hide.
        Err(_) => false,
    }
}

/// The group and its living processes, for a message.
pub(crate) fn describe(group: Pid) -> String {
    let members: Vec<_> = members(group).iter().map(ToString::to_string).collect();
    let group = group.as_raw_nonzero();
    match members.is_empty() {
        true => format!("the process group {group}"),
        false => format!("the process group {group} (pid {})", members.join(", ")),
    }
}

/// The living processes of the group, as far as `/proc` shows them.
fn members(group: Pid) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let belongs = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        lives_in(&stat, group.as_raw_nonzero().get())
    };
    pids.filter(belongs).collect()
}

/// Whether `/proc/PID/stat` shows a living process of this group.
fn lives_in(stat: &str, group: i32) -> bool {
    // The name before the state is in brackets, and may hold anything.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut words = rest.split_whitespace();
    let (state, _parent) = (words.next(), words.next());
    !matches!(state, None | Some("Z" | "X")) && words.next() == Some(&group.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getpgrp, getpid};

    #[test]
    fn a_dead_process_that_nobody_waited_for_is_gone() {
        assert!(lives_in("7 (a) S) S 1 42 42 0", 42));
        assert!(!lives_in("7 (a) S) Z 1 42 42 0", 42));
        assert!(!lives_in("7 (sleep) S 1 41 42 0", 42));
        assert!(!lives_in("", 42));
    }

    #[test]
    fn a_group_is_shown_with_its_processes() {
        let group = getpgrp();
        assert!(!is_gone(group));
        let me = getpid().as_raw_nonzero().to_string();
        assert!(describe(group).contains(&me), "{}", describe(group));
    }
}
