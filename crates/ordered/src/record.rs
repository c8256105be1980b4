//! The data of an entry, for people to read. Nothing is decided by it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::store::Claim;

/// The data of an entry that tenure wrote, as text:
/// `tenure1 <asked|held> <ttl ms> <since, Unix ms> <pid> <host> <label>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whether the claim is known to hold since then. If not, it asked then; if it did not have to
    /// wait, it has held since.
    pub held: bool,
    /// The claim's TTL.
    pub ttl: Duration,
    /// By the writer's wall clock, in milliseconds.
    since: u64,
    /// The process.
    pub pid: u32,
    /// The process's machine.
    pub host: String,
    /// What the claim's owner calls itself.
    pub label: String,
}

const FORM: &str = "tenure1";

impl Record {
    /// The record of a claim that came to this state so long ago.
    pub fn write(claim: &Claim, held: bool, age: Duration) -> Vec<u8> {
        let state = if held { "held" } else { "asked" };
        let (ttl, pid) = (claim.ttl.as_millis(), claim.origin.pid);
        let since = wall_clock().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        // A host name has no spaces; should one have, it must not shift the label.
        let host = match claim.origin.host.as_str() {
            "" => "-".into(),
            host => host.replace(' ', "_"),
        };
        let label = &claim.label;
        format!("{FORM} {state} {ttl} {since} {pid} {host} {label}").into_bytes()
    }

    /// `None` for what another program wrote.
    pub fn read(data: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(data).ok()?;
        let words: Vec<&str> = text.splitn(7, ' ').collect();
        let [FORM, state, ttl, since, pid, host, label] = words[..] else { return None };
        let held = match state {
            "held" => true,
            "asked" => false,
            _ => return None,
        };
        Some(Self {
            held,
            ttl: Duration::from_millis(ttl.parse().ok()?),
            since: since.parse().ok()?,
            pid: pid.parse().ok()?,
            host: host.into(),
            label: label.into(),
        })
    }

    /// How long ago the claim came to this state, as far as the two machines' clocks agree.
    pub fn age(&self) -> Duration {
        // Both are cut to whole milliseconds: the difference may be one too many.
        Duration::from_millis(wall_clock().saturating_sub(self.since).saturating_sub(1))
    }
}

fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    use tenure_core::{LockName, Mode};

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let claim =
            Claim::new(LockName::new("a").unwrap(), Mode::Exclusive, Duration::from_millis(2500))
                .with_label("two words, »quoted«");
        for held in [false, true] {
            let age = Duration::from_secs(100);
            let record = Record::read(&Record::write(&claim, held, age)).unwrap();
            assert_eq!((record.held, record.ttl), (held, claim.ttl));
            assert_eq!((record.pid, &record.host), (claim.origin.pid, &claim.origin.host));
            assert_eq!(*record.label, *claim.label);
            assert!((99..200).contains(&record.age().as_secs()), "{:?}", record.age());
        }
        for foreign in [&b""[..], b"10.0.0.1", b"tenure1 gone 1 0 0 h l", b"\xff", b"tenure1 held"]
        {
            assert_eq!(Record::read(foreign), None);
        }
    }
}
