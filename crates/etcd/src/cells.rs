//! Values beside locks: one key each, compared by the revision that last wrote it.
//!
//! A cell `orders` with the prefix `tenure/` is the key `tenure/%cell/orders`. Its version is the
//! revision of its last write, which no other write ever has.
//!
//! An expiry is a lease of the cell's own. etcd counts whole seconds, and makes no lease shorter than its
//! election timeout (two seconds by default): so a cell may stay up to two seconds longer. A leader that
//! takes over starts every lease anew, so it may stay for its time once more. A write with an expiry is
//! three calls: a read, which tells whether a lease is worth its cost; one for the lease; and the write.
//! One that keeps the expiry is two, one without an expiry a single call. The lease of a value that
//! was replaced is ended in the background, so that a cell that is written often does not fill etcd with leases.
//!
//! etcd has no clock to read: [`time`](Cells::time) is that of the client's machine.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tenure_core::store::{CellClock, CellKey, Cells, Expiry, Stored, Swap, Swapped, Version};
use tenure_core::{Error, ErrorKind, Result};
use tenure_ordered::Watching;

use crate::endpoints::IfUnanswered;
use crate::engine::EtcdEngine;
use crate::fault::is_lease_gone;
use crate::lease::whole_seconds;
use crate::rpc::lease_client::LeaseClient;
use crate::rpc::{KeyValue, LeaseGrantRequest, LeaseRevokeRequest, TxnRequest};
use crate::txn::{get, get_without_value, put, written_at};

/// The longest value. etcd takes requests of 1.5 MiB by default, with all that is in them besides.
const MAX_BYTES: usize = 1 << 20;

/// The longest lease that etcd grants, in seconds.
const LONGEST_LEASE: i64 = 9_000_000_000;

const READ: &str = "read the cell";
const WRITE: &str = "write the cell";
const WAIT: &str = "wait for a change of the cell";

/// How often a swap reads the lease of a cell whose expiry it keeps, because the cell has changed.
const ROUNDS: usize = 3;

#[async_trait]
impl Cells for EtcdEngine {
    fn max_value_bytes(&self) -> usize {
        MAX_BYTES
    }

    fn clock(&self) -> CellClock {
        CellClock::PerClient
    }

    fn pushes(&self) -> bool {
        true
    }

    async fn time(&self) -> Result<Duration> {
        Ok(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    async fn read(&self, key: &CellKey) -> Result<Option<Stored>> {
        let found = self.endpoints.get(READ, &self.keys.cell(key)).await;
        Ok(found.map_err(|error| error.about(&key.name))?.map(stored))
    }

    async fn swap(&self, key: &CellKey, swap: &Swap) -> Result<Swapped> {
        key.check_size(swap.value.len(), MAX_BYTES)?;
        self.swap_key(&self.keys.cell(key), swap).await.map_err(|error| error.about(&key.name))
    }

    async fn changed(&self, key: &CellKey, seen: Option<Version>) -> Result<()> {
        let name = self.keys.cell(key);
        let watch = self.watches.start(&name, Watching::Change, 0).await?;
        let found = self.endpoints.get(WAIT, &name).await?;
        if found.map(|found| version(&found)) == seen {
            watch.changed().await?;
        }
        Ok(())
    }
}

impl EtcdEngine {
    async fn swap_key(&self, key: &[u8], swap: &Swap) -> Result<Swapped> {
        match swap.expiry {
            Expiry::Never => self.write(key, swap, 0).await,
            Expiry::Keep => self.write_on_its_lease(key, swap).await,
            Expiry::After(ttl) => {
                // To read is cheaper than to grant a lease and to end it: both are agreed on by the servers.
                let present = self.endpoints.get(WRITE, key).await?;
                if present.as_ref().map(version) != swap.expected {
                    return Ok(Swapped::Conflict(present.map(stored)));
                }
                let lease = self.grant_lease(WRITE, ttl).await?;
                let swapped = self.write(key, swap, lease).await;
                if matches!(swapped, Ok(Swapped::Conflict(_))) {
                    self.revoke_lease(lease);
                }
                swapped
            }
            _ => {
                let why = "this store does not know this kind of expiry: update it";
                Err(Error::new(ErrorKind::Unsupported, WRITE, why))
            }
        }
    }

    /// A lease for one key. It is not kept alive.
    pub(crate) async fn grant_lease(&self, operation: &'static str, ttl: Duration) -> Result<i64> {
        let request = LeaseGrantRequest { ttl: whole_seconds(ttl).min(LONGEST_LEASE) };
        let ask = |link| async move { LeaseClient::new(link).lease_grant(request).await };
        // A lease that is granted twice by a repeated call expires by itself.
        let reply = self.endpoints.call(operation, IfUnanswered::AskAnother, ask).await?;
        self.endpoints.check_cluster(operation, reply.header)?;
        Ok(reply.id)
    }

    /// Ends a lease that no key is on, in the background: left alone, it ends by itself.
    pub(crate) fn revoke_lease(&self, id: i64) {
        let endpoints = Arc::clone(&self.endpoints);
        drop(self.background.runtime().spawn(async move {
            let request = LeaseRevokeRequest { id };
            let ask = |link| async move { LeaseClient::new(link).lease_revoke(request).await };
            if let Err(error) = endpoints.call("end a lease", IfUnanswered::AskAnother, ask).await {
                tracing::debug!(lease = id, %error, "the lease was not ended: it will expire");
            }
        }));
    }

    /// A put moves the key to the lease that it names, so it must name the present one.
    async fn write_on_its_lease(&self, key: &[u8], swap: &Swap) -> Result<Swapped> {
        for _ in 0..ROUNDS {
            let present = self.endpoints.get(WRITE, key).await?;
            if present.as_ref().map(version) != swap.expected {
                return Ok(Swapped::Conflict(present.map(stored)));
            }
            let lease = present.map_or(0, |present| present.lease);
            match self.write(key, swap, lease).await {
                // The cell has just expired.
                Err(error) if is_lease_gone(&error) => {}
                swapped => return swapped,
            }
        }
        let why = "the cell changed each time it was read: try again";
        Err(Error::new(ErrorKind::Unreachable, WRITE, why))
    }

    async fn write(&self, key: &[u8], swap: &Swap, lease: i64) -> Result<Swapped> {
        let expected = swap.expected.map_or(0, |version| version.get().cast_signed());
        let request = TxnRequest {
            compare: vec![written_at(key, expected)],
            success: vec![get_without_value(key), put(key, swap.value.clone(), lease)],
            failure: vec![get(key)],
        };
        let mut outcome = self.endpoints.txn(WRITE, IfUnanswered::Fail, request).await?;
        if outcome.succeeded {
            let replaced = outcome.found(0).map_or(0, |replaced| replaced.lease);
            if replaced != 0 && replaced != lease {
                self.revoke_lease(replaced);
            }
            return Ok(Swapped::Done(Version::new(outcome.revision.cast_unsigned())));
        }
        Ok(Swapped::Conflict(outcome.found(0).map(stored)))
    }
}

fn version(found: &KeyValue) -> Version {
    Version::new(found.mod_revision.cast_unsigned())
}

fn stored(found: KeyValue) -> Stored {
    let version = version(&found);
    Stored::new(found.value, version)
}
