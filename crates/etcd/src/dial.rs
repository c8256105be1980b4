//! Channels: each connects when it is first used, and again whenever its connection is gone.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::{Tls, secure};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower_service::Service;

/// One server, and how to reach it.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    host: String,
    port: u16,
    tls: Option<Tls>,
    endpoint: Endpoint,
}

impl Dialer {
    pub(crate) fn new(
        (host, port): &(String, u16),
        tls: Option<&Tls>,
        timeout: Duration,
    ) -> Result<Self> {
        if let Some(tls) = tls {
            // So that a file which cannot be used is reported at once.
            tls.connector()?;
        }
        let authority = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let malformed = |_| {
            let why = format!("the host {host:?} is malformed");
            Error::new(ErrorKind::Invalid, "use this etcd store", why)
        };
        // `dial` adds TLS: with https the channel would add its own.
        let endpoint = Endpoint::from_shared(format!("http://{authority}:{port}"))
            .map_err(malformed)?
            .connect_timeout(timeout)
            // etcd closes a connection at the third ping that comes within five seconds of another, or
            // while no call is open.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(false);
        Ok(Self { host: host.clone(), port: *port, tls: tls.cloned(), endpoint })
    }

    /// `host:port`.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// A channel that is served by the current runtime.
    pub(crate) fn channel(&self) -> Channel {
        self.endpoint.connect_with_connector_lazy(self.clone())
    }

    async fn dial(self) -> io::Result<TokioIo<Box<dyn Stream>>> {
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(TokioIo::new(Box::new(socket))) };
        // Certificates are read again for each connection, so that they can be replaced.
        let connector = tls.connector_for(&[b"h2"]).map_err(io::Error::other)?;
        Ok(TokioIo::new(Box::new(secure(&connector, &self.host, socket).await?)))
    }
}

/// A connection, with or without TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Service<Uri> for Dialer {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().dial())
    }
}
