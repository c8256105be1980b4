//! Nodes of ours that are in no book any more.
//!
//! Whoever lost the answer to a creation looks for the node, on another connection perhaps, and
//! forgets the claim if it is not there. A server that stood still may carry out later what it was
//! sent on the old one. Nobody would ever remove that node while its session lives, and the session
//! lives for other claims. So a session looks from time to time which nodes are its own.

use tenure_core::{ErrorKind, Result};

use crate::fault::fault;
use crate::inner::Inner;
use crate::line::Line;
use crate::session::Session;

const CLEAR: &str = "clear away what was forgotten";

impl Inner {
    /// Clears away, as often as the session would end without a sign of life: an orphan is in others'
    /// way about as long as one who died.
    pub(crate) async fn clear_away(&self, session: &Session) {
        loop {
            tokio::time::sleep(session.life()).await;
            match self.clear_once(session).await {
                // A server before 3.6 hangs up on whoever asks what it does not know.
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    tracing::debug!(%error, "nothing is cleared away");
                    return std::future::pending().await;
                }
                Err(error) => tracing::debug!(%error, "not cleared away"),
                Ok(()) => {}
            }
        }
    }

    async fn clear_once(&self, session: &Session) -> Result<()> {
        session.ready(CLEAR).await?;
        let own = session.answer(session.zk.list_ephemerals(self.keyring.folder())).await;
        let own = own.map_err(|error| fault(CLEAR, error))?;
        // A claim is in the books before its nodes are there, so the books are looked at last.
        for node in own.into_iter().filter(|node| self.is_orphan(node)) {
            tracing::warn!(node, "removed, for it was of a claim that was given up");
            let gone = self.delete(session, &[node]).await;
            gone.map_err(|error| fault(CLEAR, error))?;
        }
        Ok(())
    }

    /// Whether this node is of a claim, and in no book.
    fn is_orphan(&self, node: &str) -> bool {
        let name = node.rsplit('/').next().unwrap_or_default();
        let owner = Line::read(&[name.to_owned()]).0.first().and_then(|entry| entry.owner);
        let Some(owner) = owner else { return false };
        match self.tenants.find(owner) {
            // Nobody knows yet which are its nodes, if it has none.
            Some((tenant, _)) => {
                !tenant.nodes.is_empty() && !tenant.nodes.iter().any(|n| n == node)
            }
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_core::{Answer, Claim, now};
    use tenure_testkit::{GENEROUS, ZooKeeperServer, eventually};
    use zookeeper_client::{Acls, CreateMode};

    use super::*;
    use crate::config::Neighbours;
    use crate::inside::{PATIENT, TTL, claim, inner, take};
    use crate::line::names;
    use crate::numbers::Limits;
    use crate::tenants::Tenant;

    /// Creates the node of a claim, as if it had been asked for long ago, and says where.
    async fn create(session: &Session, claim: &Claim) -> String {
        let path = format!("/tenure/a/{}", names(claim, Neighbours::default())[0]);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, number) = session.zk.create(&path, b"", &options).await.unwrap();
        format!("{path}{number}")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_nodes_that_are_in_no_book_are_cleared_away() {
        if ZooKeeperServer::is_missing("only_nodes_that_are_in_no_book_are_cleared_away") {
            return;
        }
        let server = ZooKeeperServer::start(&[]).unwrap();
        let inner = inner(&server, Limits::default()).await;
        let held = take(&inner).await.unwrap();
        let waits = claim();
        assert!(matches!(inner.claim(&waits, PATIENT).await.unwrap(), Answer::Queued(_)));
        let session = inner.sessions.get("test", TTL).await.unwrap();
        // One is forgotten, one has a node too many, and of one nobody knows what it has.
        let (forgotten, unsure) = (claim(), claim());
        let orphans = [create(&session, &forgotten).await, create(&session, &waits).await];
        inner.tenants.move_in(Tenant::new(&unsure, "/tenure/a", &session), now() + TTL);
        let kept = create(&session, &unsure).await;
        inner.clear_once(&session).await.unwrap();
        let left = session.zk.list_children("/tenure/a").await.unwrap();
        let is_left = |node: &str| left.iter().any(|name| node.ends_with(name));
        assert!(orphans.iter().all(|node| !is_left(node)) && is_left(&kept), "{left:?}");
        assert_eq!(left.len(), 3, "{left:?}");
        let canary = inner.keyring.canary(session.id());
        assert!(session.zk.check_stat(&canary).await.unwrap().is_some(), "it is no claim");
        inner.release(&held).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_orphan_goes_although_its_session_lives_and_nobody_asks() {
        if ZooKeeperServer::is_missing("an_orphan_goes_although_its_session_lives") {
            return;
        }
        let server = ZooKeeperServer::start(&["minSessionTimeout=400"]).unwrap();
        let inner = inner(&server, Limits::default()).await;
        let ttl = Duration::from_secs(1);
        let short = Claim { ttl, ..claim() };
        assert!(matches!(inner.claim(&short, PATIENT).await.unwrap(), Answer::Granted(_)));
        let session = inner.sessions.get("test", ttl).await.unwrap();
        let orphan = create(&session, &claim()).await;
        let gone = || async { session.zk.check_stat(&orphan).await.is_ok_and(|it| it.is_none()) };
        assert!(eventually(GENEROUS, gone).await);
        assert!(!session.is_over());
    }
}
