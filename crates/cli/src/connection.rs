//! The connection to the store of the command line.

use std::time::Duration;

use tenure::{Client, ErrorKind, StoreUrl};

use crate::exit::{self, Failure, Outcome};
use crate::stores::registry;
use crate::{args, output};

/// How long a command waits at its end for releases in the background.
const CLOSE: Duration = tenure::store::CALL_TIMEOUT;

/// How long a wait for a lock is that `tenure blame` shows.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(1);

const NO_PASSWORD: &str = "no password was given: set TENURE_PASSWORD, or name a file with \
    password-file= in the URL (`tenure run --withhold-password` passes none to its command)";

/// A client, and the URL of its store.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) url: StoreUrl,
}

/// Warns of a password on the command line. Other faults of the URL are reported when it is opened.
pub(crate) fn warn_of_visible_password(global: &args::Global) {
    let url = || registry().parse(&global.store).ok();
    if global.store_is_visible
        && url().and_then(|url| url.password().map(|password| !password.is_empty())) == Some(true)
    {
        output::note(
            "the password in --store is visible to all users of this machine (`ps`): put the URL \
             into TENURE_STORE, or only the password into TENURE_PASSWORD",
        );
    }
}

impl Connection {
    /// Connects to the store of `url`.
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        Self::open_with(url, None).await
    }

    /// As [`open`](Self::open), for claims of this TTL.
    pub(crate) async fn open_with(url: &str, ttl: Option<Duration>) -> Result<Self, Failure> {
        let url = registry().parse(url).and_then(StoreUrl::resolved)?;
        let url = match ttl {
            Some(ttl) => url.for_ttl(ttl),
            None => url,
        };
        let client = registry().connect_to(&url).await.map_err(|error| {
            let line = exit::line(&error);
            match error.kind() {
                ErrorKind::Unsupported | ErrorKind::Invalid => Failure::from(error),
                ErrorKind::Denied if !url.says_password() && url.has_servers() => {
                    let why = format!("{line} (store {url}); {NO_PASSWORD}");
                    Failure::new(exit::DENIED, why)
                }
                kind => Failure::new(exit::code(kind), format!("{line} (store {url})")),
            }
        })?;
        let client = client.with_long_waits(LONG_WAIT)?;
        Ok(Self { client, url })
    }

    /// As [`open_with`](Self::open_with), for this lock: with its metrics, if they are asked for.
    pub(crate) async fn open_for(url: &str, lock: &args::Lock) -> Result<Self, Failure> {
        #[cfg(feature = "metrics")]
        if let Some(address) = lock.metrics {
            crate::metrics::serve(address);
            let Self { client, url } = Self::open_with(url, lock.ttl).await?;
            let client = client.with_lock_labels([lock.name.as_str()])?;
            return Ok(Self { client, url });
        }
        Self::open_with(url, lock.ttl).await
    }

    /// Connects to the store of `url`, calls `action`, and closes the connection.
    pub(crate) async fn with(url: &str, action: impl AsyncFnOnce(&Self) -> Outcome) -> Outcome {
        let connection = Self::open(url).await?;
        let outcome = action(&connection).await;
        connection.close(&outcome).await;
        outcome
    }

    /// Waits for the releases in the background, for at most [`CLOSE`], or less if the command has
    /// failed. A lock that is not released by then becomes free when its TTL has passed.
    pub(crate) async fn close(&self, outcome: &Outcome) {
        let limit = if outcome.is_ok() { CLOSE } else { CLOSE / 8 };
        let _ = tokio::time::timeout(limit, self.client.close()).await;
    }
}
