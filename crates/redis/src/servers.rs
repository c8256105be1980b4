//! The servers of a topology: the one server, or the node of a Cluster that has a lock's slot.

use std::sync::Arc;

use tenure_core::Result;

use crate::cluster::Cluster;
use crate::config::{RedisConfig, Topology};
use crate::fault::fault;
use crate::link::{Link, SubscribeError};
use crate::wire::{Command, MessageListener, Value};

/// Host and port.
pub(crate) type Address = (String, u16);

/// Links to the servers, one to each.
#[derive(Clone)]
pub(crate) enum Servers {
    /// One server, or the master that Sentinels name.
    One(Link),
    Cluster(Arc<Cluster>),
}

impl Servers {
    pub(crate) async fn connect(
        config: &RedisConfig,
        listener: Option<Arc<dyn MessageListener>>,
    ) -> Result<Self> {
        if let Topology::Cluster { nodes } = &config.topology {
            return Ok(Self::Cluster(Cluster::connect(config, nodes, listener).await?));
        }
        let link = Link::new(config, listener)?;
        link.connection().await?;
        Ok(Self::One(link))
    }

    /// The same servers with connections of their own, which are made on demand.
    pub(crate) fn with_own_connections(&self) -> Result<Self> {
        Ok(match self {
            Self::One(link) => Self::One(link.with_own_connections()?),
            Self::Cluster(cluster) => Self::Cluster(Arc::new(cluster.with_own_connections())),
        })
    }

    /// Whether messages go through sharded channels.
    pub(crate) fn is_sharded(&self) -> bool {
        matches!(self, Self::Cluster(cluster) if cluster.is_sharded())
    }

    /// Whether there is a connection to the server that has this slot.
    pub(crate) fn is_connected(&self, slot: u16) -> bool {
        match self {
            Self::One(link) => link.is_connected(),
            Self::Cluster(cluster) => cluster.is_connected(slot),
        }
    }

    /// Sends a command to the server that has this slot, wherever that is by now, and right behind it
    /// on the same connection `wait`, if there is one: a `WAIT` then covers what the command wrote.
    /// Returns both replies. A refusal is a value.
    pub(crate) async fn call(
        &self,
        operation: &'static str,
        slot: u16,
        command: &Command,
        wait: Option<&Command>,
    ) -> Result<(Value, Option<Value>)> {
        match (self, wait) {
            (Self::Cluster(cluster), _) => cluster.call(operation, slot, command, wait).await,
            (Self::One(link), None) => {
                link.call(operation, [command]).await.map(|[reply]| (reply, None))
            }
            (Self::One(link), Some(wait)) => {
                let replies = link.call(operation, [command, wait]).await;
                replies.map(|[reply, acknowledged]| (reply, Some(acknowledged)))
            }
        }
    }

    /// Whether messages on this channel arrive, from the server that has the slot now.
    pub(crate) fn listens_to(&self, slot: u16, channel: &str) -> bool {
        self.link(slot).is_some_and(|link| link.listens_to(channel))
    }

    /// The link to the server that has the slot, as far as known.
    pub(crate) fn link(&self, slot: u16) -> Option<Link> {
        match self {
            Self::One(link) => Some(link.clone()),
            Self::Cluster(cluster) => {
                cluster.master_of(slot).and_then(|at| cluster.link_to(&at).ok())
            }
        }
    }

    /// Returns when messages on this channel will arrive.
    pub(crate) async fn subscribe(&self, slot: u16, channel: &str) -> Result<()> {
        let done = match self {
            Self::One(link) => link.subscribe("SUBSCRIBE", channel).await,
            Self::Cluster(cluster) => cluster.subscribe(slot, channel).await,
        };
        done.map_err(|error| match error {
            SubscribeError::Refused(refusal) => fault("subscribe to messages", &refusal),
            SubscribeError::Fault(error) => error,
        })
    }

    /// Unsubscribes from a channel.
    pub(crate) fn unsubscribe(&self, slot: u16, channel: &str) {
        match self {
            Self::One(link) => link.unsubscribe("UNSUBSCRIBE", channel),
            Self::Cluster(cluster) => cluster.unsubscribe(slot, channel),
        }
    }

    /// A link to each server that has locks.
    pub(crate) async fn all(&self) -> Result<Vec<Link>> {
        match self {
            Self::One(link) => Ok(vec![link.clone()]),
            Self::Cluster(cluster) => cluster.all().await,
        }
    }

    /// A link to some server that has locks.
    pub(crate) async fn any(&self) -> Result<Link> {
        match self {
            Self::One(link) => Ok(link.clone()),
            Self::Cluster(cluster) => cluster.any().await,
        }
    }
}
