//! The bytes' way: a socket, with or without TLS.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout,
};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tenure_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::Tls;

/// After so long without traffic, the server's machine is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A way to a server.
pub(crate) enum Stream {
    /// The writing half is shared with those who call.
    Plain(OwnedReadHalf, Arc<OwnedWriteHalf>),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// What the server's machine does not acknowledge within `limit` is thrown away, and the stream
    /// ends: it must not arrive when nobody expects it any more.
    pub(crate) async fn open(
        (host, port): &(String, u16),
        limit: Duration,
        tls: Option<&TlsConnector>,
    ) -> io::Result<Self> {
        let socket = TcpStream::connect((host.as_str(), *port)).await?;
        socket.set_nodelay(true)?;
        set_tcp_user_timeout(&socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
        // A connection that only listens notices that it is cut.
        set_socket_keepalive(&socket, true)?;
        set_tcp_keepidle(&socket, KEEPALIVE)?;
        set_tcp_keepintvl(&socket, KEEPALIVE)?;
        let Some(tls) = tls else {
            let (reader, writer) = socket.into_split();
            return Ok(Self::Plain(reader, Arc::new(writer)));
        };
        let name = ServerName::try_from(host.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Self::Tls(Box::new(tls.connect(name, socket).await?)))
    }

    /// Where a call may write by itself, without the task that serves the connection.
    pub(crate) fn shortcut(&self) -> Option<Arc<OwnedWriteHalf>> {
        match self {
            Self::Plain(_, writer) => Some(Arc::clone(writer)),
            Self::Tls(_) => None,
        }
    }

    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(reader, _) => Pin::new(reader).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(_, writer) => loop {
                ready!(writer.as_ref().as_ref().poll_write_ready(context))?;
                match writer.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => return Poll::Ready(written),
                }
            },
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(..) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }
}

/// Whether one side did not trust the other.
pub(crate) fn is_of_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

/// Always verifies. The provider is named, so that other users of TLS in the same program cannot
/// make the choice ambiguous.
pub(crate) fn connector(tls: &Tls) -> Result<TlsConnector> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let broken = |error: rustls::Error| {
        Error::new(ErrorKind::Invalid, "set up TLS", format!("{error}: check cert and key"))
    };
    let mut roots = rustls::RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(broken)?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(broken)?
        .with_root_certificates(roots);
    let config = match &tls.identity {
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            builder.with_client_auth_cert(chain, private_key(key)?).map_err(broken)?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(unreadable(path, "there is no certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(unreadable(path, &error.to_string())),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|error: PemError| unreadable(path, &error.to_string()))
}

fn unreadable(path: &Path, why: &str) -> Error {
    let why = format!("{}: {why}; it must be a PEM file", path.display());
    Error::new(ErrorKind::Invalid, "set up TLS", why)
}
