//! What one process knows of a lock's queue of ordered entries, and what it must do next so that
//! its own waiters are admitted: list the queue, or watch some entries.
//!
//! The engine orders the entries, new ones come last, and whether an entry is admitted follows from the
//! entries before it ([`admitted`]). So what was listed once stays a superset of what is there, up to the
//! order that the listing covers; and an entry that is admitted by a superset of what is before it is
//! admitted. An exclusive entry may become a shared one, never the other way round, so an old view may
//! keep a claim out, but never admits one. A process with many waiters needs one listing for all of them,
//! and watches on behalf of the first of them only: no later one can be admitted before it.

use std::collections::BTreeMap;

use crate::{Mode, Occupancy};

/// An entry's position in its queue: lower comes first, and later entries have higher orders, also when
/// the queue was deleted and made anew in between. Wide enough for an engine that must put the
/// identity of the queue in front of its own numbers.
pub type Order = i128;

/// How many entries of a queue hold the lock: entries are admitted in their order, and the first that
/// finds no room keeps all later ones out. An entry that is admitted stays so: new entries come after it,
/// and those that leave only make room.
pub fn admitted(queue: impl IntoIterator<Item = Mode>) -> usize {
    let mut room = Occupancy::default();
    let enters = |mode: &Mode| {
        let fits = room.admits(*mode);
        if fits {
            room.enter(*mode);
        }
        fits
    };
    queue.into_iter().take_while(enters).count()
}

/// One process's view of a queue. The process's own waiting entries are its *waiters*.
#[derive(Clone, Debug)]
pub struct OrderedQueue {
    entries: BTreeMap<Order, Known>,
    /// The orders of the waiters among the entries.
    waiters: BTreeMap<Order, Waiter>,
    /// Every entry up to this order is among `entries`, unless it is gone.
    covers: Option<Order>,
    /// Something happened that only a listing shows.
    stale: bool,
    /// A listing is under way.
    listing: bool,
    /// How many watched entries in a row turned out to be gone.
    missing: u32,
    /// A listing arrived since the last step.
    listed: bool,
    /// The queue as a whole is watched, since before the last listing.
    queue_watched: bool,
    /// How many holders are watched one by one. If more are in a waiter's way, the queue is watched.
    most_watched: usize,
}

impl Default for OrderedQueue {
    fn default() -> Self {
        Self::watching_at_most(Self::MOST_WATCHED)
    }
}

#[derive(Clone, Copy, Debug)]
struct Known {
    mode: Mode,
    /// Watched, and there since the watch was set: its removal would be known. An entry may be watched
    /// before its process has heard that it is one of its own waiters.
    watched: bool,
    /// Watched for a change since before the last listing.
    change_watched: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Waiter {
    /// Its own entry was in a listing that arrived just now.
    fresh: bool,
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The waiters that are admitted now, in their order. They are waiters no more.
    pub admitted: Vec<Order>,
    /// Whether to list the queue: call [`OrderedQueue::handle_listing_begun`] before.
    pub list: bool,
    /// Whether to watch the queue as a whole for removals. To begin such a watch, list the queue after
    /// the watch is in place, and call [`OrderedQueue::handle_queue_watched`] with the listing.
    pub watch_queue: bool,
    /// The entries to watch. Watches on other entries can end.
    pub watch: Vec<(Order, WatchFor)>,
}

/// What to watch an entry for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFor {
    /// Its removal.
    Removal,
    /// Its removal, or a write: an entry that had to wait is written to when it is admitted.
    Change,
    /// Its removal, or a write: an exclusive entry is written to when it becomes a shared one.
    Downgrade,
}

/// What keeps a waiter out.
enum Obstacle {
    /// This entry, until it is removed.
    Entry(Order),
    /// This exclusive entry, until it is removed or becomes a shared one.
    Writer(Order),
    /// This entry waits too: until it is admitted or removed.
    Waiting(Order),
    /// All entries before it hold, this many: until any of them is removed.
    Holders(usize),
}

impl OrderedQueue {
    /// How many watched entries in a row may turn out to be gone before the queue is listed again.
    const MISSING: u32 = 8;

    /// A watch on each of a few holders tells which of them left; a watch on the queue costs one request
    /// and a listing, however many there are.
    const MOST_WATCHED: usize = 32;

    /// An empty view, which asks for watches on at most so many holders.
    pub const fn watching_at_most(holders: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            waiters: BTreeMap::new(),
            covers: None,
            stale: false,
            listing: false,
            missing: 0,
            listed: false,
            queue_watched: false,
            most_watched: holders,
        }
    }

    /// Whether the process has no waiter in the queue.
    pub fn is_idle(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many waiters the process has in the queue.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Whether this waiter is the first of the process.
    pub fn is_first(&self, order: Order) -> bool {
        self.waiters.keys().next() == Some(&order)
    }

    /// A waiter of this process has joined the queue.
    pub fn handle_entered(&mut self, order: Order, mode: Mode) {
        self.entries.entry(order).or_insert(Known { mode, watched: false, change_watched: false });
        self.waiters.entry(order).or_default();
    }

    /// A listing is about to be sent: it shows all that happened before.
    pub fn handle_listing_begun(&mut self) {
        self.listing = true;
        self.stale = false;
    }

    /// The listing that was begun has ended; if it failed, another one is needed.
    pub fn handle_listing_ended(&mut self, failed: bool) {
        self.listing = false;
        self.stale |= failed;
    }

    /// The queue was listed: these entries are there, and up to `covers` no others. Returns the
    /// waiters that are not there any more.
    pub fn handle_listed(
        &mut self,
        listed: impl IntoIterator<Item = (Order, Mode)>,
        covers: Order,
    ) -> Vec<Order> {
        let later = self.entries.split_off(&covers.saturating_add(1));
        let before = std::mem::replace(&mut self.entries, later);
        let mut overtaken = false;
        for (order, mode) in listed {
            let known = before.get(&order);
            // The listing is older than the news that this entry was removed.
            overtaken |= known.is_none() && self.is_covered(order);
            let (watched, change_watched) =
                known.map_or((false, false), |it| (it.watched, it.change_watched));
            self.entries.insert(order, Known { mode, watched, change_watched });
        }
        // A watch on the entry itself would find it missing.
        self.stale |= overtaken && self.queue_watched;
        self.covers = Some(self.covers.map_or(covers, |known| known.max(covers)));
        self.missing = 0;
        self.listed = true;
        let mut gone = Vec::new();
        let entries = &self.entries;
        self.waiters.retain(|order, waiter| {
            waiter.fresh = entries.contains_key(order) && *order <= covers;
            let there = entries.contains_key(order);
            if !there {
                gone.push(*order);
            }
            there
        });
        gone
    }

    /// An exclusive entry has become a shared one.
    pub fn handle_downgraded(&mut self, order: Order) {
        if let Some(known) = self.entries.get_mut(&order) {
            known.mode = Mode::Shared;
        }
    }

    /// The watch of an entry is about to be set again, only to see whether the entry is there. What is
    /// written to it in between shows in the next listing.
    pub fn handle_checked(&mut self, order: Order) {
        if let Some(known) = self.entries.get_mut(&order) {
            known.watched = false;
        }
    }

    /// An entry is gone: it was removed, or a watch found it missing.
    pub fn handle_removed(&mut self, order: Order) {
        self.entries.remove(&order);
        self.waiters.remove(&order);
    }

    /// An entry that was to be watched is not there.
    pub fn handle_missing(&mut self, order: Order) {
        self.handle_removed(order);
        self.missing += 1;
        if self.missing > Self::MISSING {
            self.stale = true;
        }
    }

    /// A watch for a change of an entry is in place, and the entry was there afterwards.
    pub fn handle_watched(&mut self, order: Order, watched_for: WatchFor) {
        self.missing = 0;
        let Some(known) = self.entries.get_mut(&order) else { return };
        known.watched = true;
        if watched_for != WatchFor::Removal && !known.change_watched {
            known.change_watched = true;
            // The entry may have been admitted, or downgraded, between the listing and the watch.
            self.stale = true;
        }
    }

    /// The watch of an entry has ended, for whatever reason.
    pub fn handle_unwatched(&mut self, order: Order) {
        if let Some(known) = self.entries.get_mut(&order) {
            (known.watched, known.change_watched) = (false, false);
        }
    }

    /// The queue as a whole is watched for removals, since before the listing that has just arrived.
    pub const fn handle_queue_watched(&mut self) {
        self.queue_watched = true;
    }

    /// The watch on the queue as a whole has ended, by an event or otherwise.
    pub const fn handle_queue_unwatched(&mut self) {
        self.queue_watched = false;
    }

    /// Something happened that the view does not show: an entry was written to, or a notification may
    /// have been lost.
    pub fn handle_stale(&mut self) {
        self.stale = true;
    }

    /// What to do next. Call it after everything that was handled.
    pub fn step(&mut self) -> Step {
        let mut step = Step::default();
        while let Some((&order, &waiter)) = self.waiters.first_key_value()
            && self.is_covered(order)
            && self.obstacle(order).is_none()
            && (waiter.fresh || self.entries.get(&order).is_some_and(|known| known.watched))
        {
            self.waiters.remove(&order);
            step.admitted.push(order);
        }
        if std::mem::take(&mut self.listed) {
            self.waiters.values_mut().for_each(|waiter| waiter.fresh = false);
        }
        let mut orders = self.waiters.keys().copied();
        let Some(first) = orders.next() else { return step };
        let second = orders.next();
        if self.is_covered(first) {
            match self.obstacle(first) {
                None => {}
                Some(Obstacle::Entry(order)) => step.watch.push((order, WatchFor::Removal)),
                Some(Obstacle::Writer(order)) => step.watch.push((order, WatchFor::Downgrade)),
                Some(Obstacle::Waiting(order)) => step.watch.push((order, WatchFor::Change)),
                Some(Obstacle::Holders(count)) if count > self.most_watched => {
                    step.watch_queue = true;
                }
                Some(Obstacle::Holders(_)) => {
                    let before = self.entries.range(..first);
                    step.watch.extend(before.map(|(order, _)| (*order, WatchFor::Removal)));
                }
            }
        }
        // The second waiter is listed ahead of its turn, so that a hand-off to it need not wait for a
        // listing.
        let needed = self.stale || !self.is_covered(second.unwrap_or(first));
        let unwatched = step.watch_queue && !self.queue_watched;
        step.list = (needed || unwatched) && !self.listing;
        for own in [Some(first), second].into_iter().flatten() {
            if step.watch.iter().all(|(order, _)| *order != own) {
                step.watch.push((own, WatchFor::Removal));
            }
        }
        step
    }

    fn is_covered(&self, order: Order) -> bool {
        self.covers.is_some_and(|covers| order <= covers)
    }

    fn obstacle(&self, order: Order) -> Option<Obstacle> {
        let mode = self.entries.get(&order)?.mode;
        let mut before = self.entries.range(..order);
        let (&last, _) = before.clone().next_back()?;
        match mode {
            Mode::Exclusive => Some(Obstacle::Entry(last)),
            Mode::Shared => {
                let other = before.rfind(|(_, known)| known.mode != Mode::Shared);
                other.map(|(order, known)| match known.mode {
                    Mode::Exclusive => Obstacle::Writer(*order),
                    _ => Obstacle::Entry(*order),
                })
            }
            Mode::Permits { .. } => {
                let count = before.clone().count();
                let modes = before.map(|(_, known)| known.mode).chain([mode]);
                match admitted(modes) {
                    inside if inside > count => None,
                    inside if inside == count => Some(Obstacle::Holders(count)),
                    _ => Some(Obstacle::Waiting(last)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
