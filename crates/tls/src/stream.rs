//! A socket, with or without TLS.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_linger, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_user_timeout,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixStream};

use crate::{TlsConnector, TlsStream, secure};

/// After so long without traffic, the server's machine is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A socket to a server, with or without TLS.
///
/// One task reads. On a plain socket, callers may write past that task
/// ([`shortcut`](Self::shortcut)).
#[derive(Debug)]
pub enum Stream {
    /// A plain socket. Its writing half is shared with the callers.
    Plain(OwnedReadHalf, Arc<OwnedWriteHalf>),
    /// A socket with TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// A socket of the file system.
    Unix(UnixStream),
}

impl Stream {
    /// Connects to a server, and sets up TLS if there is a connector: [`connect`](Self::connect),
    /// then [`over`](Self::over).
    ///
    /// # Errors
    /// If the server cannot be reached, or one side does not trust the other
    /// ([`distrust`](crate::distrust)).
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn open(
        server: &(String, u16),
        limit: Duration,
        tls: Option<&TlsConnector>,
    ) -> io::Result<Self> {
        Self::over(Self::connect(server, limit).await?, &server.0, tls).await
    }

    /// Connects to a server.
    ///
    /// What the server's machine does not acknowledge within `limit` is thrown away, and the stream
    /// ends: it must not arrive when nobody expects it any more.
    ///
    /// # Errors
    /// If the server cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn connect((host, port): &(String, u16), limit: Duration) -> io::Result<TcpStream> {
        let socket = TcpStream::connect((host.as_str(), *port)).await?;
        socket.set_nodelay(true)?;
        set_tcp_user_timeout(&socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
        // A connection that only listens notices that it is cut.
        set_socket_keepalive(&socket, true)?;
        set_tcp_keepidle(&socket, KEEPALIVE)?;
        set_tcp_keepintvl(&socket, KEEPALIVE)?;
        Ok(socket)
    }

    /// Connects to a server on this machine through a socket of the file system.
    ///
    /// # Errors
    /// If there is no such socket, or this user may not use it.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn open_unix(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).await.map(Self::Unix)
    }

    /// A stream over a socket that is connected to this host, with TLS if there is a connector.
    ///
    /// # Errors
    /// If the connection breaks, or one side does not trust the other
    /// ([`distrust`](crate::distrust)).
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn over(
        socket: TcpStream,
        host: &str,
        tls: Option<&TlsConnector>,
    ) -> io::Result<Self> {
        let Some(tls) = tls else {
            let (reader, writer) = socket.into_split();
            return Ok(Self::Plain(reader, Arc::new(writer)));
        };
        Ok(Self::Tls(Box::new(secure(tls, host, socket).await?)))
    }

    /// Where a caller may write by itself, without the task that serves the connection.
    pub fn shortcut(&self) -> Option<Arc<OwnedWriteHalf>> {
        match self {
            Self::Plain(_, writer) => Some(Arc::clone(writer)),
            Self::Tls(_) | Self::Unix(_) => None,
        }
    }

    /// Makes the kernel throw away what is still to be sent when the stream is dropped, and reset
    /// the connection. For a server that is given up: a request that waits in the socket's buffer
    /// must not reach it later.
    pub fn discard_unsent(&self) {
        let socket = match self {
            Self::Plain(reader, _) => reader.as_ref(),
            Self::Tls(stream) => stream.get_ref().0,
            // What is written to it has arrived.
            Self::Unix(_) => return,
        };
        // It fails only for what is no socket.
        let _ = set_socket_linger(socket, Some(Duration::ZERO));
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// Those of the socket and of TLS.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(reader, _) => Pin::new(reader).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }

    /// Writes as much as the socket takes.
    ///
    /// # Errors
    /// Those of the socket and of TLS.
    pub fn poll_write(
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
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    /// Hands what was written to the socket.
    ///
    /// # Errors
    /// Those of the socket and of TLS.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(..) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }
}
