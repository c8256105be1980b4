//! What the calls of a store and the tasks of its waiters share.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Background, HoldListeners, OwnerId, Result, now};
use tokio::task::AbortHandle;
use zookeeper_client::{Acls, CreateMode, Error as Fault};

use crate::config::{Access, ZooKeeperConfig};
use crate::fault::fault;
use crate::keys::Keyring;
use crate::known::Known;
use crate::line::Line;
use crate::numbers::Limits;
use crate::session::{Session, Sessions};
use crate::tenants::{Overdue, Tenant, Tenants};

pub(crate) struct Inner {
    pub(crate) config: ZooKeeperConfig,
    pub(crate) keyring: Keyring,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) tenants: Tenants,
    pub(crate) known: Known,
    pub(crate) listeners: HoldListeners,
    pub(crate) limits: Limits,
    /// Serves the connections, and everything that goes on between calls.
    pub(crate) background: Background,
}

impl Inner {
    pub(crate) async fn connect(
        config: ZooKeeperConfig,
        limits: Limits,
    ) -> Result<(Arc<Self>, AbortHandle)> {
        let keyring = Keyring::new(&config)?;
        let background = Background::start("tenure-zookeeper")?;
        let sessions = Sessions::connect(config.clone(), background.clone()).await?;
        let (tenants, known) = (Tenants::default(), Known::default());
        let listeners = HoldListeners::default();
        let inner = Arc::new(Self {
            config,
            keyring,
            sessions,
            tenants,
            known,
            listeners,
            limits,
            background,
        });
        let sweeping = sweep(Arc::clone(&inner));
        let sweeper = inner.background.runtime().spawn(sweeping).abort_handle();
        Ok((inner, sweeper))
    }

    pub(crate) const fn acls(&self) -> Acls<'static> {
        match self.config.access {
            Access::World => Acls::anyone_all(),
            Access::Creator => Acls::creator_all(),
        }
    }

    /// The line of a lock, at least as this session's server knew it when this was called.
    pub(crate) async fn see(
        &self,
        operation: &'static str,
        session: &Session,
        lock: &str,
    ) -> Result<Line> {
        let listed = session.answer(session.zk.list_children(lock)).await;
        line(listed).map_err(|error| fault(operation, error))
    }

    /// The line of a lock, at least as the leader knew it when this was called.
    pub(crate) async fn see_now(
        &self,
        operation: &'static str,
        session: &Session,
        lock: &str,
    ) -> Result<Line> {
        let (synced, listed) = (session.zk.sync(lock), session.zk.list_children(lock));
        let answers = async {
            synced.await?;
            line(listed.await)
        };
        session.answer(answers).await.map_err(|error| fault(operation, error))
    }

    /// Makes the node that locks, or records, are children of, and those above it.
    pub(crate) async fn make_folder(
        &self,
        operation: &'static str,
        session: &Session,
        path: &str,
    ) -> Result<()> {
        let options = CreateMode::Persistent.with_acls(self.acls());
        let made = session.answer(session.zk.mkdir(path, &options)).await;
        made.map_err(|error| fault(operation, error))
    }

    /// Deletes the nodes of one claim, together. False: they were gone.
    pub(crate) async fn delete(&self, session: &Session, nodes: &[String]) -> Result<bool, Fault> {
        if let [node] = nodes {
            return deleted(session.answer(session.zk.delete(node, None)).await);
        }
        let mut together = session.zk.new_multi_writer();
        for node in nodes {
            together.add_delete(node, None)?;
        }
        let commit = async { together.commit().await.map(|_| ()).map_err(Fault::from) };
        match session.answer(commit).await {
            Err(Fault::NoNode) => {}
            answer => return deleted(answer),
        }
        // One of them is gone: the others must go all the same.
        let mut any = false;
        for node in nodes {
            any |= deleted(session.answer(session.zk.delete(node, None)).await)?;
        }
        Ok(any)
    }

    /// Removes one whose time is over, although its session lives on.
    async fn remove(&self, overdue: Overdue) {
        let Overdue { tenant, stay } = overdue;
        let owner = tenant.claim.owner;
        // The nodes of a session that is gone go with it.
        while !tenant.session.is_over() && self.tenants.is_staying(owner, stay) {
            let removed = self.expire(&tenant, stay).await;
            match removed {
                Ok(()) => break,
                Err(error) => {
                    tracing::debug!(lock = %tenant.claim.name, %error, "not removed yet");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        self.tenants.end(owner, stay);
    }

    async fn expire(&self, tenant: &Tenant, stay: u64) -> Result<()> {
        let session = &tenant.session;
        session.ready(EXPIRE).await?;
        let mut nodes = tenant.nodes.clone();
        if nodes.is_empty() {
            let line = self.see_now(EXPIRE, session, &tenant.lock).await?;
            nodes = nodes_of(&line, &tenant.lock, tenant.claim.owner);
        }
        // It may have come anew while this was looked up.
        if nodes.is_empty() || !self.tenants.is_staying(tenant.claim.owner, stay) {
            return Ok(());
        }
        self.delete(session, &nodes).await.map_err(|error| fault(EXPIRE, error))?;
        Ok(())
    }
}

const EXPIRE: &str = "remove what has expired";

/// The paths of an owner's nodes in a line, wherever they stand.
pub(crate) fn nodes_of(line: &Line, lock: &str, owner: OwnerId) -> Vec<String> {
    let own = line.0.iter().filter(|entry| entry.owner == Some(owner));
    own.flat_map(|entry| &entry.nodes).map(|node| format!("{lock}/{node}")).collect()
}

/// A lock without a node is one that nobody waits for.
pub(crate) fn line(listed: Result<Vec<String>, Fault>) -> Result<Line, Fault> {
    match listed {
        Ok(children) => Ok(Line::read(&children)),
        Err(Fault::NoNode) => Ok(Line::default()),
        Err(error) => Err(error),
    }
}

fn deleted(answer: Result<(), Fault>) -> Result<bool, Fault> {
    match answer {
        Ok(()) => Ok(true),
        Err(Fault::NoNode) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Looks for those whose time is over, until it is stopped.
async fn sweep(inner: Arc<Inner>) {
    loop {
        let (overdue, next) = inner.tenants.overdue(now());
        for one in overdue {
            let inner = Arc::clone(&inner);
            tokio::spawn(async move { inner.remove(one).await });
        }
        let until = next.map_or(Duration::from_secs(3600), |next| next.since(now()));
        tokio::select! {
            () = inner.tenants.earlier.notified() => {}
            () = tokio::time::sleep(until) => {}
        }
    }
}
