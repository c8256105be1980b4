//! The records that a store keeps of what operators did to its locks.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Origin, Token};

/// One record of what was done to a lock's holder from outside ([`Client::audit`](crate::Client::audit)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// What was done.
    pub event: AuditEvent,
    /// When, by the clock of the machine that did it. `None` if that clock is before 1970.
    pub at: Option<SystemTime>,
    /// The owner id of the claim that it was done to, as the store spells it.
    pub owner: String,
    /// The fencing token of that claim, where it was known.
    pub token: Option<Token>,
    /// The process that did it.
    pub by: Arc<Origin>,
    /// Why, in one line.
    pub reason: String,
}

/// What was done to a lock's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditEvent {
    /// The lock was taken from it by force.
    Evicted,
    /// It was asked to let go.
    Revoked,
}

impl AuditEvent {
    /// The word for it in records and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Revoked => "revoked",
        }
    }
}

impl AuditRecord {
    /// How many records of one lock a store keeps, at the least.
    pub const KEPT: usize = 100;

    /// The longest reason, in characters. What is beyond is cut off.
    const REASON: usize = 1_000;
    /// The longest owner, in characters: that of a foreign client is any text.
    const OWNER: usize = 200;

    /// A record of this process and moment.
    pub fn new(event: AuditEvent, owner: &str, token: Option<Token>, reason: &str) -> Self {
        Self {
            event,
            at: Some(SystemTime::now()),
            owner: one_line(owner, Self::OWNER),
            token,
            by: Origin::here(),
            reason: one_line(reason, Self::REASON),
        }
    }

    /// The record as a store keeps it: one line of bounded length, its parts divided by tabs.
    pub fn to_line(&self) -> String {
        let Self { event, at, owner, token, by, reason } = self;
        let at = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let token = token.map_or_else(|| "-".into(), |token| token.get().to_string());
        let host = one_line(&by.host, Self::OWNER);
        let (event, at, pid) = (event.as_str(), at.as_millis(), by.pid);
        let owner = one_line(owner, Self::OWNER);
        let reason = one_line(reason, Self::REASON);
        format!("{event}\t{at}\t{token}\t{host}\t{pid}\t{owner}\t{reason}")
    }

    /// The record in this line. `None` if tenure did not write it.
    pub fn from_line(line: &str) -> Option<Self> {
        let parts: Vec<&str> = line.splitn(7, '\t').collect();
        let [event, at, token, host, pid, owner, reason] = parts[..] else { return None };
        let events = [AuditEvent::Evicted, AuditEvent::Revoked];
        let event = events.into_iter().find(|known| known.as_str() == event)?;
        let at = at.parse().ok().filter(|millis| *millis > 0).map(Duration::from_millis);
        Some(Self {
            event,
            at: at.and_then(|at| UNIX_EPOCH.checked_add(at)),
            owner: owner.into(),
            token: token.parse().ok().map(Token::new),
            by: Arc::new(Origin::new(host, pid.parse().ok()?)),
            reason: reason.into(),
        })
    }

    /// A lock's records with this one in front: a line each. They fit into one value of a store, however
    /// many there were.
    pub fn before(&self, older: &[u8]) -> Vec<u8> {
        let newest = self.to_line();
        let older = String::from_utf8_lossy(older);
        let lines = std::iter::once(newest.as_str()).chain(older.lines());
        lines.take(Self::KEPT).collect::<Vec<_>>().join("\n").into_bytes()
    }

    /// The records in what [`before`](Self::before) made, newest first. Lines that tenure did not write are
    /// left out.
    pub fn all(lines: &[u8]) -> Vec<Self> {
        String::from_utf8_lossy(lines).lines().filter_map(Self::from_line).collect()
    }
}

/// The text as a part of a record: without control characters, and not too long.
pub(crate) fn one_line(text: &str, longest: usize) -> String {
    text.chars().take(longest).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = AuditRecord {
            event: AuditEvent::Revoked,
            at: Some(UNIX_EPOCH + Duration::from_millis(1_763_000_000_123)),
            owner: "some token of theirs".into(),
            token: Some(Token::new(7)),
            by: Arc::new(Origin::new("host", 42)),
            reason: "deploy: é».".into(),
        };
        assert_eq!(AuditRecord::from_line(&record.to_line()), Some(record.clone()));
        let unknown = AuditRecord { token: None, at: None, ..record };
        assert_eq!(AuditRecord::from_line(&unknown.to_line()), Some(unknown));
        for foreign in ["", "by hand", "evicted\t1\t-\th\tx\to\tr", "gone\t1\t-\th\t1\to\tr"] {
            assert_eq!(AuditRecord::from_line(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn records_are_kept_newest_first_and_do_not_grow_for_ever() {
        let long =
            AuditRecord::new(AuditEvent::Evicted, &"o\n".repeat(2_000), None, &"é\n".repeat(2_000));
        let mut records = Vec::new();
        for _ in 0..300 {
            records = long.before(&records);
        }
        // A node of ZooKeeper may have a mebibyte, with all that is sent besides.
        assert!(records.len() < 500_000, "{}", records.len());
        let last = AuditRecord::new(AuditEvent::Evicted, "o", None, "the\nlast\tone");
        let read = AuditRecord::all(&last.before(&records));
        assert_eq!((read.len(), read[0].reason.as_str()), (AuditRecord::KEPT, "the last one"));
    }
}
