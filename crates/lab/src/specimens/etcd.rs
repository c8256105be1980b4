//! A lock in etcd by put-if-absent: one key with a lease, which every waiter watches.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::etcd_gateway::{base64, post, text_of, until_changed};
use super::{Algorithm, Bench, Held, Hold, client_of, owner_id};
use crate::history::now;
use crate::steps::Steps;

/// A client of the lock. Its lease is not renewed, and no revision orders its holders.
pub(crate) struct PutIfAbsent {
    server: String,
    steps: Rc<Steps>,
}

struct EtcdHold {
    server: String,
    lease: String,
}

impl PutIfAbsent {
    pub(crate) fn new(bench: &Bench) -> Self {
        let server = bench.servers.first().cloned().unwrap_or_default();
        Self { server, steps: Rc::clone(&bench.steps) }
    }

    /// One attempt: a lease, and a key that must not exist.
    async fn attempt(&self, lock: &str, ttl: Duration) -> io::Result<Option<Hold>> {
        let seconds = ttl.as_secs().max(1).to_string();
        let granted = post(&self.server, "/v3/lease/grant", &json!({"TTL": seconds})).await?;
        let lease = granted["ID"].as_str().ok_or(io::ErrorKind::InvalidData)?.to_owned();
        self.steps.reach("between").await;
        self.steps.reach("last").await;
        let (key, value) = (base64(lock), base64(&owner_id(&self.steps)));
        let request = json!({
            "compare": [{"key": key, "target": "CREATE", "create_revision": "0"}],
            "success": [{"request_put": {"key": key, "value": value, "lease": lease}}],
        });
        let hold = EtcdHold { server: self.server.clone(), lease };
        match post(&self.server, "/v3/kv/txn", &request).await?["succeeded"].as_bool() {
            Some(true) => Ok(Some(Box::new(hold))),
            _ => {
                Box::new(hold).release().await?;
                Ok(None)
            }
        }
    }
}

#[async_trait(?Send)]
impl Algorithm for PutIfAbsent {
    async fn acquire(&self, lock: &str, ttl: Duration, wait: Duration) -> io::Result<Option<Hold>> {
        let end = now() + wait.as_nanos() as u64;
        loop {
            match self.attempt(lock, ttl).await {
                Ok(None) => {}
                // A server that cannot be reached may be back soon.
                Err(_) if now() < end => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                outcome => return outcome,
            }
            let left = Duration::from_nanos(end.saturating_sub(now()));
            // The key may have been deleted before the watch begins: nothing heals that here.
            let watch = until_changed(&self.server, lock);
            if tokio::time::timeout(left, watch).await.is_err() {
                return Ok(None);
            }
        }
    }

    async fn holder(&self, lock: &str) -> io::Result<Option<String>> {
        let found = post(&self.server, "/v3/kv/range", &json!({"key": base64(lock)})).await?;
        Ok(found["kvs"][0]["value"].as_str().map(|value| client_of(&text_of(value))))
    }
}

#[async_trait(?Send)]
impl Held for EtcdHold {
    async fn release(self: Box<Self>) -> io::Result<bool> {
        let reply = post(&self.server, "/v3/lease/revoke", &json!({"ID": self.lease})).await?;
        Ok(reply["error"].is_null())
    }
}
