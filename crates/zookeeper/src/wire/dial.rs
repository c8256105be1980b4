//! From a target to a connection with a session: the handshake, which server to try next, and why none could
//! be used.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::{Error, ErrorKind, Result};
use tenure_proto::Backoff;
use tenure_tls::{Password, Stream, Tls, TlsConnector, distrust};
use tokio::io::ReadBuf;
use tokio::time::{Instant, sleep_until, timeout};

use super::code::Code;
use super::frame::{frame, unframe};
use super::handshake::{Auth, Connect, Connected};
use super::jute::Reader;
use super::messages::{ReplyHeader, XID_AUTH};

/// Where the servers are, and how to log in to them.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Hosts and ports, one or more.
    pub(crate) servers: Vec<(String, u16)>,
    pub(crate) tls: Option<Tls>,
    /// A user's name and password.
    pub(crate) login: Option<(String, Password)>,
    /// How long to wait for the reply to a request, and for a new connection.
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

/// `host:port`, with the brackets that an address of version 6 needs.
pub(crate) fn address((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// What a session tells each server that it connects to.
#[derive(Clone, Default)]
pub(super) struct Hello {
    pub(super) wanted: Duration,
    /// The latest transaction that the session has seen.
    pub(super) zxid: i64,
    /// Zero for a new session.
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

/// A connection on which a server serves the session.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) stream: Stream,
    /// What has arrived after the handshake.
    pub(super) input: Vec<u8>,
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
    /// The session timeout that the server grants.
    pub(super) life: Duration,
    /// When the handshake was sent.
    pub(super) began: Instant,
}

/// Why a server does not serve the session.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The session has expired. All servers agree.
    Expired,
    /// The login was refused.
    Login(Code),
    /// TLS cannot be set up with the files that are named.
    Setup(Error),
    /// One side does not trust the other.
    Untrusted(String),
    /// The server closes the connection when TLS begins.
    NoTls,
    /// The server takes the connection, and closes it: it has no quorum, has seen less than the
    /// session, has too many connections from this machine, or wants TLS.
    Closed,
    /// The server cannot be reached, or the connection breaks.
    Broken(String),
    /// The server has taken the connection, and not answered in time.
    Mute,
    /// The server's machine has not answered in time.
    Silent,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("the session has expired"),
            Self::Login(code) => write!(f, "{code}"),
            Self::Setup(error) => write!(f, "{error}"),
            Self::Untrusted(why) | Self::Broken(why) => f.write_str(why),
            Self::NoTls => f.write_str("it closes the connection when TLS begins"),
            Self::Closed => f.write_str(
                "it closes the connection: it has no quorum, or too many connections from this \
                 machine (maxClientCnxns)",
            ),
            Self::Mute => f.write_str("it takes the connection, but does not answer"),
            Self::Silent => f.write_str("no reply"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => Self::Closed,
            _ => distrust(&error).map_or_else(|| Self::Broken(error.to_string()), Self::Untrusted),
        }
    }
}

/// Connects to one server after another, in random order, until one serves the session. Gives up at
/// `until`, and at once when the session has expired or the login is refused.
///
/// A server that is silent for a while is not waited for: the next is tried beside it. When all have
/// failed, they are tried again after a pause.
///
/// # Errors
/// What kept each server from serving the session, in the order of the target's servers.
///
/// # Cancel safety
/// Dropping the future closes the connections that it has begun.
pub(super) async fn dial_any(
    target: &Target,
    hello: &Hello,
    until: Instant,
) -> Result<Dialled, Vec<Failure>> {
    let count = target.servers.len();
    let hedge = if count > 1 { target.timeout / 8 } else { target.timeout / 2 };
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let mut failures = vec![Failure::Silent; count];
    // Which servers have taken a connection.
    let reached: Vec<_> = (0..count).map(|_| AtomicBool::new(false)).collect();
    let mut untried = shuffled(count);
    let mut dials = FuturesUnordered::new();
    let mut next = Instant::now();
    loop {
        // A server that swallows connections must not use up all the sockets there are.
        let may_dial = dials.len() < 2 * count;
        tokio::select! {
            biased;
            Some((server, dialled)) = dials.next() => match dialled {
                Ok(dialled) => return Ok(dialled),
                Err(failure) => {
                    let is_final = matches!(failure, Failure::Expired | Failure::Login(_));
                    failures[server] = failure;
                    if is_final || (hello.session == 0 && are_hopeless(&failures)) {
                        return Err(failures);
                    }
                    // The next server is tried at once, the first of a new round after a pause.
                    if !untried.is_empty() {
                        next = Instant::now();
                    } else if dials.is_empty() {
                        untried = shuffled(count);
                        next = Instant::now() + backoff.next(random());
                    }
                }
            },
            () = sleep_until(until) => {
                for (failure, reached) in failures.iter_mut().zip(&reached) {
                    if matches!(failure, Failure::Silent) && reached.load(Ordering::Relaxed) {
                        *failure = Failure::Mute;
                    }
                }
                return Err(failures);
            }
            () = sleep_until(next), if may_dial => {
                if untried.is_empty() {
                    untried = shuffled(count);
                }
                if let Some(server) = untried.pop() {
                    let dial = dial(target, server, hello, &reached[server]);
                    dials.push(async move { (server, dial.await) });
                }
                next = Instant::now() + hedge;
            }
        }
    }
}

/// Whether trying again would not help, as long as the files for TLS are what they are.
fn are_hopeless(failures: &[Failure]) -> bool {
    failures.iter().all(|failure| matches!(failure, Failure::Setup(_) | Failure::Untrusted(_)))
}

/// Connects to one server. Notes when it has taken the connection.
async fn dial(
    target: &Target,
    server: usize,
    hello: &Hello,
    reached: &AtomicBool,
) -> Result<Dialled, Failure> {
    let server = &target.servers[server];
    let dialling = async {
        let tls = target.connector().map_err(Failure::Setup)?;
        let login = target.login().map_err(Failure::Setup)?;
        let socket = Stream::connect(server, target.timeout).await?;
        reached.store(true, Ordering::Relaxed);
        let stream = match Stream::over(socket, &server.0, tls.as_ref()).await.map_err(Into::into) {
            Err(Failure::Closed) => return Err(Failure::NoTls),
            stream => stream?,
        };
        shake_hands(stream, hello, login).await
    };
    let dialled = timeout(target.timeout, dialling).await.unwrap_or_else(|_| {
        Err(if reached.load(Ordering::Relaxed) { Failure::Mute } else { Failure::Silent })
    });
    if let Err(failure) = &dialled {
        tracing::debug!(server = address(server), "no session: {failure}");
    }
    dialled
}

/// Opens the session, or goes on with it, and logs in.
async fn shake_hands(
    mut stream: Stream,
    hello: &Hello,
    login: Option<(String, String)>,
) -> Result<Dialled, Failure> {
    let mut hello_and_login = Vec::new();
    let request = Connect {
        zxid: hello.zxid,
        timeout_ms: i32::try_from(hello.wanted.as_millis()).unwrap_or(i32::MAX),
        session: hello.session,
        password: &hello.password,
    };
    let mut written = frame(&mut hello_and_login, |out| request.write(out));
    if let Some((user, password)) = &login {
        written = written.and(frame(&mut hello_and_login, |out| {
            out.int(XID_AUTH);
            out.int(Auth::OPCODE);
            Auth { user, password }.write(out);
        }));
    }
    written.map_err(|_| Failure::Broken("the login is too long".into()))?;
    let began = Instant::now();
    write_all(&mut stream, &hello_and_login).await?;
    let mut input = Vec::new();
    let reply = next_frame(&mut stream, &mut input).await?;
    let connected = Connected::read(&mut Reader::new(&reply)).map_err(|_| nonsense())?;
    let life = match u64::try_from(connected.timeout_ms) {
        Ok(life @ 1..) if connected.session != 0 => Duration::from_millis(life),
        _ if hello.session == 0 => return Err(nonsense()),
        _ => return Err(Failure::Expired),
    };
    if hello.session != 0 && connected.session != hello.session {
        return Err(nonsense());
    }
    // SASL would go here.
    if login.is_some() {
        log_in(&mut stream, &mut input).await?;
    }
    let Connected { session, password, .. } = connected;
    Ok(Dialled { stream, input, session, password, life, began })
}

/// Awaits the reply to a login that was sent.
async fn log_in(stream: &mut Stream, input: &mut Vec<u8>) -> Result<(), Failure> {
    loop {
        let reply = next_frame(stream, input).await?;
        let header = ReplyHeader::read(&mut Reader::new(&reply)).map_err(|_| nonsense())?;
        match header {
            ReplyHeader { xid: XID_AUTH, code: None, .. } => return Ok(()),
            ReplyHeader { xid: XID_AUTH, code: Some(code), .. } => {
                return Err(Failure::Login(code));
            }
            // An event, about the state of the session.
            _ => {}
        }
    }
}

fn nonsense() -> Failure {
    Failure::Broken("it answers nonsense: is it a ZooKeeper server?".into())
}

async fn write_all(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = poll_fn(|context| stream.poll_write(context, bytes)).await?;
        bytes = &bytes[written..];
    }
    poll_fn(|context| stream.poll_flush(context)).await
}

/// The content of the next frame, which is taken from `input`.
async fn next_frame(stream: &mut Stream, input: &mut Vec<u8>) -> Result<Vec<u8>, Failure> {
    let mut chunk = [0; 1024];
    loop {
        if let Some(content) = unframe(input).map_err(|_| nonsense())? {
            let content = content.to_vec();
            input.drain(..size_of::<i32>() + content.len());
            return Ok(content);
        }
        let mut read = ReadBuf::new(&mut chunk);
        poll_fn(|context| stream.poll_read(context, &mut read)).await?;
        if read.filled().is_empty() {
            return Err(Failure::Closed);
        }
        input.extend_from_slice(read.filled());
    }
}

/// The numbers below `count`, in random order.
fn shuffled(count: usize) -> Vec<usize> {
    let mut numbers: Vec<_> = (0..count).collect();
    for last in (1..count).rev() {
        numbers.swap(last, (random() % (last as u64 + 1)) as usize);
    }
    numbers
}

pub(super) fn random() -> u64 {
    // Without randomness the servers are still tried, in some order.
    getrandom::u64().unwrap_or_default()
}

pub(super) const CONNECT: &str = "connect to ZooKeeper";

/// Why no session could be opened. `failures` are what kept each of the target's servers from it.
pub(super) fn explain(target: &Target, failures: &[Failure]) -> Error {
    if let Some(Failure::Setup(error)) = failures.first() {
        return error.clone();
    }
    let told = target.servers.iter().zip(failures);
    let told = told.map(|(server, failure)| format!("{} ({failure})", address(server)));
    let told = told.collect::<Vec<_>>().join(", ");
    let any = |wanted: fn(&Failure) -> bool| failures.iter().any(wanted);
    let (kind, why, remedy) = if any(|failure| matches!(failure, Failure::Login(_))) {
        (ErrorKind::Denied, "the login was refused", "check the user and the password")
    } else if any(|failure| matches!(failure, Failure::Closed)) {
        let remedy = "check that most of them run, or wait until they have elected a leader; if the \
                      port speaks TLS, use zks://";
        (ErrorKind::QuorumLost, "no server opens a session", remedy)
    } else if any(|failure| matches!(failure, Failure::Untrusted(_) | Failure::NoTls)) {
        (ErrorKind::Denied, "TLS failed", "check ca, cert and key, and that the port speaks TLS")
    } else if any(|failure| matches!(failure, Failure::Mute)) {
        let remedy = "check that they run, that most can reach each other, and that it is the right \
                      port (TLS: zks://)";
        (ErrorKind::QuorumLost, "no server opens a session", remedy)
    } else {
        (ErrorKind::Unreachable, "no server can be reached", "check that they run")
    };
    let error = Error::new(kind, CONNECT, format!("{why}: {told}; {remedy}"));
    match failures.last() {
        Some(failure) => error.caused_by(failure.to_string()),
        None => error,
    }
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

    #[test]
    fn the_error_names_each_server_and_what_it_did() {
        let refused = || Failure::Broken("connection refused".into());
        let untrusted = || Failure::Untrusted("expired".into());
        let login = || Failure::Login(Code::AuthFailed);
        let setup = || Failure::Setup(Error::new(ErrorKind::Invalid, "set up TLS", "no such file"));
        let cases = [
            (
                [refused(), Failure::Silent],
                ErrorKind::Unreachable,
                "h:1 (connection refused), h:2 (no",
            ),
            ([refused(), Failure::Closed], ErrorKind::QuorumLost, "h:2 (it closes the connection"),
            ([untrusted(), Failure::Closed], ErrorKind::QuorumLost, "has no quorum"),
            (
                [refused(), Failure::Mute],
                ErrorKind::QuorumLost,
                "h:2 (it takes the connection, but",
            ),
            ([untrusted(), Failure::Mute], ErrorKind::Denied, "h:1 (expired)"),
            ([refused(), Failure::NoTls], ErrorKind::Denied, "speaks TLS"),
            ([Failure::Closed, login()], ErrorKind::Denied, "the login was refused"),
            ([setup(), setup()], ErrorKind::Invalid, "no such file"),
        ];
        let target = Target {
            servers: vec![("h".into(), 1), ("h".into(), 2)],
            tls: None,
            login: None,
            timeout: Duration::from_secs(1),
        };
        for (failures, kind, words) in cases {
            let error = explain(&target, &failures);
            assert!(error.kind() == kind && error.to_string().contains(words), "{error}");
        }
    }
}
