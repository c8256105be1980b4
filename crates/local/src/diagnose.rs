//! The findings of `tenure doctor` about the directory.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatFs, statfs};
use rustix::process::{Pid, geteuid, test_kill_process};
use tenure_core::{ErrorKind, Finding};

use crate::access::Access;
use crate::fault::{Fault, Result};
use crate::files;
use crate::layout::{CHUNK, RECORD_WORDS, SLOTS};
use crate::store::Inner;
use crate::txn::Txn;

/// All findings about the directory.
pub(crate) fn diagnose(inner: &Inner) -> Result<Vec<Finding>> {
    let dir = inner.table.dir.as_path();
    let stats = statfs(dir).map_err(|error| Fault::io("looking at", dir, error))?;
    let mut findings = vec![file_system(dir, stats.f_type as u64 & 0xffff_ffff)];
    for name in ["", "table", "tokens", "members"] {
        let path = if name.is_empty() { dir.to_owned() } else { dir.join(name) };
        let metadata = std::fs::symlink_metadata(&path).ok();
        findings.extend(metadata.and_then(|found| privacy(&path, &found, &inner.table.access)));
    }
    findings.extend(replaced(inner)?);
    let used = usage(inner)?;
    findings.push(table_room(used, inner.table.limit));
    findings.extend(disk_room(used, inner.table.limit, free_bytes(&stats)));
    findings.push(tokens(inner)?);
    findings.extend(processes(&inner.table.slots.live_pids(&inner.table.map)?));
    Ok(findings)
}

fn file_system(dir: &Path, magic: u64) -> Finding {
    let dir = dir.display();
    if let Some(name) = files::remote_name(magic) {
        let what = format!(
            "{dir} is on {name}, behind which there may be another machine that does not see \
             these locks"
        );
        return Finding::advice(what, "use a directory on a local disk");
    }
    match magic {
        0x0102_1994 | 0x8584_58f6 => Finding::advice(
            format!(
                "{dir} is in memory (tmpfs): a reboot deletes the fencing tokens' ceiling, and \
                     tokens then start from the wall clock"
            ),
            "use a directory on a disk where a fenced resource remembers tokens",
        ),
        0x794c_7630 => Finding::advice(
            format!(
                "{dir} is on an overlay, most likely a container's own: other containers do \
                     not see these locks, and they are gone with it"
            ),
            "mount a directory of the host that all containers share",
        ),
        _ => Finding::fine(format!("{dir} is on a local file system")),
    }
}

/// Whether other users may change a file.
fn privacy(path: &Path, metadata: &Metadata, access: &Access) -> Option<Finding> {
    let (shown, mode, owner) = (path.display(), metadata.mode() & 0o777, metadata.uid());
    let shared = access.includes_group(metadata);
    let (strangers, classes) = if shared { (0o002, "o") } else { (0o022, "go") };
    if mode & strangers != 0 {
        return Some(Finding::danger(
            format!("{shown} can be changed by other users (mode {mode:04o})"),
            format!("chmod {classes}-w {shown}"),
        ));
    }
    if !shared && owner != geteuid().as_raw() && owner != 0 {
        return Some(Finding::advice(
            format!("{shown} belongs to another user (uid {owner}), which can take locks away"),
            "use a directory of this user, unless the two are meant to share locks",
        ));
    }
    None
}

/// Files that were deleted or replaced, so that processes which open them now get others.
fn replaced(inner: &Inner) -> Result<Vec<Finding>> {
    let table = &inner.table;
    let files = [
        (
            "table",
            table.verify_shared(ErrorKind::Lost).is_ok(),
            "processes that open it later share other locks",
        ),
        (
            "members",
            table.slots.is_linked()?,
            "live processes look dead to those that open it later",
        ),
        ("tokens", table.tokens.is_linked()?, "tokens may repeat after a reboot"),
    ];
    let gone = files.into_iter().filter(|(_, linked, _)| !linked);
    let finding = |(name, _, so): (&str, bool, &str)| {
        let path = table.dir.join(name);
        Finding::danger(
            format!("{} was deleted or replaced while in use: {so}", path.display()),
            "stop what uses this directory, and start it again",
        )
    };
    Ok(gone.map(finding).collect())
}

/// Records in use, and the records that the file has room for now.
#[derive(Clone, Copy, Debug)]
struct Usage {
    used: u32,
    capacity: u32,
}

fn usage(inner: &Inner) -> Result<Usage> {
    let txn = Txn::begin(&inner.table)?;
    let mut used = txn.high_water().saturating_sub(1);
    let (mut free, mut left) = (txn.first_free(), used);
    while free != 0 && left > 0 {
        (free, _) = txn.next_free(free)?;
        used -= 1;
        left -= 1;
    }
    inner.table.map.check()?;
    Ok(Usage { used, capacity: txn.capacity() })
}

fn table_room(usage: Usage, limit: u32) -> Finding {
    let (used, most) = (usage.used, limit - 1);
    let what = format!("{used} of {most} locks, holders and waiters are in the table");
    if u64::from(used) * 10 >= u64::from(most) * 9 {
        let remedy = "spread the locks over several directories, or use a server for them: a full \
                      table refuses new claims";
        return Finding::advice(what, remedy);
    }
    Finding::fine(what)
}

/// Whether the disk has room for the table's next block, if the table can still grow.
fn disk_room(usage: Usage, limit: u32, free: u64) -> Option<Finding> {
    let growth = u64::from(CHUNK.min(limit.saturating_sub(usage.capacity)));
    let needed = growth * RECORD_WORDS as u64 * 8;
    (free < needed).then(|| {
        Finding::advice(
            format!(
                "the disk has {free} bytes left, and the table grows by {needed}: new claims \
                     will be refused"
            ),
            "make room on the disk",
        )
    })
}

fn free_bytes(stats: &StatFs) -> u64 {
    stats.f_bavail.saturating_mul(u64::try_from(stats.f_bsize).unwrap_or(0))
}

fn tokens(inner: &Inner) -> Result<Finding> {
    let ceiling = inner.table.tokens.ceiling()?;
    Ok(Finding::fine(format!("fencing tokens are durable up to {ceiling}")))
}

/// How many processes use the table, and whether all of them can be watched from here.
fn processes(pids: &[u32]) -> Vec<Finding> {
    let what = format!("{} of {SLOTS} process slots are taken", pids.len());
    let mut findings = vec![if pids.len() * 10 >= SLOTS * 9 {
        Finding::advice(what, "open fewer stores: one per process is enough, its clones share it")
    } else {
        Finding::fine(what)
    }];
    let unseen = pids.iter().filter(|pid| !is_seen(**pid)).count();
    if unseen > 0 {
        findings.push(Finding::advice(
            format!(
                "{unseen} of them cannot be seen from here (another pid namespace): when one \
                     dies, its locks are free at the next poll, not at once"
            ),
            "run all processes that lock in one pid namespace, if that second matters",
        ));
    }
    findings
}

fn is_seen(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tenure_core::Severity::{self, Advice, Fine, Unsafe};

    #[test]
    fn file_systems_in_memory_overlays_and_network_file_systems_are_reported() {
        let on = |magic| file_system(Path::new("/d"), magic).severity;
        assert_eq!([on(0xef53), on(0x0102_1994), on(0x794c_7630)], [Fine, Advice, Advice]);
        assert_eq!(on(0x6573_5546), Advice);
    }

    #[test]
    fn files_that_other_users_can_write_are_unsafe() {
        let dir = tempfile::tempdir().unwrap();
        let found = |mode| {
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).unwrap();
            privacy(dir.path(), &dir.path().metadata().unwrap(), &Access::default())
                .map(|finding| finding.severity)
        };
        assert_eq!(found(0o700), None);
        assert_eq!(found(0o750), None);
        assert_eq!(found(0o720), Some(Unsafe));
        assert_eq!(found(0o702), Some(Unsafe));
    }

    #[test]
    fn a_nearly_full_table_or_disk_is_reported() {
        let severity =
            |used| -> Severity { table_room(Usage { used, capacity: 100 }, 101).severity };
        assert_eq!((severity(89), severity(90)), (Fine, Advice));
        let usage = |capacity| Usage { used: 0, capacity };
        let block = u64::from(CHUNK) * RECORD_WORDS as u64 * 8;
        assert!(disk_room(usage(CHUNK), 3 * CHUNK, block).is_none());
        assert!(disk_room(usage(CHUNK), 3 * CHUNK, block - 1).is_some());
        assert!(disk_room(usage(CHUNK), CHUNK, 0).is_none(), "it does not grow any more");
    }

    #[test]
    fn few_free_slots_and_invisible_processes_are_reported() {
        let me = std::process::id();
        assert!(processes(&[me]).iter().all(|finding| finding.severity == Fine));
        assert_eq!(processes(&vec![me; SLOTS * 9 / 10 + 1])[0].severity, Advice);
        // No process has the largest number that the kernel could ever give.
        assert_eq!(processes(&[me, 4_194_304]).last().unwrap().severity, Advice);
    }
}
