//! The fixture of the mutants: one store in memory, without processes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_conformance::Fixture;
use tenure_core::store::Store;

/// A fixture whose clients all use this store.
pub(crate) struct MutantFixture(pub(crate) Arc<dyn Store>);

#[async_trait]
impl Fixture for MutantFixture {
    async fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    fn url(&self) -> Option<String> {
        None
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }
}
