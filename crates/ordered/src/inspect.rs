//! Inspection of a lock, and eviction of a holder.

use std::sync::Arc;

use tenure_core::store::{Eviction, Hold, Released};
use tenure_core::{Error, ErrorKind, Holder, LockName, LockState, Result, Waiter};
use tenure_proto::admitted;

use crate::claims::State;
use crate::engine::{Details, Engine, Entry};
use crate::record::Record;
use crate::shared::Shared;
use crate::store::is_admitted;

/// How many entries are listed to find the holders among them, at first.
const FEW: usize = 16;

/// How often an eviction begins anew when the lock was changed meanwhile.
const ROUNDS: usize = 5;

impl<E: Engine> Shared<E> {
    /// The lock with its holders and its waiters.
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let entries = self.engine.list(name).await?.entries;
        let inside = admitted(entries.iter().map(|entry| entry.mode));
        let details = self.engine.details(name, &entries, inside).await?;
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        for (place, (entry, details)) in entries.iter().zip(details).enumerate() {
            // An entry that was removed between the two requests is left out.
            let Some(details) = details else { continue };
            if place < inside {
                holders.push(self.holder(name, entry, details));
            } else {
                waiters.push(self.waiter(name, entry, &details));
            }
        }
        Ok(LockState::new(name.clone(), holders, waiters))
    }

    /// The holders of a lock. The queue behind them is not read.
    pub(crate) async fn holders(&self, name: &LockName) -> Result<Vec<Holder>> {
        let mut wanted = FEW;
        let entries = loop {
            let (mut entries, more) = self.engine.first(name, wanted).await?;
            let inside = admitted(entries.iter().map(|entry| entry.mode));
            if inside < entries.len() || !more {
                entries.truncate(inside);
                break entries;
            }
            wanted = wanted.saturating_mul(8);
        };
        let details = self.engine.details(name, &entries, entries.len()).await?;
        let there = entries.iter().zip(details).filter_map(|(entry, it)| Some((entry, it?)));
        Ok(there.map(|(entry, details)| self.holder(name, entry, details)).collect())
    }

    fn holder(&self, name: &LockName, entry: &Entry<E::Key>, details: Details) -> Holder {
        let record = Record::read(&details.record);
        let said = record.as_ref();
        let ttl = said.map(|record| record.ttl);
        let mut holder = Holder::new(self.owner(name, entry), entry.mode);
        holder.token = details.token;
        holder.host = said.map(|record| record.host.clone());
        holder.pid = said.map(|record| record.pid);
        holder.age = said.map(Record::age);
        holder.expires_in = match (ttl, details.time_left) {
            (Some(ttl), Some(left)) => Some(ttl.min(left)),
            (ttl, left) => ttl.or(left),
        };
        holder.label = record.map(|record| record.label).unwrap_or_default();
        holder
    }

    fn waiter(&self, name: &LockName, entry: &Entry<E::Key>, details: &Details) -> Waiter {
        let record = Record::read(&details.record);
        let said = record.as_ref();
        let mut waiter = Waiter::new(self.owner(name, entry), entry.mode);
        waiter.host = said.map(|record| record.host.clone());
        waiter.pid = said.map(|record| record.pid);
        waiter.age = said.map(Record::age).unwrap_or_default();
        waiter.label = record.map(|record| record.label).unwrap_or_default();
        waiter
    }

    fn owner(&self, name: &LockName, entry: &Entry<E::Key>) -> String {
        let foreign = || self.engine.foreign_owner(name, &entry.key);
        entry.owner.map_or_else(foreign, |owner| owner.to_string())
    }

    pub(crate) async fn evict(self: &Arc<Self>, eviction: &Eviction) -> Result<Released> {
        let name = &eviction.name;
        for _ in 0..ROUNDS {
            let listing = self.engine.list(name).await?;
            let found =
                listing.entries.iter().find(|entry| self.owner(name, entry) == eviction.owner);
            let Some(entry) = found else { return Ok(Released::NotHeld) };
            let held = is_admitted(&listing, entry.order);
            if self.engine.evict(eviction, entry, held).await? {
                self.forget_evicted(entry);
                return Ok(if held { Released::Released } else { Released::NotHeld });
            }
        }
        let why = "the lock changed each time it was read: try again";
        Err(Error::new(ErrorKind::Unreachable, "evict", why).about(name))
    }

    /// Notes that an entry was evicted, if it is of this client: the loss channel may be slower than the
    /// next call of the claim.
    fn forget_evicted(self: &Arc<Self>, entry: &Entry<E::Key>) {
        let Some((owner, (tracked, _))) =
            entry.owner.and_then(|owner| Some((owner, self.claims.find(owner)?)))
        else {
            return;
        };
        if let State::Waits(known, token) | State::Holds(known, token) = tracked.state
            && known.order == entry.order
        {
            self.evicted(Hold::new(owner, Some(token)));
        }
    }
}
