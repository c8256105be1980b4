//! The longest time that a lock was wanted and had no holder.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Grant, Stamp};
use crate::judge::belief_end;

/// An acquire that got no lock.
#[derive(Clone, Debug)]
struct Refusal {
    lock: String,
    invoked: Stamp,
    returned: Stamp,
}

/// A lock, as of the last grant or refusal that was looked at.
#[derive(Debug, Default)]
struct State {
    /// When the belief of its last holder ended.
    free: Stamp,
    /// The first moment after `free` in which an acquire was under way that did not get it.
    wanted: Option<Stamp>,
}

/// Measures gaps window by window.
///
/// A gap begins with the first acquire of a free lock. It ends with the next grant. While there is none, each further
/// refusal makes it longer.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// The longest gap so far, in nanoseconds.
    pub(super) worst: u64,
    refusals: Vec<Refusal>,
    locks: BTreeMap<String, State>,
    /// Grants that ended a gap, or began without one.
    seen: BTreeSet<String>,
}

impl Gaps {
    /// Notes that an acquire did not get the lock.
    pub(super) fn refused(&mut self, lock: &str, invoked: Stamp, returned: Stamp) {
        self.refusals.push(Refusal { lock: lock.to_owned(), invoked, returned });
    }

    /// Looks at what has happened before `until`. `grants` are those that may still matter, old ones included.
    pub(super) fn measure<'a>(&mut self, grants: impl Iterator<Item = &'a Grant>, until: Stamp) {
        let grants: Vec<&Grant> = grants.filter(|grant| grant.held < until).collect();
        let (refusals, later): (Vec<_>, Vec<_>) =
            self.refusals.drain(..).partition(|refusal| refusal.returned < until);
        self.refusals = later;
        let mut events: Vec<(Stamp, Event<'_>)> = Vec::new();
        events.extend(refusals.iter().map(|it| (it.returned, Event::Refusal(it))));
        events.extend(grants.iter().map(|&it| (it.held, Event::Grant(it))));
        events.sort_by_key(|(at, _)| *at);
        let mut open: BTreeSet<&str> = BTreeSet::new();
        for (_, event) in events {
            match event {
                Event::Refusal(refusal) if open.contains(&*refusal.lock) => {
                    // When the holder reports its end, the lock may prove to have been free.
                    self.refusals.push(refusal.clone());
                }
                Event::Refusal(refusal) => self.prolong(refusal),
                Event::Grant(grant) => {
                    self.end(grant);
                    match belief_end(grant) {
                        Stamp::MAX => open.insert(&grant.lock),
                        _ => open.remove(&*grant.lock),
                    };
                }
            }
        }
        let known: BTreeSet<&str> = grants.iter().map(|grant| &*grant.id).collect();
        self.seen.retain(|id| known.contains(&**id));
    }

    fn prolong(&mut self, refusal: &Refusal) {
        let state = self.locks.entry(refusal.lock.clone()).or_default();
        if refusal.returned > state.free {
            let wanted = *state.wanted.get_or_insert(refusal.invoked.max(state.free));
            self.worst = self.worst.max(refusal.returned.saturating_sub(wanted));
        }
    }

    fn end(&mut self, grant: &Grant) {
        let state = self.locks.entry(grant.lock.clone()).or_default();
        if self.seen.insert(grant.id.clone()) {
            let asked = grant.invoked.max(state.free);
            let begin = state.wanted.take().map_or(asked, |wanted| wanted.min(asked));
            self.worst = self.worst.max(grant.held.saturating_sub(begin));
        }
        let end = belief_end(grant);
        if end != Stamp::MAX {
            state.free = state.free.max(end);
        }
    }
}

enum Event<'a> {
    Grant(&'a Grant),
    Refusal(&'a Refusal),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(id: &str, invoked: Stamp, held: Stamp, released: Option<Stamp>) -> Grant {
        let (id, lock) = (id.to_owned(), "a".to_owned());
        Grant { id, lock, invoked, held, released, ..Grant::default() }
    }

    fn worst(refusals: &[(Stamp, Stamp)], grants: &[Grant]) -> u64 {
        let mut gaps = Gaps::default();
        refusals.iter().for_each(|&(invoked, returned)| gaps.refused("a", invoked, returned));
        gaps.measure(grants.iter(), 1_000);
        gaps.worst
    }

    #[test]
    fn a_gap_begins_with_the_first_acquire_that_found_the_lock_free_and_was_refused() {
        let grants = [grant("1", 1, 10, Some(100)), grant("2", 590, 600, Some(610))];
        assert_eq!(worst(&[(150, 200), (250, 300)], &grants), 450);
        assert_eq!(worst(&[(50, 200), (250, 300)], &grants), 500, "one that waited since before");
        assert_eq!(worst(&[(20, 70)], &grants), 10, "the lock was held");
    }

    #[test]
    fn a_lock_that_is_never_granted_again_has_a_gap_until_the_last_refusal() {
        assert_eq!(worst(&[(150, 200), (850, 900)], &[grant("1", 1, 10, Some(100))]), 750);
        assert_eq!(worst(&[(150, 200), (850, 900)], &[]), 750, "never granted at all");
    }

    #[test]
    fn a_free_lock_that_no_process_asks_for_has_no_gap() {
        let grants = [grant("1", 1, 10, Some(100)), grant("2", 590, 600, None)];
        assert_eq!(worst(&[], &grants), 10);
    }

    #[test]
    fn locks_are_measured_apart() {
        let other = Grant { lock: "b".into(), ..grant("2", 300, 310, Some(320)) };
        assert_eq!(worst(&[(150, 200), (850, 900)], &[grant("1", 1, 10, Some(100)), other]), 750);
    }

    #[test]
    fn a_gap_spans_windows_and_old_grants_do_not_end_it() {
        let mut gaps = Gaps::default();
        let first = [grant("1", 1, 10, Some(100))];
        gaps.refused("a", 150, 200);
        gaps.measure(first.iter(), 300);
        gaps.refused("a", 350, 400);
        gaps.measure(first.iter(), 500);
        let both = [first[0].clone(), grant("2", 790, 800, Some(810))];
        gaps.measure(both.iter(), 900);
        assert_eq!(gaps.worst, 650);
    }

    #[test]
    fn a_refusal_beside_a_holder_whose_end_is_unknown_is_looked_at_again() {
        let mut gaps = Gaps::default();
        gaps.refused("a", 150, 200);
        gaps.measure([grant("1", 1, 10, None)].iter(), 300);
        assert_eq!(gaps.worst, 9);
        let ended = [grant("1", 1, 10, Some(100)), grant("2", 590, 600, Some(610))];
        gaps.measure(ended.iter(), 900);
        assert_eq!(gaps.worst, 450);
    }
}
