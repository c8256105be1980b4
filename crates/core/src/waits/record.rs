//! What is remembered of waits that were long.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::audit::one_line;
use crate::{Holder, LockName, Token, Waiter};

/// How long one process waited for a lock that another one held, from
/// [`Client::long_waits`](crate::Client::long_waits).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LongWait {
    /// The lock.
    pub lock: LockName,
    /// The process that waited.
    pub waiter: Party,
    /// The process that held the lock meanwhile. `None` if that was not seen.
    pub blocker: Option<Party>,
    /// The fencing token of that hold, or of the last of them.
    pub token: Option<Token>,
    /// The first moment of these waits at which that process is known to have held the lock, by the waiter's clock.
    pub since: SystemTime,
    /// The last one; the present, if the wait is not over. How long it waited after that is part of `total`.
    pub until: SystemTime,
    /// How often it waited.
    pub waits: u32,
    /// How long it waited in all.
    pub total: Duration,
    /// How long it waited at the longest.
    pub longest: Duration,
    /// Whether it waits now.
    pub is_waiting: bool,
}

/// A process that waits for a lock or holds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Party {
    /// Its machine, if known.
    pub host: Option<String>,
    /// Its process id there, if known.
    pub pid: Option<u32>,
    /// What the lock is for. May be empty.
    pub label: String,
}

impl From<&Holder> for Party {
    fn from(holder: &Holder) -> Self {
        Self { host: holder.host.clone(), pid: holder.pid, label: holder.label.clone() }
    }
}

impl From<&Waiter> for Party {
    fn from(waiter: &Waiter) -> Self {
        Self { host: waiter.host.clone(), pid: waiter.pid, label: waiter.label.clone() }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, label } = self;
        f.write_str(host.as_deref().unwrap_or("unknown"))?;
        pid.map_or(Ok(()), |pid| write!(f, ":{pid}"))?;
        if label.is_empty() { Ok(()) } else { write!(f, " ({label})") }
    }
}

impl Party {
    /// Whether both are the same process, as far as that is known.
    pub(super) fn is_process_of(&self, other: &Self) -> bool {
        self.host.is_some()
            && self.pid.is_some()
            && (&self.host, self.pid) == (&other.host, other.pid)
    }
}

/// How many waits are remembered, in one cell or by one client. Those that ended first are forgotten first.
pub(super) const REMEMBERED: usize = 64;

/// How many waits for one lock are remembered of one stall: the longest.
pub(super) const OF_ONE_STALL: usize = 32;

/// How long after its end a wait is remembered.
pub(super) const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// How much the clock of a machine whose waits are remembered may be ahead.
const FUTURE: Duration = Duration::from_secs(60 * 60);

/// Waits of the same two processes for the same lock are one, if the next begins this soon.
const ONE_STALL: Duration = Duration::from_secs(60);

/// The longest text of one part, in characters.
const TEXT: usize = 200;

impl LongWait {
    /// Adds a wait to those that are remembered, and returns whether they have changed: of one stall only the
    /// longest waits are kept, so that thousands of claims which end their waits together need not all write.
    pub(super) fn remember(self, waits: &mut Vec<Self>) -> bool {
        let same = |known: &&mut Self| {
            (&known.lock, &known.waiter, &known.blocker)
                == (&self.lock, &self.waiter, &self.blocker)
                && self.since <= known.until + ONE_STALL
                && known.since <= self.until + ONE_STALL
        };
        match waits.iter_mut().find(same) {
            Some(known) => {
                if self.until > known.until {
                    known.token = self.token;
                }
                known.since = known.since.min(self.since);
                known.until = known.until.max(self.until);
                known.waits = known.waits.saturating_add(self.waits);
                known.total = known.total.saturating_add(self.total);
                known.longest = known.longest.max(self.longest);
                known.is_waiting |= self.is_waiting;
            }
            None => {
                let of_this_stall = |known: &&mut Self| {
                    known.lock == self.lock
                        && self.since <= known.until + ONE_STALL
                        && known.since <= self.until + ONE_STALL
                };
                let mut others: Vec<_> = waits.iter_mut().filter(of_this_stall).collect();
                if others.len() < OF_ONE_STALL {
                    waits.push(self);
                } else if let Some(shortest) = others.iter_mut().min_by_key(|known| known.total)
                    && shortest.total < self.total
                {
                    **shortest = self;
                } else {
                    return false;
                }
            }
        }
        if waits.len() > REMEMBERED {
            waits.sort_by_key(|wait| Reverse(wait.until));
            waits.truncate(REMEMBERED);
        }
        true
    }

    /// Forgets the waits that ended before this time.
    pub(super) fn forget(waits: &mut Vec<Self>, before: SystemTime) {
        waits.retain(|wait| wait.until >= before);
    }

    /// Forgets the waits that are too old to be remembered, and those that ended more than an hour from `now`. These
    /// are of a machine whose clock is wrong, and would be forgotten last.
    pub(super) fn forget_old_and_future(waits: &mut Vec<Self>, now: SystemTime) {
        Self::forget(waits, now.checked_sub(REMEMBERED_FOR).unwrap_or(now));
        let latest = now.checked_add(FUTURE).unwrap_or(now);
        waits.retain(|wait| wait.until <= latest);
    }

    /// One line of bounded length for each wait, its parts divided by tabs.
    pub(super) fn write(waits: &[Self]) -> Vec<u8> {
        let lines: Vec<_> = waits.iter().map(Self::to_line).collect();
        lines.join("\n").into_bytes()
    }

    /// The waits in what [`write`](Self::write) made. Lines that tenure did not write are left out.
    pub(super) fn read(lines: &[u8]) -> Vec<Self> {
        String::from_utf8_lossy(lines).lines().filter_map(Self::from_line).collect()
    }

    fn to_line(&self) -> String {
        let millis = |time: SystemTime| {
            time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string()
        };
        let mut parts = vec![
            self.lock.to_string(),
            millis(self.since),
            millis(self.until),
            self.waits.to_string(),
            self.total.as_millis().to_string(),
            self.longest.as_millis().to_string(),
            self.token.map_or_else(|| "-".into(), |token| token.get().to_string()),
        ];
        for party in std::iter::once(&self.waiter).chain(&self.blocker) {
            parts.push(party.host.as_ref().map_or_else(|| "-".into(), |host| one_line(host, TEXT)));
            parts.push(party.pid.map_or_else(|| "-".into(), |pid| pid.to_string()));
            parts.push(one_line(&party.label, TEXT));
        }
        parts.join("\t")
    }

    fn from_line(line: &str) -> Option<Self> {
        let parts: Vec<&str> = line.split('\t').collect();
        let [lock, since, until, waits, total, longest, token, parties @ ..] = &parts[..] else {
            return None;
        };
        let millis = |text: &str| text.parse().ok().map(Duration::from_millis);
        let time = |text| UNIX_EPOCH.checked_add(millis(text)?);
        let party = |parts: &[&str]| {
            let [host, pid, label] = parts else { return None };
            let host = (*host != "-").then(|| (*host).to_owned());
            Some(Party { host, pid: pid.parse().ok(), label: (*label).to_owned() })
        };
        let (waiter, blocker) = match parties.len() {
            3 => (party(parties)?, None),
            _ => (party(parties.get(..3)?)?, Some(party(parties.get(3..)?)?)),
        };
        Some(Self {
            lock: lock.parse().ok()?,
            waiter,
            blocker,
            token: token.parse().ok().map(Token::new),
            since: time(since)?,
            until: time(until)?,
            waits: waits.parse().ok()?,
            total: millis(total)?,
            longest: millis(longest)?,
            is_waiting: false,
        })
    }
}

/// The cycles among these waits, of which each overlaps the others: every process in one waits for a lock that
/// the next one holds. A cycle is reported once, and no more than [`CYCLES`].
pub(super) fn cycles(waits: &[LongWait]) -> Vec<Vec<LongWait>> {
    let edges: Vec<&LongWait> = waits
        .iter()
        .filter(|wait| {
            // Several waits that were joined did not last from the first to the last moment. A process that
            // waits for itself has other tasks, which can go on.
            wait.waits == 1
                && wait.blocker.as_ref().is_some_and(|blocker| {
                    blocker.pid.is_some()
                        && blocker.host.is_some()
                        && !blocker.is_process_of(&wait.waiter)
                })
        })
        .collect();
    let mut search =
        Search { edges: &edges, path: Vec::new(), found: BTreeSet::new(), steps: STEPS };
    for (first, edge) in edges.iter().enumerate() {
        search.path.push(first);
        search.extend(edge.since, edge.until);
        search.path.pop();
    }
    let of_path = |path: Vec<usize>| path.into_iter().map(|edge| edges[edge].clone()).collect();
    search.found.into_iter().map(of_path).collect()
}

/// How many cycles are reported, how long one may be, and how many steps are made to find them.
const CYCLES: usize = 16;
const LONGEST_CYCLE: usize = 8;
const STEPS: usize = 100_000;

struct Search<'a> {
    edges: &'a [&'a LongWait],
    path: Vec<usize>,
    found: BTreeSet<Vec<usize>>,
    steps: usize,
}

impl Search<'_> {
    /// Follows the waits of the last blocker that overlap this time.
    fn extend(&mut self, since: SystemTime, until: SystemTime) {
        let (Some(&first), Some(&last)) = (self.path.first(), self.path.last()) else { return };
        let Some(blocker) = self.edges[last].blocker.as_ref() else { return };
        if blocker.is_process_of(&self.edges[first].waiter) {
            self.found.insert(self.path.clone());
            return;
        }
        // A cycle is found from its first edge.
        for next in first + 1..self.edges.len() {
            if self.steps == 0 || self.found.len() >= CYCLES || self.path.len() >= LONGEST_CYCLE {
                return;
            }
            self.steps -= 1;
            let edge = self.edges[next];
            let (since, until) = (since.max(edge.since), until.min(edge.until));
            if blocker.is_process_of(&edge.waiter) && since < until && !self.path.contains(&next) {
                self.path.push(next);
                self.extend(since, until);
                self.path.pop();
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn party(pid: u32) -> Party {
        Party { host: Some("h".into()), pid: Some(pid), label: format!("job {pid}") }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_763_000_000 + seconds)
    }

    /// Process `waiter` waited for `lock`, held by `blocker`, in these seconds.
    fn wait(lock: &str, waiter: u32, blocker: u32, since: u64, until: u64) -> LongWait {
        let total = Duration::from_secs(until - since);
        LongWait {
            lock: lock.parse().unwrap(),
            waiter: party(waiter),
            blocker: Some(party(blocker)),
            token: Some(Token::new(7)),
            since: at(since),
            until: at(until),
            waits: 1,
            total,
            longest: total,
            is_waiting: false,
        }
    }

    #[test]
    fn a_wait_is_read_as_it_was_written_and_damaged_lines_are_left_out() {
        let mut waits = vec![wait("a", 1, 2, 0, 5), wait("é/b", 3, 4, 1, 2)];
        waits[1].blocker = None;
        waits[1].token = None;
        waits[1].waiter.host = None;
        assert_eq!(LongWait::read(&LongWait::write(&waits)), waits);
        let mut hostile = wait("a", 1, 2, 0, 5);
        hostile.waiter.label = "x\ty\nz".repeat(1_000);
        let lines = LongWait::write(&[hostile.clone(), waits[0].clone()]);
        let read = LongWait::read(&lines);
        assert_eq!((read.len(), &read[1]), (2, &waits[0]));
        assert!(lines.len() < 1_000);
        for bad in ["", "a\t1", "a\tx\t2\t1\t5\t5\t-\th\t1\tl", "a\t1\t2\t1\t5\t5\t-\th\t1\tl\th"] {
            assert_eq!(LongWait::read(bad.as_bytes()), [], "{bad:?}");
        }
    }

    #[test]
    fn waits_of_one_stall_are_added_up_and_the_number_is_bounded() {
        let mut waits = Vec::new();
        for (since, until) in [(10, 15), (20, 27), (0, 8), (200, 203)] {
            wait("a", 1, 2, since, until).remember(&mut waits);
        }
        assert_eq!(waits.len(), 2, "the last began minutes later");
        let seconds = |time: Duration| time.as_secs();
        let first = &waits[0];
        assert_eq!((first.waits, seconds(first.total), seconds(first.longest)), (3, 20, 8));
        assert_eq!((first.since, first.until), (at(0), at(27)));
        for pid in 0..1_000 {
            let lock = format!("{}", pid / 8);
            wait(&lock, 10 + pid, 2, u64::from(pid), u64::from(pid) + 1).remember(&mut waits);
        }
        assert_eq!(waits.len(), REMEMBERED);
        assert!(waits.iter().all(|wait| wait.until >= at(900)), "the oldest were forgotten");
        LongWait::forget(&mut waits, at(990));
        assert!(waits.len() < 20);
        let mut waits = vec![
            wait("a", 1, 2, 0, 5),
            wait("b", 1, 2, 100_000, 100_000 + 3_600),
            wait("c", 1, 2, 100_000, 100_000 + 3_601),
            wait("d", 1, 2, 0, 1_000_000_000),
        ];
        LongWait::forget_old_and_future(&mut waits, at(100_000));
        let left: Vec<_> = waits.iter().map(|wait| wait.lock.as_str()).collect();
        assert_eq!(left, ["b"]);
    }

    #[test]
    fn of_a_stall_with_thousands_of_waits_the_longest_are_kept_and_few_change_anything() {
        let mut waits = Vec::new();
        let all = (0..10_000).map(|pid| wait("a", 10 + pid, 2, 0, 30));
        let changes = all.filter(|wait| wait.clone().remember(&mut waits)).count();
        assert_eq!((changes, waits.len()), (OF_ONE_STALL, OF_ONE_STALL));
        assert!(wait("a", 3, 2, 0, 40).remember(&mut waits), "a longer one takes the place of one");
        assert!(waits.iter().any(|wait| wait.waiter == party(3)));
        assert!(wait("b", 3, 2, 0, 1).remember(&mut waits), "other locks have places of their own");
        assert!(wait("a", 4, 2, 900, 901).remember(&mut waits), "and so have other stalls");
    }

    #[test]
    fn cycles_among_waits_at_the_same_time_are_found_once() {
        let locks = |waits: &[LongWait]| -> Vec<Vec<String>> {
            let names = |cycle: &Vec<LongWait>| cycle.iter().map(|w| w.lock.to_string()).collect();
            cycles(waits).iter().map(names).collect()
        };
        let two = [wait("a", 1, 2, 0, 10), wait("b", 2, 1, 5, 10)];
        assert_eq!(locks(&two), [["a", "b"]]);
        let three = [wait("c", 3, 1, 0, 9), wait("a", 1, 2, 0, 9), wait("b", 2, 3, 0, 9)];
        assert_eq!(locks(&three), [["c", "a", "b"]]);
        let one_after_the_other = [wait("a", 1, 2, 0, 5), wait("b", 2, 1, 5, 10)];
        assert!(locks(&one_after_the_other).is_empty());
        let chain = [wait("a", 1, 2, 0, 9), wait("b", 2, 3, 0, 9)];
        assert!(locks(&chain).is_empty());
        let mut joined = two.clone();
        joined[0].waits = 2;
        assert!(locks(&joined).is_empty());
        let tasks_of_one_process = [wait("a", 1, 1, 0, 9)];
        assert!(locks(&tasks_of_one_process).is_empty());
        let everyone: Vec<_> = (0..400).map(|n| wait("a", n % 20, n / 20, 0, 9)).collect();
        assert!(locks(&everyone).len() <= CYCLES);
    }
}
