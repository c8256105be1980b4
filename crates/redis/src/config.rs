//! The configuration of a Redis store.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tenure_core::store::CALL_TIMEOUT;
use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::{Password, Tls};

use crate::credentials::CredentialsProvider;

/// Where a Redis store is, and how it locks.
#[derive(Clone)]
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
    /// How long to wait for a connection or a reply.
    pub timeout: Duration,
}

/// How the servers are arranged.
#[derive(Clone, Debug, PartialEq, Eq)]
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
            timeout: CALL_TIMEOUT,
        }
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
        if self.username.is_some() && self.password.is_none() && self.credentials.is_none() {
            return invalid("a user needs a password (in the URL, or in TENURE_PASSWORD)");
        }
        if self.sentinel_username.is_some() && self.sentinel_password.is_none() {
            return invalid("a user of the Sentinels needs a password (sentinel-password-file=)");
        }
        Ok(())
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("topology", &self.topology)
            .field("username", &self.username)
            .field("password", &self.password)
            .field("credentials", &self.credentials)
            .field("sentinel_username", &self.sentinel_username)
            .field("sentinel_password", &self.sentinel_password)
            .field("client_name", &self.client_name)
            .field("database", &self.database)
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .field("fencing", &self.fencing)
            .field("replicas", &self.replicas)
            .field("timeout", &self.timeout)
            .finish()
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
