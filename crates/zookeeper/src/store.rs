//! The contract, call by call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{
    Answer, Capabilities, Claim, Eviction, Fence, Fencing, Finding, Hold, HoldListener, LockName,
    LockState, Patience, Place, Released, Renewal, Result, Store,
};
use tokio::task::AbortHandle;

use crate::config::ZooKeeperConfig;
use crate::examine;
use crate::inner::Inner;
use crate::numbers::Limits;
use crate::place::Standing;
use crate::tenants::Stage;

/// Locks on ZooKeeper.
pub struct ZooKeeperStore {
    inner: Arc<Inner>,
    sweeper: AbortHandle,
}

impl ZooKeeperStore {
    /// Connects to the ensemble.
    ///
    /// # Errors
    /// [`Unreachable`](tenure_core::ErrorKind::Unreachable) or
    /// [`QuorumLost`](tenure_core::ErrorKind::QuorumLost) if no server opens a session in time,
    /// [`Denied`](tenure_core::ErrorKind::Denied) for credentials or certificates it does not take,
    /// and [`Invalid`](tenure_core::ErrorKind::Invalid) for a configuration that makes no sense.
    pub async fn connect(config: ZooKeeperConfig) -> Result<Self> {
        let (inner, sweeper) = Inner::connect(config, Limits::default()).await?;
        Ok(Self { inner, sweeper })
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

#[async_trait]
impl Store for ZooKeeperStore {
    fn capabilities(&self) -> Capabilities {
        let fault = "ZooKeeper's data is wiped, or restored from an older snapshot";
        let mut capabilities = Capabilities::full(Fencing::Until { fault });
        capabilities.detects_death = false;
        capabilities
    }

    fn longest_ttl(&self) -> Option<Duration> {
        self.inner.sessions.longest_ttl()
    }

    async fn claim(&self, claim: &Claim, patience: Patience) -> Result<Answer> {
        self.inner.claim(claim, patience).await.map_err(|error| error.about(&claim.name))
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Answer> {
        let Some((tenant, false)) = self.inner.tenants.find(claim.owner) else {
            return Ok(Answer::Queued(*place));
        };
        let waiting = match tenant.stage {
            Stage::Waits(waiting) => waiting,
            // It has held for some time: its term must start anew, or it might end unheard of.
            Stage::Holds => {
                let held = self.inner.confirm(&tenant).await;
                let held = held.map_err(|error| error.about(&claim.name))?;
                return Ok(held.unwrap_or(Answer::Queued(*place)));
            }
            Stage::Unsure => return Ok(Answer::Queued(*place)),
        };
        match waiting.news().await {
            Standing::Holds(grant) => Ok(Answer::Granted(grant)),
            Standing::Waits | Standing::Gone | Standing::Unknown => Ok(Answer::Queued(*place)),
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        self.inner.renew(claim).await.map_err(|error| error.about(&claim.name))
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.inner.release(claim).await.map_err(|error| error.about(&claim.name))
    }

    async fn tidy(&self) {
        self.inner.sessions.give_back().await;
    }

    fn fence(&self, _name: &LockName, hold: Hold) -> Option<Fence> {
        let (tenant, _) = self.inner.tenants.find(hold.owner)?;
        let node = tenant.nodes.first().filter(|_| tenant.token == hold.token)?;
        Some(Fence::new(node.clone(), i64::try_from(hold.token?.get()).ok()?))
    }

    fn tell_holders(&self, listener: HoldListener) {
        self.inner.listeners.add(listener);
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.inner.list(prefix).await
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.inner.evict(eviction).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::examine(self, &self.inner).await
    }
}

impl Drop for ZooKeeperStore {
    fn drop(&mut self) {
        self.sweeper.abort();
        self.inner.sessions.leave_alone();
        self.inner.tenants.clear();
    }
}

impl fmt::Debug for ZooKeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperStore").field("config", &self.inner.config).finish_non_exhaustive()
    }
}
