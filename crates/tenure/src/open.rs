//! From a URL to a store.

use std::sync::Arc;

use tenure_core::store::Store;
use tenure_core::{Client, MemoryStore, Result};

use crate::StoreUrl;
use crate::engine::Engine;

/// Opens the store behind a URL and makes a client of it. Call it inside a tokio runtime.
///
/// # Errors
/// [`Invalid`](crate::ErrorKind::Invalid) for a URL that is none,
/// [`Unsupported`](crate::ErrorKind::Unsupported) for an engine that is not part of this build,
/// and whatever keeps the store from being opened.
pub async fn connect(url: &str) -> Result<Client> {
    connect_to(&url.parse()?).await
}

/// [`connect`] for a URL that has been parsed.
///
/// # Errors
/// Those of [`open`].
pub async fn connect_to(url: &StoreUrl) -> Result<Client> {
    let client = Client::new(open(url).await?)?;
    match url.timeout() {
        Some(timeout) => client.with_call_timeout(timeout),
        None => Ok(client),
    }
}

/// Opens the store behind a URL, for those who talk to the store itself. Call it inside a tokio
/// runtime.
///
/// A `memory:` store is a new one every time.
///
/// # Errors
/// [`Unsupported`](crate::ErrorKind::Unsupported) for an engine that is not part of this build,
/// and whatever keeps the store from being opened.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    match url.engine() {
        Engine::Memory => Ok(Arc::new(MemoryStore::new())),
        #[cfg(all(feature = "local", target_os = "linux"))]
        Engine::Local => crate::local::open(url),
        #[cfg(feature = "redis")]
        Engine::Redis => crate::redis::open(url).await,
        #[cfg(feature = "etcd")]
        Engine::Etcd => crate::etcd::open(url).await,
        #[cfg(feature = "redis")]
        Engine::Redlock => crate::redis::open_quorum(url).await,
        #[cfg(feature = "zookeeper")]
        Engine::ZooKeeper => crate::zookeeper::open(url).await,
        #[allow(unreachable_patterns, reason = "there are builds with all engines")]
        engine => Err(engine.missing()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(feature = "zookeeper"))]
    use crate::ErrorKind;

    #[cfg(not(feature = "zookeeper"))]
    #[tokio::test]
    async fn an_engine_outside_this_build_is_unsupported_and_says_so() {
        for url in ["zk://h?prefix=x"] {
            let error = connect(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}");
            let message = error.to_string();
            assert!(message.contains("this build of tenure has no"), "{message}");
        }
    }

    #[tokio::test]
    async fn clients_of_memory_urls_share_nothing() {
        let (one, two) = (connect("memory:").await.unwrap(), connect("memory:").await.unwrap());
        let _held = one.mutex("a").unwrap().acquire().await.unwrap();
        assert!(two.mutex("a").unwrap().try_acquire().await.is_ok());
    }
}
