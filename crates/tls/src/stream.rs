//! A socket, with or without TLS.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

#[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
use rustix::net::sockopt::set_tcp_user_timeout;
use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_linger, set_tcp_keepidle, set_tcp_keepintvl,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;

use crate::{TlsConnector, TlsStream, secure};

/// After this time without traffic, TCP keepalive probes the server.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// How long one address of a host is tried before the next one is tried as well (RFC 8305).
const HEAD_START: Duration = Duration::from_millis(250);

/// A socket to a server, with or without TLS.
///
/// One task reads. On a plain socket, other tasks may write directly ([`shortcut`](Self::shortcut)).
#[derive(Debug)]
pub enum Stream {
    /// A plain socket. Its write half is shared with the callers.
    Plain(OwnedReadHalf, Arc<OwnedWriteHalf>),
    /// A socket with TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// A Unix domain socket.
    #[cfg(unix)]
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
    /// All addresses of a host are tried, each a quarter of a second after the one before, and the first
    /// connection is used. So an unreachable address, often of IPv6, does not use up the time of the others.
    ///
    /// On Linux, the connection ends if the server does not acknowledge data within `limit`, and unsent
    /// data is discarded: a request must not arrive after its caller has given up. Other systems have no
    /// such option.
    ///
    /// # Errors
    /// If the server cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn connect((host, port): &(String, u16), limit: Duration) -> io::Result<TcpStream> {
        let socket = first_of(lookup_host((host.as_str(), *port)).await?.collect()).await?;
        socket.set_nodelay(true)?;
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
        set_tcp_user_timeout(&socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
        #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "fuchsia")))]
        let _ = limit;
        // So that a connection that only receives notices a broken network.
        set_socket_keepalive(&socket, true)?;
        set_tcp_keepidle(&socket, KEEPALIVE)?;
        set_tcp_keepintvl(&socket, KEEPALIVE)?;
        Ok(socket)
    }

    /// Connects to a server on this machine through a Unix domain socket.
    ///
    /// # Errors
    /// If there is no such socket, if this user may not use it, or on a system without Unix domain
    /// sockets.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn open_unix(path: &Path) -> io::Result<Self> {
        #[cfg(unix)]
        return UnixStream::connect(path).await.map(Self::Unix);
        #[cfg(not(unix))]
        {
            let why = format!("{}: this system has no Unix domain sockets", path.display());
            Err(io::Error::new(io::ErrorKind::Unsupported, why))
        }
    }

    /// Makes a stream of a connected socket, with TLS if there is a connector.
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

    /// The write half of a plain socket, for callers that write without the connection's task.
    pub fn shortcut(&self) -> Option<Arc<OwnedWriteHalf>> {
        match self {
            Self::Plain(_, writer) => Some(Arc::clone(writer)),
            Self::Tls(_) => None,
            #[cfg(unix)]
            Self::Unix(_) => None,
        }
    }

    /// Makes the kernel discard unsent data and reset the connection when the stream is dropped. For a server
    /// that is given up: a request in the socket's buffer must not reach it later.
    pub fn discard_unsent(&self) {
        let socket = match self {
            Self::Plain(reader, _) => reader.as_ref(),
            Self::Tls(stream) => stream.get_ref().0,
            // What is written to a Unix domain socket has arrived.
            #[cfg(unix)]
            Self::Unix(_) => return,
        };
        // This fails only on a descriptor that is not a socket.
        let _ = set_socket_linger(socket, Some(Duration::ZERO));
    }

    /// Reads data that has arrived.
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
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }

    /// Writes as much as the socket accepts.
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
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    /// Flushes written data to the socket.
    ///
    /// # Errors
    /// Those of the socket and of TLS.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(..) => Poll::Ready(Ok(())),
            #[cfg(unix)]
            Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }
}

/// Connects to the first address that answers. Each gets a head start before the next.
async fn first_of(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut waiting = VecDeque::from(alternate_families(addresses));
    let mut trying = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    loop {
        if let Some(address) = waiting.pop_front() {
            trying.spawn(TcpStream::connect(address));
        }
        let next = match waiting.is_empty() {
            true => Ok(trying.join_next().await),
            false => tokio::time::timeout(HEAD_START, trying.join_next()).await,
        };
        match next {
            Ok(Some(Ok(Ok(socket)))) => return Ok(socket),
            Ok(Some(Ok(Err(error)))) => last = error,
            Ok(Some(Err(ended))) => last = io::Error::other(ended),
            Ok(None) if waiting.is_empty() => return Err(last),
            // Give the next address its turn beside this one.
            Ok(None) | Err(_) => {}
        }
    }
}

/// The addresses in the system's order, but alternating between IPv6 and IPv4.
fn alternate_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let Some(first) = addresses.first().map(SocketAddr::is_ipv6) else { return addresses };
    let (same, other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first);
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    let mut turns = Vec::new();
    loop {
        let pair = [same.next(), other.next()];
        if pair.iter().all(Option::is_none) {
            return turns;
        }
        turns.extend(pair.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_families_alternate() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let given = ["[::1]:1", "[::2]:1", "127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"];
        let turns = alternate_families(given.map(address).to_vec());
        let wanted = ["[::1]:1", "127.0.0.1:1", "[::2]:1", "127.0.0.2:1", "127.0.0.3:1"];
        assert_eq!(turns, wanted.map(address));
    }

    #[tokio::test]
    async fn a_refusing_or_unreachable_address_does_not_prevent_the_next() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let there = listener.local_addr().unwrap();
        let gone = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let refuses = gone.local_addr().unwrap();
        drop(gone);
        // A listener with a full backlog: the system drops new connections, as a firewall does.
        let full = full_listener();
        let hole = full.0.local_addr().unwrap();
        for addresses in [vec![refuses, there], vec![hole, there], vec![hole, refuses, there]] {
            let socket = first_of(addresses).await.unwrap();
            assert_eq!(socket.peer_addr().unwrap(), there);
        }
        assert!(first_of(vec![refuses]).await.is_err());
        assert!(first_of(Vec::new()).await.is_err());
    }

    /// A listener whose queue is full, and the connections that fill it.
    fn full_listener() -> (std::net::TcpListener, Vec<std::net::TcpStream>) {
        use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&listener, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let listener = std::net::TcpListener::from(listener);
        let address = listener.local_addr().unwrap();
        let brief = Duration::from_millis(200);
        let fill =
            std::iter::from_fn(|| std::net::TcpStream::connect_timeout(&address, brief).ok());
        let filled = fill.take(64).collect();
        (listener, filled)
    }
}
