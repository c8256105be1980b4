//! The login of a user, which all calls carry.

use std::sync::Arc;

use tenure_core::{Error, ErrorKind, Result};
use tonic::metadata::{Ascii, MetadataValue};

use super::Endpoints;
use crate::fault::{Verdict, fault, verdict};
use crate::rpc::AuthenticateRequest;
use crate::rpc::auth_client::AuthClient;

/// The result of a login.
#[derive(Clone, Debug, Default)]
pub(super) struct Login {
    pub(super) token: Option<MetadataValue<Ascii>>,
    /// How many logins there were.
    pub(super) number: u64,
}

/// A login takes this many call timeouts: it costs a server some 60 ms of CPU, and all calls need it.
const LOGIN_CALLS: u32 = 5;

impl Endpoints {
    /// Logs in, unless another login was made since the one of this number. One login serves all
    /// calls that wait for it, and goes on without them.
    pub(super) async fn log_in(self: &Arc<Self>, operation: &'static str, seen: u64) -> Result<()> {
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
            // Without the old token: a server that has forgotten the token would refuse even this call.
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
}
