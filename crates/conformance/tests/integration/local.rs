//! The suite on the local store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_conformance::Fixture;
use tenure_core::store::Store;
use tenure_local::LocalStore;
use tenure_testkit::{TempDir, temp_dir};

struct Local(TempDir);

async fn local() -> Local {
    Local(temp_dir())
}

#[async_trait]
impl Fixture for Local {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(LocalStore::open(self.0.path()).unwrap())
    }

    fn url(&self) -> Option<String> {
        Some(format!("local:{}", self.0.path().display()))
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }
}

tenure_conformance::suite!(local);
