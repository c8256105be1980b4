//! The suite on the memory store under `Chaos`, which delays, loses and repeats calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure_conformance::Fixture;
use tenure_core::store::Store;
use tenure_core::{Chaos, Faults, MemoryStore};

struct ChaosFixture {
    store: MemoryStore,
    connections: AtomicU64,
}

async fn chaos() -> ChaosFixture {
    ChaosFixture { store: MemoryStore::new(), connections: AtomicU64::new(0) }
}

#[async_trait]
impl Fixture for ChaosFixture {
    async fn store(&self) -> Arc<dyn Store> {
        let seed = self.connections.fetch_add(1, Ordering::Relaxed);
        let faults = Faults::new(seed)
            .delay(Duration::ZERO..Duration::from_millis(2))
            .lose_requests(0.03)
            .lose_replies(0.03)
            .duplicate(0.05);
        Arc::new(Chaos::new(Arc::new(self.store.clone()), faults))
    }

    fn url(&self) -> Option<String> {
        None
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(1_000)
    }

    fn injects_faults(&self) -> bool {
        true
    }
}

tenure_conformance::suite!(chaos);
