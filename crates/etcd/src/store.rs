//! The contract, call by call.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::{
    Answer, Capabilities, Claim, Eviction, Fence, Fencing, Finding, Hold, HoldListener, LockName,
    LockState, Patience, Place, Released, Renewal, Result, Store,
};

use crate::config::EtcdConfig;
use crate::examine;
use crate::inner::Inner;
use crate::place::Standing;

/// Locks on etcd.
pub struct EtcdStore {
    inner: Arc<Inner>,
}

impl EtcdStore {
    /// Connects to the cluster.
    ///
    /// # Errors
    /// [`Unreachable`](tenure_core::ErrorKind::Unreachable) or
    /// [`QuorumLost`](tenure_core::ErrorKind::QuorumLost) if no member answers in time,
    /// [`Denied`](tenure_core::ErrorKind::Denied) for credentials or certificates it does not take,
    /// and [`Invalid`](tenure_core::ErrorKind::Invalid) for a configuration that makes no sense.
    pub async fn connect(config: EtcdConfig) -> Result<Self> {
        Ok(Self { inner: Inner::connect(config).await? })
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn capabilities(&self) -> Capabilities {
        let fault = "etcd is restored from an older snapshot without raising its revision";
        let mut capabilities = Capabilities::full(Fencing::Until { fault });
        capabilities.detects_death = false;
        capabilities
    }

    async fn claim(&self, claim: &Claim, patience: Patience) -> Result<Answer> {
        let (inner, asked) = (Arc::clone(&self.inner), claim.clone());
        let answer =
            self.inner.desk.queue(claim.owner, async move { inner.claim(&asked, patience).await });
        answer.await.map_err(|error| error.about(&claim.name))
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Answer> {
        let Some(waiting) = self.inner.place(claim.owner) else {
            return Ok(Answer::Queued(*place));
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
        let (inner, given_up) = (Arc::clone(&self.inner), claim.clone());
        let answer =
            self.inner.desk.queue(claim.owner, async move { inner.release(&given_up).await });
        answer.await.map_err(|error| error.about(&claim.name))
    }

    async fn tidy(&self) {
        self.inner.leases.give_back().await;
    }

    fn fence(&self, name: &LockName, hold: Hold) -> Option<Fence> {
        let key = self.inner.keyring.line(name).key(&hold.owner.to_string());
        Some(Fence::new(String::from_utf8(key).ok()?, i64::try_from(hold.token?.get()).ok()?))
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

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.inner.forget_all();
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("config", &self.inner.config).finish_non_exhaustive()
    }
}
