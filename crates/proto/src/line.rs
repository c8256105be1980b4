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
    pub fn handle_join(&mut self, entry: Entry<K>, now: Moment, patience: Duration) {
        if let Some(Seat::Waiter(place)) = self.seats.get(&entry.key)
            && let Some(member) = self.waiters.get_mut(place)
            && member.ends > now
        {
            member.ends = now + patience;
            return;
        }
        self.handle_leave(&entry.key);
        self.arrivals += 1;
        self.seats.insert(entry.key.clone(), Seat::Waiter(self.arrivals));
        self.waiters.insert(self.arrivals, Member { entry, ends: now + patience });
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
