//! Stores around the memory store. A test overrides the calls that it is about.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::store::{
    Capabilities, Cells, Claim, ClaimOutcome, Eviction, Grant, QueueTicket, Released, Renewal,
    Store, WaitPolicy,
};
use tenure_core::{Finding, LockName, LockState, MemoryStore, Result};

/// What a store does instead of the memory store. By default, it passes each call on.
#[async_trait]
pub(crate) trait Layer: Debug + Send + Sync + 'static {
    fn longest_ttl(&self) -> Option<Duration> {
        None
    }

    async fn claim(
        &self,
        memory: &MemoryStore,
        claim: &Claim,
        policy: WaitPolicy,
    ) -> Result<ClaimOutcome> {
        memory.claim(claim, policy).await
    }

    async fn claim_together(
        &self,
        memory: &MemoryStore,
        claims: &[Claim],
    ) -> Result<Option<Vec<Grant>>> {
        memory.claim_together(claims).await
    }

    async fn release_together(&self, memory: &MemoryStore, claims: &[Claim]) -> Result<bool> {
        memory.release_together(claims).await
    }

    async fn renew(&self, memory: &MemoryStore, claim: &Claim) -> Result<Renewal> {
        memory.renew(claim).await
    }

    async fn release(&self, memory: &MemoryStore, claim: &Claim) -> Result<Released> {
        memory.release(claim).await
    }

    async fn inspect(&self, memory: &MemoryStore, name: &LockName) -> Result<LockState> {
        memory.inspect(name).await
    }
}

/// The memory store with a layer around it. It reports no losses by itself.
#[derive(Debug)]
pub(crate) struct Layered<L> {
    memory: MemoryStore,
    layer: L,
}

impl<L: Layer> Layered<L> {
    pub(crate) fn new(memory: &MemoryStore, layer: L) -> Arc<Self> {
        Arc::new(Self { memory: memory.clone(), layer })
    }
}

#[async_trait]
impl<L: Layer> Store for Layered<L> {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn longest_ttl(&self) -> Option<Duration> {
        self.layer.longest_ttl()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        self.layer.claim(&self.memory, claim, policy).await
    }

    async fn claim_together(&self, claims: &[Claim]) -> Result<Option<Vec<Grant>>> {
        self.layer.claim_together(&self.memory, claims).await
    }

    async fn release_together(&self, claims: &[Claim]) -> Result<bool> {
        self.layer.release_together(&self.memory, claims).await
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        self.memory.wait(claim, ticket).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        self.layer.renew(&self.memory, claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.layer.release(&self.memory, claim).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.layer.inspect(&self.memory, name).await
    }

    fn cells(&self) -> Result<&dyn Cells> {
        self.memory.cells()
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.memory.list(prefix).await
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.memory.evict(eviction).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.memory.diagnose().await
    }
}
