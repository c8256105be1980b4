//! The suite on the memory store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_conformance::Fixture;
use tenure_core::MemoryStore;
use tenure_core::store::Store;

struct Memory(MemoryStore);

async fn memory() -> Memory {
    Memory(MemoryStore::new())
}

#[async_trait]
impl Fixture for Memory {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    fn url(&self) -> Option<String> {
        None
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }
}

tenure_conformance::suite!(memory);
