//! The cells of one process: the reference for other engines.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::contract::{CellClock, CellKey, Cells, Expiry, Stored, Swap, Swapped, Version};
use crate::{Moment, Result, now};

/// The longest value. Memory needs no limit; this is the smallest limit of an engine, so that a value
/// that fits here fits everywhere.
const MAX_BYTES: usize = 1_000_000;

/// How many cells there may be before those that have expired are looked for.
const SWEEP_AT: usize = 1_024;

/// Cells in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryCells {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_key: HashMap<CellKey, Entry>,
    /// The last version that was given, to whichever cell.
    versions: u64,
    sweep_at: usize,
    /// Notifies the waiters for a change of each cell, also of cells that are absent.
    changes: HashMap<CellKey, Arc<watch::Sender<()>>>,
}

#[derive(Debug)]
struct Entry {
    stored: Stored,
    ends: Option<Moment>,
}

impl Table {
    fn get(&self, key: &CellKey, now: Moment) -> Option<&Entry> {
        self.by_key.get(key).filter(|entry| entry.ends.is_none_or(|ends| ends > now))
    }

    /// Removes what has expired, each time that twice as many cells are there as after the last time.
    fn sweep(&mut self, now: Moment) {
        if self.by_key.len() >= self.sweep_at.max(SWEEP_AT) {
            self.by_key.retain(|_, entry| entry.ends.is_none_or(|ends| ends > now));
            self.sweep_at = 2 * self.by_key.len();
        }
    }
}

#[async_trait]
impl Cells for MemoryCells {
    fn max_value_bytes(&self) -> usize {
        MAX_BYTES
    }

    fn clock(&self) -> CellClock {
        // All clients are in this process, and use its clock.
        CellClock::Shared
    }

    fn pushes(&self) -> bool {
        true
    }

    async fn time(&self) -> Result<Duration> {
        Ok(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    async fn read(&self, key: &CellKey) -> Result<Option<Stored>> {
        Ok(self.table.lock().get(key, now()).map(|entry| entry.stored.clone()))
    }

    async fn swap(&self, key: &CellKey, swap: &Swap) -> Result<Swapped> {
        key.check_size(swap.value.len(), MAX_BYTES)?;
        let now = now();
        let mut table = self.table.lock();
        let present = table.get(key, now);
        if present.map(|entry| entry.stored.version) != swap.expected {
            return Ok(Swapped::Conflict(present.map(|entry| entry.stored.clone())));
        }
        let ends = match swap.expiry {
            Expiry::Never => None,
            Expiry::Keep => present.and_then(|entry| entry.ends),
            Expiry::After(ttl) => Some(now + ttl),
        };
        table.versions += 1;
        let version = Version::new(table.versions);
        table.sweep(now);
        table
            .by_key
            .insert(key.clone(), Entry { stored: Stored::new(swap.value.clone(), version), ends });
        if let Some(waiters) = table.changes.get(key) {
            waiters.send_replace(());
        }
        Ok(Swapped::Done(version))
    }

    async fn changed(&self, key: &CellKey, seen: Option<Version>) -> Result<()> {
        let waiters = {
            let mut table = self.table.lock();
            if table.get(key, now()).map(|entry| entry.stored.version) != seen {
                return Ok(());
            }
            // Remove the channels of keys without a waiter.
            table.changes.retain(|_, waiters| waiters.receiver_count() > 0);
            Arc::clone(table.changes.entry(key.clone()).or_default()).subscribe()
        };
        let mut waiters = waiters;
        // The table keeps the sender as long as there is a receiver.
        let _ = waiters.changed().await;
        Ok(())
    }
}
