//! Releases in the background, on a store of which a part is down.

use std::time::{Duration, Instant};

use crate::layer::{Layer, Layered};
use async_trait::async_trait;
use tenure_core::store::{Claim, Released, Store};
use tenure_core::{Client, Error, ErrorKind, MemoryStore, Options, Result};

/// More releases than the janitor makes at once.
const STUCK: usize = 200;
/// What is not released stays for this long.
const TTL: Duration = Duration::from_secs(120);
/// Long enough on any machine, and shorter than [`TTL`].
const GENEROUS: Duration = Duration::from_secs(40);

#[tokio::test]
async fn releases_that_fail_do_not_delay_those_of_other_locks() {
    others_are_released(Outage::Refuses, Duration::from_secs(1)).await;
}

#[tokio::test]
async fn releases_without_an_answer_do_not_delay_those_of_other_locks() {
    others_are_released(Outage::Silent, TTL).await;
}

async fn others_are_released(outage: Outage, call_timeout: Duration) {
    let memory = MemoryStore::new();
    let store = Layered::new(&memory, HalfDead(outage));
    let client = Client::new(store).unwrap().with_call_timeout(call_timeout).unwrap();
    let take = async |name: String| {
        let options = Options::new().ttl(TTL);
        client.mutex(&name).unwrap().with(options).acquire().await.unwrap()
    };
    for number in 0..STUCK {
        drop(take(format!("dead-{number}")).await);
    }
    let guard = take("alive".into()).await;
    let start = Instant::now();
    drop(guard);
    while !memory.list("alive").await.unwrap().is_empty() {
        assert!(start.elapsed() < GENEROUS, "{outage:?}: not released");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(memory.list("dead-").await.unwrap().len(), STUCK, "these cannot be released");
}

#[derive(Clone, Copy, Debug)]
enum Outage {
    Refuses,
    Silent,
}

/// Releases of no lock whose name begins with `dead-`.
#[derive(Debug)]
struct HalfDead(Outage);

#[async_trait]
impl Layer for HalfDead {
    async fn release(&self, memory: &MemoryStore, claim: &Claim) -> Result<Released> {
        match self.0 {
            _ if !claim.name.as_str().starts_with("dead-") => memory.release(claim).await,
            Outage::Refuses => {
                Err(Error::new(ErrorKind::Unreachable, "release the lock", "its shard is down"))
            }
            Outage::Silent => std::future::pending().await,
        }
    }
}
