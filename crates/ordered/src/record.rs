//! What tenure writes beside keys: the data of an entry, which is for display and decides nothing, and the
//! content of a session's loss channel, which names the entries that were taken from it by force.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::store::{Claim, Hold};
use tenure_core::{OwnerId, Token};

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
    /// The claim's label: what the lock is held for.
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

/// How many losses a channel keeps: more than are evicted between two reads.
const LINES: usize = 100;

/// A channel's content with one more loss in front.
pub fn with_loss(content: &[u8], owner: &str, token: Option<Token>) -> Vec<u8> {
    let known = String::from_utf8_lossy(content);
    let newest = format!("{owner} {}", token.map_or(0, Token::get));
    let lines = std::iter::once(newest.as_str()).chain(known.lines());
    lines.take(LINES).collect::<Vec<_>>().join("\n").into_bytes()
}

/// The losses in a channel's content, newest first. Lines that make no sense are left out.
pub fn losses(content: &[u8]) -> impl Iterator<Item = Hold> {
    let text = std::str::from_utf8(content).unwrap_or_default();
    text.lines().filter_map(|line| {
        let (owner, token) = line.split_once(' ')?;
        let owner: OwnerId = owner.parse().ok()?;
        Some(Hold::new(owner, Some(Token::new(token.parse().ok()?))))
    })
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

    #[test]
    fn a_channel_keeps_the_newest_losses_and_ignores_lines_it_cannot_read() {
        let owners: Vec<OwnerId> = (0..LINES + 5).map(|_| OwnerId::random()).collect();
        let mut content = b"by hand".to_vec();
        for (token, owner) in (1..).zip(&owners) {
            content = with_loss(&content, &owner.to_string(), Some(Token::new(token)));
        }
        let read: Vec<Hold> = losses(&content).collect();
        assert_eq!(read.len(), LINES);
        let newest = Token::new(owners.len() as u64);
        assert_eq!(read[0], Hold::new(owners[LINES + 4], Some(newest)));
        assert_eq!(losses(&with_loss(b"", "not an owner", None)).count(), 0);
    }
}
