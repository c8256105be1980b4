//! Credentials that change while the program runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_core::Result;

use crate::config::RedisConfig;
use crate::login::log_in_by_auth;
use crate::wire::Connection;

/// A user, and a password or a token in its place.
#[derive(Clone)]
pub struct Credentials {
    /// The user; the server's `default` user without one.
    pub username: Option<String>,
    /// The password. It appears in no output.
    pub password: String,
    /// After so long on a connection, the [provider](CredentialsProvider) is asked again, and the
    /// connection logs in anew (`AUTH`). Without it, each connection logs in once.
    pub refresh_after: Option<Duration>,
}

/// A callback that is asked for credentials before each login, for tokens that expire.
///
/// It is asked for every new connection, and again on a connection that is open for longer than
/// [`refresh_after`](Credentials::refresh_after). It should answer from a cache: the time that it takes
/// is part of the time that connecting may take.
///
/// ```
/// use std::time::Duration;
/// use tenure::redis::{Config, Credentials, CredentialsProvider, Topology};
///
/// # async fn token() -> tenure::Result<String> { Ok("…".into()) }
/// let mut config = Config::new(Topology::Single { server: ("cache".into(), 6379) });
/// config.credentials = Some(CredentialsProvider::new(|| async {
///     Ok(Credentials {
///         username: Some("app".into()),
///         password: token().await?,
///         refresh_after: Some(Duration::from_secs(10 * 60)),
///     })
/// }));
/// ```
#[derive(Clone)]
pub struct CredentialsProvider(Arc<Ask>);

type Ask = dyn Fn() -> BoxFuture<'static, Result<Credentials>> + Send + Sync;

impl CredentialsProvider {
    /// A provider that calls this function each time.
    pub fn new<F, A>(ask: A) -> Self
    where
        A: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<Credentials>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(ask())))
    }

    async fn ask(&self) -> Result<Credentials> {
        (self.0)().await
    }

    /// Logs in again on a connection whenever its credentials are due, until it is closed.
    pub(crate) fn refresh(&self, connection: &Connection, credentials: &Credentials) {
        if let Some(after) = credentials.refresh_after {
            tokio::spawn(refresh(self.clone(), connection.weak(), after.max(SHORTEST)));
        }
    }
}

/// Credentials are not refreshed more often than this, whatever the provider says.
const SHORTEST: Duration = Duration::from_millis(100);

/// After a failure the next attempt comes sooner, so that there are several before the token ends.
const SOONER: u32 = 10;

async fn refresh(
    provider: CredentialsProvider,
    connection: impl Fn() -> Option<Connection>,
    mut after: Duration,
) {
    loop {
        tokio::time::sleep(after).await;
        // Not held while asleep: the connection closes with its last handle.
        let Some(connection) = connection().filter(Connection::is_open) else { return };
        match login(&provider, &connection).await {
            Ok(Some(next)) => after = next.max(SHORTEST),
            Ok(None) => return,
            Err(error) => {
                // The login that the connection has is good until the server ends it.
                tracing::warn!(%error, "the credentials could not be refreshed");
                after = (after / SOONER).max(SHORTEST);
            }
        }
    }
}

/// Logs in again, and returns when to do so next.
async fn login(
    provider: &CredentialsProvider,
    connection: &Connection,
) -> Result<Option<Duration>> {
    let credentials = provider.ask().await?;
    log_in_by_auth(connection, Some(&credentials), None).await?;
    Ok(credentials.refresh_after)
}

impl RedisConfig {
    /// The login for the servers, if there is one.
    pub(crate) async fn login(&self) -> Result<Option<Credentials>> {
        if let Some(provider) = &self.credentials {
            return provider.ask().await.map(Some);
        }
        let Some(password) = &self.password else { return Ok(None) };
        let (username, password) = (self.username.clone(), password.read()?);
        Ok(Some(Credentials { username, password, refresh_after: None }))
    }

    /// The login for the Sentinels, if they have one of their own.
    pub(crate) fn sentinel_login(&self) -> Result<Option<Credentials>> {
        let Some(password) = &self.sentinel_password else { return Ok(None) };
        let (username, password) = (self.sentinel_username.clone(), password.read()?);
        Ok(Some(Credentials { username, password, refresh_after: None }))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .field("refresh_after", &self.refresh_after)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CredentialsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let password = "secret".to_owned();
        let credentials = Credentials { username: None, password, refresh_after: None };
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
