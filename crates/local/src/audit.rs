//! The log of evictions and revocations: one line each, synced before an eviction.
//!
//! A line is the lock's name, a tab, and the record. The file is shared by all locks of the directory and
//! only grows: an operator may remove or rotate it at any time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tenure_core::{AuditRecord, LockName};

use crate::access::Access;
use crate::fault::{Fault, Result};
use crate::files;

const FILE: &str = "audit.log";

/// How much of the end of the file is searched for the records of a lock.
const SEARCHED: u64 = 4 << 20;

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
    // One write at the end of the file, so that lines of several processes do not mix.
    append(&file)
        .and_then(|()| file.write_all(line.as_bytes()))
        .and_then(|()| file.sync_data())
        .map_err(|error| Fault::io("writing", &path, error))
}

/// The newest records of a lock, newest first.
pub(crate) fn records(dir: &Path, access: &Access, name: &LockName) -> Result<Vec<AuditRecord>> {
    let path = dir.join(FILE);
    let Some(mut file) = files::open(&path, access)? else { return Ok(Vec::new()) };
    let mut bytes = Vec::new();
    let length = file.metadata().map(|metadata| metadata.len());
    length
        .and_then(|length| file.seek(SeekFrom::Start(length.saturating_sub(SEARCHED))))
        .and_then(|_| file.take(2 * SEARCHED).read_to_end(&mut bytes))
        .map_err(|error| Fault::io("reading", &path, error))?;
    Ok(of_lock(&String::from_utf8_lossy(&bytes), name))
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
