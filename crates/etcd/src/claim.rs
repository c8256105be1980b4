//! To ask for a lock, and to ask again.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Answer, Claim, Error, ErrorKind, Grant, Mode, Moment, Patience, Place as Mark, Result, Token,
    now,
};

use crate::fault::is_lease_gone;
use crate::inner::Inner;
use crate::lease::Lease;
use crate::members::{Again, is_doubtful};
use crate::place::{Place, Standing, View};
use crate::record::{Record, mode, obstacle};
use crate::rpc::{KeyValue, TxnRequest};
use crate::txn::{Outcome, created_at, get, get_line, nobody_in, put};

/// How often a claim begins anew when what it saw is gone by the time it acts on it.
const ROUNDS: usize = 5;

impl Inner {
    pub(crate) async fn claim(
        self: &Arc<Self>,
        claim: &Claim,
        patience: Patience,
    ) -> Result<Answer> {
        if !claim.mode.is_sound() {
            let why = "take at least one permit, and no more than there are";
            return Err(Error::new(ErrorKind::Invalid, "acquire", why));
        }
        if let Some(place) = self.place(claim.owner) {
            if let (Standing::Waits, Patience::Queue { lease: patience, .. }) =
                (place.standing(), patience)
            {
                match self.stay(&place, patience).await {
                    Ok(Some(answer)) => return Ok(answer),
                    Ok(None) => {}
                    // By force, while it was on its way.
                    Err(error) if is_lease_gone(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            // It holds, or is gone, or does not want to wait any more: etcd says what is the case.
            self.forget(claim.owner);
        }
        for _ in 0..ROUNDS {
            match self.arrive(claim, patience).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(error) if is_lease_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let why = "the lock or its lease changed at every look: try again";
        Err(Error::new(ErrorKind::Unreachable, "acquire", why).with_unknown_effect())
    }

    /// Keeps a place in line that is there already. `None`: it is not there any more.
    async fn stay(self: &Arc<Self>, place: &Place, patience: Duration) -> Result<Option<Answer>> {
        if !place.lease.move_in(place.claim.owner, &place.key, now() + patience) {
            return Ok(None);
        }
        let lease = self.place_lease(&place.claim, patience).await?;
        if lease.id != place.lease.id {
            return Ok(None);
        }
        // So that it is at hand when the turn comes.
        self.prepare(&place.claim).await?;
        let queued = Some(Answer::Queued(Mark::default()));
        if let Some(obstacle) = place.obstacle() {
            let reads = vec![get(&place.key), get(&obstacle)];
            let mut seen = self.members.look("acquire", reads).await?;
            let own = seen.found(0).pop();
            if own.is_none_or(|own| own.create_revision != place.revision) {
                return Ok(None);
            }
            if !seen.found(1).is_empty() {
                return Ok(queued);
            }
        }
        match self.look(place).await? {
            View::Gone => Ok(None),
            View::Behind(_) => {
                // Its task may look at something that is gone.
                place.look_again();
                Ok(queued)
            }
            View::Admitted => Ok(self.promote(place, false).await?.map(Answer::Granted)),
        }
    }

    /// Takes a free lock in one transaction. `None`: what was seen is gone, look again.
    async fn arrive(self: &Arc<Self>, claim: &Claim, patience: Patience) -> Result<Option<Answer>> {
        let (line, key) = self.key_of(claim);
        let lease = self.hold_lease(claim).await?;
        let failure = match claim.mode {
            Mode::Exclusive => vec![get(&key)],
            _ => vec![get(&key), get_line(&line)],
        };
        let request = TxnRequest {
            compare: vec![nobody_in(&line)],
            success: vec![put(&key, Record::write(claim, true), lease.id)],
            failure,
        };
        let since = lease.confirmed();
        let mut outcome = self.write(claim, &key, &lease, request).await?;
        if outcome.succeeded {
            lease.holds(claim.owner, outcome.revision);
            return Ok(Some(granted(outcome.revision, since)));
        }
        if let Some(own) = outcome.found(0).pop() {
            if own.lease != lease.id {
                lease.move_out(claim.owner);
            }
            return self.adopt(claim, own, patience).await;
        }
        let modes: Vec<Mode> = outcome.found(1).iter().map(mode).collect();
        let busy = claim.mode == Mode::Exclusive || obstacle(&modes, claim.mode).is_some();
        if patience == Patience::None && !busy {
            return self.squeeze_in(claim, &lease).await;
        }
        lease.move_out(claim.owner);
        match patience {
            Patience::Queue { lease: patience, .. } => self.join(claim, patience).await,
            Patience::None => Ok(Some(Answer::Busy)),
        }
    }

    /// Goes to the end of the line.
    async fn join(self: &Arc<Self>, claim: &Claim, patience: Duration) -> Result<Option<Answer>> {
        let (_, key) = self.key_of(claim);
        let lease = self.place_lease(claim, patience).await?;
        let Some(place) = self.put_in_line(claim, &lease, 0).await? else {
            let mut seen = self.members.look("acquire", vec![get(&key)]).await?;
            return match seen.found(0).pop() {
                Some(own) => self.adopt(claim, own, Patience::queue(patience)).await,
                None => Ok(None),
            };
        };
        self.settle(place).await.map_err(Error::with_unknown_effect)
    }

    /// Writes the key of one who waits, on a lease that it has moved in on: a new one, or anew one
    /// that was created by `revision`. `None`: that is not the case any more.
    async fn put_in_line(
        self: &Arc<Self>,
        claim: &Claim,
        lease: &Arc<Lease>,
        revision: i64,
    ) -> Result<Option<Place>> {
        let (line, key) = self.key_of(claim);
        let request = TxnRequest {
            compare: vec![created_at(&key, revision)],
            success: vec![put(&key, Record::write(claim, false), lease.id)],
            failure: Vec::new(),
        };
        let outcome = self.write(claim, &key, lease, request).await?;
        if !outcome.succeeded {
            lease.move_out(claim.owner);
            return Ok(None);
        }
        let revision = if revision == 0 { outcome.revision } else { revision };
        Ok(Some(Place::new(claim.clone(), line, key, revision, Arc::clone(lease))))
    }

    /// A place that is admitted at once holds; any other is left to its task.
    async fn settle(self: &Arc<Self>, place: Place) -> Result<Option<Answer>> {
        match self.look(&place).await? {
            View::Gone => Ok(None),
            View::Admitted => Ok(self.promote(&place, false).await?.map(Answer::Granted)),
            View::Behind(scope) => {
                self.stand(place, scope);
                Ok(Some(Answer::Queued(Mark::default())))
            }
        }
    }

    /// One that does not want to wait, but looked as if it need not: it goes to the end of the
    /// line, and leaves if it has to wait there after all.
    async fn squeeze_in(
        self: &Arc<Self>,
        claim: &Claim,
        lease: &Arc<Lease>,
    ) -> Result<Option<Answer>> {
        let Some(place) = self.put_in_line(claim, lease, 0).await? else {
            return Ok(None);
        };
        let squeezed = async {
            if let View::Admitted = self.look(&place).await?
                && let Some(grant) = self.promote(&place, false).await?
            {
                return Ok(Some(Answer::Granted(grant)));
            }
            self.remove(claim, Some(Standing::Waits)).await?;
            Ok(Some(Answer::Busy))
        };
        squeezed.await.map_err(Error::with_unknown_effect)
    }

    /// Goes on with a key of this claim that was found: its reply was lost, or nobody watched it.
    async fn adopt(
        self: &Arc<Self>,
        claim: &Claim,
        own: KeyValue,
        patience: Patience,
    ) -> Result<Option<Answer>> {
        let Some(record) = Record::read(&own.value) else {
            let why = "another program has overwritten its key: delete the key";
            return Err(Error::new(ErrorKind::Damaged, "acquire", why).with_unknown_effect());
        };
        let adopted = async {
            if record.held {
                // It asks for it itself, and in its turn: so it stays, be its time over or not.
                if let Some(lease) = self.leases.find(own.lease)
                    && !lease.move_in(claim.owner, &own.key, now() + claim.ttl)
                {
                    return Ok(None);
                }
                let revision = own.create_revision;
                let (inner, claim) = (Arc::clone(self), claim.clone());
                let confirmed = async move { inner.confirm("acquire", &claim, &own).await };
                let since = self.background.run("acquire", confirmed).await?;
                return Ok(since.map(|since| granted(revision, since)));
            }
            let lease = match patience {
                Patience::Queue { lease: patience, .. } => {
                    self.place_lease(claim, patience).await?
                }
                Patience::None => self.hold_lease(claim).await?,
            };
            let place = self.put_in_line(claim, &lease, own.create_revision).await?;
            let Some(place) = place else { return Ok(None) };
            if patience != Patience::None {
                return self.settle(place).await;
            }
            match self.promote_if_admitted(&place).await? {
                Some(grant) => Ok(Some(Answer::Granted(grant))),
                None => {
                    self.remove(claim, Some(Standing::Waits)).await?;
                    Ok(Some(Answer::Busy))
                }
            }
        };
        adopted.await.map_err(Error::with_unknown_effect)
    }

    pub(crate) async fn promote_if_admitted(
        self: &Arc<Self>,
        place: &Place,
    ) -> Result<Option<Grant>> {
        match self.look(place).await? {
            View::Admitted => self.promote(place, false).await,
            View::Gone | View::Behind(_) => Ok(None),
        }
    }

    /// Keeps the lease of a held key alive. The answer is the moment from which it lasts; `None` if
    /// the lease is gone, or the key's time was over.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        operation: &'static str,
        claim: &Claim,
        own: &KeyValue,
    ) -> Result<Option<Moment>> {
        let began = now();
        let Some(lease) = self.leases.find(own.lease) else {
            let alive = self.leases.revive(operation, own.lease).await?;
            return Ok(alive.then_some(began));
        };
        if !self.leases.keep_alive(operation, &lease, began).await?
            || !lease.stay(claim.owner, &own.key, now() + claim.ttl, now())
        {
            return Ok(None);
        }
        lease.holds(claim.owner, own.create_revision);
        self.attend(&lease);
        self.sweep(&lease);
        Ok(Some(lease.confirmed()))
    }

    /// Writes a claim's key on a lease that it has moved in on, and remembers it where nobody knows
    /// whether it was written, or will be.
    async fn write(
        &self,
        claim: &Claim,
        key: &[u8],
        lease: &Lease,
        request: TxnRequest,
    ) -> Result<Outcome> {
        let mut doubt = false;
        let outcome = self.members.txn("acquire", Again::Harmless, &mut doubt, request).await;
        if doubt {
            lease.suspect(claim.owner, key);
        }
        if let Err(error) = &outcome {
            lease.move_out(claim.owner);
            if is_lease_gone(error) && !is_doubtful(error) {
                lease.retire();
            }
        }
        outcome
    }
}

fn granted(revision: i64, since: Moment) -> Answer {
    let token = u64::try_from(revision).ok().map(Token::new);
    Answer::Granted(Grant { token, since: Some(since), term: None })
}
