//! Latches, in an order of events that a real store rarely shows.

use std::sync::Arc;
use std::time::Duration;

use crate::layer::{Layer, Layered};
use async_trait::async_trait;
use parking_lot::Mutex;
use tenure_core::store::Store;
use tenure_core::{Client, LatchParty, LockName, LockState, MemoryStore, Result};

/// Has a party count down just before a waiter looks which parties have a lease.
#[derive(Debug, Default)]
struct CountsMeanwhile(Arc<Mutex<Option<LatchParty>>>);

#[async_trait]
impl Layer for CountsMeanwhile {
    async fn inspect(&self, memory: &MemoryStore, name: &LockName) -> Result<LockState> {
        let party = self.0.lock().take();
        if let Some(party) = party {
            party.count_down().await?;
        }
        memory.inspect(name).await
    }
}

#[tokio::test]
async fn a_party_that_counts_down_while_a_waiter_looks_does_not_break_the_latch() {
    let layer = CountsMeanwhile::default();
    let counts_meanwhile = Arc::clone(&layer.0);
    let client = Client::new(Layered::new(&MemoryStore::new(), layer)).unwrap();
    let latch = client.latch("a", 2).unwrap();
    let (one, other) = (latch.join().await.unwrap(), latch.join().await.unwrap());
    *counts_meanwhile.lock() = Some(one);
    let early = tokio::time::timeout(Duration::from_millis(500), latch.wait()).await;
    assert!(early.is_err(), "one party has yet to count down: {early:?}");
    assert!(counts_meanwhile.lock().is_none(), "the waiter did not look at the leases");
    assert_eq!(other.count_down().await.unwrap(), 0);
    latch.wait().await.unwrap();
}
