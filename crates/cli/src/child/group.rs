//! The processes of a group: whether one is left, and which.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

use crate::process::{self, Stat};

/// Whether no process of the group runs any more. A dead one that its parent has not waited for
/// does not run.
pub(crate) fn is_gone(group: Pid) -> bool {
    if test_kill_process_group(group) == Err(Errno::SRCH) {
        return true;
    }
    // If `/proc` shows none at all, it hides other users' processes.
    let members = members(group);
    !members.is_empty() && members.iter().all(|(_, stat)| !stat.lives)
}

/// The group and its living processes, for a message.
pub(crate) fn describe(group: Pid) -> String {
    let living = members(group).into_iter().filter(|(_, stat)| stat.lives);
    let pids: Vec<_> = living.map(|(pid, _)| pid.to_string()).collect();
    let group = group.as_raw_nonzero();
    match pids.is_empty() {
        true => format!("the process group {group}"),
        false => format!("the process group {group} (pid {})", pids.join(", ")),
    }
}

/// The processes of the group, dead or alive, as far as `/proc` shows them.
fn members(group: Pid) -> Vec<(u32, Stat)> {
    let group = group.as_raw_nonzero().get();
    process::all().filter(|(_, stat)| stat.group == group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getpgrp, getpid};

    #[test]
    fn a_group_is_shown_with_its_processes() {
        let group = getpgrp();
        assert!(!is_gone(group));
        let me = getpid().as_raw_nonzero().to_string();
        assert!(describe(group).contains(&me), "{}", describe(group));
    }
}
