//! The release of a lock whose `tenure run` has died, done by the guardian.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure::{Guard, OwnerId, StoreUrl};

use super::system;
use crate::connection::Connection;
use crate::exit::Failure;
use crate::output::complain;

/// The environment variable of the store's password.
const PASSWORD: &str = "TENURE_PASSWORD";

/// All that it takes to release a lock.
#[derive(Deserialize, PartialEq, Serialize)]
pub(crate) struct PendingRelease {
    store: String,
    password: Option<String>,
    lock: String,
    owner: String,
    ttl: Duration,
}

impl PendingRelease {
    /// The lock that a guard holds in the store behind this URL, which has been resolved.
    pub(crate) fn new(url: &StoreUrl, guard: &Guard) -> Self {
        Self {
            store: url.to_string(),
            password: url.password().map(str::to_owned),
            lock: guard.name().as_str().into(),
            owner: guard.owner().to_string(),
            ttl: guard.ttl(),
        }
    }

    /// After this time the lock is free without us.
    pub(crate) const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The lock, for a message.
    pub(crate) fn describe(&self) -> String {
        format!("the lock {:?}", self.lock)
    }

    /// Gives the lock back; asks again until the store has answered, at most until `limit`.
    pub(crate) fn give_back(&self, limit: Instant) {
        if let Some(password) = &self.password {
            system::set_variable(PASSWORD, password);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        let given_back = runtime
            .block_on(async { tokio::time::timeout_at(limit.into(), self.insist()).await.is_ok() });
        if !given_back {
            complain(&format!(
                "could not release {} after tenure died; it becomes free at the end of its TTL",
                self.describe()
            ));
        }
        runtime.shutdown_background();
    }

    async fn insist(&self) {
        let mut pause = Duration::from_millis(100);
        while self.release().await.is_err() {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(Duration::from_secs(10));
        }
    }

    async fn release(&self) -> Result<(), Failure> {
        let owner = self.owner.parse::<OwnerId>()?;
        let connection = Connection::open(&self.store).await?;
        let released = connection.client.release(&self.lock, owner).await;
        connection.client.close().await;
        released?;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self {
            store: "redis://127.0.0.1".into(),
            password: Some("secret".into()),
            lock: "a".into(),
            owner: "0".repeat(32),
            ttl: Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for PendingRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRelease").field("lock", &self.lock).finish_non_exhaustive()
    }
}
