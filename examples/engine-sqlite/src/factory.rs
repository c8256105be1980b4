//! From a URL to a store.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::Result;
use tenure_core::store::{
    Connecting, Scheme, Store, StoreFactory, StoreUrl, UrlOption, step_limit,
};

use crate::SqliteStore;

/// The engine behind `sqlite:/path/of.db`: give it to `tenure::Registry::with`.
#[derive(Debug)]
pub struct SqliteFactory;

static SCHEMES: [Scheme; 1] = [Scheme::path(
    "sqlite",
    "/path/of.db",
    "the processes of this Linux machine, in an SQLite file",
)];

static OPTIONS: [UrlOption; 1] =
    [UrlOption::new("look-every", "DURATION", "how often a waiter checks whether it holds the lock")
        .defaults_to("20ms")
        .cosmetic()];

#[async_trait]
impl StoreFactory for SqliteFactory {
    fn name(&self) -> &'static str {
        "SQLite"
    }

    fn schemes(&self) -> &'static [Scheme] {
        &SCHEMES
    }

    fn options(&self) -> &'static [UrlOption] {
        &OPTIONS
    }

    async fn connect(&self, url: &StoreUrl, context: &Connecting) -> Result<Arc<dyn Store>> {
        let path =
            url.file().ok_or_else(|| url.invalid("name a file: write sqlite:/path/of.db"))?;
        let mut store = SqliteStore::open(path, step_limit(context.timeout())).await?;
        if let Some(interval) = url.duration("look-every")? {
            store = store.look_every(interval);
        }
        Ok(Arc::new(store))
    }
}
