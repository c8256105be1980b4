//! The members of the cluster, and who of them is asked.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Background, Effect, Error, ErrorKind, Moment, Result, now};
use tokio::runtime::{Handle, Id};
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::config::EtcdConfig;
use crate::connect::{Ticket, endpoints};
use crate::fault::{Verdict, fault, verdict};
use crate::rpc::auth_client::AuthClient;
use crate::rpc::{AuthenticateRequest, RangeRequest};

/// A channel to one member, with the login in it.
pub(crate) type Link = InterceptedService<Channel, Ticket>;

/// All members. Calls go to one of them until it fails; then to the next.
pub(crate) struct Members {
    members: Vec<Member>,
    /// How often another member was turned to. The remainder names the one to ask.
    turns: AtomicUsize,
    login: Option<(String, String)>,
    ticket: Mutex<Ticket>,
    timeout: Duration,
    /// The runtime of the program that connected.
    home: Id,
    background: Background,
}

/// One member, with two channels, each of which connects when it is first used.
///
/// What the program's own runtime asks goes over the first, without a detour. Renewals and watches
/// must go on when that runtime is blocked or has ended: they, and all others, have the second.
struct Member {
    name: String,
    endpoint: Endpoint,
    at_home: Mutex<Channel>,
    in_background: Mutex<Channel>,
}

/// What may be done when nobody knows whether a call was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// Ask the next member: to carry it out twice changes nothing.
    Harmless,
    /// Nothing: a second answer would not be the first one's.
    Never,
}

impl Members {
    /// Logs in, and looks whether locks can be read. While the members elect a leader, it tries again
    /// within the time-out.
    pub(crate) async fn connect(
        config: &EtcdConfig,
        probe: Vec<u8>,
        background: &Background,
    ) -> Result<Arc<Self>> {
        let named = config.members.iter().map(|(host, port)| format!("{host}:{port}"));
        let member = |(name, endpoint): (String, Endpoint)| Member {
            name,
            at_home: Mutex::new(endpoint.connect_lazy()),
            in_background: Mutex::new(connect_in(background, &endpoint)),
            endpoint,
        };
        let login = config.username.clone().zip(config.password.clone());
        let members = Arc::new(Self {
            members: named.zip(endpoints(config)?).map(member).collect(),
            turns: AtomicUsize::new(0),
            login,
            ticket: Mutex::default(),
            timeout: config.timeout,
            home: Handle::current().id(),
            background: background.clone(),
        });
        let range = RangeRequest { key: probe, limit: 1, keys_only: true, ..Default::default() };
        let limit = now() + config.timeout;
        loop {
            let probed = async {
                members.log_in(CONNECT).await?;
                members.range(CONNECT, range.clone()).await
            };
            let Err(error) = probed.await else { return Ok(members) };
            if let Some(why) = uncertified(config, &error) {
                return Err(why);
            }
            // One member that is not there will not be there in a moment; of several, the one that was
            // asked last says nothing of the others.
            let elects = error.kind() == ErrorKind::QuorumLost || config.members.len() > 1;
            if !elects || !error.is_transient() || now() + ELECTION_PAUSE >= limit {
                return Err(error);
            }
            tokio::time::sleep(ELECTION_PAUSE).await;
        }
    }

    /// How long to wait for a reply.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Changes whenever calls turn to another member, or to a new connection.
    pub(crate) fn turns(&self) -> usize {
        self.turns.load(Ordering::Acquire)
    }

    /// The member that is asked now.
    pub(crate) fn link(&self) -> Link {
        self.link_to(self.turns() % self.members.len())
    }

    /// Each member by name.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&str, Link)> {
        self.members.iter().enumerate().map(|(place, member)| (&*member.name, self.link_to(place)))
    }

    fn is_home(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.home)
    }

    /// The channel to a member for the runtime that this is called in.
    fn channel(&self, place: usize) -> Channel {
        let Member { at_home, in_background, .. } = &self.members[place];
        if self.is_home() { at_home } else { in_background }.lock().clone()
    }

    fn link_to(&self, place: usize) -> Link {
        let channel = self.channel(place);
        let ticket = self.ticket.lock().clone();
        InterceptedService::new(channel, ticket)
    }

    /// One call, on whichever member answers. Each is asked once.
    pub(crate) async fn call<T, C>(
        &self,
        operation: &'static str,
        again: Again,
        ask: impl Fn(Link) -> C,
    ) -> Result<T>
    where
        C: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut doubt = false;
        self.call_noting(operation, again, &mut doubt, ask).await
    }

    /// As [`call`](Self::call), and notes whether a member may still carry it out, or may have
    /// carried it out besides the one that answered.
    pub(crate) async fn call_noting<T, C>(
        &self,
        operation: &'static str,
        again: Again,
        doubt: &mut bool,
        ask: impl Fn(Link) -> C,
    ) -> Result<T>
    where
        C: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut logged_in_again = false;
        let mut failed = 0;
        loop {
            let turn = self.turns();
            let status = match self.ask_one(turn, &ask).await {
                Ok(reply) => return Ok(reply.into_inner()),
                Err(status) => status,
            };
            let verdict = verdict(&status);
            *doubt |= verdict == Verdict::Doubtful;
            let error = fault(operation, status);
            let error = if *doubt { error.with_unknown_effect() } else { error };
            match verdict {
                Verdict::Refused => return Err(error),
                Verdict::LoggedOut if self.login.is_some() && !logged_in_again => {
                    logged_in_again = true;
                    self.log_in(operation).await?;
                    continue;
                }
                Verdict::LoggedOut => return Err(error),
                Verdict::Doubtful | Verdict::Unsent => self.turn_from(turn),
            }
            failed += 1;
            let stop = verdict == Verdict::Doubtful && again == Again::Never;
            if stop || failed == self.members.len() {
                return Err(error);
            }
        }
    }

    async fn ask_one<T, C>(
        &self,
        turn: usize,
        ask: impl Fn(Link) -> C,
    ) -> Result<tonic::Response<T>, Status>
    where
        C: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        // With others to turn to, one that is silent gets half the time.
        let several = self.members.len() > 1;
        let limit = if several { self.timeout / 2 } else { self.timeout };
        let mut patience = Patience { members: self, turn, began: now(), answered: false };
        let asked = tokio::time::timeout(limit, ask(self.link_to(turn % self.members.len()))).await;
        patience.answered = true;
        asked.unwrap_or_else(|_| {
            self.renew_connection(turn);
            let why = format!("no reply within {limit:?}");
            Err(Status::new(Code::DeadlineExceeded, why))
        })
    }

    /// Turns to the next member, unless another call has done so already.
    pub(crate) fn turn_from(&self, turn: usize) {
        let next = turn.wrapping_add(1);
        let _ = self.turns.compare_exchange(turn, next, Ordering::AcqRel, Ordering::Acquire);
    }

    /// A connection on which nothing comes back may be dead without knowing it.
    fn renew_connection(&self, turn: usize) {
        let member = &self.members[turn % self.members.len()];
        if self.is_home() {
            *member.at_home.lock() = member.endpoint.connect_lazy();
        } else {
            *member.in_background.lock() = connect_in(&self.background, &member.endpoint);
        }
    }

    async fn log_in(&self, operation: &'static str) -> Result<()> {
        let Some((name, password)) = &self.login else { return Ok(()) };
        let mut failure = None;
        for _ in &self.members {
            let turn = self.turns();
            let request = AuthenticateRequest { name: name.clone(), password: password.clone() };
            // Without the old ticket: one that the server has forgotten is refused here, too.
            let channel = self.channel(turn % self.members.len());
            let ask = |_| {
                let (request, channel) = (request.clone(), channel.clone());
                async move { AuthClient::new(channel).authenticate(request).await }
            };
            match self.ask_one(turn, ask).await {
                Ok(reply) => {
                    let token = MetadataValue::try_from(reply.into_inner().token);
                    self.ticket.lock().0 = token.ok();
                    return Ok(());
                }
                Err(status) if verdict(&status) == Verdict::Refused => {
                    let said = status.message();
                    // Where nobody needs to log in, everybody is let in.
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
        let silent = || Error::new(ErrorKind::Unreachable, operation, "no member answers");
        Err(failure.unwrap_or_else(silent))
    }
}

/// A channel whose connection is served by the background thread.
fn connect_in(background: &Background, endpoint: &Endpoint) -> Channel {
    let _inside = background.runtime().enter();
    endpoint.connect_lazy()
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

const CONNECT: &str = "connect to etcd";

/// Before the members are asked again whether they have a leader.
const ELECTION_PAUSE: Duration = Duration::from_millis(100);

/// Turns to the next member when a caller gave up on a silent one before we did.
struct Patience<'a> {
    members: &'a Members,
    turn: usize,
    began: Moment,
    answered: bool,
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        let silence = self.members.timeout / 10;
        if !self.answered && now().since(self.began) >= silence {
            self.members.renew_connection(self.turn);
            self.members.turn_from(self.turn);
        }
    }
}

/// Whether a failed call may have had its effect all the same.
pub(crate) fn is_doubtful(error: &Error) -> bool {
    error.effect() == Effect::Unknown
}
