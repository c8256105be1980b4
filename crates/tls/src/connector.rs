//! The TLS handshake.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use crate::TlsStream;

/// Opens TLS connections with the settings of a [`Tls`](crate::Tls).
#[derive(Clone)]
pub struct TlsConnector {
    connector: tokio_rustls::TlsConnector,
    server_name: Option<ServerName<'static>>,
}

impl TlsConnector {
    pub(crate) fn new(config: ClientConfig, server_name: Option<ServerName<'static>>) -> Self {
        Self { connector: Arc::new(config).into(), server_name }
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// Performs the TLS handshake. The server's certificate must be for this host, or for
/// [`Tls::server_name`](crate::Tls::server_name) if that is set.
///
/// # Errors
/// If the connection breaks, or one side does not trust the other ([`distrust`](crate::distrust)).
pub async fn secure(
    tls: &TlsConnector,
    host: &str,
    socket: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let name = match &tls.server_name {
        Some(name) => name.clone(),
        None => ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
    };
    tls.connector.connect(name, socket).await
}
