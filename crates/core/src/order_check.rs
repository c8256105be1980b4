//! Warns of two locks that a process takes in both orders.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::LockName;
use crate::lease::Lease;
use crate::task::{CallSite, TaskKey};

/// Remembers in which orders the tasks of a client wait for locks while they hold others.
///
/// Bounded: of more than [`PAIRS`](Self::PAIRS) pairs of names the oldest are forgotten, and of the holds of
/// one task the first [`HOLDS`](Self::HOLDS) count.
#[derive(Debug, Default)]
pub(crate) struct OrderCheck(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    held: HashMap<TaskKey, Vec<Arc<Lease>>>,
    orders: HashMap<(LockName, LockName), Taken>,
    oldest: VecDeque<(LockName, LockName)>,
}

/// Where a task took one lock, and then another one.
#[derive(Clone, Copy, Debug)]
struct Taken {
    first: CallSite,
    then: CallSite,
    /// The opposite order was seen as well, and reported.
    warned: bool,
}

impl OrderCheck {
    const PAIRS: usize = 4_096;
    const HOLDS: usize = 16;

    /// The task that runs now begins to wait for a lock.
    pub(crate) fn waits(&self, name: &LockName, at: CallSite) {
        let seen = &mut *self.0.lock();
        let Some(held) = seen.held.get(&TaskKey::current()) else { return };
        let before: Vec<(LockName, CallSite)> = held
            .iter()
            .filter(|lease| lease.acquired_by.home().is_some() && lease.claim.name != *name)
            .take(Self::HOLDS)
            .map(|lease| (lease.claim.name.clone(), lease.acquired_by.at))
            .collect();
        for (first, first_at) in before {
            seen.note(first, first_at, name, at);
        }
    }

    /// The task that runs now holds a lock from now on.
    pub(crate) fn holds(&self, lease: &Arc<Lease>) {
        if let Some(task) = lease.acquired_by.home() {
            self.0.lock().held.entry(task).or_default().push(Arc::clone(lease));
        }
    }

    /// A hold has ended.
    pub(crate) fn gave_up(&self, ended: &Lease) {
        if let Entry::Occupied(mut held) = self.0.lock().held.entry(ended.acquired_by.by) {
            held.get_mut().retain(|lease| lease.claim.owner != ended.claim.owner);
            if held.get().is_empty() {
                held.remove();
            }
        }
    }

    #[cfg(test)]
    fn sizes(&self) -> (usize, usize, usize) {
        let seen = self.0.lock();
        (seen.held.len(), seen.orders.len(), seen.oldest.len())
    }
}

impl Seen {
    fn note(&mut self, first: LockName, first_at: CallSite, then: &LockName, then_at: CallSite) {
        let opposite = (then.clone(), first);
        let other = self.orders.get_mut(&opposite);
        let warned = other.is_some();
        if let Some(other) = other
            && !std::mem::replace(&mut other.warned, true)
        {
            let (then, first) = &opposite;
            tracing::warn!(
                %first, %then, %first_at, %then_at,
                opposite_first_at = %other.first, opposite_then_at = %other.then,
                "two locks are taken in both orders: {first:?} at {first_at} and then {then:?} at {then_at}, \
                 but {then:?} at {} and then {first:?} at {}. Two tasks that do so at the same time wait for each \
                 other. Take them in one order, or with a `MultiLock`",
                other.first, other.then
            );
        }
        let (then, first) = opposite;
        let pair = (first, then);
        if let Entry::Vacant(entry) = self.orders.entry(pair.clone()) {
            entry.insert(Taken { first: first_at, then: then_at, warned });
            self.oldest.push_back(pair);
        }
        if self.oldest.len() > OrderCheck::PAIRS
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.orders.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::WeakBackground;
    use crate::{Claim, Clock, Moment};

    fn lease(name: &LockName) -> Arc<Lease> {
        let claim = Claim { name: name.clone(), ..Claim::sample() };
        let (end, background) = (Moment::from_nanos(u64::MAX), WeakBackground::default());
        Arc::new(Lease::new(claim, None, end, None, Clock::Boot, background))
    }

    #[test]
    fn its_memory_is_bounded_by_a_number_of_pairs_and_by_what_is_held() {
        let check = OrderCheck::default();
        let name = |number: usize| LockName::new(&format!("orders/{number}")).unwrap();
        let site = std::panic::Location::caller();
        for number in 0..3 * OrderCheck::PAIRS {
            let held = lease(&name(number));
            check.holds(&held);
            check.waits(&name(number + 1), site);
            check.gave_up(&held);
        }
        assert_eq!(check.sizes(), (0, OrderCheck::PAIRS, OrderCheck::PAIRS));
        let many: Vec<_> = (0..100).map(|number| lease(&name(number))).collect();
        many.iter().for_each(|lease| check.holds(lease));
        check.waits(&name(1_000_000), site);
        let noted =
            check.0.lock().oldest.iter().filter(|(_, then)| *then == name(1_000_000)).count();
        assert_eq!(noted, OrderCheck::HOLDS);
    }
}
