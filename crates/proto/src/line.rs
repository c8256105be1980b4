//! One lock's holders and its queue.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use crate::{Mode, Moment, Occupancy};

/// The holders of one lock and the line before it: first come, first served.
///
/// Only the head of the line is ever admitted, and as soon as the holders leave room for it. So
/// nobody overtakes: a reader that comes after a writer waits behind it. Places and grants have
/// ends of their own; what has ended is treated as gone.
#[derive(Clone, Debug)]
pub struct Line<K> {
    holders: BTreeMap<u64, Member<K>>,
    waiters: BTreeMap<u64, Member<K>>,
    seats: HashMap<K, Seat>,
    room: Occupancy,
    arrivals: u64,
}

/// One member of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<K> {
    /// Who.
    pub key: K,
    /// How the lock is, or is to be, held.
    pub mode: Mode,
    /// How long a grant lasts without a renewal.
    pub ttl: Duration,
}

/// Where a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds, until this moment.
    Holds(Moment),
    /// It waits. `Some`: it is the head of the line, and the obstacle may be gone at this moment.
    Waits(Option<Moment>),
    /// It does neither.
    Absent,
}

#[derive(Clone, Debug)]
struct Member<K> {
    entry: Entry<K>,
    ends: Moment,
}

#[derive(Clone, Copy, Debug)]
enum Seat {
    Holder(u64),
    Waiter(u64),
}

impl<K> Default for Line<K> {
    fn default() -> Self {
        Self {
            holders: BTreeMap::new(),
            waiters: BTreeMap::new(),
            seats: HashMap::new(),
            room: Occupancy::default(),
            arrivals: 0,
        }
    }
}

impl<K: Clone + Eq + Hash> Line<K> {
    /// Whether nobody holds and nobody waits.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// How many hold or wait, those included whose time has ended.
    pub fn len(&self) -> usize {
        self.seats.len()
    }

    /// Whether `key` holds or waits, also if its time has ended.
    pub fn contains(&self, key: &K) -> bool {
        self.seats.contains_key(key)
    }

    /// Where `key` stands at `now`, not counting what has ended.
    pub fn standing(&self, key: &K, now: Moment) -> Standing {
        match self.seats.get(key) {
            Some(Seat::Holder(place)) => match self.holders.get(place) {
                Some(member) if member.ends > now => Standing::Holds(member.ends),
                _ => Standing::Absent,
            },
            Some(Seat::Waiter(place)) => match self.waiters.get(place) {
                Some(member) if member.ends > now => Standing::Waits(self.obstacle(*place)),
                _ => Standing::Absent,
            },
            None => Standing::Absent,
        }
    }

    /// Joins the line at its end, or refreshes the place already there. Call
    /// [`poll_admitted`](Self::poll_admitted) next: an empty lock admits at once.
    pub fn handle_join(&mut self, entry: Entry<K>, now: Moment, policy: Duration) {
        if let Some(Seat::Waiter(place)) = self.seats.get(&entry.key)
            && let Some(member) = self.waiters.get_mut(place)
            && member.ends > now
        {
            member.ends = now + policy;
            return;
        }
        self.handle_leave(&entry.key);
        self.arrivals += 1;
        self.seats.insert(entry.key.clone(), Seat::Waiter(self.arrivals));
        self.waiters.insert(self.arrivals, Member { entry, ends: now + policy });
    }

    /// Starts the term of a holder anew. False if it does not hold.
    pub fn handle_renew(&mut self, key: &K, now: Moment) -> bool {
        let Some(Seat::Holder(place)) = self.seats.get(key) else {
            return false;
        };
        match self.holders.get_mut(place) {
            Some(member) if member.ends > now => {
                member.ends = now + member.entry.ttl;
                true
            }
            _ => false,
        }
    }

    /// Takes a holder or waiter out. True if it was a holder, ended or not.
    pub fn handle_leave(&mut self, key: &K) -> bool {
        match self.seats.remove(key) {
            Some(Seat::Holder(place)) => {
                if let Some(member) = self.holders.remove(&place) {
                    self.room.leave(member.entry.mode);
                }
                true
            }
            Some(Seat::Waiter(place)) => {
                self.waiters.remove(&place);
                false
            }
            None => false,
        }
    }

    /// Drops what has ended by `now` and stands in the way, and admits the head of the line if
    /// there is room. Call again until it answers `None`: several readers may go in together.
    pub fn poll_admitted(&mut self, now: Moment) -> Option<Entry<K>> {
        loop {
            let (&place, head) = self.waiters.first_key_value()?;
            if head.ends <= now {
                let key = head.entry.key.clone();
                self.handle_leave(&key);
                continue;
            }
            if !self.room.admits(head.entry.mode) {
                self.drop_ended_holders(now);
            }
            let (_, head) = self.waiters.first_key_value()?;
            if !self.room.admits(head.entry.mode) {
                return None;
            }
            let mut member = self.waiters.remove(&place)?;
            member.ends = now + member.entry.ttl;
            self.room.enter(member.entry.mode);
            self.seats.insert(member.entry.key.clone(), Seat::Holder(place));
            let entry = member.entry.clone();
            self.holders.insert(place, member);
            return Some(entry);
        }
    }

    /// Those who hold at `now`, with the end of their term.
    pub fn holders(&self, now: Moment) -> impl Iterator<Item = (&Entry<K>, Moment)> {
        live(&self.holders, now)
    }

    /// Those who wait at `now`, first in line first, with the end of their place.
    pub fn waiters(&self, now: Moment) -> impl Iterator<Item = (&Entry<K>, Moment)> {
        live(&self.waiters, now)
    }

    /// For the head of the line: the moment the first holder's term ends.
    fn obstacle(&self, place: u64) -> Option<Moment> {
        let (&head, _) = self.waiters.first_key_value()?;
        if head != place {
            return None;
        }
        self.holders.values().map(|holder| holder.ends).min()
    }

    fn drop_ended_holders(&mut self, now: Moment) {
        let ended = self.holders.values().filter(|holder| holder.ends <= now);
        let ended: Vec<K> = ended.map(|holder| holder.entry.key.clone()).collect();
        for key in ended {
            self.handle_leave(&key);
        }
    }
}

fn live<K>(
    members: &BTreeMap<u64, Member<K>>,
    now: Moment,
) -> impl Iterator<Item = (&Entry<K>, Moment)> {
    let live = members.values().filter(move |member| member.ends > now);
    live.map(|member| (&member.entry, member.ends))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG: Duration = Duration::from_secs(1000);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(0) + Duration::from_secs(seconds)
    }

    fn entry(key: u32, mode: Mode, ttl: u64) -> Entry<u32> {
        Entry { key, mode, ttl: Duration::from_secs(ttl) }
    }

    fn admitted(line: &mut Line<u32>, now: Moment) -> Vec<u32> {
        std::iter::from_fn(|| line.poll_admitted(now)).map(|entry| entry.key).collect()
    }

    fn line_of(modes: &[Mode]) -> Line<u32> {
        let mut line = Line::default();
        for (key, mode) in modes.iter().enumerate() {
            line.handle_join(entry(key as u32, *mode, 100), at(0), LONG);
        }
        line
    }

    #[test]
    fn a_reader_behind_a_writer_waits_behind_it() {
        use Mode::{Exclusive, Shared};
        let mut line = line_of(&[Shared, Shared, Exclusive, Shared]);
        assert_eq!(admitted(&mut line, at(1)), [0, 1]);
        line.handle_leave(&0);
        assert_eq!(admitted(&mut line, at(2)), []);
        line.handle_leave(&1);
        assert_eq!(admitted(&mut line, at(3)), [2]);
        line.handle_leave(&2);
        assert_eq!(admitted(&mut line, at(4)), [3]);
    }

    #[test]
    fn a_large_request_at_the_head_is_not_starved_by_small_ones() {
        let (one, all) = (Mode::Permits { take: 1, of: 3 }, Mode::Permits { take: 3, of: 3 });
        let mut line = line_of(&[one, all, one]);
        assert_eq!(admitted(&mut line, at(0)), [0]);
        line.handle_leave(&0);
        assert_eq!(admitted(&mut line, at(0)), [1]);
    }

    #[test]
    fn a_waiter_that_does_not_ask_again_is_skipped() {
        let mut line = line_of(&[Mode::Exclusive]);
        assert_eq!(admitted(&mut line, at(0)), [0]);
        line.handle_join(entry(1, Mode::Exclusive, 100), at(0), Duration::from_secs(5));
        line.handle_join(entry(2, Mode::Exclusive, 100), at(0), Duration::from_secs(9));
        line.handle_join(entry(2, Mode::Exclusive, 100), at(4), Duration::from_secs(9));
        line.handle_leave(&0);
        assert_eq!(admitted(&mut line, at(12)), [2]);
        assert_eq!(line.len(), 1);
    }

    #[test]
    fn the_head_knows_when_the_holder_ends_and_then_takes_over() {
        let mut line = line_of(&[Mode::Exclusive, Mode::Exclusive, Mode::Exclusive]);
        assert_eq!(admitted(&mut line, at(0)), [0]);
        assert_eq!(line.standing(&1, at(1)), Standing::Waits(Some(at(100))));
        assert_eq!(line.standing(&2, at(1)), Standing::Waits(None));
        assert!(line.handle_renew(&0, at(50)));
        assert_eq!(admitted(&mut line, at(149)), []);
        assert_eq!(admitted(&mut line, at(150)), [1]);
        assert!(!line.handle_renew(&0, at(150)), "an ended holder cannot renew");
        assert_eq!(line.standing(&0, at(150)), Standing::Absent);
    }

    /// Every order of joining, leaving and passing time among three claims, five steps deep: nobody
    /// holds beside one whom the rule excludes, nobody overtakes, nobody is forgotten.
    #[test]
    fn every_short_history_keeps_the_rule_and_the_order() {
        const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 2 }];
        for modes in 0..27usize {
            let mode_of = |key: u32| MODES[modes / 3usize.pow(key) % 3];
            for history in 0..7usize.pow(5) {
                let mut code = history;
                let (mut line, mut now) = (Line::default(), 0);
                let mut arrivals: Vec<u32> = Vec::new();
                for _ in 0..5 {
                    let step = code % 7;
                    code /= 7;
                    let key = (step % 3) as u32;
                    match step {
                        0..3 => {
                            let before = line.standing(&key, at(now));
                            if !line.handle_renew(&key, at(now)) {
                                line.handle_join(entry(key, mode_of(key), 3), at(now), LONG);
                            }
                            if before == Standing::Absent {
                                arrivals.retain(|other| *other != key);
                                arrivals.push(key);
                            }
                        }
                        3..6 => {
                            line.handle_leave(&key);
                            arrivals.retain(|other| *other != key);
                        }
                        _ => now += 2,
                    }
                    for new in admitted(&mut line, at(now)) {
                        let overtaken = arrivals.iter().take_while(|other| **other != new);
                        for other in overtaken {
                            let standing = line.standing(other, at(now));
                            assert!(!matches!(standing, Standing::Waits(_)), "{new} overtook");
                        }
                    }
                    check(&line, at(now));
                }
            }
        }
    }

    fn check(line: &Line<u32>, now: Moment) {
        let mut room = Occupancy::default();
        for (holder, _) in line.holders(now) {
            assert!(room.admits(holder.mode), "{:?} holds where it may not", holder.key);
            room.enter(holder.mode);
        }
        if let Some((head, _)) = line.waiters(now).next() {
            assert!(!room.admits(head.mode), "{:?} waits though there is room", head.key);
        }
    }

    proptest! {
        #[test]
        fn long_histories_keep_the_rule(
            steps in prop::collection::vec((0u32..12, 0u8..6, 0u64..4), 1..300),
        ) {
            let mut line = Line::default();
            let mut now = 0;
            for (key, step, pause) in steps {
                now += pause;
                let mode = match key % 4 {
                    0 => Mode::Exclusive,
                    1 => Mode::Shared,
                    _ => Mode::Permits { take: key % 3 + 1, of: 4 },
                };
                match step {
                    0..3 => line.handle_join(entry(key, mode, 7), at(now), Duration::from_secs(20)),
                    3 => drop(line.handle_renew(&key, at(now))),
                    _ => drop(line.handle_leave(&key)),
                }
                admitted(&mut line, at(now));
                check(&line, at(now));
            }
            for key in 0..12 {
                line.handle_leave(&key);
            }
            prop_assert!(line.is_empty());
        }
    }
}
