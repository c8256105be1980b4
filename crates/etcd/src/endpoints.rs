//! The servers of a cluster, and which of them is asked.

mod login;
mod members;
mod server;

use std::error::Error as StdError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Background, Moment, now, step_limit};
use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::{Password, Tls};
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Status};

use self::login::Logins;
use self::members::{addresses, discover, look_up_again, with_members};
pub(crate) use self::server::Link;
use self::server::{Headers, Numbered, Server, channel_in};
use crate::config::EtcdConfig;
use crate::dial::Dialer;
use crate::fault::{Verdict, fault, verdict};
use crate::rpc::{RangeRequest, ResponseHeader};

/// The servers of one cluster. Calls go to one of them until it fails, then to the next.
pub(crate) struct Endpoints {
    /// The servers that the configuration or DNS names, then those that the cluster named.
    servers: Mutex<Arc<[Arc<Server>]>>,
    /// How many times calls moved on to the next server. The remainder is the index of the one to ask.
    rotations: AtomicUsize,
    login: Option<(String, Password)>,
    logins: Mutex<Logins>,
    tls: Option<Tls>,
    /// How long to wait for a connection or a reply.
    step_limit: Duration,
    /// The runtime that connected.
    caller: Id,
    background: Background,
    /// The cluster that the first reply came from.
    cluster: OnceLock<u64>,
    /// Notified when calls move on to another server: the cluster may have other members.
    rotated: Arc<Notify>,
    /// Notified when calls have moved on from every server.
    all_failed: Arc<Notify>,
}

/// What to do when a server gave no answer to a call that it may have carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfUnanswered {
    /// Ask the next server: carrying the call out twice changes nothing.
    AskAnother,
    /// Report it: a second answer would not tell the effect of the first request.
    Fail,
}

const CONNECT: &str = "connect to etcd";

/// The pause before the servers are asked again whether they have a leader.
const ELECTION_PAUSE: Duration = Duration::from_millis(100);

impl Endpoints {
    /// Logs in, and checks that locks can be read. Tries again within the timeout while the servers elect
    /// a leader.
    pub(crate) async fn connect(
        config: &EtcdConfig,
        probe: Vec<u8>,
        background: &Background,
    ) -> Result<Arc<Self>> {
        let addresses = addresses(config).await?;
        if addresses.is_empty() {
            let why = "name at least one server";
            return Err(Error::new(ErrorKind::Invalid, "use this etcd store", why));
        }
        let endpoints = Arc::new(Self::new(config, &addresses, background)?);
        let range = RangeRequest { key: probe, limit: 1, keys_only: true, ..Default::default() };
        let limit = now() + config.timeout;
        loop {
            let probed = async {
                endpoints.log_in(CONNECT, 0).await?;
                endpoints.range(CONNECT, range.clone()).await
            };
            let Err(error) = probed.await else {
                let rotated = Arc::clone(&endpoints.rotated);
                background.runtime().spawn(discover(Arc::downgrade(&endpoints), rotated));
                if config.srv.is_some() {
                    let all_failed = Arc::clone(&endpoints.all_failed);
                    let (endpoints, config) = (Arc::downgrade(&endpoints), config.clone());
                    background.runtime().spawn(look_up_again(endpoints, config, all_failed));
                }
                return Ok(endpoints);
            };
            if let Some(why) = uncertified(config, &error) {
                return Err(why);
            }
            // A lone server that refuses connections will not accept one in a moment; of several, the
            // one that was asked last says nothing about the others.
            let elects = error.kind() == ErrorKind::QuorumLost || addresses.len() > 1;
            if !elects || !error.is_transient() || now() + ELECTION_PAUSE >= limit {
                return Err(error);
            }
            tokio::time::sleep(ELECTION_PAUSE).await;
        }
    }

    fn new(
        config: &EtcdConfig,
        addresses: &[(String, u16)],
        background: &Background,
    ) -> Result<Self> {
        let server = |address: &(String, u16)| {
            let dialer = Dialer::new(address, config.tls.as_ref(), step_limit(config.timeout))?;
            Ok(Server::new(dialer, background, None))
        };
        let servers = addresses.iter().map(server).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            servers: Mutex::new(servers.into()),
            rotations: AtomicUsize::new(0),
            login: config.username.clone().zip(config.password.clone()),
            logins: Mutex::default(),
            tls: config.tls.clone(),
            step_limit: step_limit(config.timeout),
            caller: Handle::current().id(),
            background: background.clone(),
            cluster: OnceLock::new(),
            rotated: Arc::default(),
            all_failed: Arc::default(),
        })
    }

    /// How long to wait for a reply.
    pub(crate) const fn step_limit(&self) -> Duration {
        self.step_limit
    }

    /// Changes whenever calls move on to another server.
    pub(crate) fn rotations(&self) -> usize {
        self.rotations.load(Ordering::Acquire)
    }

    /// The server that is asked now.
    pub(crate) fn link(&self) -> Link {
        self.link_to(&self.server(self.rotations()))
    }

    /// Each server of the configuration by name.
    pub(crate) fn each_configured(&self) -> Vec<(String, Link)> {
        let servers = self.servers();
        let configured = servers.iter().filter(|server| server.found.is_none());
        configured.map(|server| (server.dialer.name(), self.link_to(server))).collect()
    }

    fn servers(&self) -> Arc<[Arc<Server>]> {
        Arc::clone(&self.servers.lock())
    }

    fn server(&self, rotation: usize) -> Arc<Server> {
        let servers = self.servers.lock();
        Arc::clone(&servers[rotation % servers.len()])
    }

    fn is_caller(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.caller)
    }

    /// The channel to a server for the runtime that this is called in.
    fn channel(&self, server: &Server) -> Numbered {
        let Server { for_caller, for_background, .. } = server;
        if self.is_caller() { for_caller } else { for_background }.lock().clone()
    }

    fn link_to(&self, server: &Server) -> Link {
        let (_, channel) = self.channel(server);
        let token = self.logins.lock().token.clone();
        InterceptedService::new(channel, Headers(token))
    }

    /// Makes one call, on the first server that answers. Each server is asked once.
    pub(crate) async fn call<T, C>(
        self: &Arc<Self>,
        operation: &'static str,
        unanswered: IfUnanswered,
        ask: impl Fn(Link) -> C,
    ) -> Result<T>
    where
        C: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut logged_in_again = false;
        let mut failed = 0;
        let mut doubt = false;
        loop {
            let (rotation, login) = (self.rotations(), self.logins.lock().number);
            let server = self.server(rotation);
            let status = match self.ask_one(rotation, &server, ask(self.link_to(&server))).await {
                Ok(reply) => return Ok(reply.into_inner()),
                Err(status) => status,
            };
            let verdict = verdict(&status);
            doubt |= verdict == Verdict::Doubtful;
            let error = fault(operation, status);
            let error = if doubt { error.with_unknown_effect() } else { error };
            match verdict {
                Verdict::Refused => return Err(error),
                Verdict::LoggedOut if self.login.is_some() && !logged_in_again => {
                    logged_in_again = true;
                    let logged_in = self.log_in(operation, login).await;
                    let unknown = |error: Error| {
                        if doubt { error.with_unknown_effect() } else { error }
                    };
                    logged_in.map_err(unknown)?;
                    continue;
                }
                Verdict::LoggedOut => return Err(error),
                Verdict::Doubtful | Verdict::Unsent => self.rotate_from(rotation),
            }
            failed += 1;
            let stop = verdict == Verdict::Doubtful && unanswered == IfUnanswered::Fail;
            if stop || failed >= self.servers.lock().len() {
                return Err(error);
            }
        }
    }

    async fn ask_one<T>(
        self: &Arc<Self>,
        rotation: usize,
        server: &Arc<Server>,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<tonic::Response<T>, Status> {
        // A silent server gets half the time if there are others to ask.
        let several = self.servers.lock().len() > 1;
        let limit = if several { self.step_limit / 2 } else { self.step_limit };
        self.ask_within(limit, rotation, server, call).await
    }

    async fn ask_within<T>(
        self: &Arc<Self>,
        limit: Duration,
        rotation: usize,
        server: &Arc<Server>,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<tonic::Response<T>, Status> {
        let (channel, _) = self.channel(server);
        let began = now();
        let mut silence =
            Silence { endpoints: self, server, channel, rotation, began, answered: false };
        let asked = tokio::time::timeout(limit, call).await;
        silence.answered = true;
        asked.unwrap_or_else(|_| {
            self.renew_connection(server, channel);
            let why = format!("no reply within {limit:?}");
            Err(Status::new(Code::DeadlineExceeded, why))
        })
    }

    /// Moves on to the next server, unless another call has done so already.
    pub(crate) fn rotate_from(self: &Arc<Self>, rotation: usize) {
        let next = rotation.wrapping_add(1);
        let rotated =
            self.rotations.compare_exchange(rotation, next, Ordering::AcqRel, Ordering::Acquire);
        if rotated.is_ok() {
            self.rotated.notify_one();
            if next.is_multiple_of(self.servers.lock().len()) {
                self.all_failed.notify_one();
            }
        }
    }

    /// Replaces a connection on which no reply came: it may be dead. Of many calls that waited on it, the
    /// first one replaces it.
    fn renew_connection(&self, server: &Server, silent: u64) {
        let Server { dialer, for_caller, for_background, .. } = server;
        let is_caller = self.is_caller();
        let mut current = if is_caller { for_caller } else { for_background }.lock();
        if current.0 == silent {
            let channel =
                if is_caller { dialer.channel() } else { channel_in(&self.background, dialer) };
            *current = (silent + 1, channel);
        }
    }

    /// The revision in the header of a reply, if the server belongs to the same cluster as all before it.
    /// An address may later lead to another cluster, where other claims hold the locks.
    pub(crate) fn check_cluster(
        &self,
        operation: &'static str,
        header: Option<ResponseHeader>,
    ) -> Result<i64> {
        let Some(ResponseHeader { cluster_id, revision, .. }) = header else {
            let why = "the reply makes no sense: is this an etcd server?";
            return Err(Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect());
        };
        let known = *self.cluster.get_or_init(|| cluster_id);
        if known == cluster_id {
            return Ok(revision);
        }
        // From now on only the configured servers are asked, beginning with another one.
        let mut servers = self.servers.lock();
        *servers = with_members(&servers, &[], Vec::new());
        drop(servers);
        self.rotations.fetch_add(1, Ordering::AcqRel);
        let why = format!(
            "a server of another cluster answered ({cluster_id:x}, not {known:x}): check where the \
             store's addresses lead"
        );
        Err(Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect())
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        // The task that waits for it ends then.
        self.all_failed.notify_one();
    }
}

/// A server that requires a client certificate says so only after the handshake, and closes the
/// connection at the same moment: often the alert is lost.
fn uncertified(config: &EtcdConfig, error: &Error) -> Option<Error> {
    let anonymous = config.tls.as_ref().is_some_and(|tls| tls.identity.is_none());
    let status = StdError::source(error).and_then(|cause| cause.downcast_ref::<Status>())?;
    let closed = verdict(status) == Verdict::Doubtful && StdError::source(status).is_some();
    let why = "TLS: the server closed the connection; it may want a certificate, `cert` and `key`";
    (anonymous && closed).then(|| Error::new(ErrorKind::Denied, CONNECT, why))
}

/// Moves on to the next server when a caller gives up on a silent one before the timeout.
struct Silence<'a> {
    endpoints: &'a Arc<Endpoints>,
    server: &'a Server,
    channel: u64,
    rotation: usize,
    began: Moment,
    answered: bool,
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        let silent = self.endpoints.step_limit / 10;
        if !self.answered && now().since(self.began) >= silent {
            self.endpoints.renew_connection(self.server, self.channel);
            self.endpoints.rotate_from(self.rotation);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::net::TcpListener;

    use super::*;

    /// Calls one after the other to a server that accepts connections and never replies.
    #[tokio::test]
    async fn calls_to_a_silent_server_share_a_connection_each_time_out() {
        const TIMEOUT: Duration = Duration::from_millis(500);
        const CALLS: u32 = 200;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = ("127.0.0.1".into(), listener.local_addr().unwrap().port());
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&accepted);
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok(connection) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                kept.push(connection);
            }
        });
        let background = Background::start("test").unwrap();
        let config = EtcdConfig { timeout: TIMEOUT, ..EtcdConfig::new(vec![address]) };
        let endpoints = Arc::new(Endpoints::new(&config, &config.servers, &background).unwrap());
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..CALLS {
            let endpoints = Arc::clone(&endpoints);
            let request = RangeRequest { key: vec![1], ..Default::default() };
            calls.spawn(async move { endpoints.range("look", request).await });
            tokio::time::sleep(4 * TIMEOUT / CALLS).await;
        }
        while let Some(call) = calls.join_next().await {
            assert!(call.unwrap().is_err());
        }
        let accepted = accepted.load(Ordering::Relaxed);
        assert!(accepted <= 20, "{accepted} connections in a few timeouts");
    }
}
