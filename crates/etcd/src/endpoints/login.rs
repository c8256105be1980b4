//! The login of a user, which all calls carry.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tenure_core::Result;
use tenure_core::store::{Moment, now};
use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};

use super::{ELECTION_PAUSE, Endpoints};
use crate::fault::{Verdict, fault, verdict};
use crate::rpc::AuthenticateRequest;
use crate::rpc::auth_client::AuthClient;

/// The logins that were made, and the one that is being made.
#[derive(Default)]
pub(super) struct Logins {
    pub(super) token: Option<Token>,
    /// How many logins succeeded.
    pub(super) number: u64,
    /// The login that is under way, for all calls that want one.
    under_way: Option<UnderWay>,
    /// The last login, if it failed.
    failed: Option<Failed>,
}

pub(super) type Token = MetadataValue<Ascii>;
type UnderWay = Shared<BoxFuture<'static, Result<(), Status>>>;

struct Failed {
    at: Moment,
    password: String,
    status: Status,
}

/// A login takes this many call timeouts: it costs a server some 60 ms of CPU, and all calls need it.
const LOGIN_CALLS: u32 = 5;

/// After a login was refused, calls fail with the same error for so long, unless the password changes: a
/// server spends as much on a login that it refuses as on another one.
const REFUSED_FOR: Duration = Duration::from_secs(1);

impl Endpoints {
    /// Logs in, unless another login was made since the one of this number. One login serves all
    /// calls that wait for it, and goes on without them.
    pub(super) async fn log_in(self: &Arc<Self>, operation: &'static str, seen: u64) -> Result<()> {
        let Some((_, password)) = &self.login else { return Ok(()) };
        let password = password.read()?;
        let login = {
            let mut logins = self.logins.lock();
            if logins.number != seen {
                return Ok(());
            }
            if let Some(status) = logins.failure(&password) {
                return Err(fault(operation, status));
            }
            let begin = || self.begin_login(password);
            logins.under_way.get_or_insert_with(begin).clone()
        };
        login.await.map_err(|status| fault(operation, status))
    }

    fn begin_login(self: &Arc<Self>, password: String) -> UnderWay {
        let endpoints = Arc::clone(self);
        let task = self.background.runtime().spawn(async move {
            let outcome = endpoints.authenticate(&password).await;
            endpoints.logins.lock().end(password, outcome)
        });
        let ended = async move {
            task.await.unwrap_or_else(|_| Err(Status::internal("the login ended early")))
        };
        ended.boxed().shared()
    }

    /// A new token; `None` if the servers want none.
    async fn authenticate(self: &Arc<Self>, password: &str) -> Result<Option<Token>, Status> {
        let Some((name, _)) = &self.login else { return Ok(None) };
        let mut failure = None;
        let servers = self.servers().len();
        for _ in 0..servers {
            let rotation = self.rotations();
            let server = self.server(rotation);
            let request = AuthenticateRequest { name: name.clone(), password: password.into() };
            // Without the old token: a server that has forgotten the token would refuse even this call.
            let (_, channel) = self.channel(&server);
            let ask = async move { AuthClient::new(channel).authenticate(request).await };
            match self.ask_within(self.step_limit * LOGIN_CALLS, rotation, &server, ask).await {
                Ok(reply) => {
                    let unreadable = |_| Status::internal("the token is no header");
                    let token = MetadataValue::try_from(reply.into_inner().token);
                    return token.map(Some).map_err(unreadable);
                }
                Err(status) if verdict(&status) == Verdict::Refused => {
                    // Without authentication, every call is served.
                    let unwanted = status.message().contains("authentication is not enabled");
                    return if unwanted { Ok(None) } else { Err(status) };
                }
                Err(status) => {
                    self.rotate_from(rotation);
                    failure = Some(status);
                }
            }
        }
        Err(failure.unwrap_or_else(|| Status::unavailable("no server answers")))
    }
}

impl Logins {
    /// Why no login is made now, although one is wanted: one with this password has just failed.
    fn failure(&self, password: &str) -> Option<Status> {
        let Failed { at, password: tried, status } = self.failed.as_ref()?;
        let refused = verdict(status) == Verdict::Refused;
        let pause = if refused { REFUSED_FOR } else { ELECTION_PAUSE };
        (now().since(*at) < pause && tried == password).then(|| status.clone())
    }

    fn end(
        &mut self,
        password: String,
        outcome: Result<Option<Token>, Status>,
    ) -> Result<(), Status> {
        (self.under_way, self.failed) = (None, None);
        match outcome {
            Ok(None) => {}
            Ok(token) => (self.token, self.number) = (token, self.number + 1),
            Err(status) => {
                self.failed = Some(Failed { at: now(), password, status: status.clone() });
                return Err(status);
            }
        }
        Ok(())
    }
}
