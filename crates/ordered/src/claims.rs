//! The claims of one client that have, or may have, entries in the engine, and when each ends.
//!
//! A session lives on for all its claims. So the entry of a claim that was not renewed in time is
//! removed by itself, as if the claim had a session of its own.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Claim, Grant, Hold, Moment, now};
use tenure_core::{Error, OwnerId, Token};
use tenure_proto::Order;
use tokio::sync::Notify;

use crate::engine::{Engine, Entry, Session};

/// A claim, and what is known of its entry.
pub(crate) struct Tracked<E: Engine> {
    pub(crate) claim: Claim,
    pub(crate) session: Arc<E::Session>,
    pub(crate) state: State<E::Key>,
    /// Why the claim will not be admitted, if its queue can no longer be followed.
    pub(crate) fault: Option<Error>,
    /// Since when it holds, if it had to wait and its entry does not say so yet.
    pub(crate) unrecorded: Option<Moment>,
    /// Since when it holds.
    pub(crate) held_since: Option<Moment>,
    /// Notified when `state` changes.
    pub(crate) changed: Arc<Notify>,
    /// Distinguishes this registration from earlier and later ones of the same owner.
    pub(crate) registration: u64,
}

/// The state of a claim.
#[derive(Clone, Debug)]
pub(crate) enum State<K> {
    /// A request whose outcome is unknown may have added its entry, or may still do so.
    Unsure,
    Waits(Entry<K>, Token),
    Holds(Entry<K>, Token),
}

impl<E: Engine> Clone for Tracked<E> {
    fn clone(&self) -> Self {
        Self {
            claim: self.claim.clone(),
            session: Arc::clone(&self.session),
            state: self.state.clone(),
            fault: self.fault.clone(),
            unrecorded: self.unrecorded,
            held_since: self.held_since,
            changed: Arc::clone(&self.changed),
            registration: self.registration,
        }
    }
}

impl<E: Engine> Tracked<E> {
    /// A claim that is about to be sent.
    pub(crate) fn new(claim: &Claim, session: &Arc<E::Session>) -> Self {
        Self {
            claim: claim.clone(),
            session: Arc::clone(session),
            state: State::Unsure,
            fault: None,
            unrecorded: None,
            held_since: None,
            changed: Arc::default(),
            registration: 0,
        }
    }

    fn has_entry(&self, order: Order) -> bool {
        match &self.state {
            State::Unsure => false,
            State::Waits(entry, _) | State::Holds(entry, _) => entry.order == order,
        }
    }
}

/// All claims of one client.
pub(crate) struct Claims<E: Engine> {
    table: Mutex<Table<E>>,
    /// Notified when a claim ends earlier than all that were known.
    pub(crate) earlier: Notify,
}

struct Table<E: Engine> {
    by_owner: HashMap<OwnerId, Row<E>>,
    by_end: BTreeSet<(Moment, OwnerId)>,
    last: u64,
    /// When the task that removes expired claims wakes up by itself.
    alarm: Option<Moment>,
}

struct Row<E: Engine> {
    tracked: Tracked<E>,
    ends: Moment,
    /// How many calls of `wait` keep its place.
    waits: u32,
    /// For how long it keeps its place after the last of them.
    lease: Duration,
    /// It has expired and is being removed; it cannot be renewed.
    overdue: bool,
}

impl<E: Engine> Default for Claims<E> {
    fn default() -> Self {
        let table =
            Table { by_owner: HashMap::new(), by_end: BTreeSet::new(), last: 0, alarm: None };
        Self { table: Mutex::new(table), earlier: Notify::new() }
    }
}

impl<E: Engine> Claims<E> {
    /// Notes that a claim has, or is about to have, an entry until this moment.
    pub(crate) fn insert(&self, tracked: Tracked<E>, ends: Moment) -> Tracked<E> {
        self.add(tracked, ends, false)
    }

    /// Notes that a claim may have an entry that is to be removed.
    pub(crate) fn insert_overdue(&self, tracked: Tracked<E>) {
        self.add(tracked, now(), true);
    }

    fn add(&self, mut tracked: Tracked<E>, ends: Moment, overdue: bool) -> Tracked<E> {
        let owner = tracked.claim.owner;
        let mut table = self.table.lock();
        table.last += 1;
        tracked.registration = table.last;
        table.take(owner);
        let lease = Duration::ZERO;
        let row = Row { tracked: tracked.clone(), ends, waits: 0, lease, overdue };
        table.by_owner.insert(owner, row);
        table.by_end.insert((ends, owner));
        self.ring(&mut table, ends);
        tracked
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().by_owner.is_empty()
    }

    /// The claim, and whether it is being removed.
    pub(crate) fn find(&self, owner: OwnerId) -> Option<(Tracked<E>, bool)> {
        let table = self.table.lock();
        table.by_owner.get(&owner).map(|row| (row.tracked.clone(), row.overdue))
    }

    /// What changes when the claim's state does.
    pub(crate) fn changed(&self, owner: OwnerId) -> Option<Arc<Notify>> {
        let table = self.table.lock();
        table.by_owner.get(&owner).map(|row| Arc::clone(&row.tracked.changed))
    }

    /// Extends a claim's registration to this moment at least, and changes what is known of it. False: it
    /// is gone, or being removed.
    pub(crate) fn update(
        &self,
        owner: OwnerId,
        ends: Moment,
        change: impl FnOnce(&mut Tracked<E>),
    ) -> bool {
        self.change(owner, |row| {
            change(&mut row.tracked);
            Some(row.ends.max(ends))
        })
        .is_some()
    }

    /// Notes that a claim waits with this entry, and keeps its place for `lease` unless it is asked for
    /// again, or waited for.
    pub(crate) fn wait(
        &self,
        owner: OwnerId,
        lease: Duration,
        entered: Option<(Entry<E::Key>, Token)>,
    ) -> bool {
        let changed = self.change(owner, |row| {
            if let Some((entry, token)) = entered {
                row.tracked.state = State::Waits(entry, token);
            }
            // A claim that was admitted meanwhile keeps its own term, which its holder relies on.
            if let State::Holds(..) = row.tracked.state {
                return None;
            }
            row.lease = lease;
            (row.waits == 0).then(|| now() + lease)
        });
        changed.is_some()
    }

    /// Notes that a claim holds with this entry from now on, for its TTL: however long it was ready
    /// to wait. False: it is gone, or being removed.
    pub(crate) fn hold(&self, owner: OwnerId, entry: Entry<E::Key>, token: Token) -> bool {
        let changed = self.change(owner, |row| {
            let entered = now();
            if let State::Waits(..) = row.tracked.state {
                row.tracked.unrecorded = Some(entered);
            }
            row.tracked.held_since = Some(entered);
            row.tracked.state = State::Holds(entry, token);
            Some(entered + row.tracked.claim.ttl)
        });
        changed.is_some()
    }

    /// Keeps the place of a waiting claim until the answer is dropped.
    pub(crate) fn keep(&self, owner: OwnerId) -> Kept<'_, E> {
        self.change(owner, |row| {
            row.waits += 1;
            matches!(row.tracked.state, State::Waits(..)).then_some(FOREVER)
        });
        Kept { claims: self, owner }
    }

    /// Notes that a waiting claim is admitted. `None`: it is gone, or being removed, or does not
    /// wait with this entry.
    pub(crate) fn admit(&self, owner: OwnerId, order: Order) -> Option<Tracked<E>> {
        let entered = now();
        self.change(owner, |row| {
            let State::Waits(entry, token) = &row.tracked.state else { return None };
            if entry.order != order {
                return None;
            }
            row.tracked.state = State::Holds(entry.clone(), *token);
            (row.tracked.unrecorded, row.tracked.held_since) = (Some(entered), Some(entered));
            row.tracked.changed.notify_waiters();
            Some(entered + row.tracked.claim.ttl)
        })
        .filter(|tracked| matches!(&tracked.state, State::Holds(entry, _) if entry.order == order))
    }

    /// Notes why a waiting claim will not be admitted, and wakes it.
    pub(crate) fn fail(&self, owner: OwnerId, error: &Error) {
        self.change(owner, |row| {
            row.tracked.fault = Some(error.clone());
            row.tracked.changed.notify_waiters();
            None
        });
    }

    /// The grant of a claim that holds, dated by its session. From then on the entry stays for as
    /// long as the grant says.
    pub(crate) fn grant(&self, owner: OwnerId) -> Option<Grant> {
        let tracked = self.change(owner, |row| {
            let holds = matches!(row.tracked.state, State::Holds(..));
            holds.then(|| row.ends.max(now() + row.tracked.claim.ttl))
        })?;
        let State::Holds(_, token) = tracked.state else { return None };
        let since = Some(tracked.session.confirmed());
        Some(Grant::new(Some(token), since))
    }

    /// Changes what is known of a claim, and when it ends, if the change says so.
    fn change(
        &self,
        owner: OwnerId,
        change: impl FnOnce(&mut Row<E>) -> Option<Moment>,
    ) -> Option<Tracked<E>> {
        let mut table = self.table.lock();
        let row = table.by_owner.get_mut(&owner).filter(|row| !row.overdue)?;
        let Some(ends) = change(row) else { return Some(row.tracked.clone()) };
        let old = std::mem::replace(&mut row.ends, ends);
        let tracked = row.tracked.clone();
        table.by_end.remove(&(old, owner));
        table.by_end.insert((ends, owner));
        self.ring(&mut table, ends);
        Some(tracked)
    }

    fn ring(&self, table: &mut Table<E>, ends: Moment) {
        if table.alarm.is_none_or(|alarm| ends < alarm) {
            table.alarm = Some(ends);
            self.earlier.notify_one();
        }
    }

    /// Forgets a claim: its entry is gone. A later claim of the same owner stays.
    pub(crate) fn remove(&self, tracked: &Tracked<E>) {
        self.remove_if(tracked.claim.owner, |known| known.registration == tracked.registration);
    }

    /// Forgets the claim that has this entry, which is gone.
    pub(crate) fn forget(&self, owner: OwnerId, order: Order) {
        self.remove_if(owner, |known| known.has_entry(order));
    }

    fn remove_if(
        &self,
        owner: OwnerId,
        is_meant: impl FnOnce(&Tracked<E>) -> bool,
    ) -> Option<Tracked<E>> {
        let mut table = self.table.lock();
        table.by_owner.get(&owner).filter(|row| is_meant(&row.tracked))?;
        let removed = table.take(owner)?;
        removed.changed.notify_waiters();
        Some(removed)
    }

    /// Whether the claim is still registered: it was not forgotten, nor replaced by a new claim of its
    /// owner.
    pub(crate) fn is_registered(&self, tracked: &Tracked<E>) -> bool {
        self.is_row(tracked, |_| true)
    }

    /// Whether the claim is still registered, and is not being removed.
    pub(crate) fn is_live(&self, tracked: &Tracked<E>) -> bool {
        self.is_row(tracked, |row| !row.overdue)
    }

    fn is_row(&self, tracked: &Tracked<E>, is_so: impl FnOnce(&Row<E>) -> bool) -> bool {
        let table = self.table.lock();
        let row = table.by_owner.get(&tracked.claim.owner);
        row.is_some_and(|row| row.tracked.registration == tracked.registration && is_so(row))
    }

    /// Forgets the claim whose entry was evicted.
    pub(crate) fn evicted(&self, hold: Hold) -> Option<Tracked<E>> {
        let token_of = |tracked: &Tracked<E>| match &tracked.state {
            State::Unsure => None,
            State::Waits(_, token) | State::Holds(_, token) => Some(*token),
        };
        self.remove_if(hold.owner, |known| token_of(known) == hold.token)
    }

    /// Forgets the claims on a session that is over, and returns them.
    pub(crate) fn remove_all_on(&self, session: &Arc<E::Session>) -> Vec<Tracked<E>> {
        let mut table = self.table.lock();
        let on =
            table.by_owner.iter().filter(|(_, row)| Arc::ptr_eq(&row.tracked.session, session));
        let owners: Vec<OwnerId> = on.map(|(owner, _)| *owner).collect();
        let removed: Vec<_> = owners.into_iter().filter_map(|owner| table.take(owner)).collect();
        removed.iter().for_each(|tracked| tracked.changed.notify_waiters());
        removed
    }

    /// Whether any claim is on this session, and whether any of them waits.
    pub(crate) fn usage(&self, session: &Arc<E::Session>) -> Usage {
        let table = self.table.lock();
        let mut usage = Usage::Unused;
        for row in table.by_owner.values() {
            if Arc::ptr_eq(&row.tracked.session, session) {
                if let State::Waits(..) = row.tracked.state {
                    return Usage::WaitedOn;
                }
                usage = Usage::Used;
            }
        }
        usage
    }

    /// Marks and returns the claims that have expired, each once, and when the next one expires.
    pub(crate) fn overdue(&self, now: Moment) -> (Vec<Tracked<E>>, Option<Moment>) {
        let mut table = self.table.lock();
        let mut overdue = Vec::new();
        while let Some(&(ends, owner)) = table.by_end.first()
            && ends <= now
        {
            table.by_end.pop_first();
            if let Some(row) = table.by_owner.get_mut(&owner) {
                row.overdue = true;
                overdue.push(row.tracked.clone());
            }
        }
        let next = table.by_end.first().map(|(ends, _)| *ends);
        table.alarm = next;
        (overdue, next)
    }
}

/// How claims use a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    Unused,
    Used,
    /// A claim waits on it, so it must be kept alive.
    WaitedOn,
}

/// Later than any claim ends.
const FOREVER: Moment = Moment::from_nanos(u64::MAX);

/// Keeps the place of a claim that is waited for.
pub(crate) struct Kept<'a, E: Engine> {
    claims: &'a Claims<E>,
    owner: OwnerId,
}

impl<E: Engine> Drop for Kept<'_, E> {
    fn drop(&mut self) {
        self.claims.change(self.owner, |row| {
            row.waits = row.waits.saturating_sub(1);
            let waits = matches!(row.tracked.state, State::Waits(..));
            (waits && row.waits == 0).then(|| now() + row.lease)
        });
    }
}

impl<E: Engine> Table<E> {
    fn take(&mut self, owner: OwnerId) -> Option<Tracked<E>> {
        let row = self.by_owner.remove(&owner)?;
        self.by_end.remove(&(row.ends, owner));
        Some(row.tracked)
    }
}
