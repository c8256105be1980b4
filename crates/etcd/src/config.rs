//! The configuration of an etcd store.

use std::fmt;
use std::time::Duration;

use tenure_core::store::CALL_TIMEOUT;
use tenure_tls::{Password, Tls};

use crate::srv::Srv;

/// Where an etcd store is, and how it locks.
#[derive(Clone)]
pub struct EtcdConfig {
    /// Hosts and ports of servers of the cluster. Its other members are found.
    pub servers: Vec<(String, u16)>,
    /// A domain in which more servers are looked up.
    pub srv: Option<Srv>,
    /// The user to log in as.
    pub username: Option<String>,
    /// The password to log in with.
    pub password: Option<Password>,
    /// TLS, where the servers speak it.
    pub tls: Option<Tls>,
    /// What every key begins with. May be empty.
    pub prefix: String,
    /// How long to wait for a reply.
    pub timeout: Duration,
}

impl EtcdConfig {
    /// The defaults for these servers: prefix `tenure/`, a timeout of two seconds.
    pub fn new(servers: Vec<(String, u16)>) -> Self {
        Self {
            servers,
            srv: None,
            username: None,
            password: None,
            tls: None,
            prefix: "tenure/".into(),
            timeout: CALL_TIMEOUT,
        }
    }
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("servers", &self.servers)
            .field("srv", &self.srv)
            .field("username", &self.username)
            .field("password", &self.password)
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let mut config = EtcdConfig::new(vec![("h".into(), 1)]);
        config.password = Some("secret".into());
        assert!(!format!("{config:?}").contains("secret"));
    }
}
