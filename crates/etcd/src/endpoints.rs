//! The servers of a cluster, and which of them is asked.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Background, Moment, now};
use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::{Password, Tls};
use tokio::runtime::{Handle, Id};
use tokio::sync::{Mutex as Turn, Notify};
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

/// All servers. Calls go to one of them until it fails; then to the next.
pub(crate) struct Endpoints {
    /// Those of the configuration, then those that were found.
    servers: Mutex<Arc<[Arc<Server>]>>,
    /// How often another server was turned to. The remainder names the one to ask.
    turns: AtomicUsize,
    login: Option<(String, Password)>,
    ticket: Mutex<Ticket>,
    /// Held by the one login that serves all calls which wait for it.
    logging_in: Turn<()>,
    tls: Option<Tls>,
    timeout: Duration,
    /// The runtime of the program that connected.
    home: Id,
    background: Background,
    /// The cluster that the first reply came from.
    cluster: OnceLock<u64>,
    /// Calls turned to another server: there may be other members to turn to.
    turned: Arc<Notify>,
}

/// One server, with two channels, each of which connects when it is first used.
///
/// What the program's own runtime asks goes over the first, without a detour. Renewals and watches
/// must go on when that runtime is blocked or has ended: they, and all others, have the second.
struct Server {
    dialer: Dialer,
    at_home: Mutex<Numbered>,
    in_background: Mutex<Numbered>,
    /// Which member of the cluster it was found to be. `None`: the configuration names it.
    found: Option<u64>,
}

/// A channel, and how many there were before it.
type Numbered = (u64, Channel);

impl Server {
    fn new(dialer: Dialer, background: &Background, found: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            at_home: Mutex::new((0, dialer.channel())),
            in_background: Mutex::new((0, channel_in(background, &dialer))),
            dialer,
            found,
        })
    }
}

/// What a login yields.
#[derive(Clone, Debug, Default)]
struct Ticket {
    token: Option<MetadataValue<Ascii>>,
    /// How many logins there were.
    number: u64,
}

/// Adds the login to every call, and that a server without a leader shall say so at once.
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
    /// Ask the next server: to carry the call out twice changes nothing.
    AskAnother,
    /// Report it: a second answer would not be the first one's.
    Fail,
}

const CONNECT: &str = "connect to etcd";

/// Before the servers are asked again whether they have a leader.
const ELECTION_PAUSE: Duration = Duration::from_millis(100);

/// A login takes a server some 60 ms of work, and all calls need it: it gets more time than a call.
const LOGIN_CALLS: u32 = 5;

/// When a client that has just connected asks for the cluster's members, how often it does so later,
/// and how often at the most when servers fail.
const FIRST_DISCOVERY: Duration = Duration::from_secs(1);
const DISCOVERY: Duration = Duration::from_secs(300);
const URGENT_DISCOVERY: Duration = Duration::from_secs(20);

impl Endpoints {
    /// Logs in, and looks whether locks can be read. While the servers elect a leader, it tries again
    /// within the time-out.
    pub(crate) async fn connect(
        config: &EtcdConfig,
        probe: Vec<u8>,
        background: &Background,
    ) -> Result<Arc<Self>> {
        let mut addresses = config.servers.clone();
        if let Some(srv) = &config.srv {
            addresses.extend(srv.look_up(config.tls.is_some(), config.timeout).await?);
        }
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
                let turned = Arc::clone(&endpoints.turned);
                background.runtime().spawn(discover(Arc::downgrade(&endpoints), turned));
                return Ok(endpoints);
            };
            if let Some(why) = uncertified(config, &error) {
                return Err(why);
            }
            // One server that is not there will not be there in a moment; of several, the one that was
            // asked last says nothing of the others.
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
            let dialer = Dialer::new(address, config.tls.as_ref(), config.timeout)?;
            Ok(Server::new(dialer, background, None))
        };
        let servers = addresses.iter().map(server).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            servers: Mutex::new(servers.into()),
            turns: AtomicUsize::new(0),
            login: config.username.clone().zip(config.password.clone()),
            ticket: Mutex::default(),
            logging_in: Turn::new(()),
            tls: config.tls.clone(),
            timeout: config.timeout,
            home: Handle::current().id(),
            background: background.clone(),
            cluster: OnceLock::new(),
            turned: Arc::default(),
        })
    }

    /// How long to wait for a reply.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Changes whenever calls turn to another server, or to a new connection.
    pub(crate) fn turns(&self) -> usize {
        self.turns.load(Ordering::Acquire)
    }

    /// The server that is asked now.
    pub(crate) fn link(&self) -> Link {
        self.link_to(&self.server(self.turns()))
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

    fn server(&self, turn: usize) -> Arc<Server> {
        let servers = self.servers.lock();
        Arc::clone(&servers[turn % servers.len()])
    }

    fn is_home(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.home)
    }

    /// The channel to a server for the runtime that this is called in.
    fn channel(&self, server: &Server) -> Numbered {
        let Server { at_home, in_background, .. } = server;
        if self.is_home() { at_home } else { in_background }.lock().clone()
    }

    fn link_to(&self, server: &Server) -> Link {
        let (_, channel) = self.channel(server);
        let token = self.ticket.lock().token.clone();
        InterceptedService::new(channel, Headers(token))
    }

    /// One call, on whichever server answers. Each is asked once.
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
            let (turn, login) = (self.turns(), self.ticket.lock().number);
            let server = self.server(turn);
            let status = match self.ask_one(turn, &server, ask(self.link_to(&server))).await {
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
                Verdict::Doubtful | Verdict::Unsent => self.turn_from(turn),
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
        turn: usize,
        server: &Arc<Server>,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<tonic::Response<T>, Status> {
        // With others to turn to, one that is silent gets half the time.
        let several = self.servers.lock().len() > 1;
        let limit = if several { self.timeout / 2 } else { self.timeout };
        self.ask_within(limit, turn, server, call).await
    }

    async fn ask_within<T>(
        self: &Arc<Self>,
        limit: Duration,
        turn: usize,
        server: &Arc<Server>,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<tonic::Response<T>, Status> {
        let (channel, _) = self.channel(server);
        let began = now();
        let mut silence =
            Silence { endpoints: self, server, channel, turn, began, answered: false };
        let asked = tokio::time::timeout(limit, call).await;
        silence.answered = true;
        asked.unwrap_or_else(|_| {
            self.renew_connection(server, channel);
            let why = format!("no reply within {limit:?}");
            Err(Status::new(Code::DeadlineExceeded, why))
        })
    }

    /// Turns to the next server, unless another call has done so already.
    pub(crate) fn turn_from(self: &Arc<Self>, turn: usize) {
        let next = turn.wrapping_add(1);
        let turned = self.turns.compare_exchange(turn, next, Ordering::AcqRel, Ordering::Acquire);
        if turned.is_ok() {
            self.turned.notify_one();
        }
    }

    /// A connection on which nothing comes back may be dead without knowing it. Of many calls that
    /// have waited on one, the first renews it.
    fn renew_connection(&self, server: &Server, silent: u64) {
        let Server { dialer, at_home, in_background, .. } = server;
        let is_home = self.is_home();
        let mut current = if is_home { at_home } else { in_background }.lock();
        if current.0 == silent {
            let channel =
                if is_home { dialer.channel() } else { channel_in(&self.background, dialer) };
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
            if endpoints.ticket.lock().number != seen {
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
            let turn = self.turns();
            let server = self.server(turn);
            let request = AuthenticateRequest { name: name.clone(), password: password.read()? };
            // Without the old token: one that the server has forgotten is refused here, too.
            let (_, channel) = self.channel(&server);
            let ask = async move { AuthClient::new(channel).authenticate(request).await };
            match self.ask_within(self.timeout * LOGIN_CALLS, turn, &server, ask).await {
                Ok(reply) => {
                    let token = MetadataValue::try_from(reply.into_inner().token).ok();
                    let mut ticket = self.ticket.lock();
                    *ticket = Ticket { token, number: ticket.number + 1 };
                    return Ok(());
                }
                Err(status) if verdict(&status) == Verdict::Refused => {
                    let said = status.message();
                    // Where no login is needed, every call is served.
                    if said.contains("authentication is not enabled") {
                        return Ok(());
                    }
                    return Err(fault(operation, status));
                }
                Err(status) => {
                    self.turn_from(turn);
                    failure = Some(fault(operation, status));
                }
            }
        }
        let silent = || Error::new(ErrorKind::Unreachable, operation, "no server answers");
        Err(failure.unwrap_or_else(silent))
    }

    /// The revision in the header of a reply, if the server that sent it is of the same cluster as all
    /// before it. An address may come to lead to another cluster, where other claims hold the locks.
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
        // The configured servers are asked from now on, beginning with another one.
        let mut servers = self.servers.lock();
        *servers = with_members(&servers, &[], Vec::new());
        drop(servers);
        self.turns.fetch_add(1, Ordering::AcqRel);
        let why = format!(
            "a server of another cluster answered ({cluster_id:x}, not {known:x}): check where the \
             store's addresses lead"
        );
        Err(Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect())
    }

    /// Asks the cluster for its members, adds those that can be reached to the servers, and drops those
    /// that were found earlier and are members no more.
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
        for member in listed.members.iter().filter(|member| !ids.contains(&member.id)) {
            for address in self.addresses(member) {
                let dialer = Dialer::new(&address, self.tls.as_ref(), self.timeout);
                let Ok(dialer) = dialer else { continue };
                // One that did not answer just now is no new one.
                if known.iter().any(|server| server.dialer.name() == dialer.name()) {
                    continue;
                }
                let server = Server::new(dialer, &self.background, Some(member.id));
                // An address that a member advertises may lead elsewhere from here: to another
                // cluster, even.
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

    /// Which cluster a server is of, and which member of it.
    async fn identity(&self, server: &Server) -> Option<(u64, u64)> {
        let mut client = MaintenanceClient::new(self.link_to(server));
        let asked = tokio::time::timeout(self.timeout, client.status(StatusRequest {})).await;
        let header = asked.ok()?.ok()?.into_inner().header?;
        Some((header.cluster_id, header.member_id))
    }

    /// Where a member says that it can be reached, in the way that the others are.
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

/// The servers without those that were found and are members no more, and with new ones.
fn with_members(
    servers: &[Arc<Server>],
    members: &[u64],
    new: Vec<Arc<Server>>,
) -> Arc<[Arc<Server>]> {
    let is_member = |server: &&Arc<Server>| server.found.is_none_or(|id| members.contains(&id));
    servers.iter().filter(is_member).cloned().chain(new).collect()
}

/// Looks for members that have joined the cluster, until the endpoints are dropped: it keeps them only
/// while it looks.
async fn discover(endpoints: Weak<Endpoints>, turned: Arc<Notify>) {
    tokio::time::sleep(FIRST_DISCOVERY).await;
    while let Some(known) = endpoints.upgrade() {
        known.look_for_members().await;
        drop(known);
        tokio::time::sleep(URGENT_DISCOVERY).await;
        // Either way it is time to look again.
        let _ = tokio::time::timeout(DISCOVERY, turned.notified()).await;
    }
}

/// A channel whose connection is served by the background thread.
fn channel_in(background: &Background, dialer: &Dialer) -> Channel {
    let _inside = background.runtime().enter();
    dialer.channel()
}

/// A server that wants a certificate says so only after it has taken the connection, and closes it
/// in the same moment: most often nothing else is heard of it.
fn uncertified(config: &EtcdConfig, error: &Error) -> Option<Error> {
    let anonymous = config.tls.as_ref().is_some_and(|tls| tls.identity.is_none());
    let status = StdError::source(error).and_then(|cause| cause.downcast_ref::<Status>())?;
    let closed = verdict(status) == Verdict::Doubtful && StdError::source(status).is_some();
    let why = "TLS: the server closed the connection; it may want a certificate, `cert` and `key`";
    (anonymous && closed).then(|| Error::new(ErrorKind::Denied, CONNECT, why))
}

/// Turns to the next server when a caller gave up on a silent one before we did.
struct Silence<'a> {
    endpoints: &'a Arc<Endpoints>,
    server: &'a Server,
    channel: u64,
    turn: usize,
    began: Moment,
    answered: bool,
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        let silent = self.endpoints.timeout / 10;
        if !self.answered && now().since(self.began) >= silent {
            self.endpoints.renew_connection(self.server, self.channel);
            self.endpoints.turn_from(self.turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize as Count;

    use tokio::net::TcpListener;

    use super::*;

    /// Calls that come one after the other, to a server that takes connections and says nothing.
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
        tokio::spawn(discover(dropped.clone(), Arc::clone(&endpoints.turned)));
        // It asks a server that is not there, and then waits for other trouble, or for the next time.
        endpoints.turned.notified().await;
        tokio::time::sleep(URGENT_DISCOVERY + config.timeout).await;
        drop(endpoints);
        assert!(dropped.upgrade().is_none());
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
