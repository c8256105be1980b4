//! The claims of one client that have, or may have, nodes in ZooKeeper, and when each ends.
//!
//! A session lives on for all its claims. So a claim that nobody renewed in time is removed by
//! itself, as if it had a session of its own.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::{Claim, Hold, Moment, OwnerId, Token};
use tokio::sync::Notify;

use crate::place::Place;
use crate::session::Session;

/// A claim, and what is known of its nodes.
#[derive(Clone)]
pub(crate) struct Tenant {
    pub(crate) claim: Claim,
    /// The node that the claim's nodes are children of.
    pub(crate) lock: String,
    pub(crate) session: Arc<Session>,
    /// The paths of its nodes. Empty: nobody knows whether there are any.
    pub(crate) nodes: Vec<String>,
    pub(crate) token: Option<Token>,
    pub(crate) stage: Stage,
    /// Since when it holds, if it had to wait and the node does not say so yet.
    pub(crate) unsaid: Option<Moment>,
}

/// How far a claim got.
#[derive(Clone)]
pub(crate) enum Stage {
    /// A call of unknown outcome may have created its nodes, or may yet.
    Unsure,
    Waits(Arc<Place>),
    Holds,
}

impl Tenant {
    /// One that is about to create its nodes.
    pub(crate) fn new(claim: &Claim, lock: &str, session: &Arc<Session>) -> Self {
        Self {
            claim: claim.clone(),
            lock: lock.into(),
            session: Arc::clone(session),
            nodes: Vec::new(),
            token: None,
            stage: Stage::Unsure,
            unsaid: None,
        }
    }
}

/// All claims of one client.
#[derive(Default)]
pub(crate) struct Tenants {
    book: Mutex<Book>,
    /// Rings when one ends earlier than all that were known.
    pub(crate) earlier: Notify,
}

#[derive(Default)]
struct Book {
    by_owner: HashMap<OwnerId, Entry>,
    by_end: BTreeSet<(Moment, OwnerId)>,
    last: u64,
    /// When the one who looks for the overdue wakes up by itself.
    alarm: Option<Moment>,
}

struct Entry {
    tenant: Tenant,
    ends: Moment,
    /// Tells this stay from an earlier one of the same owner.
    stay: u64,
    /// It is being removed: nothing can save it.
    overdue: bool,
}

/// One whose time is over.
pub(crate) struct Overdue {
    pub(crate) tenant: Tenant,
    pub(crate) stay: u64,
}

impl Tenants {
    /// Notes that a claim has, or is about to have, nodes until this moment. The answer tells this
    /// stay from others.
    pub(crate) fn move_in(&self, tenant: Tenant, ends: Moment) -> u64 {
        let owner = tenant.claim.owner;
        let mut book = self.book.lock();
        book.last += 1;
        let stay = book.last;
        book.take(owner);
        book.by_end.insert((ends, owner));
        book.by_owner.insert(owner, Entry { tenant, ends, stay, overdue: false });
        let earlier = book.alarm.is_none_or(|alarm| ends < alarm);
        if earlier {
            book.alarm = Some(ends);
            self.earlier.notify_one();
        }
        stay
    }

    /// Whether it is there, and not being removed.
    pub(crate) fn find(&self, owner: OwnerId) -> Option<(Tenant, bool)> {
        let book = self.book.lock();
        book.by_owner.get(&owner).map(|entry| (entry.tenant.clone(), entry.overdue))
    }

    /// Lets a claim stay until this moment, and changes what is known of it. False: it is gone, or
    /// being removed.
    pub(crate) fn update(
        &self,
        owner: OwnerId,
        ends: Moment,
        change: impl FnOnce(&mut Tenant),
    ) -> bool {
        self.change(owner, |tenant| {
            change(tenant);
            Some(ends)
        })
    }

    /// Lets a claim wait until this moment. One that has come to hold meanwhile keeps its own term,
    /// which its holder relies on. False: it is gone, or being removed.
    pub(crate) fn wait_on(&self, owner: OwnerId, ends: Moment) -> bool {
        self.change(owner, |tenant| (!matches!(tenant.stage, Stage::Holds)).then_some(ends))
    }

    /// Changes what is known of a claim, and when it ends, if the change says so.
    fn change(&self, owner: OwnerId, change: impl FnOnce(&mut Tenant) -> Option<Moment>) -> bool {
        let mut book = self.book.lock();
        let Some(entry) = book.by_owner.get_mut(&owner).filter(|entry| !entry.overdue) else {
            return false;
        };
        let Some(ends) = change(&mut entry.tenant) else { return true };
        let old = std::mem::replace(&mut entry.ends, ends);
        book.by_end.remove(&(old, owner));
        book.by_end.insert((ends, owner));
        if book.alarm.is_none_or(|alarm| ends < alarm) {
            book.alarm = Some(ends);
            self.earlier.notify_one();
        }
        true
    }

    pub(crate) fn move_out(&self, owner: OwnerId) {
        if let Some(Stage::Waits(place)) = self.book.lock().take(owner) {
            place.abandon();
        }
    }

    /// Ends this stay of an owner, but no later one.
    pub(crate) fn end(&self, owner: OwnerId, stay: u64) {
        if self.is_staying(owner, stay) {
            self.move_out(owner);
        }
    }

    /// Whether the owner has not moved out since, or moved in anew.
    pub(crate) fn is_staying(&self, owner: OwnerId, stay: u64) -> bool {
        self.book.lock().by_owner.get(&owner).is_some_and(|entry| entry.stay == stay)
    }

    /// The holds that hang on a session.
    pub(crate) fn holds_on(&self, session: &Session) -> Vec<Hold> {
        let book = self.book.lock();
        let tenants = book.by_owner.iter().map(|(owner, entry)| (owner, &entry.tenant));
        let holds = tenants.filter(|(_, tenant)| {
            matches!(tenant.stage, Stage::Holds) && std::ptr::eq(&*tenant.session, session)
        });
        holds.map(|(owner, tenant)| Hold { owner: *owner, token: tenant.token }).collect()
    }

    /// Those whose time is over, each once, and when the next one's is.
    pub(crate) fn overdue(&self, now: Moment) -> (Vec<Overdue>, Option<Moment>) {
        let mut book = self.book.lock();
        let mut overdue = Vec::new();
        while let Some(&(ends, owner)) = book.by_end.first()
            && ends <= now
        {
            book.by_end.pop_first();
            if let Some(entry) = book.by_owner.get_mut(&owner) {
                entry.overdue = true;
                overdue.push(Overdue { tenant: entry.tenant.clone(), stay: entry.stay });
            }
        }
        let next = book.by_end.first().map(|(ends, _)| *ends);
        book.alarm = next;
        (overdue, next)
    }

    /// Forgets all of them.
    pub(crate) fn clear(&self) {
        let mut book = self.book.lock();
        book.by_end.clear();
        for (_, entry) in book.by_owner.drain() {
            if let Stage::Waits(place) = entry.tenant.stage {
                place.abandon();
            }
        }
    }
}

impl Book {
    fn take(&mut self, owner: OwnerId) -> Option<Stage> {
        let entry = self.by_owner.remove(&owner)?;
        self.by_end.remove(&(entry.ends, owner));
        Some(entry.tenant.stage)
    }
}
