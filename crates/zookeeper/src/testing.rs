//! A client that knows nothing of locks, for tests and benchmarks.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Result;
use tenure_core::store::Background;

use crate::fault::fault;
use crate::keys::with_ancestors;
use crate::wire::{
    self, Acl, Check, Code, Create, CreateMode, Delete, Exists, Fault, GetChildren, GetData, Multi,
    Op, Request, SetData, Sync, Target,
};

/// A session with ZooKeeper.
#[derive(Clone, Debug)]
pub struct Bare {
    pub(crate) wire: wire::Session,
    /// Serves the session.
    _background: Background,
}

/// The kind of a new node.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// It stays.
    Persistent,
    /// It is given a number, and ends with the session.
    EphemeralSequential,
}

/// What ZooKeeper keeps about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// The transaction that created it.
    pub czxid: i64,
    /// How often its list of children was changed.
    pub cversion: i32,
    /// How many children it has.
    pub num_children: i32,
    /// The session that it ends with, or zero.
    pub ephemeral_owner: i64,
}

/// What every client may do with a node.
#[derive(Clone, Copy, Debug)]
pub enum Rights {
    /// Everything.
    All,
    /// Create and delete its children, and not list them.
    Blind,
}

const BARE: &str = "use ZooKeeper";

impl Bare {
    /// Opens a session of half a minute with a server on this machine.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn connect(port: u16) -> Result<Self> {
        let background = Background::start("bare-zookeeper")?;
        let servers = vec![("127.0.0.1".into(), port)];
        let timeout = Duration::from_secs(10);
        let target = Arc::new(Target { servers, tls: None, login: None, timeout });
        let wire = wire::Session::open(target, Duration::from_secs(30), &background).await?;
        wire.ready().await.map_err(|error| fault(BARE, error))?;
        Ok(Self { wire, _background: background })
    }

    /// Creates a node, and returns its path.
    ///
    /// # Errors
    /// If it is refused, or no answer came.
    pub async fn create(
        &self,
        path: &str,
        data: &[u8],
        kind: Kind,
        rights: Rights,
    ) -> Result<String> {
        let permissions = match rights {
            Rights::All => Acl::ALL,
            Rights::Blind => Acl::CREATE | Acl::DELETE,
        };
        let acl = vec![Acl::new(permissions, "world", "anyone")];
        let mode = match kind {
            Kind::Persistent => CreateMode::Persistent,
            Kind::EphemeralSequential => CreateMode::EphemeralSequential,
        };
        let created = self.call(Create { path: path.into(), data: data.into(), acl, mode }).await?;
        Ok(created.path)
    }

    /// Creates a persistent node and those above it, if they are not there.
    ///
    /// # Errors
    /// If it is refused, or no answer came.
    pub async fn make(&self, path: &str) -> Result<()> {
        for path in with_ancestors(path) {
            let (acl, data, mode) = (Acl::anyone_all(), Vec::new(), CreateMode::Persistent);
            match self.wire.send(Create { path: path.into(), data, acl, mode }).await {
                Ok(_) | Err(Fault::Refused(Code::NodeExists)) => {}
                Err(error) => return Err(fault(BARE, error)),
            }
        }
        Ok(())
    }

    /// Deletes a node.
    ///
    /// # Errors
    /// If it is refused, or no answer came.
    pub async fn delete(&self, path: &str) -> Result<()> {
        self.call(Delete { path: path.into(), version: None }).await
    }

    /// A node's data.
    ///
    /// # Errors
    /// If it is refused, or no answer came.
    pub async fn data(&self, path: &str) -> Result<Vec<u8>> {
        self.call(GetData::new(path)).await.map(|(data, _)| data)
    }

    /// Watches a node: the inner future resolves when the node has changed.
    ///
    /// # Errors
    /// If it is refused, or no answer came.
    pub async fn watch(&self, path: &str) -> Result<impl Future<Output = ()> + Send + 'static> {
        let watched = self.wire.send_watched(GetData::new(path)).await;
        let (_, watch) = watched.map_err(|error| fault(BARE, error))?;
        Ok(async move {
            watch.await;
        })
    }

    /// The names of a node's children.
    ///
    /// # Errors
    /// If it is refused, or no answer came.
    pub async fn children(&self, path: &str) -> Result<Vec<String>> {
        self.call(GetChildren::new(path)).await.map(|(children, _)| children)
    }

    /// The state of a node, as the leader knows it; `None` if it is not there.
    ///
    /// # Errors
    /// If no answer came.
    pub async fn state(&self, path: &str) -> Result<Option<NodeState>> {
        self.call(Sync { path: path.into() }).await?;
        let stat = self.call(Exists::new(path)).await?;
        Ok(stat.map(|stat| NodeState {
            czxid: stat.czxid,
            cversion: stat.cversion,
            num_children: stat.num_children,
            ephemeral_owner: stat.ephemeral_owner,
        }))
    }

    /// Writes to a node if another one is there. False: it is not.
    ///
    /// # Errors
    /// If no answer came.
    pub async fn set_if_there(&self, condition: &str, path: &str, data: &[u8]) -> Result<bool> {
        let check = Op::Check(Check { path: condition.into(), version: None });
        let set = SetData { path: path.into(), data: data.into(), version: None };
        let done = self.call(Multi { ops: vec![check, Op::SetData(set)] }).await?;
        Ok(done.is_ok())
    }

    async fn call<R: Request>(&self, request: R) -> Result<R::Reply> {
        self.wire.send(request).await.map_err(|error| fault(BARE, error))
    }
}
