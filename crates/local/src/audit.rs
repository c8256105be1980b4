//! The log of evictions and revocations: one line each, synced before an eviction.
//!
//! A line is the lock's name, a tab, and the record. The file is shared by all locks of the directory. Once it
//! has 4 MiB, it takes the place of `audit.log.1`, and a new one is begun. An operator may remove or move
//! either at any time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, fcntl_getfl, fcntl_setfl, flock};
use rustix::io::Errno;
use tenure_core::{AuditRecord, LockName};

use crate::access::Access;
use crate::fault::{Fault, Result};
use crate::files;

const FILE: &str = "audit.log";

/// The file before the current one.
const FORMER: &str = "audit.log.1";

/// How long a file is when the next one is begun.
const MOST: u64 = 4 << 20;

/// How much of the end of a file is searched: all, unless something else has made it longer.
const SEARCHED: u64 = 2 * MOST;

/// Adds a record to those of a lock.
pub(crate) fn record(
    dir: &Path,
    access: &Access,
    name: &LockName,
    record: &AuditRecord,
) -> Result<()> {
    let path = dir.join(FILE);
    let line = format!("{name}\t{}\n", record.to_line());
    let mut file = files::open_or_create(dir, FILE, access)?;
    if file.metadata().is_ok_and(|metadata| metadata.len() >= MOST) {
        rotate(dir, &file)?;
        file = files::open_or_create(dir, FILE, access)?;
    }
    // One write at the end of the file, so that lines of several processes do not mix.
    append(&file)
        .and_then(|()| file.write_all(line.as_bytes()))
        .and_then(|()| file.sync_data())
        .map_err(|error| Fault::io("writing", &path, error))
}

/// Makes a full file the former one. If another process does so at the moment, this one leaves it to that.
fn rotate(dir: &Path, full: &File) -> Result<()> {
    let path = dir.join(FILE);
    match flock(full, FlockOperation::NonBlockingLockExclusive) {
        // Only the process that has locked the file may move it: a second move would replace the former
        // file with one that has just been begun.
        Ok(()) if files::is_linked(full, &path)? => {
            let moved = std::fs::rename(&path, dir.join(FORMER));
            moved.map_err(|error| Fault::io("renaming", &path, error))
        }
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(Fault::io("locking", &path, error)),
    }
}

/// The newest records of a lock, newest first.
pub(crate) fn records(dir: &Path, access: &Access, name: &LockName) -> Result<Vec<AuditRecord>> {
    let mut found = Vec::new();
    for file in [FILE, FORMER] {
        let path = dir.join(file);
        let Some(mut file) = files::open(&path, access)? else { continue };
        let mut bytes = Vec::new();
        let length = file.metadata().map(|metadata| metadata.len());
        length
            .and_then(|length| file.seek(SeekFrom::Start(length.saturating_sub(SEARCHED))))
            .and_then(|_| file.take(2 * SEARCHED).read_to_end(&mut bytes))
            .map_err(|error| Fault::io("reading", &path, error))?;
        found.extend(of_lock(&String::from_utf8_lossy(&bytes), name));
        if found.len() >= AuditRecord::KEPT {
            break;
        }
    }
    found.truncate(AuditRecord::KEPT);
    Ok(found)
}

fn of_lock(log: &str, name: &LockName) -> Vec<AuditRecord> {
    let records = log.lines().rev().filter_map(|line| {
        // A name has no control characters.
        let (lock, record) = line.split_once('\t')?;
        (lock == name.as_str()).then(|| AuditRecord::from_line(record))?
    });
    records.take(AuditRecord::KEPT).collect()
}

/// Makes every write append to the file.
fn append(file: &File) -> std::io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags | OFlags::APPEND)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::AuditEvent;

    #[test]
    fn a_full_log_becomes_the_former_one_and_both_are_searched() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, access) = (folder.path(), Access::default());
        let name = LockName::new("a").unwrap();
        let add = |reason: &str| {
            let one = AuditRecord::new(AuditEvent::Evicted, "o", None, reason);
            record(dir, &access, &name, &one).unwrap();
        };
        let reasons = || -> Vec<String> {
            let found = records(dir, &access, &name).unwrap();
            found.into_iter().map(|record| record.reason).collect()
        };
        let length = |file: &str| std::fs::metadata(dir.join(file)).unwrap().len();
        let fill = || {
            let file = File::options().append(true).open(dir.join(FILE)).unwrap();
            (&file).write_all(&vec![b'\n'; MOST as usize]).unwrap();
            file
        };
        add("first");
        let full = fill();
        add("second");
        assert_eq!(reasons(), ["second", "first"]);
        assert!(length(FILE) < 200 && length(FORMER) > MOST);
        // A process that opened the full file before it was moved.
        rotate(dir, &full).unwrap();
        assert_eq!(reasons(), ["second", "first"]);
        drop(full);
        // While another process moves the file, records are added to it.
        let busy = fill();
        flock(&busy, FlockOperation::NonBlockingLockExclusive).unwrap();
        add("third");
        assert!(length(FILE) > MOST);
        drop(busy);
        add("fourth");
        assert_eq!(reasons(), ["fourth", "third", "second"]);
        assert!(length(FILE) + length(FORMER) < 2 * MOST);
    }

    #[test]
    fn records_are_found_by_lock_newest_first_and_a_hostile_reason_stays_in_its_line() {
        let [a, b] = ["a", "b"].map(|name| LockName::new(name).unwrap());
        let mut log = "half a line\n".to_owned();
        for (name, reason) in [(&a, "first"), (&b, "x\nb\tevicted"), (&a, "second\r\n")] {
            let record = AuditRecord::new(AuditEvent::Evicted, "o", None, reason);
            log.push_str(&format!("{name}\t{}\n", record.to_line()));
        }
        let reasons = |name| -> Vec<String> {
            of_lock(&log, name).into_iter().map(|record| record.reason).collect()
        };
        assert_eq!(reasons(&a), ["second  ", "first"]);
        assert_eq!(reasons(&b), ["x b evicted"]);
    }
}
