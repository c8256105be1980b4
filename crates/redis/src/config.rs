//! The configuration of a Redis store, and of a quorum of Redis servers.

use std::path::PathBuf;
use std::time::Duration;

use tenure_core::store::{CALL_TIMEOUT, step_limit};
use tenure_core::{Error, ErrorKind, Result};
use tenure_proto::quorum::check_nodes;
use tenure_tls::{Password, Tls};

use crate::credentials::CredentialsProvider;

/// Where a Redis store is, and how it locks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedisConfig {
    /// The servers.
    pub topology: Topology,
    /// The user to log in as; the server's `default` user without one.
    pub username: Option<String>,
    /// The password to log in with.
    pub password: Option<Password>,
    /// Asked for the user and the password before each login, instead of the two above.
    pub credentials: Option<CredentialsProvider>,
    /// The user to log in to the Sentinels as; their `default` user without one.
    pub sentinel_username: Option<String>,
    /// The password of the Sentinels. Without it, they get the servers' login, if they ask for one.
    pub sentinel_password: Option<Password>,
    /// What the servers call our connections (`CLIENT LIST`): printable ASCII without spaces.
    pub client_name: String,
    /// The database number. Only 0 exists on a Cluster.
    pub database: usize,
    /// TLS, where the servers speak it.
    pub tls: Option<Tls>,
    /// What every key and channel begins with. May be empty; no braces, spaces or control characters.
    pub prefix: String,
    /// Whether grants carry fencing tokens. Without them, a free lock costs one `SET`.
    pub fencing: bool,
    /// A grant or a renewal counts only when so many replicas have acknowledged it (`WAIT`). A master
    /// that is cut off from its replicas can then neither grant a lock nor extend one.
    pub replicas: u32,
    /// How the values of cells are compared and swapped.
    pub cells: CellUpdates,
    /// Which kind of messages a Cluster passes on. All clients of a lock must use the same.
    pub sharded: Sharded,
    /// How long one call may take: the client's call timeout. A dial and a reply get nine tenths of it.
    pub timeout: Duration,
}

/// How the values of cells are compared and swapped. Both ways use the same keys, so programs may differ.
/// Counters and rate limiters are scripts in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellUpdates {
    /// By a script: one round trip, on the connection that all calls share.
    #[default]
    Script,
    /// By `WATCH`, `MULTI` and `EXEC`: two round trips, on one of at most four connections that a store
    /// has for transactions. It does the same and costs more: it is there to compare the two
    /// (`tenure demo oversell`). Not on a Cluster. The user needs [`ACL_WATCH`](crate::ACL_WATCH), too.
    Watch,
}

/// Which kind of messages a Cluster passes on: those of one shard (`SPUBLISH`), or those of all nodes
/// (`PUBLISH`). A client that listens to one kind does not hear the other, and asks at its poll cap instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharded {
    /// Sharded if the nodes know it: since 7.0.
    #[default]
    Auto,
    /// Sharded.
    On,
    /// Not sharded. It is for Redisson clients before 3.22.0, and those with
    /// `shardedSubscriptionMode: OFF`.
    Off,
}

/// How the servers are arranged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// One server.
    Single {
        /// Its host and port.
        server: (String, u16),
    },
    /// One server, through a socket of the file system.
    Unix {
        /// The socket.
        path: PathBuf,
    },
    /// A master that Sentinels name.
    Sentinel {
        /// The Sentinels' hosts and ports.
        sentinels: Vec<(String, u16)>,
        /// The name they know the master by.
        service: String,
    },
    /// A Cluster.
    Cluster {
        /// The hosts and ports of some of its nodes.
        nodes: Vec<(String, u16)>,
    },
}

impl Topology {
    /// The servers that it was told of, as `host:port,host:port`, or the path of a socket.
    pub(crate) fn servers(&self) -> String {
        let servers = match self {
            Self::Single { server } => std::slice::from_ref(server),
            Self::Unix { path } => return path.display().to_string(),
            Self::Sentinel { sentinels: servers, .. } | Self::Cluster { nodes: servers } => servers,
        };
        let named: Vec<_> = servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        named.join(",")
    }
}

impl RedisConfig {
    /// The defaults for this topology: the client name `tenure`, the prefix `tenure:`, fencing on, no
    /// replicas, two seconds.
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            username: None,
            password: None,
            credentials: None,
            sentinel_username: None,
            sentinel_password: None,
            client_name: "tenure".into(),
            database: 0,
            tls: None,
            prefix: "tenure:".into(),
            fencing: true,
            replicas: 0,
            cells: CellUpdates::Script,
            sharded: Sharded::Auto,
            timeout: CALL_TIMEOUT,
        }
    }

    /// How long to wait for a connection or a reply.
    pub(crate) fn step_limit(&self) -> Duration {
        step_limit(self.timeout)
    }

    /// Refuses a configuration that cannot work, for one server and for a quorum.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |why: &str| Err(Error::new(ErrorKind::Invalid, "use this Redis store", why));
        // A space would end the channel's name in a waiter's record, and no push would arrive.
        let cut = |c: char| matches!(c, '{' | '}') || c.is_whitespace() || c.is_control();
        if self.prefix.contains(cut) {
            return invalid("a prefix cannot contain braces, spaces or control characters");
        }
        if !self.client_name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return invalid("a client name is printable ASCII without spaces");
        }
        if matches!(self.topology, Topology::Cluster { .. }) && self.database != 0 {
            return invalid("a Cluster has database 0 only: leave the number away");
        }
        if matches!(self.topology, Topology::Cluster { .. }) && self.cells == CellUpdates::Watch {
            return invalid("cells=watch is not for a Cluster: remove it");
        }
        if self.username.is_some() && self.password.is_none() && self.credentials.is_none() {
            return invalid("a user needs a password (in the URL, or in TENURE_PASSWORD)");
        }
        if self.sentinel_username.is_some() && self.sentinel_password.is_none() {
            return invalid("a user of the Sentinels needs a password (sentinel-password-file=)");
        }
        Ok(())
    }
}

/// Which servers are the quorum, and how it locks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedlockConfig {
    /// The servers, each independent ([`Topology::Single`]): an odd number, at least three. All have the
    /// same prefix.
    pub nodes: Vec<RedisConfig>,
    /// How long a server may take to answer before it counts as silent. Without it, a two hundredth
    /// of the TTL, from 5 to 50 ms.
    pub node_timeout: Option<Duration>,
    /// The longest TTL that any client uses on these servers; a longer one is refused. A server that
    /// restarted is not counted for that long.
    pub max_ttl: Duration,
}

impl RedlockConfig {
    /// The longest TTL, unless another is given.
    pub const MAX_TTL: Duration = Duration::from_secs(60);

    /// The defaults for these servers.
    pub const fn new(nodes: Vec<RedisConfig>) -> Self {
        Self { nodes, node_timeout: None, max_ttl: Self::MAX_TTL }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |why: &str| Err(Error::new(ErrorKind::Invalid, "use this quorum", why));
        if let Err(why) = check_nodes::<()>(&vec![None; self.nodes.len()]) {
            return invalid(&why.to_string());
        }
        if self.nodes.iter().any(|node| !matches!(node.topology, Topology::Single { .. })) {
            return invalid("every server of a quorum is independent: name single servers");
        }
        self.nodes.iter().try_for_each(RedisConfig::check)?;
        if self.nodes.iter().any(|node| node.prefix != self.nodes[0].prefix) {
            return invalid("all servers of a quorum have the same prefix");
        }
        if self.nodes.iter().any(|node| !node.fencing || node.replicas > 0) {
            return invalid("a quorum always fences, and counts servers instead of replicas");
        }
        if self.max_ttl.is_zero() || self.node_timeout.is_some_and(|limit| limit.is_zero()) {
            return invalid("the longest TTL and a server's time to answer are above zero");
        }
        // Tokens run ahead of the clocks by as much; a server that lost its data must catch up
        // with them while it is not counted.
        if self.node_timeout.is_some_and(|limit| limit > self.max_ttl / 2) {
            return invalid(
                "a server's time to answer is at most half of the longest TTL: shorten \
                 node-timeout=, or set max-ttl= to the longest in use",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let mut config = RedisConfig::new(Topology::Single { server: ("h".into(), 1) });
        config.password = Some("secret".into());
        config.sentinel_password = Some("secret".into());
        assert!(!format!("{config:?}").contains("secret"));
    }
}
