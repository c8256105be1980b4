//! The servers of a cluster, and which of them is asked.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Background, Moment, now, step_limit};
use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::{Password, Tls};
use tokio::runtime::{Handle, Id};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::config::EtcdConfig;
use crate::dial::Dialer;
use crate::fault::{Verdict, fault, verdict};
use crate::rpc::auth_client::AuthClient;
use crate::rpc::cluster_client::ClusterClient;
use crate::rpc::maintenance_client::MaintenanceClient;
use crate::rpc::{
    AuthenticateRequest, Member, MemberListRequest, RangeRequest, ResponseHeader, StatusRequest,
};

/// A channel to one server, with the login in it.
pub(crate) type Link = InterceptedService<Channel, Headers>;

/// The servers of one cluster. Calls go to one of them until it fails, then to the next.
pub(crate) struct Endpoints {
    /// The servers that the configuration or DNS names, then those that the cluster named.
    servers: Mutex<Arc<[Arc<Server>]>>,
    /// How often calls moved on to the next server. The remainder is the index of the one to ask.
    rotations: AtomicUsize,
    login: Option<(String, Password)>,
    login_token: Mutex<Login>,
    /// Held by the login that serves all calls which wait for one.
    logging_in: AsyncMutex<()>,
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

/// One server, with two channels, each of which connects when it is first used.
///
/// Calls of the runtime that connected use the first, which that runtime serves. Renewals, watches and
/// all other calls use the second, which the background thread serves: they must go on when the
/// program's runtime is blocked or has ended.
struct Server {
    dialer: Dialer,
    for_caller: Mutex<Numbered>,
    for_background: Mutex<Numbered>,
    /// Its member id, if the cluster named it. `None`: the configuration or DNS did.
    found: Option<u64>,
}

/// A channel, and how many there were before it.
type Numbered = (u64, Channel);

impl Server {
    fn new(dialer: Dialer, background: &Background, found: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            for_caller: Mutex::new((0, dialer.channel())),
            for_background: Mutex::new((0, channel_in(background, &dialer))),
            dialer,
            found,
        })
    }
}

/// The result of a login.
#[derive(Clone, Debug, Default)]
struct Login {
    token: Option<MetadataValue<Ascii>>,
    /// How many logins there were.
    number: u64,
}

/// Adds the login to every call, and asks a server without a leader to fail at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers(Option<MetadataValue<Ascii>>);

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.0 {
            metadata.insert("token", token.clone());
        }
        Ok(request)
    }
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

/// A login takes this many call timeouts: it costs a server some 60 ms of CPU, and all calls need it.
const LOGIN_CALLS: u32 = 5;

/// When a client that has just connected asks for the cluster's members, how often it does so later,
/// and how often at most when servers fail.
const FIRST_DISCOVERY: Duration = Duration::from_secs(1);
const DISCOVERY: Duration = Duration::from_secs(300);
const URGENT_DISCOVERY: Duration = Duration::from_secs(20);

/// While all servers fail, DNS is asked for others this often.
const SRV_PAUSE: Duration = Duration::from_secs(2);

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
            login_token: Mutex::default(),
            logging_in: AsyncMutex::new(()),
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
        let token = self.login_token.lock().token.clone();
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
            let (rotation, login) = (self.rotations(), self.login_token.lock().number);
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

    /// Logs in, unless another login was made since the one of this number. One login serves all
    /// calls that wait for it, and goes on without them.
    async fn log_in(self: &Arc<Self>, operation: &'static str, seen: u64) -> Result<()> {
        if self.login.is_none() {
            return Ok(());
        }
        let endpoints = Arc::clone(self);
        let logging_in = async move {
            let _turn = endpoints.logging_in.lock().await;
            if endpoints.login_token.lock().number != seen {
                return Ok(());
            }
            endpoints.authenticate(operation).await
        };
        let ended = self.background.runtime().spawn(logging_in).await;
        ended.unwrap_or_else(|_| {
            let why = "the login ended early: try again, and report it";
            Err(Error::new(ErrorKind::Internal, operation, why))
        })
    }

    async fn authenticate(self: &Arc<Self>, operation: &'static str) -> Result<()> {
        let Some((name, password)) = &self.login else { return Ok(()) };
        let mut failure = None;
        let servers = self.servers().len();
        for _ in 0..servers {
            let rotation = self.rotations();
            let server = self.server(rotation);
            let request = AuthenticateRequest { name: name.clone(), password: password.read()? };
            // Without the old token: the server would refuse one that it has forgotten here, too.
            let (_, channel) = self.channel(&server);
            let ask = async move { AuthClient::new(channel).authenticate(request).await };
            match self.ask_within(self.step_limit * LOGIN_CALLS, rotation, &server, ask).await {
                Ok(reply) => {
                    let token = MetadataValue::try_from(reply.into_inner().token).ok();
                    let mut login_token = self.login_token.lock();
                    *login_token = Login { token, number: login_token.number + 1 };
                    return Ok(());
                }
                Err(status) if verdict(&status) == Verdict::Refused => {
                    let said = status.message();
                    // Without authentication, every call is served.
                    if said.contains("authentication is not enabled") {
                        return Ok(());
                    }
                    return Err(fault(operation, status));
                }
                Err(status) => {
                    self.rotate_from(rotation);
                    failure = Some(fault(operation, status));
                }
            }
        }
        let silent = || Error::new(ErrorKind::Unreachable, operation, "no server answers");
        Err(failure.unwrap_or_else(silent))
    }

    /// The revision in the header of a reply, if the server belongs to the same cluster as all before it.
    /// An address may come to lead to another cluster, where other claims hold the locks.
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

    /// Asks the cluster for its members, adds those that can be reached to the servers, and drops found
    /// servers that are no longer members.
    async fn look_for_members(self: &Arc<Self>) {
        let list =
            |link| async move { ClusterClient::new(link).member_list(MemberListRequest {}).await };
        let Ok(listed) = self.call("list members", IfUnanswered::AskAnother, list).await else {
            return;
        };
        let Some(cluster) = listed.header.map(|header| header.cluster_id) else { return };
        let known = self.servers();
        let mut ids = Vec::new();
        for server in known.iter() {
            ids.extend(self.identity(server).await.map(|(_, member)| member));
        }
        let mut found = Vec::new();
        // A learner serves no locks until it is promoted.
        let is_new = |member: &&Member| !member.is_learner && !ids.contains(&member.id);
        for member in listed.members.iter().filter(is_new) {
            for address in self.addresses(member) {
                let dialer = Dialer::new(&address, self.tls.as_ref(), self.step_limit);
                let Ok(dialer) = dialer else { continue };
                // A known server that did not answer just now is not a new one.
                if known.iter().any(|server| server.dialer.name() == dialer.name()) {
                    continue;
                }
                let server = Server::new(dialer, &self.background, Some(member.id));
                // An advertised address may lead elsewhere from this machine, even to another cluster.
                if self.identity(&server).await == Some((cluster, member.id)) {
                    tracing::debug!(server = server.dialer.name(), "found a member");
                    found.push(server);
                    break;
                }
            }
        }
        let members: Vec<u64> = listed.members.iter().map(|member| member.id).collect();
        let mut servers = self.servers.lock();
        *servers = with_members(&servers, &members, found);
    }

    /// Replaces the servers that the configuration or DNS named by these. Connections to servers that
    /// stay are kept, and so are the members that were found.
    fn replace_named(&self, addresses: &[(String, u16)]) {
        let mut servers = self.servers.lock();
        let named = addresses.iter().filter_map(|address| {
            let dialer = Dialer::new(address, self.tls.as_ref(), self.step_limit).ok()?;
            let is_it = |server: &&Arc<Server>| {
                server.found.is_none() && server.dialer.name() == dialer.name()
            };
            let known = servers.iter().find(is_it).cloned();
            Some(known.unwrap_or_else(|| Server::new(dialer, &self.background, None)))
        });
        let found = servers.iter().filter(|server| server.found.is_some()).cloned();
        let replaced: Arc<[_]> = named.chain(found).collect();
        if !replaced.is_empty() {
            *servers = replaced;
        }
    }

    /// The cluster id and the member id of a server.
    async fn identity(&self, server: &Server) -> Option<(u64, u64)> {
        let mut client = MaintenanceClient::new(self.link_to(server));
        let asked = tokio::time::timeout(self.step_limit, client.status(StatusRequest {})).await;
        let header = asked.ok()?.ok()?.into_inner().header?;
        Some((header.cluster_id, header.member_id))
    }

    /// The client addresses that a member advertises, with or without TLS as configured.
    fn addresses(&self, member: &Member) -> Vec<(String, u16)> {
        let scheme = if self.tls.is_some() { "https://" } else { "http://" };
        let address = |url: &String| {
            let (host, port) = url.strip_prefix(scheme)?.trim_end_matches('/').rsplit_once(':')?;
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Some((host.to_owned(), port.parse().ok()?))
        };
        member.client_ur_ls.iter().filter_map(address).collect()
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        // The task that waits for it ends then.
        self.all_failed.notify_one();
    }
}

/// The servers that the configuration and DNS name.
async fn addresses(config: &EtcdConfig) -> Result<Vec<(String, u16)>> {
    let mut addresses = config.servers.clone();
    if let Some(srv) = &config.srv {
        addresses.extend(srv.look_up(config.tls.is_some(), config.timeout).await?);
    }
    Ok(addresses)
}

/// Reads the SRV records again whenever all servers have failed, until the endpoints are dropped: the
/// cluster may have moved.
async fn look_up_again(endpoints: Weak<Endpoints>, config: EtcdConfig, all_failed: Arc<Notify>) {
    loop {
        all_failed.notified().await;
        if endpoints.strong_count() == 0 {
            return;
        }
        match addresses(&config).await {
            Ok(found) => {
                if let Some(known) = endpoints.upgrade() {
                    known.replace_named(&found);
                }
            }
            Err(error) => tracing::debug!(%error, "the servers that are known are asked again"),
        }
        tokio::time::sleep(SRV_PAUSE).await;
    }
}

/// The servers without found ones that are no longer members, and with new ones.
fn with_members(
    servers: &[Arc<Server>],
    members: &[u64],
    new: Vec<Arc<Server>>,
) -> Arc<[Arc<Server>]> {
    let is_member = |server: &&Arc<Server>| server.found.is_none_or(|id| members.contains(&id));
    servers.iter().filter(is_member).cloned().chain(new).collect()
}

/// Looks for members that have joined the cluster, until the endpoints are dropped. It keeps them alive
/// only while it looks.
async fn discover(endpoints: Weak<Endpoints>, rotated: Arc<Notify>) {
    tokio::time::sleep(FIRST_DISCOVERY).await;
    while let Some(known) = endpoints.upgrade() {
        known.look_for_members().await;
        drop(known);
        tokio::time::sleep(URGENT_DISCOVERY).await;
        // Whether notified or timed out, it is time to look again.
        let _ = tokio::time::timeout(DISCOVERY, rotated.notified()).await;
    }
}

/// A channel whose connection is served by the background thread.
fn channel_in(background: &Background, dialer: &Dialer) -> Channel {
    let _inside = background.runtime().enter();
    dialer.channel()
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
    use std::sync::atomic::AtomicUsize as Count;

    use tokio::net::TcpListener;

    use super::*;

    /// Calls one after the other to a server that accepts connections and never replies.
    #[tokio::test]
    async fn calls_to_a_silent_server_share_a_connection_each_time_out() {
        const TIMEOUT: Duration = Duration::from_millis(500);
        const CALLS: u32 = 200;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = ("127.0.0.1".into(), listener.local_addr().unwrap().port());
        let accepted = Arc::new(Count::new(0));
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
        assert!(accepted <= 20, "{accepted} connections in a few time-outs");
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_that_are_dropped_are_gone_at_once_although_members_are_looked_for() {
        let background = Background::start("test").unwrap();
        let config = EtcdConfig::new(vec![("127.0.0.1".into(), 1)]);
        let endpoints = Arc::new(Endpoints::new(&config, &config.servers, &background).unwrap());
        let dropped = Arc::downgrade(&endpoints);
        tokio::spawn(discover(dropped.clone(), Arc::clone(&endpoints.rotated)));
        // The task has asked a server that is not there, and now waits for a notification or a timeout.
        endpoints.rotated.notified().await;
        tokio::time::sleep(URGENT_DISCOVERY + config.timeout).await;
        drop(endpoints);
        assert!(dropped.upgrade().is_none());
    }

    /// A learner answers no calls about locks, but says who it is.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_learner_is_not_found_before_it_is_promoted() {
        let name = "a_learner_is_not_found_before_it_is_promoted";
        if ["etcd", "etcdctl"].iter().any(|program| tenure_testkit::lacks(program, name)) {
            return;
        }
        let server = tenure_testkit::EtcdServer::start(&[]).unwrap();
        let learner = server.add_learner().unwrap();
        let background = Background::start("test").unwrap();
        let config = EtcdConfig::new(vec![("127.0.0.1".into(), server.port())]);
        let endpoints = Endpoints::connect(&config, vec![0], &background).await.unwrap();
        let found = async || {
            endpoints.look_for_members().await;
            endpoints.servers().len() - 1
        };
        assert_eq!(found().await, 0);
        server.promote(&learner).unwrap();
        let is_found = async || found().await == 1;
        assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, is_found).await);
    }

    #[tokio::test]
    async fn a_server_that_was_found_is_dropped_when_it_is_no_member_any_more() {
        let background = Background::start("test").unwrap();
        let server = |port: u16, found| {
            let dialer = Dialer::new(&("h".into(), port), None, Duration::from_secs(1)).unwrap();
            Server::new(dialer, &background, found)
        };
        let mut servers: Arc<[_]> = [server(1, None)].into();
        // A cluster whose members are replaced one by one.
        for id in 2..100 {
            servers = with_members(&servers, &[id], vec![server(id as u16, Some(id))]);
        }
        let names: Vec<String> = servers.iter().map(|server| server.dialer.name()).collect();
        assert_eq!(names, ["h:1", "h:99"]);
    }
}
