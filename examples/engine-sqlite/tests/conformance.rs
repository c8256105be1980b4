//! The conformance suite on an SQLite file.

#![allow(clippy::unwrap_used, reason = "a test judges by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use tenure::Registry;
use tenure_conformance::Fixture;
use tenure_core::store::Store;
use tenure_sqlite::SqliteFactory;

/// A file of its own for each case.
struct Sqlite(TempDir);

async fn sqlite() -> Sqlite {
    // Each commit is synced: in memory, a slow disk does not set the pace.
    let memory = Path::new("/dev/shm");
    let folder = if memory.exists() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    Sqlite(folder.unwrap())
}

impl Sqlite {
    fn address(&self) -> String {
        // A busy machine must not look like a fault.
        format!("sqlite:{}/locks.db?timeout=20s", self.0.path().display())
    }
}

#[async_trait]
impl Fixture for Sqlite {
    async fn store(&self) -> Arc<dyn Store> {
        let registry = Registry::default().with(SqliteFactory);
        registry.open(&registry.parse(&self.address()).unwrap()).await.unwrap()
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }
}

tenure_conformance::suite!(sqlite);
