//! The log of evictions: one JSON object per line, synced before the eviction.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tenure_core::store::Eviction;

use crate::access::Access;
use crate::fault::{Fault, Result};
use crate::files;

pub(crate) fn record(
    dir: &Path,
    access: &Access,
    eviction: &Eviction,
    pid: Option<u32>,
    token: Option<u64>,
) -> Result<()> {
    let path = dir.join("audit.log");
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let clock_ms = since.map_or(0, |span| span.as_millis());
    let line = line(clock_ms, eviction, pid, token);
    let mut file = files::open_or_create(dir, "audit.log", access)?;
    // One write at the end of the file, so that lines of several processes do not mix.
    append(&file)
        .and_then(|()| file.write_all(line.as_bytes()))
        .and_then(|()| file.sync_data())
        .map_err(|error| Fault::io("writing", &path, error))
}

/// Makes every write append to the file.
fn append(file: &File) -> std::io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags | OFlags::APPEND)?)
}

fn line(clock_ms: u128, eviction: &Eviction, pid: Option<u32>, token: Option<u64>) -> String {
    let number = |number: Option<u64>| number.map_or("null".into(), |number| number.to_string());
    format!(
        "{{\"at_unix_ms\":{clock_ms},\"event\":\"evict\",\"lock\":{},\"owner\":{},\"pid\":{},\
         \"token\":{},\"by_host\":{},\"by_pid\":{},\"reason\":{}}}\n",
        quoted(eviction.name.as_str()),
        quoted(&eviction.owner),
        number(pid.map(u64::from)),
        number(token),
        quoted(&eviction.by.host),
        eviction.by.pid,
        quoted(&eviction.reason),
    )
}

fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() => {
                // Writing to a string cannot fail.
                let _ = write!(quoted, "\\u{:04x}", u32::from(character));
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{LockName, OwnerId};

    #[test]
    fn a_hostile_reason_stays_inside_its_quotes() {
        let name = LockName::new("a\"b").unwrap();
        let reason = "x\"}\n{\"y\u{85}";
        let eviction = Eviction::new(name, OwnerId::from_bytes([1; 16]), reason);
        let line = line(5, &eviction, Some(7), None);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.starts_with(
            "{\"at_unix_ms\":5,\"event\":\"evict\",\"lock\":\"a\\\"b\",\"owner\":\"0101"
        ));
        assert!(line.contains("\"pid\":7,\"token\":null,"));
        assert!(line.ends_with("\"reason\":\"x\\\"}\\u000a{\\\"y\\u0085\"}\n"));
    }
}
