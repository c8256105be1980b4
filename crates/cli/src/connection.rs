//! The connection to the store of the command line.

use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Finding, LockState, Result, StoreUrl};

use crate::exit::{self, Failure, Outcome};
use crate::{args, output};

/// The time for a call where the URL names none.
const CALL: Duration = Duration::from_secs(2);

const NO_PASSWORD: &str = "no password was given: set TENURE_PASSWORD, or name a file with \
    password-file= in the URL (`tenure run --withhold-password` passes none to its command)";

/// A client, and the URL of its store.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) url: StoreUrl,
}

/// Whether the store is kept by servers, which may ask for a password.
fn has_servers(url: &StoreUrl) -> bool {
    url.to_string().contains("://")
}

/// Warns of a password on the command line. Other faults of the URL are reported when it is opened.
pub(crate) fn warn_of_visible_password(global: &args::Global) {
    let url = || global.store.parse::<StoreUrl>().ok();
    if global.store_is_visible
        && url().and_then(|url| url.password().map(|password| !password.is_empty())) == Some(true)
    {
        output::remark(
            "the password in --store is visible to all users of this machine (`ps`): put the URL \
             into TENURE_STORE, or only the password into TENURE_PASSWORD",
        );
    }
}

impl Connection {
    /// Connects to the store of `url`.
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let url = url.parse::<StoreUrl>().and_then(StoreUrl::resolved)?;
        let client = tenure::connect_to(&url).await.map_err(|error| {
            let line = exit::line(&error);
            match error.kind() {
                ErrorKind::Unsupported | ErrorKind::Invalid => Failure::from(error),
                ErrorKind::Denied if !url.says_password() && has_servers(&url) => {
                    let why = format!("{line} (store {url}); {NO_PASSWORD}");
                    Failure::new(exit::DENIED, why)
                }
                kind => Failure::new(exit::code(kind), format!("{line} (store {url})")),
            }
        })?;
        Ok(Self { client, url })
    }

    /// Connects to the store of `url`, calls `action`, and closes the connection.
    pub(crate) async fn with(url: &str, action: impl AsyncFnOnce(&Self) -> Outcome) -> Outcome {
        let connection = Self::open(url).await?;
        let outcome = action(&connection).await;
        connection.close(&outcome).await;
        outcome
    }

    /// All locks that are held or waited for and begin with `prefix`.
    pub(crate) async fn states(&self, prefix: &str) -> Result<Vec<LockState>> {
        let mut states = Vec::new();
        for name in self.client.list(prefix).await? {
            let state = self.client.inspect(name.as_str()).await?;
            // It may have become free since it was listed.
            if !state.is_free() {
                states.push(state);
            }
        }
        Ok(states)
    }

    /// A call to the store itself, within the time that the client's calls have.
    pub(crate) async fn within<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        bounded(self.url.timeout().unwrap_or(CALL), operation, call).await
    }

    /// What the store finds when it looks at itself. That takes many calls, each with a time of
    /// its own; this bounds the whole.
    pub(crate) async fn diagnose(&self) -> Result<Vec<Finding>> {
        let limit = 10 * self.url.timeout().unwrap_or(CALL);
        bounded(limit, "diagnose the store", self.client.store().diagnose()).await
    }

    /// Waits for the releases in the background: at most for the time of one call, or less if the
    /// command has failed. A lock that is not released by then becomes free when its TTL has passed.
    pub(crate) async fn close(&self, outcome: &Outcome) {
        let limit = if outcome.is_ok() { CALL } else { CALL / 8 };
        let _ = tokio::time::timeout(limit, self.client.close()).await;
    }
}

async fn bounded<T>(
    limit: Duration,
    operation: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let why = format!("the store did not answer within {limit:?}: check that it runs");
        Err(Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect())
    })
}
