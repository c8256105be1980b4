//! A claim in line: who it waits for, and how it gets in.
//!
//! A task stands in line for each claim. It watches the one obstacle before it and its own key. When
//! its turn has come, the claim holds at once, for a short term, on the lease it waited on; its key is
//! moved to the lease for holding meanwhile. Whoever claims or waits only looks at how far it got.

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::{Claim, Error, ErrorKind, Grant, Hold, Mode, Result, Token, now};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::fault::is_lease_gone;
use crate::inner::Inner;
use crate::keys::Line;
use crate::lease::Lease;
use crate::members::Again;
use crate::record::{Obstacle, Record, mode, obstacle};
use crate::rpc::{KeyValue, TxnRequest};
use crate::txn::{created_at, get, get_last_before, get_line, hangs_on, nobody_before, put};
use crate::watch::Scope;

pub(crate) struct Place {
    pub(crate) claim: Claim,
    pub(crate) line: Line,
    pub(crate) key: Vec<u8>,
    /// The create revision of the key: its number in line, and its token once it holds.
    pub(crate) revision: i64,
    pub(crate) lease: Arc<Lease>,
    /// The key that is watched, if it is a single one that must go.
    obstacle: Mutex<Option<Vec<u8>>>,
    standing: watch::Sender<Standing>,
    /// Rings when the task should look again.
    look: Notify,
    task: Mutex<Option<AbortHandle>>,
}

/// How far a place got.
#[derive(Clone, Debug)]
pub(crate) enum Standing {
    Waits,
    Holds(Grant),
    /// The key is gone: by its end, or by force.
    Gone,
    /// Nobody looks any more. What is the case is known to etcd alone.
    Unknown,
}

/// What etcd says of a place.
pub(crate) enum View {
    Gone,
    Admitted,
    Behind(Scope),
}

impl Place {
    pub(crate) fn new(
        claim: Claim,
        line: Line,
        key: Vec<u8>,
        revision: i64,
        lease: Arc<Lease>,
    ) -> Self {
        let (standing, _) = watch::channel(Standing::Waits);
        let (obstacle, task, look) = (Mutex::default(), Mutex::default(), Notify::new());
        Self { claim, line, key, revision, lease, obstacle, standing, look, task }
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Resolves when it does not wait any more.
    pub(crate) async fn news(&self) -> Standing {
        let mut standing = self.standing.subscribe();
        let news = standing.wait_for(|standing| !matches!(standing, Standing::Waits)).await;
        news.map_or(Standing::Unknown, |standing| standing.clone())
    }

    /// Lets the task look again.
    pub(crate) fn look_again(&self) {
        self.look.notify_one();
    }

    /// The single key that must go before anything changes, where there is one.
    pub(crate) fn obstacle(&self) -> Option<Vec<u8>> {
        self.obstacle.lock().clone()
    }

    pub(crate) fn abandon(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
        self.standing.send_replace(Standing::Unknown);
    }

    /// What has been found out counts only if nobody knew better before.
    fn settle(&self, found: Standing) {
        self.standing.send_if_modified(|standing| {
            let waits = matches!(standing, Standing::Waits);
            if waits {
                *standing = found;
            }
            waits
        });
    }

    fn token(&self) -> Option<Token> {
        u64::try_from(self.revision).ok().map(Token::new)
    }
}

impl Inner {
    /// Stands in line for a claim, behind what was seen, until it holds, is gone, or etcd cannot be
    /// asked.
    pub(crate) fn stand(self: &Arc<Self>, place: Place, behind: Scope) {
        let place = Arc::new(place);
        let waiter = Arc::clone(&place);
        let inner = Arc::clone(self);
        let task = self.background.runtime().spawn(async move {
            let standing = match inner.advance(&waiter, behind).await {
                Ok(Some(grant)) => Standing::Holds(grant),
                Ok(None) => Standing::Gone,
                Err(error) => {
                    tracing::debug!(lock = %waiter.claim.name, %error, "the place is not watched");
                    Standing::Unknown
                }
            };
            waiter.settle(standing);
        });
        *place.task.lock() = Some(task.abort_handle());
        if let Some(old) = self.places.lock().insert(place.claim.owner, place) {
            old.abandon();
        }
    }

    /// Look, watch, look again, wait: in this order, so that nothing falls in between.
    async fn advance(self: &Arc<Self>, place: &Arc<Place>, behind: Scope) -> Result<Option<Grant>> {
        let own = Scope { key: place.key.clone(), end: Vec::new(), writes: false };
        let mut own = self.watches.start(&own).await?;
        let mut seen = Some(View::Behind(behind));
        loop {
            let view = match seen.take() {
                Some(view) => view,
                None => self.look(place).await?,
            };
            let scope = match view {
                View::Gone => return Ok(None),
                View::Admitted => match self.enter(place).await? {
                    Some(grant) => return Ok(Some(grant)),
                    None => continue,
                },
                View::Behind(scope) => scope,
            };
            let mut watch = self.watches.start(&scope).await?;
            if !self.is_behind(place, &scope).await? {
                continue;
            }
            let left = tokio::select! {
                // What happened to its own key comes first: one whose key is gone is not let in.
                biased;
                gone = own.changed() => { gone?; continue }
                changed = watch.changed() => changed?,
                () = place.look.notified() => continue,
            };
            // Who held alone was the first, and nobody else stood between it and this one.
            let sure = left.and_then(|kv| Record::read(&kv.value)).is_some_and(|record| {
                record.held && record.mode == Mode::Exclusive && !scope.writes
            });
            if sure
                && place.claim.mode == Mode::Exclusive
                && let Some(grant) = self.enter(place).await?
            {
                return Ok(Some(grant));
            }
        }
    }

    /// Lets in one that is admitted, and stays so: others only come behind it. At once, on the lease it
    /// waited on, if enough is left of that; else when its key has been moved. `None`: its key is gone.
    ///
    /// The lease it waited on cannot have ended before the term it is lent for. It may be gone by force;
    /// then so is its key, which the task above or the move finds out, and the loss is told.
    async fn enter(self: &Arc<Self>, place: &Arc<Place>) -> Result<Option<Grant>> {
        let Claim { owner, ttl, .. } = place.claim;
        let Some((since, term)) = place.lease.lend(owner, ttl, now()) else {
            return self.promote(place, true).await;
        };
        let (inner, moved) = (Arc::clone(self), Arc::clone(place));
        // At the desk, so that no release overtakes it.
        drop(self.desk.queue(owner, async move { inner.move_over(&moved).await }));
        let term = (term < ttl).then_some(term);
        Ok(Some(Grant { token: place.token(), since: Some(since), term }))
    }

    /// Moves the key of one that holds already. If that fails for want of an answer, the first renewal
    /// does it.
    async fn move_over(self: &Arc<Self>, place: &Place) -> Result<()> {
        let hold = Hold { owner: place.claim.owner, token: place.token() };
        match self.promote(place, true).await? {
            Some(Grant { since: Some(since), .. }) => self.listeners.renewed(hold, since),
            Some(_) => {}
            None => {
                place.standing.send_replace(Standing::Gone);
                self.listeners.lost(hold);
            }
        }
        Ok(())
    }

    /// Whether what was seen to be in the way still is, now that it is watched.
    async fn is_behind(&self, place: &Place, scope: &Scope) -> Result<bool> {
        let single = scope.end.is_empty() && !scope.writes;
        *place.obstacle.lock() = single.then(|| scope.key.clone());
        if !single {
            let seen = self.look(place).await?;
            return Ok(matches!(seen, View::Behind(now) if now == *scope));
        }
        // Two keys are found more quickly than one in a line.
        let mut seen = self.members.look("wait", vec![get(&place.key), get(&scope.key)]).await?;
        let there = |kv: Option<KeyValue>| kv.map(|kv| kv.create_revision);
        let (own, before) = (there(seen.found(0).pop()), there(seen.found(1).pop()));
        Ok(own == Some(place.revision) && before.is_some_and(|before| before < place.revision))
    }

    /// Who is in the way.
    pub(crate) async fn look(&self, place: &Place) -> Result<View> {
        let deletion = |key: Vec<u8>| Scope { key, end: Vec::new(), writes: false };
        if place.claim.mode == Mode::Exclusive {
            let reads = vec![get(&place.key), get_last_before(&place.line, place.revision)];
            let mut seen = self.members.look("wait", reads).await?;
            let own = seen.found(0).pop();
            if own.is_none_or(|own| own.create_revision != place.revision) {
                return Ok(View::Gone);
            }
            let before = seen.found(1).pop();
            return Ok(before.map_or(View::Admitted, |before| View::Behind(deletion(before.key))));
        }
        let mut seen = self.members.look("wait", vec![get_line(&place.line)]).await?;
        let mut before = seen.found(0);
        let own = before.iter().position(|kv| kv.create_revision == place.revision);
        let Some(own) = own else { return Ok(View::Gone) };
        before.truncate(own);
        let modes: Vec<Mode> = before.iter().map(mode).collect();
        Ok(match obstacle(&modes, place.claim.mode) {
            None => View::Admitted,
            Some(Obstacle::Leaves(index)) => View::Behind(deletion(before.swap_remove(index).key)),
            Some(Obstacle::Moves(index)) => {
                let key = before.swap_remove(index).key;
                View::Behind(Scope { key, end: Vec::new(), writes: true })
            }
            Some(Obstacle::Holders) => {
                let (key, end) = (place.line.first(), place.line.end());
                View::Behind(Scope { key, end, writes: false })
            }
        })
    }

    /// Moves the key of one that is admitted to the lease for holding. `None`: it is not, or its
    /// key is gone. That nobody stands before it need not be asked of one that is sure.
    ///
    /// Sent twice, or late, it does no harm: it names the create revision of the key, and the lease it
    /// is moved from.
    pub(crate) async fn promote(
        self: &Arc<Self>,
        place: &Place,
        sure: bool,
    ) -> Result<Option<Grant>> {
        let Place { claim, revision, .. } = place;
        let lease = self.hold_lease(claim).await?;
        let since = Some(lease.confirmed());
        let moved = self.hang_over(place, lease.id, sure).await;
        if moved.as_ref().is_err_and(is_lease_gone) {
            lease.retire();
        }
        let promoted = moved.map_err(Error::with_unknown_effect)?;
        match promoted {
            true if lease.id != place.lease.id => place.lease.move_out(claim.owner),
            false if lease.id != place.lease.id => lease.move_out(claim.owner),
            _ => {}
        }
        if promoted {
            lease.holds(claim.owner, *revision);
        }
        Ok(promoted.then(|| Grant { token: place.token(), since, term: None }))
    }

    /// Hangs the key of one that is admitted on another lease. False: it is not, or its key is gone.
    async fn hang_over(&self, place: &Place, to: i64, sure: bool) -> Result<bool> {
        // An earlier move whose answer was lost may have been carried out.
        const MOVES: usize = 3;
        let mut from = place.lease.id;
        for _ in 0..MOVES {
            let request = place.hung_over(from, to, sure);
            let mut outcome =
                self.members.txn("acquire", Again::Harmless, &mut false, request).await?;
            if outcome.succeeded {
                return Ok(true);
            }
            let own = outcome.found(0).pop();
            let Some(own) = own.filter(|own| own.create_revision == place.revision) else {
                return Ok(false);
            };
            if own.lease == from {
                return Ok(false);
            }
            if own.lease == to && Record::read(&own.value).is_some_and(|record| record.held) {
                return Ok(true);
            }
            from = own.lease;
        }
        let why = "the key hung on another lease at every look: try again";
        Err(Error::new(ErrorKind::Unreachable, "acquire", why))
    }
}

impl Place {
    /// What moves its key from one lease to another, if it hangs there and it is admitted; else what
    /// shows it as it is.
    fn hung_over(&self, from: i64, to: i64, sure: bool) -> TxnRequest {
        let Self { claim, line, key, revision, .. } = self;
        let mut compare = vec![created_at(key, *revision), hangs_on(key, from)];
        if claim.mode == Mode::Exclusive && !sure {
            compare.push(nobody_before(line, *revision));
        }
        let success = vec![put(key, Record::write(claim, true), to)];
        TxnRequest { compare, success, failure: vec![get(key)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EtcdConfig;
    use std::time::Duration;
    use tenure_core::{Answer, LockName, Origin, OwnerId, Patience};
    use tenure_testkit::EtcdServer;

    const LONG: Duration = Duration::from_secs(600);

    fn claim() -> Claim {
        Claim {
            name: LockName::new("a").unwrap(),
            owner: OwnerId::random(),
            mode: Mode::Exclusive,
            ttl: LONG,
            origin: Origin::here(),
            label: "".into(),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_move_that_comes_late_takes_no_key_from_its_lease() {
        if tenure_testkit::lacks("etcd", "a_move_that_comes_late_takes_no_key_from_its_lease") {
            return;
        }
        let server = EtcdServer::start(&[]).unwrap();
        let servers = vec![("127.0.0.1".into(), server.port())];
        let inner = Inner::connect(EtcdConfig::new(servers)).await.unwrap();
        let (holds, waits) = (claim(), claim());
        let patience = Patience::queue(LONG);
        assert!(matches!(inner.claim(&holds, patience).await.unwrap(), Answer::Granted(_)));
        assert!(matches!(inner.claim(&waits, patience).await.unwrap(), Answer::Queued(_)));
        let place = inner.place(waits.owner).unwrap();
        let hangs = async || {
            let mut seen = inner.members.look("test", vec![get(&place.key)]).await.unwrap();
            seen.found(0).pop().unwrap().lease
        };
        let first = inner.hold_lease(&waits).await.unwrap();
        first.retire();
        let second = inner.hold_lease(&waits).await.unwrap();
        assert!(first.id != second.id && first.id != place.lease.id);
        // It is said to have been let in: who is before it is not asked.
        let late = place.hung_over(place.lease.id, first.id, true);
        let send = async |request: &TxnRequest| {
            let request = request.clone();
            inner.members.txn("test", Again::Never, &mut false, request).await.unwrap().succeeded
        };
        assert!(send(&late).await);
        // Its answer was lost, and so was the lease: the next move goes on from there.
        assert!(inner.hang_over(&place, second.id, true).await.unwrap());
        assert_eq!(hangs().await, second.id);
        assert!(!send(&late).await, "it moves what hangs elsewhere by now");
        assert_eq!(hangs().await, second.id);
        assert!(inner.hang_over(&place, second.id, true).await.unwrap(), "it hangs there already");
        assert!(!inner.hang_over(&place, first.id, false).await.unwrap(), "another is before it");
    }
}
