//! Where the servers are, and how to log in to them.

use std::fmt;
use std::time::Duration;

use tenure_core::Result;
use tenure_tls::{Password, Tls, TlsConnector};

/// Where the servers are, and how to log in to them.
#[derive(Clone)]
pub(crate) struct Target {
    /// Hosts and ports, one or more.
    pub(crate) servers: Vec<(String, u16)>,
    pub(crate) tls: Option<Tls>,
    /// A user's name and password.
    pub(crate) login: Option<(String, Password)>,
    /// How long to wait for the reply to a call, and for a new connection.
    pub(crate) timeout: Duration,
}

impl Target {
    /// What sets up TLS on a new connection. The files are read each time, so that certificates can
    /// be replaced while the program runs.
    pub(super) fn connector(&self) -> Result<Option<TlsConnector>> {
        self.tls.as_ref().map(Tls::connector).transpose()
    }

    /// The user's name and password for a new connection.
    pub(super) fn login(&self) -> Result<Option<(String, String)>> {
        let Some((user, password)) = &self.login else { return Ok(None) };
        Ok(Some((user.clone(), password.read()?)))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("servers", &self.servers)
            .field("tls", &self.tls)
            .field("login", &self.login)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// `host:port`, with the brackets that an address of version 6 needs.
pub(crate) fn address((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let target = Target {
            servers: vec![("h".into(), 1)],
            tls: None,
            login: Some(("app".into(), "secret".into())),
            timeout: Duration::from_secs(1),
        };
        let shown = format!("{target:?}");
        assert!(shown.contains("app") && !shown.contains("secret"), "{shown}");
    }
}
