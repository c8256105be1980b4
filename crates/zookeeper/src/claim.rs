//! To ask for a lock, and to ask again.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Answer, Claim, Error, ErrorKind, Grant, Moment, Patience, Place as Mark, Result, Token, now,
};
use zookeeper_client::Error as Fault;

use crate::create::{Arrival, Own, token};
use crate::fault::{fault, is_refusal};
use crate::inner::{Inner, nodes_of};
use crate::keys::parent;
use crate::numbers::used_up;
use crate::place::{Place, Standing};
use crate::record::{self, Record};
use crate::session::Session;
use crate::tenants::{Stage, Tenant};

/// How often a claim begins anew when what it saw is gone by the time it acts on it.
const ROUNDS: usize = 6;

const ACQUIRE: &str = "acquire";

impl Inner {
    pub(crate) async fn claim(
        self: &Arc<Self>,
        claim: &Claim,
        patience: Patience,
    ) -> Result<Answer> {
        if !claim.mode.is_sound() {
            let why = "take at least one permit, and no more than there are";
            return Err(Error::new(ErrorKind::Invalid, ACQUIRE, why));
        }
        for _ in 0..ROUNDS {
            let answer = match self.tenants.find(claim.owner) {
                Some((tenant, overdue)) => self.go_on(tenant, overdue, patience).await?,
                None => self.arrive(claim, patience).await?,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        let why = "the lock or its session changed at every look: try again";
        Err(Error::new(ErrorKind::Unreachable, ACQUIRE, why).with_unknown_effect())
    }

    /// Goes on with a claim that has been asked for before. `None`: nothing is left of it.
    async fn go_on(
        self: &Arc<Self>,
        tenant: Tenant,
        overdue: bool,
        patience: Patience,
    ) -> Result<Option<Answer>> {
        let ready = tenant.session.ready(ACQUIRE).await;
        if overdue || tenant.session.is_over() {
            self.drop_nodes(ACQUIRE, &tenant).await?;
            return Ok(None);
        }
        ready?;
        let place = match &tenant.stage {
            Stage::Holds => return self.confirm(&tenant).await,
            Stage::Waits(place) => Some(Arc::clone(place)),
            Stage::Unsure => None,
        };
        match (place, patience) {
            (Some(place), Patience::Queue { lease, .. })
                if matches!(place.standing(), Standing::Waits) =>
            {
                self.stay(&place, lease).await
            }
            _ => self.adopt(tenant, patience).await,
        }
    }

    /// Keeps a place in line that is there already. `None`: it is not there any more.
    pub(crate) async fn stay(&self, place: &Place, patience: Duration) -> Result<Option<Answer>> {
        let Claim { owner, ttl, .. } = place.claim;
        // Its time may have ended while this was on its way: then it is being removed, and stays in
        // the books until its nodes are gone.
        if !self.tenants.wait_on(owner, now() + patience) {
            return Ok(None);
        }
        let there = place.check().await.map_err(|error| fault(ACQUIRE, error))?
            // So that nothing need be asked when its turn comes.
            && (place.is_fresh(ttl / 8) || place.session.reach(ACQUIRE, &place.node, now()).await?);
        if there {
            return Ok(Some(Answer::Queued(Mark::default())));
        }
        if let Some((tenant, _)) = self.tenants.find(owner) {
            // One of several nodes may be left.
            self.drop_nodes(ACQUIRE, &tenant).await?;
        }
        Ok(None)
    }

    /// A hold that is asked for again: the same token, and its term starts anew.
    pub(crate) async fn confirm(&self, tenant: &Tenant) -> Result<Option<Answer>> {
        let sent = now();
        let there = self.is_there(ACQUIRE, tenant).await?;
        Ok(there.then(|| granted(tenant.token, sent)))
    }

    /// Whether the nodes of one that holds are there; then its term starts anew.
    pub(crate) async fn is_there(&self, operation: &'static str, tenant: &Tenant) -> Result<bool> {
        let Tenant { claim, session, nodes, .. } = tenant;
        let Some(node) = nodes.first() else { return Ok(false) };
        let sent = now();
        // Before it is sent: it must not be removed while the answer is on its way.
        let ends = sent + claim.ttl;
        if !self.tenants.update(claim.owner, ends, |_| {}) {
            return Ok(false);
        }
        let seen = match tenant.unsaid {
            // The node says that it waits, or nothing: it is told since when it holds.
            Some(entered) => {
                let record = Record::write(claim, record::Stage::Held, sent.since(entered));
                let said = session.answer(session.zk.set_data(node, &record, None)).await;
                if said.is_ok() {
                    session.confirm(sent);
                    self.tenants.update(claim.owner, ends, |tenant| tenant.unsaid = None);
                }
                said.map(Some)
            }
            None if session.reach(operation, node, sent).await? => {
                session.answer(session.zk.check_stat(node)).await
            }
            None => Ok(None),
        };
        let seen = match seen {
            Err(Fault::NoNode) => None,
            seen => seen.map_err(|error| fault(operation, error))?,
        };
        let there = seen.is_some_and(|stat| {
            stat.ephemeral_owner == session.id() && token(&stat) == tenant.token
        });
        if !there && let Err(error) = self.drop_nodes(operation, tenant).await {
            // One of several nodes may be left; it is removed when its time is over.
            tracing::debug!(lock = %claim.name, %error, "not removed yet");
        }
        Ok(there)
    }

    /// Looks for nodes of a claim whose fate is not known. `None`: there are none.
    async fn adopt(self: &Arc<Self>, tenant: Tenant, patience: Patience) -> Result<Option<Answer>> {
        let waited = matches!(tenant.stage, Stage::Waits(_));
        // If its turn has come, its node is yet to say so.
        let tenant = Tenant { unsaid: waited.then(now), ..tenant };
        let Tenant { claim, lock, session, .. } = &tenant;
        let sent = now();
        // Before it is looked for: it must not be removed while the answers are on their way.
        if !self.tenants.update(claim.owner, sent + life(claim, patience), |_| {}) {
            return Ok(None);
        }
        let adopted = async {
            let line = self.see_now(ACQUIRE, session, lock).await?;
            let nodes = nodes_of(&line, lock, claim.owner);
            let found = line.find(claim.owner).zip(nodes.first());
            let Some((at, node)) = found else {
                self.tenants.move_out(claim.owner);
                return Ok(None);
            };
            let stat = session.answer(session.zk.check_stat(node)).await;
            match stat.map_err(|error| fault(ACQUIRE, error))? {
                // Nobody else's session may end our hold.
                Some(stat) if stat.ephemeral_owner == session.id() => {
                    if !session.reach(ACQUIRE, node, sent).await? {
                        return Ok(None);
                    }
                    let own = Own { number: line.0[at].number, nodes, token: token(&stat) };
                    let arrival = Arrival { own, line };
                    // What others had confirmed later says nothing of this node.
                    self.settle(&tenant, arrival, patience, sent).await.map(Some)
                }
                Some(_) => {
                    self.drop_nodes(ACQUIRE, &tenant).await?;
                    Ok(None)
                }
                None => Ok(None),
            }
        };
        adopted.await.map_err(Error::with_unknown_effect)
    }

    /// Comes to the end of the line. `None`: what it is to stand below is not there, or was not.
    async fn arrive(self: &Arc<Self>, claim: &Claim, patience: Patience) -> Result<Option<Answer>> {
        let session = self.sessions.get(ACQUIRE, claim.ttl).await?;
        self.attend(&session);
        let lock = self.keyring.lock(&claim.name);
        if let Patience::None = patience {
            // Whoever does not want to wait must not get in others' way.
            let line = self.see_now(ACQUIRE, &session, &lock).await?;
            if !line.has_room_for(claim.mode) {
                return Ok(Some(Answer::Busy));
            }
        }
        let tenant = Tenant::new(claim, &lock, &session);
        self.tenants.move_in(tenant.clone(), now() + life(claim, patience));
        let sent = now();
        let arrival = match self.create(&tenant).await {
            Ok(created) => created,
            Err(Fault::NoNode) => {
                self.tenants.move_out(claim.owner);
                // The server removes nodes that have no children any more.
                if !self.known.forget(&lock) {
                    self.make_folder(ACQUIRE, &session, parent(&lock)).await?;
                    self.put_canary(&session);
                }
                return Ok(None);
            }
            Err(error) => {
                if is_refusal(&error) {
                    self.tenants.move_out(claim.owner);
                }
                return Err(fault(ACQUIRE, error));
            }
        };
        session.confirm(sent);
        let nodes = nodes_of(&arrival.line, &lock, claim.owner);
        if nodes.len() > arrival.own.nodes.len() {
            // An earlier session has left some further to the front, over for us and not yet for the
            // servers. They end with it at any time, so their place must not be taken for ours.
            let dropped = self.drop_nodes(ACQUIRE, &Tenant { nodes, ..tenant }).await;
            return dropped.map(|_| None).map_err(Error::with_unknown_effect);
        }
        let settled = self.settle(&tenant, arrival, patience, sent).await;
        settled.map(Some).map_err(Error::with_unknown_effect)
    }

    /// A claim that is admitted holds; any other waits, if it wants to.
    async fn settle(
        self: &Arc<Self>,
        tenant: &Tenant,
        arrival: Arrival,
        patience: Patience,
        since: Moment,
    ) -> Result<Answer> {
        let Tenant { claim, lock, session, .. } = tenant;
        let Arrival { own: Own { nodes, number, token }, line } = arrival;
        let Some(at) = line.find(claim.owner) else {
            self.tenants.move_out(claim.owner);
            let why = "its node was removed as soon as it was there: try again";
            return Err(Error::new(ErrorKind::Unreachable, ACQUIRE, why));
        };
        let mut known = Tenant { nodes, token, ..tenant.clone() };
        if self.limits.are_passed(number, &line) {
            self.drop_nodes(ACQUIRE, &known).await?;
            return Err(used_up(ACQUIRE, lock));
        }
        let waits = line.obstacle(at).is_some();
        match patience {
            _ if !waits => {
                known.stage = Stage::Holds;
                // One that waited before this was found out is not told from one that did not.
                self.tenants.move_in(known, now() + claim.ttl);
                Ok(granted(token, since))
            }
            Patience::None => {
                self.drop_nodes(ACQUIRE, &known).await?;
                Ok(Answer::Busy)
            }
            Patience::Queue { lease, .. } => {
                let place = Place::new(claim, lock, &known.nodes[0], token, session);
                known.stage = Stage::Waits(Arc::clone(&place));
                self.tenants.move_in(known, now() + lease);
                self.stand(&place, line);
                Ok(Answer::Queued(Mark::default()))
            }
        }
    }

    /// Deletes a claim's nodes, if there are any, whether it holds or waits, and forgets it. True if
    /// there were.
    pub(crate) async fn drop_nodes(
        &self,
        operation: &'static str,
        tenant: &Tenant,
    ) -> Result<bool> {
        let Tenant { claim, lock, nodes, .. } = tenant;
        let session = self.usable(operation, tenant).await?;
        let mut nodes = nodes.clone();
        if nodes.is_empty() {
            let line = self.see_now(operation, &session, lock).await?;
            nodes = nodes_of(&line, lock, claim.owner);
        }
        let there = match nodes[..] {
            [] => false,
            _ => self.delete(&session, &nodes).await.map_err(|error| fault(operation, error))?,
        };
        self.begin_anew(&session, lock, &nodes);
        self.tenants.move_out(claim.owner);
        Ok(there)
    }
}

impl Inner {
    /// The session that a claim was made on: what is sent there comes after the claim. If it is gone,
    /// nothing of it can come any more, and any other will do.
    pub(crate) async fn usable(
        &self,
        operation: &'static str,
        tenant: &Tenant,
    ) -> Result<Arc<Session>> {
        let ready = tenant.session.ready(operation).await;
        if tenant.session.is_over() {
            return self.sessions.any(operation).await;
        }
        ready.map(|()| Arc::clone(&tenant.session))
    }
}

/// How long a claim stays that is not heard of again: no shorter than it may hold.
fn life(claim: &Claim, patience: Patience) -> Duration {
    match patience {
        Patience::Queue { lease, .. } => lease.max(claim.ttl),
        Patience::None => claim.ttl,
    }
}

fn granted(token: Option<Token>, since: Moment) -> Answer {
    Answer::Granted(Grant { token, since: Some(since), term: None })
}
