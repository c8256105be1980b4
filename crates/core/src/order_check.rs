//! Warns of two locks that a process takes in both orders.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::LockName;
use crate::identity::StoreIdentity;
use crate::lease::Lease;
use crate::task::{CallSite, TaskKey};

/// Remembers in which orders the tasks of a process wait for locks while they hold others.
///
/// Bounded: of more than [`PAIRS`](Self::PAIRS) pairs of names the oldest are forgotten, and of the holds of
/// one task the first [`HOLDS`](Self::HOLDS) count.
#[derive(Debug, Default)]
pub(crate) struct OrderCheck(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    held: HashMap<TaskKey, Vec<(StoreIdentity, Arc<Lease>)>>,
    orders: HashMap<(Key, Key), Taken>,
    oldest: VecDeque<(Key, Key)>,
}

/// A lock of any store.
type Key = (StoreIdentity, LockName);

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

    /// The one of this process, which all clients that check share.
    pub(crate) fn of_process() -> &'static Self {
        static CHECK: LazyLock<OrderCheck> = LazyLock::new(OrderCheck::default);
        &CHECK
    }

    /// The task that runs now begins to wait for a lock.
    pub(crate) fn waits(&self, store: &StoreIdentity, name: &LockName, at: CallSite) {
        let seen = &mut *self.0.lock();
        let Some(held) = seen.held.get(&TaskKey::current()) else { return };
        let then = (store.clone(), name.clone());
        let before: Vec<(Key, CallSite)> = held
            .iter()
            .filter(|(_, lease)| lease.acquired_by.home().is_some())
            .map(|(store, lease)| ((store.clone(), lease.claim.name.clone()), lease.acquired_by.at))
            .filter(|(first, _)| *first != then)
            .take(Self::HOLDS)
            .collect();
        for (first, first_at) in before {
            seen.note(first, first_at, &then, at);
        }
    }

    /// The task that runs now holds a lock from now on.
    pub(crate) fn holds(&self, store: &StoreIdentity, lease: &Arc<Lease>) {
        if let Some(task) = lease.acquired_by.home() {
            self.0.lock().held.entry(task).or_default().push((store.clone(), Arc::clone(lease)));
        }
    }

    /// A hold has ended.
    pub(crate) fn gave_up(&self, ended: &Lease) {
        if let Entry::Occupied(mut held) = self.0.lock().held.entry(ended.acquired_by.by) {
            held.get_mut().retain(|(_, lease)| lease.claim.owner != ended.claim.owner);
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
    fn note(&mut self, first: Key, first_at: CallSite, then: &Key, then_at: CallSite) {
        let opposite = (then.clone(), first);
        let other = self.orders.get_mut(&opposite);
        let warned = other.is_some();
        if let Some(other) = other
            && !std::mem::replace(&mut other.warned, true)
        {
            let ((_, then), (_, first)) = &opposite;
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
    use crate::{Claim, Clock, MemoryStore, Moment, Store};

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
        let store = StoreIdentity::of(&(Arc::new(MemoryStore::new()) as Arc<dyn Store>));
        for number in 0..3 * OrderCheck::PAIRS {
            let held = lease(&name(number));
            check.holds(&store, &held);
            check.waits(&store, &name(number + 1), site);
            check.gave_up(&held);
        }
        assert_eq!(check.sizes(), (0, OrderCheck::PAIRS, OrderCheck::PAIRS));
        let many: Vec<_> = (0..100).map(|number| lease(&name(number))).collect();
        many.iter().for_each(|lease| check.holds(&store, lease));
        check.waits(&store, &name(1_000_000), site);
        let last = |then: &Key| then.1 == name(1_000_000);
        let noted = check.0.lock().oldest.iter().filter(|(_, then)| last(then)).count();
        assert_eq!(noted, OrderCheck::HOLDS);
    }
}
