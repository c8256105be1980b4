//! The holders of one lock and its queue of waiters.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use crate::{Mode, Moment, Occupancy};

/// The holders of one lock and its queue of waiters, served in the order in which they came.
///
/// Only the head of the queue is admitted, as soon as the holders leave room for it. So no claim overtakes
/// another: a reader that comes after a writer waits behind it. Each queue entry and each grant has an end of
/// its own; one that has ended is treated as gone.
#[derive(Clone, Debug)]
pub struct LockQueue<K> {
    holders: BTreeMap<u64, Timed<K>>,
    waiters: BTreeMap<u64, Timed<K>>,
    index: HashMap<K, Position>,
    room: Occupancy,
    arrivals: u64,
}

/// A claim, as far as its queue needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<K> {
    /// The claim's identity.
    pub key: K,
    /// How the lock is, or is to be, held.
    pub mode: Mode,
    /// How long a grant lasts without a renewal.
    pub ttl: Duration,
}

/// What a claim does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// It holds, until this moment.
    Holds(Moment),
    /// It waits. `Some`: it is the head of the queue, and the first holder's term ends at this moment.
    Waits(Option<Moment>),
    /// It does neither.
    Absent,
}

#[derive(Clone, Debug)]
struct Timed<K> {
    entry: Entry<K>,
    ends: Moment,
}

#[derive(Clone, Copy, Debug)]
enum Position {
    Holder(u64),
    Waiter(u64),
}

impl<K> Default for LockQueue<K> {
    fn default() -> Self {
        Self {
            holders: BTreeMap::new(),
            waiters: BTreeMap::new(),
            index: HashMap::new(),
            room: Occupancy::default(),
            arrivals: 0,
        }
    }
}

impl<K: Clone + Eq + Hash> LockQueue<K> {
    /// Whether there are neither holders nor waiters.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The number of holders and waiters, including those whose time has ended.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether `key` holds or waits, also if its time has ended.
    pub fn contains(&self, key: &K) -> bool {
        self.index.contains_key(key)
    }

    /// What the claim `key` does at `now`. One that has ended is absent.
    pub fn state(&self, key: &K, now: Moment) -> ClaimState {
        match self.index.get(key) {
            Some(Position::Holder(position)) => match self.holders.get(position) {
                Some(timed) if timed.ends > now => ClaimState::Holds(timed.ends),
                _ => ClaimState::Absent,
            },
            Some(Position::Waiter(position)) => match self.waiters.get(position) {
                Some(timed) if timed.ends > now => ClaimState::Waits(self.first_end(*position)),
                _ => ClaimState::Absent,
            },
            None => ClaimState::Absent,
        }
    }

    /// Adds a claim at the end of the queue, or extends the entry that it has there by `lease`. Call
    /// [`poll_admitted`](Self::poll_admitted) next: an empty lock admits at once.
    pub fn handle_join(&mut self, entry: Entry<K>, now: Moment, lease: Duration) {
        if let Some(Position::Waiter(position)) = self.index.get(&entry.key)
            && let Some(timed) = self.waiters.get_mut(position)
            && timed.ends > now
        {
            timed.ends = now + lease;
            return;
        }
        self.handle_leave(&entry.key);
        self.arrivals += 1;
        self.index.insert(entry.key.clone(), Position::Waiter(self.arrivals));
        self.waiters.insert(self.arrivals, Timed { entry, ends: now + lease });
    }

    /// Starts the term of a holder anew. False if it does not hold.
    pub fn handle_renew(&mut self, key: &K, now: Moment) -> bool {
        let Some(Position::Holder(position)) = self.index.get(key) else {
            return false;
        };
        match self.holders.get_mut(position) {
            Some(timed) if timed.ends > now => {
                timed.ends = now + timed.entry.ttl;
                true
            }
            _ => false,
        }
    }

    /// Turns the hold of a writer into that of a reader, and starts its term anew. A reader stays one.
    /// False if the claim does not hold, or holds permits. Call [`poll_admitted`](Self::poll_admitted)
    /// next: the readers at the head of the queue hold beside it from now on.
    pub fn handle_downgrade(&mut self, key: &K, now: Moment) -> bool {
        let Some(Position::Holder(position)) = self.index.get(key) else {
            return false;
        };
        match self.holders.get_mut(position) {
            Some(Timed { entry, ends }) if *ends > now && !entry.mode.is_permits() => {
                self.room.leave(entry.mode);
                entry.mode = Mode::Shared;
                self.room.enter(entry.mode);
                *ends = now + entry.ttl;
                true
            }
            _ => false,
        }
    }

    /// Takes a holder or waiter out. True if it was a holder, ended or not.
    pub fn handle_leave(&mut self, key: &K) -> bool {
        match self.index.remove(key) {
            Some(Position::Holder(position)) => {
                if let Some(timed) = self.holders.remove(&position) {
                    self.room.leave(timed.entry.mode);
                }
                true
            }
            Some(Position::Waiter(position)) => {
                self.waiters.remove(&position);
                false
            }
            None => false,
        }
    }

    /// Removes claims that have ended by `now` and are in the way, and admits the head of the queue if
    /// there is room. Call it again until it returns `None`: several readers may be admitted together.
    pub fn poll_admitted(&mut self, now: Moment) -> Option<Entry<K>> {
        loop {
            let (&position, head) = self.waiters.first_key_value()?;
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
            let mut timed = self.waiters.remove(&position)?;
            timed.ends = now + timed.entry.ttl;
            self.room.enter(timed.entry.mode);
            self.index.insert(timed.entry.key.clone(), Position::Holder(position));
            let entry = timed.entry.clone();
            self.holders.insert(position, timed);
            return Some(entry);
        }
    }

    /// The claims that hold at `now`, with the ends of their terms.
    pub fn holders(&self, now: Moment) -> impl Iterator<Item = (&Entry<K>, Moment)> {
        live(&self.holders, now)
    }

    /// The claims that wait at `now`, in the order of the queue, with the ends of their entries.
    pub fn waiters(&self, now: Moment) -> impl Iterator<Item = (&Entry<K>, Moment)> {
        live(&self.waiters, now)
    }

    /// For the head of the queue: the moment at which the first holder's term ends.
    fn first_end(&self, position: u64) -> Option<Moment> {
        let (&head, _) = self.waiters.first_key_value()?;
        if head != position {
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
    claims: &BTreeMap<u64, Timed<K>>,
    now: Moment,
) -> impl Iterator<Item = (&Entry<K>, Moment)> {
    let live = claims.values().filter(move |timed| timed.ends > now);
    live.map(|timed| (&timed.entry, timed.ends))
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

    fn admitted(queue: &mut LockQueue<u32>, now: Moment) -> Vec<u32> {
        std::iter::from_fn(|| queue.poll_admitted(now)).map(|entry| entry.key).collect()
    }

    fn queue_of(modes: &[Mode]) -> LockQueue<u32> {
        let mut queue = LockQueue::default();
        for (key, mode) in modes.iter().enumerate() {
            queue.handle_join(entry(key as u32, *mode, 100), at(0), LONG);
        }
        queue
    }

    #[test]
    fn a_reader_behind_a_writer_waits_behind_it() {
        use Mode::{Exclusive, Shared};
        let mut queue = queue_of(&[Shared, Shared, Exclusive, Shared]);
        assert_eq!(admitted(&mut queue, at(1)), [0, 1]);
        queue.handle_leave(&0);
        assert_eq!(admitted(&mut queue, at(2)), []);
        queue.handle_leave(&1);
        assert_eq!(admitted(&mut queue, at(3)), [2]);
        queue.handle_leave(&2);
        assert_eq!(admitted(&mut queue, at(4)), [3]);
    }

    #[test]
    fn a_writer_that_becomes_a_reader_lets_in_the_readers_before_the_next_writer() {
        use Mode::{Exclusive, Shared};
        let mut queue = queue_of(&[Exclusive, Shared, Shared, Exclusive, Shared]);
        assert_eq!(admitted(&mut queue, at(0)), [0]);
        for _ in 0..2 {
            assert!(queue.handle_downgrade(&0, at(50)), "also when it is asked for again");
        }
        assert_eq!(admitted(&mut queue, at(50)), [1, 2]);
        assert_eq!(queue.state(&0, at(149)), ClaimState::Holds(at(150)), "the term starts anew");
        for reader in [1, 2] {
            queue.handle_leave(&reader);
        }
        assert_eq!(admitted(&mut queue, at(51)), [], "the writer waits for it as for any reader");
        queue.handle_leave(&0);
        assert_eq!(admitted(&mut queue, at(52)), [3]);
    }

    #[test]
    fn only_a_live_hold_is_downgraded_and_no_permit() {
        let mut queue = queue_of(&[Mode::Exclusive, Mode::Exclusive]);
        admitted(&mut queue, at(0));
        assert!(!queue.handle_downgrade(&1, at(1)), "the claim waits");
        assert!(!queue.handle_downgrade(&7, at(1)), "the claim is not there");
        assert!(!queue.handle_downgrade(&0, at(100)), "the term has ended");
        let mut permits = queue_of(&[Mode::Permits { take: 1, of: 1 }]);
        admitted(&mut permits, at(0));
        assert!(!permits.handle_downgrade(&0, at(1)));
        check(&permits, at(1));
    }

    #[test]
    fn a_large_request_at_the_head_is_not_starved_by_small_ones() {
        let (one, all) = (Mode::Permits { take: 1, of: 3 }, Mode::Permits { take: 3, of: 3 });
        let mut queue = queue_of(&[one, all, one]);
        assert_eq!(admitted(&mut queue, at(0)), [0]);
        queue.handle_leave(&0);
        assert_eq!(admitted(&mut queue, at(0)), [1]);
    }

    #[test]
    fn a_waiter_that_does_not_ask_again_is_skipped() {
        let mut queue = queue_of(&[Mode::Exclusive]);
        assert_eq!(admitted(&mut queue, at(0)), [0]);
        queue.handle_join(entry(1, Mode::Exclusive, 100), at(0), Duration::from_secs(5));
        queue.handle_join(entry(2, Mode::Exclusive, 100), at(0), Duration::from_secs(9));
        queue.handle_join(entry(2, Mode::Exclusive, 100), at(4), Duration::from_secs(9));
        queue.handle_leave(&0);
        assert_eq!(admitted(&mut queue, at(12)), [2]);
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn the_head_knows_when_the_holder_ends_and_then_takes_over() {
        let mut queue = queue_of(&[Mode::Exclusive, Mode::Exclusive, Mode::Exclusive]);
        assert_eq!(admitted(&mut queue, at(0)), [0]);
        assert_eq!(queue.state(&1, at(1)), ClaimState::Waits(Some(at(100))));
        assert_eq!(queue.state(&2, at(1)), ClaimState::Waits(None));
        assert!(queue.handle_renew(&0, at(50)));
        assert_eq!(admitted(&mut queue, at(149)), []);
        assert_eq!(admitted(&mut queue, at(150)), [1]);
        assert!(!queue.handle_renew(&0, at(150)), "an ended holder cannot renew");
        assert_eq!(queue.state(&0, at(150)), ClaimState::Absent);
    }

    /// Every order of joining, leaving, downgrading and passing time among three claims, five steps deep: no
    /// claim holds beside one that the rule excludes, none overtakes, none is forgotten, and no writer gets
    /// in between a writer's hold and its hold as a reader.
    #[test]
    fn every_short_history_keeps_the_rule_and_the_order() {
        const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 2 }];
        const STEPS: usize = 10;
        for modes in 0..27usize {
            let mode_of = |key: u32| MODES[modes / 3usize.pow(key) % 3];
            for history in 0..STEPS.pow(5) {
                let mut code = history;
                let (mut queue, mut now) = (LockQueue::default(), 0);
                let mut arrivals: Vec<u32> = Vec::new();
                for _ in 0..5 {
                    let step = code % STEPS;
                    code /= STEPS;
                    let key = (step % 3) as u32;
                    match step {
                        0..3 => {
                            let before = queue.state(&key, at(now));
                            if !queue.handle_renew(&key, at(now)) {
                                queue.handle_join(entry(key, mode_of(key), 3), at(now), LONG);
                            }
                            if before == ClaimState::Absent {
                                arrivals.retain(|other| *other != key);
                                arrivals.push(key);
                            }
                        }
                        3..6 => {
                            queue.handle_leave(&key);
                            arrivals.retain(|other| *other != key);
                        }
                        6..9 => {
                            let holds = matches!(queue.state(&key, at(now)), ClaimState::Holds(_));
                            let done = queue.handle_downgrade(&key, at(now));
                            assert_eq!(done, holds && !mode_of(key).is_permits());
                            let state = queue.state(&key, at(now));
                            assert_eq!(matches!(state, ClaimState::Holds(_)), holds, "kept");
                        }
                        _ => now += 2,
                    }
                    for new in admitted(&mut queue, at(now)) {
                        let overtaken = arrivals.iter().take_while(|other| **other != new);
                        for other in overtaken {
                            let state = queue.state(other, at(now));
                            assert!(!matches!(state, ClaimState::Waits(_)), "{new} overtook");
                        }
                    }
                    check(&queue, at(now));
                }
            }
        }
    }

    fn check(queue: &LockQueue<u32>, now: Moment) {
        let mut room = Occupancy::default();
        for (holder, _) in queue.holders(now) {
            assert!(room.admits(holder.mode), "{:?} holds where it may not", holder.key);
            room.enter(holder.mode);
        }
        if let Some((head, _)) = queue.waiters(now).next() {
            assert!(!room.admits(head.mode), "{:?} waits though there is room", head.key);
        }
    }

    proptest! {
        #[test]
        fn long_histories_keep_the_rule(
            steps in prop::collection::vec((0u32..12, 0u8..7, 0u64..4), 1..300),
        ) {
            let mut queue = LockQueue::default();
            let mut now = 0;
            for (key, step, pause) in steps {
                now += pause;
                let mode = match key % 4 {
                    0 => Mode::Exclusive,
                    1 => Mode::Shared,
                    _ => Mode::Permits { take: key % 3 + 1, of: 4 },
                };
                match step {
                    0..3 => queue.handle_join(entry(key, mode, 7), at(now), Duration::from_secs(20)),
                    3 => drop(queue.handle_renew(&key, at(now))),
                    4 => drop(queue.handle_downgrade(&key, at(now))),
                    _ => drop(queue.handle_leave(&key)),
                }
                admitted(&mut queue, at(now));
                check(&queue, at(now));
            }
            for key in 0..12 {
                queue.handle_leave(&key);
            }
            prop_assert!(queue.is_empty());
        }
    }
}
