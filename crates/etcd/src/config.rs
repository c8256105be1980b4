//! The configuration of an etcd store.

use std::time::Duration;

use tenure_core::store::CALL_TIMEOUT;
use tenure_tls::{Password, Tls};

use crate::srv::Srv;

/// Where an etcd store is, and how it locks.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    /// How long one call may take: the client's call timeout. A dial and a reply get nine tenths of it.
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
