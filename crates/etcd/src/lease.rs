//! Leases, shared by the keys of one client that want to live equally long.
//!
//! A lease is kept alive only when somebody asks for it: a claim, or the renewal of one. It then
//! lives on for all its tenants, so those of them that nobody renewed in time are removed one by
//! one ([`Lease::overdue`]), as if each had a lease of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Hold, Moment, OwnerId, Result, Token, now};
use tenure_proto::deadline;
use tokio::sync::Mutex as Turn;
use tokio::task::AbortHandle;
use tonic::{Code, Status};

use crate::members::{Again, Members};
use crate::rpc::lease_client::LeaseClient;
use crate::rpc::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest};

/// One lease in etcd.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// How long etcd keeps it without a sign of life, at least.
    life: Duration,
    /// Who keeps it alive does so for all who wait for their turn.
    turn: Turn<()>,
    state: Mutex<State>,
    /// Who listens for the losses of those who hold on it.
    listener: Mutex<Option<AbortHandle>>,
}

#[derive(Debug)]
struct State {
    /// The moment before the last sign of life that etcd confirmed was sent.
    confirmed: Moment,
    /// Nobody may move in any more.
    retired: bool,
    /// It is being ended: nobody is taken in, not even one whose key is found on it.
    given_back: bool,
    tenants: HashMap<OwnerId, Tenant>,
    /// Keys that a call of unknown outcome may still write.
    suspects: Vec<Suspect>,
    swept: Moment,
}

#[derive(Clone, Debug)]
struct Tenant {
    key: Vec<u8>,
    ends: Moment,
    /// What it holds with, if it is known to hold.
    token: Option<Token>,
}

/// A key on a lease that should not be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) owner: OwnerId,
    pub(crate) key: Vec<u8>,
}

impl Lease {
    fn new(id: i64, life: Duration, confirmed: Moment) -> Self {
        let (tenants, suspects, swept) = (HashMap::new(), Vec::new(), confirmed);
        let state = Mutex::new(State {
            confirmed,
            retired: false,
            given_back: false,
            tenants,
            suspects,
            swept,
        });
        Self { id, life, turn: Turn::new(()), state, listener: Mutex::default() }
    }

    /// The moment before the last sign of life that etcd confirmed was sent: the lease lasts from
    /// then on.
    pub(crate) fn confirmed(&self) -> Moment {
        self.state.lock().confirmed
    }

    /// Notes that a key hangs, or is about to hang, on the lease until this moment. False: the lease
    /// is being given back, and its keys go with it.
    #[must_use]
    pub(crate) fn move_in(&self, owner: OwnerId, key: &[u8], ends: Moment) -> bool {
        self.state.lock().move_in(owner, key, ends)
    }

    /// As [`move_in`](Self::move_in), for one that is renewed. False also where its time was over: it
    /// may be about to be removed, and one that stays is not, for both are decided here.
    #[must_use]
    pub(crate) fn stay(&self, owner: OwnerId, key: &[u8], ends: Moment, now: Moment) -> bool {
        let mut state = self.state.lock();
        let late = state.tenants.get(&owner).is_some_and(|tenant| tenant.ends <= now);
        !late && state.move_in(owner, key, ends)
    }

    /// Lets a tenant hold on the lease that it waited on: from which moment on, and for how long at
    /// most. `None` where too little is left of it, or where it is not sure to be there.
    ///
    /// One whose time was over may be about to be removed: it is not let in, and one that is let in
    /// is not removed, for both are decided here.
    pub(crate) fn lend(
        &self,
        owner: OwnerId,
        ttl: Duration,
        now: Moment,
    ) -> Option<(Moment, Duration)> {
        let mut state = self.state.lock();
        let term = ttl.min(self.life);
        let since = now.min(state.confirmed + (self.life - term));
        let enough = deadline(since, term).since(now) >= term.mul_f64(0.6);
        let retired = state.retired;
        let tenant = state.tenants.get_mut(&owner)?;
        if retired || !enough || tenant.ends <= now {
            return None;
        }
        tenant.ends = tenant.ends.max(since + term);
        Some((since, term))
    }

    /// Notes that a tenant holds, by the key of this create revision.
    pub(crate) fn holds(&self, owner: OwnerId, revision: i64) {
        if let Some(tenant) = self.state.lock().tenants.get_mut(&owner) {
            tenant.token = u64::try_from(revision).ok().map(Token::new);
        }
    }

    pub(crate) fn move_out(&self, owner: OwnerId) {
        self.state.lock().tenants.remove(&owner);
    }

    /// A member may write this key at any time later, although nobody wants it by then. So nobody
    /// moves in any more: when the last tenant has left, the lease ends, and such a write fails.
    /// Until then the key is removed again and again.
    pub(crate) fn suspect(&self, owner: OwnerId, key: &[u8]) {
        let mut state = self.state.lock();
        state.retired = true;
        let suspect = Suspect { owner, key: key.to_vec() };
        if !state.suspects.contains(&suspect) {
            state.suspects.push(suspect);
        }
    }

    /// Whether it is time to look for those that are overdue. Once asked, not again for a while.
    pub(crate) fn wants_sweeping(&self, now: Moment) -> bool {
        let mut state = self.state.lock();
        let due = now.since(state.swept) >= self.life / 8;
        if due {
            state.swept = now;
        }
        due
    }

    /// Nobody may move in any more.
    pub(crate) fn retire(&self) {
        self.state.lock().retired = true;
    }

    /// Nobody may move in any more, if nobody is there. False: somebody is.
    fn retire_if_empty(&self) -> bool {
        let mut state = self.state.lock();
        let empty = state.tenants.is_empty();
        state.retired |= empty;
        state.given_back |= empty;
        empty
    }

    fn leave_alone(&self) {
        if let Some(listener) = self.listener.lock().take() {
            listener.abort();
        }
    }

    /// The lease is gone: everybody is out, and these held.
    pub(crate) fn end(&self) -> Vec<Hold> {
        let mut state = self.state.lock();
        state.retired = true;
        let tenants = state.tenants.drain();
        let losses = tenants.filter_map(|(owner, tenant)| {
            let token = Some(tenant.token?);
            Some(Hold { owner, token })
        });
        losses.collect()
    }

    /// Whether it has ended unless somebody else kept it alive.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        now.since(self.confirmed()) > self.life
    }

    /// Has somebody listen for losses, unless somebody does.
    pub(crate) fn attend(&self, listen: impl FnOnce() -> AbortHandle) {
        let mut listener = self.listener.lock();
        if listener.as_ref().is_none_or(AbortHandle::is_finished) {
            *listener = Some(listen());
        }
    }

    /// Those whose time is over at `now`, or who should not be here at all.
    pub(crate) fn overdue(&self, now: Moment) -> Vec<Suspect> {
        let state = self.state.lock();
        let over = state.tenants.iter().filter(|(_, tenant)| tenant.ends <= now);
        let over = over.map(|(owner, tenant)| Suspect { owner: *owner, key: tenant.key.clone() });
        let ghosts = state.suspects.iter().filter(|one| !state.tenants.contains_key(&one.owner));
        over.chain(ghosts.cloned()).collect()
    }

    /// Whether a tenant's time is (still) over.
    pub(crate) fn is_overdue(&self, owner: OwnerId, now: Moment) -> bool {
        self.state.lock().tenants.get(&owner).is_none_or(|tenant| tenant.ends <= now)
    }

    fn is_usable(&self, now: Moment) -> bool {
        let state = self.state.lock();
        // Later than this, a new one is as cheap as to find out whether this one is still there.
        !state.retired && now.since(state.confirmed) < self.life.mul_f64(0.8)
    }
}

impl State {
    fn move_in(&mut self, owner: OwnerId, key: &[u8], ends: Moment) -> bool {
        if self.given_back {
            return false;
        }
        let new = || Tenant { key: key.to_vec(), ends, token: None };
        // Who was promised to stay longer stays longer.
        let tenant = self.tenants.entry(owner).or_insert_with(new);
        tenant.ends = tenant.ends.max(ends);
        true
    }
}

/// The lease of one length that is in use. Who replaces it does so for all who wait for it.
type Seat = Turn<Option<Arc<Lease>>>;

/// The leases of one client.
pub(crate) struct Leases {
    members: Arc<Members>,
    /// A key that we may read.
    probe: Vec<u8>,
    by_seconds: Mutex<HashMap<i64, Arc<Seat>>>,
    by_id: Mutex<HashMap<i64, Arc<Lease>>>,
}

impl Leases {
    pub(crate) fn new(members: Arc<Members>, probe: Vec<u8>) -> Self {
        Self { members, probe, by_seconds: Mutex::default(), by_id: Mutex::default() }
    }

    /// What [`get`](Self::get) answers, where it need not ask etcd, nor wait for another who does.
    pub(crate) fn at_hand(
        &self,
        life: Duration,
        age: Duration,
        take: impl Fn(&Lease) -> bool,
    ) -> Option<Arc<Lease>> {
        let seat = self.seat(seconds(life));
        let seat = seat.try_lock().ok()?;
        let lease = seat.as_ref()?;
        let young = lease.is_usable(now()) && now().since(lease.confirmed()) <= age;
        (young && take(lease)).then(|| Arc::clone(lease))
    }

    fn seat(&self, seconds: i64) -> Arc<Seat> {
        Arc::clone(self.by_seconds.lock().entry(seconds).or_default())
    }

    /// A lease that lasts `life`, of which at most `age` has passed. Every call of one client with
    /// the same `life`, rounded up to seconds, gets the same one while it can be used, and while it
    /// can `take` it: it may have been given back meanwhile.
    ///
    /// All of them wait for one, so whoever calls this must be driven to its end.
    pub(crate) async fn get(
        &self,
        operation: &'static str,
        life: Duration,
        age: Duration,
        take: impl Fn(&Lease) -> bool,
    ) -> Result<Arc<Lease>> {
        let seconds = seconds(life);
        let seat = self.seat(seconds);
        let mut seat = seat.lock().await;
        if let Some(lease) = &*seat
            && lease.is_usable(now())
        {
            let young = now().since(lease.confirmed()) <= age;
            if !young {
                self.find_leader(operation).await?;
            }
            if (young || self.keep_alive(operation, lease, now()).await?) && take(lease) {
                return Ok(Arc::clone(lease));
            }
        }
        let lease = Arc::new(self.grant(operation, seconds).await?);
        // Nobody else knows of it yet, so nobody gives it back.
        take(&lease);
        let mut by_id = self.by_id.lock();
        by_id.retain(|_, lease| now().since(lease.confirmed()) < lease.life * 4);
        by_id.insert(lease.id, Arc::clone(&lease));
        *seat = Some(Arc::clone(&lease));
        Ok(lease)
    }

    /// One of ours.
    pub(crate) fn find(&self, id: i64) -> Option<Arc<Lease>> {
        self.by_id.lock().get(&id).cloned()
    }

    /// Nothing of this owner's is left.
    pub(crate) fn move_out(&self, owner: OwnerId) {
        self.by_id.lock().values().for_each(|lease| lease.move_out(owner));
    }

    /// Nobody listens for losses any more.
    pub(crate) fn leave_alone(&self) {
        self.by_id.lock().values().for_each(|lease| lease.leave_alone());
    }

    /// Ends the leases that nobody is on. One that cannot be ended now ends by itself.
    pub(crate) async fn give_back(&self) {
        let leases: Vec<_> = self.by_id.lock().values().cloned().collect();
        for lease in leases.into_iter().filter(|lease| lease.retire_if_empty()) {
            lease.leave_alone();
            // Until it is gone, whoever finds a key on it must know that it goes.
            match self.revoke(lease.id).await {
                Ok(()) => drop(self.by_id.lock().remove(&lease.id)),
                Err(error) => tracing::debug!(lease = lease.id, %error, "not given back"),
            }
        }
    }

    async fn revoke(&self, id: i64) -> Result<()> {
        let ask = |link| async move {
            LeaseClient::new(link).lease_revoke(LeaseRevokeRequest { id }).await
        };
        self.members.call("give back a lease", Again::Harmless, ask).await.map(drop)
    }

    /// Reads anything, which takes a leader that the majority follows. A sign of life does not: one
    /// that stood still and was replaced confirms it, and it does not count with the one in its place.
    /// So one must be sent after a read only, or after a transaction.
    async fn find_leader(&self, operation: &'static str) -> Result<()> {
        let key = self.probe.clone();
        let request = RangeRequest { key, limit: 1, keys_only: true, ..Default::default() };
        self.members.range(operation, request).await.map(drop)
    }

    /// Confirms the lease by a sign of life that is sent after `began`. False: the lease is gone.
    /// All who are on it wait for one, so whoever calls this must be driven to its end.
    pub(crate) async fn keep_alive(
        &self,
        operation: &'static str,
        lease: &Lease,
        began: Moment,
    ) -> Result<bool> {
        let _turn = lease.turn.lock().await;
        if lease.confirmed() >= began {
            return Ok(true);
        }
        let sent = now();
        let alive = self.revive(operation, lease.id).await?;
        let mut state = lease.state.lock();
        if alive {
            state.confirmed = state.confirmed.max(sent);
        } else {
            state.retired = true;
        }
        Ok(alive)
    }

    /// A sign of life for any lease. False: it is gone.
    pub(crate) async fn revive(&self, operation: &'static str, id: i64) -> Result<bool> {
        let ask = |link| async move {
            let once = futures_util::stream::iter([LeaseKeepAliveRequest { id }]);
            let mut replies = LeaseClient::new(link).lease_keep_alive(once).await?.into_inner();
            let ended = || Status::new(Code::Unavailable, "the stream ended without a reply");
            Ok(tonic::Response::new(replies.message().await?.ok_or_else(ended)?))
        };
        let reply = self.members.call(operation, Again::Harmless, ask).await?;
        Ok(reply.ttl > 0)
    }

    async fn grant(&self, operation: &'static str, ttl: i64) -> Result<Lease> {
        let sent = now();
        let ask = |link| async move {
            LeaseClient::new(link).lease_grant(LeaseGrantRequest { ttl }).await
        };
        // One that is granted twice ends by itself.
        let reply = self.members.call(operation, Again::Harmless, ask).await?;
        let life = Duration::from_secs(u64::try_from(reply.ttl.max(ttl)).unwrap_or_default());
        Ok(Lease::new(reply.id, life, sent))
    }
}

/// etcd counts in whole ones.
fn seconds(life: Duration) -> i64 {
    i64::try_from(life.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_overdue_when_its_time_has_passed_and_a_suspect_always() {
        let [late, early, ghost] = [(); 3].map(|()| OwnerId::random());
        let lease = Lease::new(1, Duration::from_secs(10), Moment::default());
        let at = |seconds| Moment::default() + Duration::from_secs(seconds);
        assert!(lease.move_in(late, b"late", at(9)));
        assert!(lease.move_in(early, b"early", at(5)));
        assert_eq!(lease.overdue(at(4)), []);
        let early_one = Suspect { owner: early, key: b"early".to_vec() };
        assert_eq!(lease.overdue(at(5)), [early_one]);
        assert!(lease.is_overdue(early, at(5)) && !lease.is_overdue(late, at(5)));
        lease.move_out(early);
        assert_eq!(lease.overdue(at(5)), []);
        assert!(lease.is_usable(at(1)) && !lease.is_usable(at(9)));
        lease.suspect(ghost, b"ghost");
        assert!(!lease.is_usable(at(1)), "nobody moves in where a ghost may be");
        assert_eq!(lease.overdue(at(1)).len(), 1);
        // One that is a tenant again has written its key itself.
        assert!(lease.move_in(ghost, b"ghost", at(9)));
        assert_eq!(lease.overdue(at(1)), []);
    }

    #[test]
    fn a_lease_is_lent_as_far_as_it_is_sure_to_last_and_to_nobody_whose_time_is_over() {
        let [waits, late] = [(); 2].map(|()| OwnerId::random());
        let second = Duration::from_secs(1);
        let at = |seconds| Moment::default() + second * seconds;
        let lease = Lease::new(1, 10 * second, at(0));
        assert!(lease.move_in(waits, b"waits", at(5)));
        assert!(lease.move_in(late, b"late", at(1)));
        assert_eq!(lease.lend(late, 30 * second, at(1)), None);
        assert_eq!(lease.lend(OwnerId::random(), 30 * second, at(1)), None);
        assert_eq!(lease.lend(waits, 30 * second, at(4)), None, "half of it has passed");
        assert_eq!(lease.lend(waits, 30 * second, at(2)), Some((at(0), 10 * second)));
        assert!(!lease.is_overdue(waits, at(9)), "it is not removed before it ends");
        // A short hold is dated by the end of the lease, and never before its beginning.
        assert_eq!(lease.lend(waits, 4 * second, at(3)), Some((at(3), 4 * second)));
        assert_eq!(lease.lend(waits, 4 * second, at(7)), Some((at(6), 4 * second)));
        assert_eq!(lease.lend(waits, 4 * second, at(8)), None);
        lease.retire();
        assert_eq!(lease.lend(waits, 30 * second, at(2)), None);
    }

    #[test]
    fn a_lease_is_given_back_only_when_nobody_is_on_it() {
        let lease = Lease::new(1, Duration::from_secs(10), Moment::default());
        let owner = OwnerId::random();
        assert!(lease.move_in(owner, b"key", now()));
        assert!(!lease.retire_if_empty());
        assert!(lease.is_usable(Moment::default()));
        lease.move_out(owner);
        assert!(lease.retire_if_empty());
        assert!(!lease.is_usable(Moment::default()), "nobody moves in any more");
        let now = now();
        assert!(!lease.move_in(owner, b"key", now) && !lease.stay(owner, b"key", now, now));
        assert!(lease.retire_if_empty(), "nobody did");
    }

    #[test]
    fn who_is_renewed_stays_unless_its_time_was_over() {
        let [owner, unknown] = [(); 2].map(|()| OwnerId::random());
        let at = |seconds| Moment::default() + Duration::from_secs(seconds);
        let lease = Lease::new(1, Duration::from_secs(10), at(0));
        assert!(lease.move_in(owner, b"key", at(5)));
        assert!(lease.stay(owner, b"key", at(8), at(4)));
        assert!(!lease.stay(owner, b"key", at(12), at(8)));
        assert!(lease.is_overdue(owner, at(8)), "it is removed");
        assert!(lease.stay(unknown, b"key", at(12), at(8)));
    }

    #[test]
    fn those_who_held_on_a_lease_are_lost_with_it() {
        let [holds, waits, left] = [(); 3].map(|()| OwnerId::random());
        let lease = Lease::new(1, Duration::from_secs(10), Moment::default());
        for owner in [holds, waits, left] {
            assert!(lease.move_in(owner, b"key", now()));
        }
        lease.holds(holds, 7);
        // A renewal moves in again.
        assert!(lease.move_in(holds, b"key", now()));
        lease.holds(left, 8);
        lease.move_out(left);
        assert_eq!(lease.end(), [Hold { owner: holds, token: Some(Token::new(7)) }]);
        assert_eq!(lease.end(), []);
        assert!(!lease.is_usable(Moment::default()));
    }
}
