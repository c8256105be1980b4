//! What stands in a key of ours, and what a line of such keys means.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::{Claim, Mode};

use crate::rpc::KeyValue;

pub(crate) use tenure_proto::{Obstacle, admitted, obstacle};

/// The value of one of our keys, as text:
/// `tenure1 <held|waits> <x|s|p> <take> <of> <ttl ms> <since, Unix ms> <pid> <host> <label>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Whether the one it belongs to knows that it holds.
    pub(crate) held: bool,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    /// By the writer's wall clock: for people to read, never to decide anything.
    since: u64,
    pub(crate) pid: u32,
    pub(crate) host: String,
    pub(crate) label: String,
}

const FORM: &str = "tenure1";

impl Record {
    pub(crate) fn write(claim: &Claim, held: bool) -> Vec<u8> {
        let (kind, take, of) = match claim.mode {
            Mode::Exclusive => ("x", 0, 0),
            Mode::Shared => ("s", 0, 0),
            Mode::Permits { take, of } => ("p", take, of),
        };
        let state = if held { "held" } else { "waits" };
        let (ttl, since, pid) = (claim.ttl.as_millis(), wall_clock(), claim.origin.pid);
        // A host name has no spaces; should one have, it must not shift the label.
        let host = match claim.origin.host.as_str() {
            "" => "-".into(),
            host => host.replace(' ', "_"),
        };
        let label = &claim.label;
        format!("{FORM} {state} {kind} {take} {of} {ttl} {since} {pid} {host} {label}").into_bytes()
    }

    /// `None` for what another program wrote.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let words: Vec<&str> = text.splitn(10, ' ').collect();
        let [FORM, state, kind, take, of, ttl, since, pid, host, label] = words[..] else {
            return None;
        };
        let mode = match kind {
            "x" => Mode::Exclusive,
            "s" => Mode::Shared,
            "p" => Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? },
            _ => return None,
        };
        Some(Self {
            held: state == "held",
            mode,
            ttl: Duration::from_millis(ttl.parse().ok()?),
            since: since.parse().ok()?,
            pid: pid.parse().ok()?,
            host: host.into(),
            label: label.into(),
        })
    }

    /// How long ago it was written, as far as the two machines' clocks agree.
    pub(crate) fn age(&self) -> Duration {
        // Both are cut to whole milliseconds: the difference may be one too many.
        Duration::from_millis(wall_clock().saturating_sub(self.since).saturating_sub(1))
    }
}

fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// How a key wants to hold the lock. Others know one way only: alone.
pub(crate) fn mode(kv: &KeyValue) -> Mode {
    Record::read(&kv.value).map_or(Mode::Exclusive, |record| record.mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{LockName, Origin, OwnerId};

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 2, of: 3 }] {
            let claim = Claim {
                name: LockName::new("a").unwrap(),
                owner: OwnerId::random(),
                mode,
                ttl: Duration::from_millis(2500),
                origin: Origin::here(),
                label: "two words, »quoted«".into(),
            };
            let record = Record::read(&Record::write(&claim, true)).unwrap();
            assert_eq!((record.held, record.mode, record.ttl), (true, mode, claim.ttl));
            assert_eq!((record.pid, &record.host), (claim.origin.pid, &claim.origin.host));
            assert_eq!(*record.label, *claim.label);
            assert!(record.age() < Duration::from_secs(60));
            assert!(!Record::read(&Record::write(&claim, false)).unwrap().held);
        }
        for foreign in [&b""[..], b"tenure1", b"tenure1 held x 0 0 z 0 0 h l", b"\xff"] {
            assert_eq!(Record::read(foreign), None);
        }
    }
}
