//! Where a ZooKeeper store is, and how it locks.

use std::time::Duration;

use tenure_core::store::CALL_TIMEOUT;
use tenure_tls::{Password, Tls};

use crate::wire::CreateMode;

/// Where a ZooKeeper store is, and how it locks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ZooKeeperConfig {
    /// Hosts and ports of the servers, one or more.
    pub servers: Vec<(String, u16)>,
    /// The path that all others are below: empty, or a path such as `/apps/locks`.
    pub chroot: String,
    /// What every lock's path begins with, below the chroot. May be empty.
    pub prefix: String,
    /// The user to log in as (scheme `digest`).
    pub username: Option<String>,
    /// The password to log in with.
    pub password: Option<Password>,
    /// Which users may use and delete the nodes that are created.
    pub access: Access,
    /// TLS, where the servers speak it.
    pub tls: Option<Tls>,
    /// Which other clients' locks exclude tenure's, beside Curator's mutex.
    pub compat: Compat,
    /// The TTL that the first session is opened for. Claims of another TTL may need a session of their own, and
    /// with it a connection.
    pub ttl: Duration,
    /// How long one call may take: the client's call timeout. A dial and a reply get nine tenths of it.
    pub timeout: Duration,
}

/// Which users may use and delete the nodes that tenure creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Every client that reaches the server.
    World,
    /// The user that created them.
    Creator,
}

/// Other clients that ignore the node of Curator's mutex. A claim has one more node for each of them;
/// its nodes are created and deleted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compat {
    /// Curator's `InterProcessReadWriteLock`.
    pub curator_rw: bool,
    /// kazoo's `Lock`, `ReadLock` and `WriteLock`.
    pub kazoo: bool,
}

impl Compat {
    /// Curator's mutex alone.
    pub const NONE: Self = Self { curator_rw: false, kazoo: false };

    /// Also Curator's `InterProcessReadWriteLock`.
    pub const fn with_curator_rw(self) -> Self {
        Self { curator_rw: true, ..self }
    }

    /// Also kazoo's locks.
    pub const fn with_kazoo(self) -> Self {
        Self { kazoo: true, ..self }
    }

    /// The kind of a lock's own node. The servers delete a container when the lock is not used any more.
    /// kazoo's lock creates the node once, and fails for ever when it is gone.
    pub(crate) const fn lock_mode(self) -> CreateMode {
        if self.kazoo { CreateMode::Persistent } else { CreateMode::Container }
    }
}

impl ZooKeeperConfig {
    /// The defaults for these servers: no chroot, prefix `tenure/`, nodes open to all users, a timeout of
    /// two seconds.
    pub fn new(servers: Vec<(String, u16)>) -> Self {
        Self {
            servers,
            chroot: String::new(),
            prefix: "tenure/".into(),
            username: None,
            password: None,
            access: Access::World,
            tls: None,
            compat: Compat::default(),
            ttl: Duration::from_secs(30),
            timeout: CALL_TIMEOUT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let mut config = ZooKeeperConfig::new(vec![("h".into(), 1)]);
        config.password = Some("secret".into());
        assert!(!format!("{config:?}").contains("secret"));
    }
}
