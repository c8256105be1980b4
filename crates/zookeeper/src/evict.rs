//! To take a lock away by force.

use tenure_core::{Error, ErrorKind, Eviction, Released, Result};
use zookeeper_client::{CreateMode, Error as Fault, Stat};

use crate::canary::with_loss;
use crate::create::token;
use crate::fault::fault;
use crate::inner::Inner;
use crate::session::Session;

/// How often it begins anew when the record was written meanwhile.
const ROUNDS: usize = 5;

const EVICT: &str = "evict";

impl Inner {
    pub(crate) async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        let session = self.sessions.any(EVICT).await?;
        let lock = self.keyring.lock(&eviction.name);
        let audit = self.keyring.audit(&eviction.name);
        for _ in 0..ROUNDS {
            let line = self.see_now(EVICT, &session, &lock).await?;
            let seen = line.0.iter().position(|entry| entry.spelled() == eviction.owner);
            let Some(at) = seen else { return Ok(Released::NotHeld) };
            let nodes: Vec<_> = line.0[at].nodes.iter().map(|it| format!("{lock}/{it}")).collect();
            if line.obstacle(at).is_some() {
                // A place in line is no lock.
                self.delete(&session, &nodes).await.map_err(|error| fault(EVICT, error))?;
                return Ok(Released::NotHeld);
            }
            match self.take_away(&session, eviction, &nodes, &audit).await {
                Ok(()) => return Ok(Released::Released),
                Err(Fault::NoNode | Fault::BadVersion | Fault::NodeExists) => {}
                Err(error) => return Err(fault(EVICT, error)),
            }
        }
        let why = "the lock changed at every look: try again";
        Err(Error::new(ErrorKind::Unreachable, EVICT, why).about(&eviction.name))
    }

    /// Deletes the nodes, writes the record and tells the holder, all or nothing.
    async fn take_away(
        &self,
        session: &Session,
        eviction: &Eviction,
        nodes: &[String],
        audit: &str,
    ) -> Result<(), Fault> {
        let (_, stat) = session.answer(session.zk.get_data(&nodes[0])).await?;
        let canary = self.keyring.canary(stat.ephemeral_owner);
        let records = written(session.answer(session.zk.get_data(audit)).await)?;
        // One of another client listens for nothing.
        let losses = written(session.answer(session.zk.get_data(&canary)).await)?;
        let options = CreateMode::Persistent.with_acls(self.acls());
        let mut together = session.zk.new_multi_writer();
        for node in nodes {
            together.add_delete(node, None)?;
        }
        if let Some((said, known)) = losses {
            let said = with_loss(&said, &eviction.owner, token(&stat));
            together.add_set_data(&canary, &said, Some(known.version))?;
        }
        match &records {
            Some((older, stat)) => {
                together.add_set_data(audit, &eviction.recorded(older), Some(stat.version))?;
            }
            None => {
                let folder = crate::keys::parent(audit);
                session.answer(session.zk.mkdir(folder, &options)).await?;
                together.add_create(audit, &eviction.recorded(b""), &options)?;
            }
        }
        let commit = together.commit();
        session.answer(async { commit.await.map(|_| ()).map_err(Fault::from) }).await
    }
}

/// What a node says, if it is there.
fn written(read: Result<(Vec<u8>, Stat), Fault>) -> Result<Option<(Vec<u8>, Stat)>, Fault> {
    match read {
        Err(Fault::NoNode) => Ok(None),
        read => read.map(Some),
    }
}
