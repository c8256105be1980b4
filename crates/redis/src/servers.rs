//! Who serves a lock: the one server, or the Cluster's node that has the lock's slot.

use std::sync::Arc;

use tenure_core::Result;

use crate::cluster::Cluster;
use crate::config::{RedisConfig, Topology};
use crate::fault::fault;
use crate::link::{Link, Trouble};
use crate::wire::{Command, Hearer, Value};

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
        hearer: Option<Arc<dyn Hearer>>,
    ) -> Result<Self> {
        if let Topology::Cluster { nodes } = &config.topology {
            return Ok(Self::Cluster(Cluster::connect(config, nodes, hearer).await?));
        }
        let link = Link::new(config, hearer)?;
        link.connection().await?;
        Ok(Self::One(link))
    }

    /// The same servers, over connections of their own, which are made when they are needed.
    pub(crate) fn beside(&self) -> Result<Self> {
        Ok(match self {
            Self::One(link) => Self::One(link.beside()?),
            Self::Cluster(cluster) => Self::Cluster(Arc::new(cluster.beside())),
        })
    }

    /// Whether messages go through channels of the Cluster's shards.
    pub(crate) fn is_sharded(&self) -> bool {
        matches!(self, Self::Cluster(cluster) if !cluster.is_old())
    }

    /// Whether there is a connection to the server that has this slot.
    pub(crate) fn is_connected(&self, slot: u16) -> bool {
        match self {
            Self::One(link) => link.is_connected(),
            Self::Cluster(cluster) => cluster.is_connected(slot),
        }
    }

    /// Sends a command to the server that has this slot, wherever that is by now.
    pub(crate) async fn send(
        &self,
        operation: &'static str,
        slot: u16,
        command: &Command,
    ) -> Result<Value> {
        match self.try_send(operation, slot, command).await? {
            Value::Refusal(refusal) => Err(fault(operation, &refusal)),
            value => Ok(value),
        }
    }

    /// As [`send`](Self::send), but the server's refusal is a value.
    pub(crate) async fn try_send(
        &self,
        operation: &'static str,
        slot: u16,
        command: &Command,
    ) -> Result<Value> {
        match self {
            Self::One(link) => link.try_send(operation, command).await,
            Self::Cluster(cluster) => cluster.send(operation, slot, command, None).await,
        }
    }

    /// Sends a command, and right behind it on the same connection a `WAIT`; the value of the
    /// first comes with that of the second, unless the first was refused.
    pub(crate) async fn try_send_and_wait(
        &self,
        operation: &'static str,
        slot: u16,
        command: &Command,
        wait: &Command,
    ) -> Result<(Value, Value)> {
        match self {
            Self::One(link) => {
                let [value, waited] = link.try_send_all(operation, [command, wait]).await?;
                Ok((value, waited))
            }
            Self::Cluster(cluster) => {
                let mut waited = Value::Null;
                let value = cluster.send(operation, slot, command, Some((wait, &mut waited))).await;
                Ok((value?, waited))
            }
        }
    }

    /// Whether messages on this channel are heard, at the server that has the slot now.
    pub(crate) fn listens_to(&self, slot: u16, channel: &str) -> bool {
        self.link(slot).is_some_and(|link| link.listens_to(channel))
    }

    /// The link to the server that has the slot, as far as is known at the moment.
    pub(crate) fn link(&self, slot: u16) -> Option<Link> {
        match self {
            Self::One(link) => Some(link.clone()),
            Self::Cluster(cluster) => cluster.known(slot).and_then(|at| cluster.link_to(&at).ok()),
        }
    }

    /// Returns when messages on this channel are heard.
    pub(crate) async fn subscribe(&self, slot: u16, channel: &str) -> Result<()> {
        let done = match self {
            Self::One(link) => link.subscribe("SUBSCRIBE", channel).await,
            Self::Cluster(cluster) => cluster.subscribe(slot, channel).await,
        };
        done.map_err(|trouble| match trouble {
            Trouble::Refused(refusal) => fault("subscribe to news of locks", &refusal),
            Trouble::Fault(error) => error,
        })
    }

    /// Gives up a channel of a slot. One server has one channel, which is kept.
    pub(crate) fn unsubscribe(&self, slot: u16, channel: &str) {
        if let Self::Cluster(cluster) = self {
            cluster.unsubscribe(slot, channel);
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
