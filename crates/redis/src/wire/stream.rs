//! The bytes' way: a socket, with or without TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout,
};
use tenure_tls::{TlsConnector, TlsStream, secure};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

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
        Ok(Self::Tls(Box::new(secure(tls, host, socket).await?)))
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
