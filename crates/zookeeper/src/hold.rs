//! To go on holding, and to let go.

use std::sync::Arc;

use tenure_core::{Answer, Claim, Patience, Released, Renewal, Result};

use crate::fault::fault;
use crate::inner::{Inner, line, nodes_of};
use crate::session::Session;
use crate::tenants::{Stage, Tenant};

const RELEASE: &str = "release";

impl Inner {
    /// The nodes must be there, and of this session, and a write must have been answered that was sent
    /// after this began.
    pub(crate) async fn renew(self: &Arc<Self>, claim: &Claim) -> Result<Renewal> {
        let Some((tenant, false)) = self.tenants.find(claim.owner) else {
            return Ok(Renewal::Lost);
        };
        let ready = tenant.session.ready("renew").await;
        if tenant.session.is_over() {
            return Ok(Renewal::Lost);
        }
        ready?;
        let renewed = match tenant.stage {
            Stage::Holds => self.is_there("renew", &tenant).await?,
            // It may have been handed the lock, and not have heard of it.
            Stage::Waits(_) | Stage::Unsure => {
                let line = self.see_now("renew", &tenant.session, &tenant.lock).await?;
                let at = line.find(claim.owner);
                at.is_some_and(|at| line.obstacle(at).is_none())
                    && matches!(self.claim(claim, Patience::None).await?, Answer::Granted(_))
            }
        };
        Ok(if renewed { Renewal::Renewed } else { Renewal::Lost })
    }

    /// Deletes a claim's nodes. Their names are the claim's alone, so nothing of anybody else's can
    /// be hit.
    pub(crate) async fn release(&self, claim: &Claim) -> Result<Released> {
        let Some((tenant, _)) = self.tenants.find(claim.owner) else {
            // Another process's, perhaps, or of one that has expired.
            let session = self.sessions.any(RELEASE).await?;
            let lock = self.keyring.lock(&claim.name);
            let stranger = Tenant::new(claim, &lock, &session);
            return self.leave(&session, &stranger).await;
        };
        match self.let_go(&tenant).await {
            // It may have ended without our knowing: then another session is used.
            Err(_) if tenant.session.is_over() => self.let_go(&tenant).await,
            released => released,
        }
    }

    async fn let_go(&self, tenant: &Tenant) -> Result<Released> {
        if !matches!(tenant.stage, Stage::Holds) {
            let session = self.usable(RELEASE, tenant).await?;
            return self.leave(&session, tenant).await;
        }
        let held = self.drop_nodes(RELEASE, tenant).await?;
        Ok(if held { Released::Released } else { Released::NotHeld })
    }

    /// Deletes the nodes of one that may hold without having heard of it, or may have no nodes at
    /// all.
    async fn leave(&self, session: &Session, tenant: &Tenant) -> Result<Released> {
        let Tenant { claim, lock, nodes, .. } = tenant;
        let owner = claim.owner;
        // In one go with the look at the line, where the node's name is known.
        let known = nodes.first().filter(|_| nodes.len() == 1);
        let (synced, listed) = (session.zk.sync(lock), session.zk.list_children(lock));
        let deleted = known.map(|node| session.zk.delete(node, None));
        let answers = async {
            synced.await?;
            let line = line(listed.await)?;
            let gone = match deleted {
                Some(deleted) => deleted.await.map(|()| true),
                None => Ok(false),
            };
            match gone {
                Err(error) if error != zookeeper_client::Error::NoNode => Err(error),
                gone => Ok((line, gone.unwrap_or(false))),
            }
        };
        let answers = session.answer(answers).await;
        let (line, mut gone) = answers.map_err(|error| fault(RELEASE, error))?;
        let rest = nodes_of(&line, lock, owner);
        if known.is_none() && !rest.is_empty() {
            gone = self.delete(session, &rest).await.map_err(|error| fault(RELEASE, error))?;
        }
        self.begin_anew(session, lock, &rest);
        self.tenants.move_out(owner);
        let held = line.find(owner).is_some_and(|at| line.obstacle(at).is_none());
        Ok(if gone && held { Released::Released } else { Released::NotHeld })
    }
}
