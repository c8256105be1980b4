//! Detection of dead processes, and removal of their claims.
//!
//! A waiter's process watches the processes right before it: the predecessor in the queue, or the holders if
//! it is first. A pidfd becomes readable when a process dies; the byte lock then proves the death. The
//! process that notices it removes all claims of the dead one, and each removal admits the next waiter.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Handle};
use tokio::task::AbortHandle;

use crate::async_fd;
use crate::fault::Result;
use crate::process_slots::{self, IN_USE, ProcessSlot};
use crate::records::CLAIM;
use crate::store::Inner;

/// Records that one change reads while removing claims, so that other processes are not blocked for long.
const RECORDS_PER_CHANGE: u32 = 1024;

/// The most processes watched at a time, each with a descriptor. Deaths of others are noticed by polling.
const MAX_WATCHES: usize = 64;
/// The most processes that stay watched while no waiter needs it. Two processes that alternate should not
/// start and end a watch each time.
const MAX_IDLE: usize = 16;

/// The processes watched now.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<WatchTable>);

#[derive(Debug, Default)]
struct WatchTable {
    watches: HashMap<Watched, Watch>,
    /// Grows with each watch that starts, and each that a waiter stops needing.
    ticks: u64,
}

/// A watched process, and the runtime that watches it: a runtime that is not polled notices no death.
type Watched = (ProcessSlot, runtime::Id);

#[derive(Debug)]
struct Watch {
    /// The tick at which it started. A watch that replaces it has another id.
    id: u64,
    task: AbortHandle,
    /// Waiters that need it.
    waiters: usize,
    /// The tick at which the last of them stopped needing it.
    idle_since: u64,
}

/// Keeps a process watched for one waiter.
#[derive(Debug)]
pub(crate) struct WatchHandle<'a> {
    watches: &'a Watches,
    watched: Watched,
    id: u64,
}

impl Drop for WatchHandle<'_> {
    fn drop(&mut self) {
        let mut register = self.watches.0.lock();
        let now = register.tick();
        // The watch may have ended, and another one started.
        if let Some(watch) = register.get(self.watched, self.id) {
            watch.waiters -= 1;
            watch.idle_since = now;
        }
        if register.watches.values().filter(|watch| watch.waiters == 0).count() > MAX_IDLE {
            register.end_longest_idle();
        }
    }
}

impl WatchTable {
    const fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    fn get(&mut self, watched: Watched, id: u64) -> Option<&mut Watch> {
        self.watches.get_mut(&watched).filter(|watch| watch.id == id)
    }

    /// Ends the watch that has been idle longest. False if none is idle.
    fn end_longest_idle(&mut self) -> bool {
        let idle = self.watches.iter().filter(|(_, watch)| watch.waiters == 0);
        let Some((&watched, _)) = idle.min_by_key(|(_, watch)| watch.idle_since) else {
            return false;
        };
        if let Some(watch) = self.watches.remove(&watched) {
            watch.task.abort();
        }
        true
    }
}

impl Inner {
    /// Watches a process until it dies or no waiter needs it. `None` if it cannot be watched: then its death
    /// is noticed by polling.
    pub(crate) fn watch(this: &Arc<Self>, process: ProcessSlot) -> Option<WatchHandle<'_>> {
        let (watches, watched) = (&this.watches, (process, Handle::current().id()));
        let mut register = watches.0.lock();
        // A task is finished without having removed its watch only if its runtime has ended.
        let running = register.watches.get_mut(&watched).filter(|watch| !watch.task.is_finished());
        if let Some(watch) = running {
            watch.waiters += 1;
            return Some(WatchHandle { watches, watched, id: watch.id });
        }
        if register.watches.len() >= MAX_WATCHES && !register.end_longest_idle() {
            return None;
        }
        let Some(pidfd) = pidfd(this, process) else {
            // The process is dead, or in another pid namespace.
            drop(register);
            this.remove_claims_if_dead(process);
            return None;
        };
        let id = register.tick();
        let task = tokio::spawn(watch_process(pidfd, watched, id, Arc::downgrade(this)));
        let task = task.abort_handle();
        register.watches.insert(watched, Watch { id, task, waiters: 1, idle_since: 0 });
        Some(WatchHandle { watches, watched, id })
    }

    /// Removes the claims of a process if it is dead.
    fn remove_claims_if_dead(&self, process: ProcessSlot) {
        let removed = self.table.is_alive(process).and_then(|is_alive| {
            if is_alive {
                return Ok(());
            }
            let flags = self.table.map.word(process.flags_at());
            if flags.is_some_and(|flags| flags.load(Ordering::Acquire) & IN_USE == 0) {
                return Ok(());
            }
            self.remove_claims_of(process.slot, |found| found == process)
        });
        if let Err(fault) = removed {
            tracing::warn!(?fault, "the claims of a dead process could not be removed");
        }
    }

    /// Removes all claims of the processes in a slot that `of` selects, in many small changes. One pass
    /// suffices: a dead process makes no claims, and claims do not move between records.
    pub(crate) fn remove_claims_of(
        &self,
        slot: u32,
        of: impl Fn(ProcessSlot) -> bool,
    ) -> Result<()> {
        let mut next = 1;
        loop {
            let scanned = self.change(|txn, wakes| {
                let end = txn.high_water().min(next + RECORDS_PER_CHANGE);
                for index in next..end {
                    if txn.kind(index)?.0 != CLAIM {
                        continue;
                    }
                    let claim = txn.claim(index)?;
                    if claim.process.slot != slot || !of(claim.process) {
                        continue;
                    }
                    let mut lock = txn.lock(claim.lock)?;
                    self.remove_and_admit(txn, &mut lock, &claim, wakes)?;
                    txn.commit()?;
                }
                wakes.retain(|wake| wake.process.slot != slot || !of(wake.process));
                Ok((end, txn.high_water()))
            });
            let (end, high_water) = scanned.map_err(|(fault, _)| fault)?;
            if end >= high_water {
                return Ok(());
            }
            next = end;
        }
    }
}

/// `None` if the process is dead or in another pid namespace.
fn pidfd(inner: &Inner, process: ProcessSlot) -> Option<AsyncFd<OwnedFd>> {
    let pid = process_slots::pid(&inner.table.map, process).ok()??;
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    // The process lives after the pidfd was opened, so the pidfd is not of a later process with the same
    // id.
    if !inner.table.is_alive(process).ok()? {
        return None;
    }
    async_fd::readable(pidfd).ok()
}

async fn watch_process(pidfd: AsyncFd<OwnedFd>, watched: Watched, id: u64, inner: Weak<Inner>) {
    let died = pidfd.readable().await;
    let Some(inner) = inner.upgrade() else {
        return;
    };
    let mut register = inner.watches.0.lock();
    if register.get(watched, id).is_some() {
        register.watches.remove(&watched);
    }
    drop(register);
    if died.is_ok() {
        inner.remove_claims_if_dead(watched.0);
    }
    // Waiters choose again which processes to watch.
    inner.claim_index.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalStore;

    #[tokio::test]
    async fn a_waiter_of_an_ended_watch_does_not_count_for_the_next_watch() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path()).unwrap();
        let other = LocalStore::open(dir.path()).unwrap();
        let (inner, process) = (&store.inner, other.inner.table.me());
        let register = || inner.watches.0.lock();
        let waiters = || register().watches.values().map(|watch| watch.waiters).sum::<usize>();
        let first = Inner::watch(inner, process).unwrap();
        // As the task does where it can no longer wait for the process.
        register().watches.clear();
        let second = Inner::watch(inner, process).unwrap();
        drop(first);
        assert_eq!(waiters(), 1, "the second still needs it");
        drop(second);
        assert_eq!(waiters(), 0);
    }
}
