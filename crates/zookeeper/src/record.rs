//! What stands in a node of ours, for people to read. Nothing is decided by it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::Claim;

/// The data of one of our nodes, as text:
/// `tenure1 <came|waits|held> <ttl ms> <since, Unix ms> <pid> <host> <label>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) stage: Stage,
    pub(crate) ttl: Duration,
    /// By the writer's wall clock.
    since: u64,
    pub(crate) pid: u32,
    pub(crate) host: String,
    pub(crate) label: String,
}

/// How far the claim was when this was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It asked. If it holds, it has held since.
    Came,
    /// It had to wait.
    Waits,
    /// It waited, and has held since.
    Held,
}

const FORM: &str = "tenure1";

impl Stage {
    const fn word(self) -> &'static str {
        match self {
            Self::Came => "came",
            Self::Waits => "waits",
            Self::Held => "held",
        }
    }
}

impl Record {
    /// The record of a claim that came to this stage so long ago.
    pub(crate) fn write(claim: &Claim, stage: Stage, age: Duration) -> Vec<u8> {
        let stage = stage.word();
        let (ttl, pid) = (claim.ttl.as_millis(), claim.origin.pid);
        let since = wall_clock().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        // A host name has no spaces; should one have, it must not shift the label.
        let host = match claim.origin.host.as_str() {
            "" => "-".into(),
            host => host.replace(' ', "_"),
        };
        let label = &claim.label;
        format!("{FORM} {stage} {ttl} {since} {pid} {host} {label}").into_bytes()
    }

    /// `None` for what another program wrote.
    pub(crate) fn read(data: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(data).ok()?;
        let words: Vec<&str> = text.splitn(7, ' ').collect();
        let [FORM, stage, ttl, since, pid, host, label] = words[..] else { return None };
        let stages = [Stage::Came, Stage::Waits, Stage::Held];
        Some(Self {
            stage: stages.into_iter().find(|one| one.word() == stage)?,
            ttl: Duration::from_millis(ttl.parse().ok()?),
            since: since.parse().ok()?,
            pid: pid.parse().ok()?,
            host: host.into(),
            label: label.into(),
        })
    }

    /// How long ago it came to this stage, as far as the two machines' clocks agree.
    pub(crate) fn age(&self) -> Duration {
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
    use tenure_core::{LockName, Mode, Origin, OwnerId};

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let claim = Claim {
            name: LockName::new("a").unwrap(),
            owner: OwnerId::random(),
            mode: Mode::Exclusive,
            ttl: Duration::from_millis(2500),
            origin: Origin::here(),
            label: "two words, »quoted«".into(),
        };
        for stage in [Stage::Came, Stage::Waits, Stage::Held] {
            let age = Duration::from_secs(100);
            let record = Record::read(&Record::write(&claim, stage, age)).unwrap();
            assert_eq!((record.stage, record.ttl), (stage, claim.ttl));
            assert_eq!((record.pid, &record.host), (claim.origin.pid, &claim.origin.host));
            assert_eq!(*record.label, *claim.label);
            assert!((99..200).contains(&record.age().as_secs()), "{:?}", record.age());
        }
        for foreign in [&b""[..], b"10.0.0.1", b"tenure1 gone 1 0 0 h l", b"\xff", b"tenure1 came"]
        {
            assert_eq!(Record::read(foreign), None);
        }
    }
}
