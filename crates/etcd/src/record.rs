//! What stands in a key of ours, and what a line of such keys means.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::{Claim, Mode};
use tenure_proto::Occupancy;

use crate::rpc::KeyValue;

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

/// How many of a line, in the order of their creation, hold the lock: they go in one by one, and
/// the first that finds no room keeps all others out. Whoever is in stays in: those who come later
/// stand behind it, and those who leave only make room.
pub(crate) fn admitted(line: impl IntoIterator<Item = Mode>) -> usize {
    let mut room = Occupancy::default();
    let goes_in = |mode: &Mode| {
        let fits = room.admits(*mode);
        if fits {
            room.enter(*mode);
        }
        fits
    };
    line.into_iter().take_while(goes_in).count()
}

/// What keeps a claim of `mode` out, behind these in the order of their creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// This one, until it is deleted.
    Leaves(usize),
    /// This one waits too: until it goes in, or is deleted.
    Moves(usize),
    /// Any of those who hold.
    Holders,
}

/// `None`: it may hold.
pub(crate) fn obstacle(before: &[Mode], mode: Mode) -> Option<Obstacle> {
    let last = before.len().checked_sub(1)?;
    match mode {
        Mode::Exclusive => Some(Obstacle::Leaves(last)),
        Mode::Shared => before.iter().rposition(|mode| *mode != Mode::Shared).map(Obstacle::Leaves),
        Mode::Permits { .. } => {
            let inside = admitted(before.iter().copied().chain([mode]));
            if inside > before.len() {
                None
            } else if inside == before.len() {
                Some(Obstacle::Holders)
            } else {
                Some(Obstacle::Moves(last))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{LockName, Origin, OwnerId};

    const fn permits(take: u32, of: u32) -> Mode {
        Mode::Permits { take, of }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for mode in [Mode::Exclusive, Mode::Shared, permits(2, 3)] {
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

    /// Whoever has no obstacle is admitted by the rule, and the other way round; and as long as the
    /// obstacle stays, so does the answer.
    #[test]
    fn an_obstacle_is_named_exactly_where_the_rule_keeps_one_out() {
        let modes = [Mode::Exclusive, Mode::Shared, permits(1, 2), permits(2, 3), permits(1, 3)];
        for number in 0..modes.len().pow(4) {
            let line: Vec<Mode> =
                (0..4).map(|place| modes[number / modes.len().pow(place) % modes.len()]).collect();
            let (before, mode) = (&line[..3], line[3]);
            let holds = |line: &[Mode]| admitted(line.iter().copied()) == line.len();
            let seen = obstacle(before, mode);
            assert_eq!(seen.is_none(), holds(&line), "{line:?}");
            let Some(Obstacle::Leaves(stays)) = seen else { continue };
            // Whoever else leaves, it is still kept out.
            for gone in 0..1 << 3 {
                if gone & (1 << stays) != 0 {
                    continue;
                }
                let left: Vec<Mode> = (0..4)
                    .filter(|place| *place == 3 || gone & (1 << place) == 0)
                    .map(|place| line[place])
                    .collect();
                assert!(!holds(&left), "{line:?} without {gone:b}");
            }
        }
    }
}
