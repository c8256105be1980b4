//! Noticing that a process has died, and clearing up after it.
//!
//! A waiter's process watches the processes right before it: the predecessor in line, or, at its
//! head, the holders. The hint is a pidfd that becomes readable; the truth is the member's lock
//! on its byte. Whoever notices takes all claims of the dead out, each with its hand-off.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Handle};
use tokio::task::AbortHandle;

use crate::fault::Result;
use crate::members::{self, IN_USE, Member};
use crate::readiness;
use crate::records::CLAIM;
use crate::store::Inner;

/// Records looked at in one go while clearing up, so that others get their turn.
const SWATH: u32 = 1024;

/// The most members watched at a time, each with a descriptor. The poll looks after others.
const MOST: usize = 64;
/// The most members that stay watched while no waiter needs it: two that hand a lock to and fro
/// should not start and end a watch each time.
const IDLE: usize = 16;

/// The members watched now.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Register>);

#[derive(Debug, Default)]
struct Register {
    watches: HashMap<Watched, Watch>,
    /// Grows with each watch that starts, and each that a waiter stops needing.
    ticks: u64,
}

/// Who is watched, and on which runtime: a runtime that lives but is not polled notices no death.
type Watched = (Member, runtime::Id);

#[derive(Debug)]
struct Watch {
    /// The tick at which it started: the watch that replaces this one has another id.
    id: u64,
    task: AbortHandle,
    /// Waiters that need it.
    waiters: usize,
    /// The tick at which the last of them stopped needing it.
    idle_since: u64,
}

/// One waiter's need for a member to be watched.
#[derive(Debug)]
pub(crate) struct Watching<'a> {
    watches: &'a Watches,
    watched: Watched,
    id: u64,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let mut register = self.watches.0.lock();
        let now = register.tick();
        // The watch may have ended, and another one started.
        if let Some(watch) = register.get(self.watched, self.id) {
            watch.waiters -= 1;
            watch.idle_since = now;
        }
        if register.watches.values().filter(|watch| watch.waiters == 0).count() > IDLE {
            register.end_longest_idle();
        }
    }
}

impl Register {
    const fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    fn get(&mut self, watched: Watched, id: u64) -> Option<&mut Watch> {
        self.watches.get_mut(&watched).filter(|watch| watch.id == id)
    }

    /// False if all are needed.
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
    /// Watches a member until it dies or no waiter needs that any more. `None` if it cannot be
    /// watched: then the poll must do.
    pub(crate) fn watch(this: &Arc<Self>, member: Member) -> Option<Watching<'_>> {
        let (watches, watched) = (&this.watches, (member, Handle::current().id()));
        let mut register = watches.0.lock();
        // One that has ended did so with its runtime.
        let running = register.watches.get_mut(&watched).filter(|watch| !watch.task.is_finished());
        if let Some(watch) = running {
            watch.waiters += 1;
            return Some(Watching { watches, watched, id: watch.id });
        }
        if register.watches.len() >= MOST && !register.end_longest_idle() {
            return None;
        }
        let Some(pidfd) = pidfd(this, member) else {
            // Dead, or out of sight (another pid namespace).
            drop(register);
            this.bury(member);
            return None;
        };
        let id = register.tick();
        let task = tokio::spawn(keep_watch(pidfd, watched, id, Arc::downgrade(this)));
        let task = task.abort_handle();
        register.watches.insert(watched, Watch { id, task, waiters: 1, idle_since: 0 });
        Some(Watching { watches, watched, id })
    }

    /// Clears up after a member if it is dead.
    fn bury(&self, member: Member) {
        let buried = self.table.lives(member).and_then(|lives| {
            if lives {
                return Ok(());
            }
            let flags = self.table.map.word(member.flags_at());
            if flags.is_some_and(|flags| flags.load(Ordering::Acquire) & IN_USE == 0) {
                return Ok(());
            }
            self.reap_slot(member.slot, |found| found == member)
        });
        if let Err(fault) = buried {
            tracing::warn!(?fault, "could not clear up after a dead process");
        }
    }

    /// Takes out all claims of a slot's members that `of` picks, in many small steps. Complete in
    /// one pass: the dead make no claims, and claims do not move.
    pub(crate) fn reap_slot(&self, slot: u32, of: impl Fn(Member) -> bool) -> Result<()> {
        let mut next = 1;
        loop {
            let swath = self.change(|txn, wakes| {
                let end = txn.carved().min(next + SWATH);
                for index in next..end {
                    if txn.kind(index)?.0 != CLAIM {
                        continue;
                    }
                    let claim = txn.claim(index)?;
                    if claim.member.slot != slot || !of(claim.member) {
                        continue;
                    }
                    let mut lock = txn.lock(claim.lock)?;
                    self.take_out(txn, &mut lock, &claim, wakes)?;
                    txn.commit()?;
                }
                wakes.retain(|wake| wake.member.slot != slot || !of(wake.member));
                Ok((end, txn.carved()))
            });
            let (end, carved) = swath.map_err(|(fault, _)| fault)?;
            if end >= carved {
                return Ok(());
            }
            next = end;
        }
    }
}

/// `None` if the member is dead, or its process cannot be seen from here.
fn pidfd(inner: &Inner, member: Member) -> Option<AsyncFd<OwnedFd>> {
    let pid = members::pid(&inner.table.map, member).ok()??;
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    // Alive after the pidfd was opened: so it is not another process with the same number.
    if !inner.table.lives(member).ok()? {
        return None;
    }
    readiness::readable(pidfd).ok()
}

async fn keep_watch(pidfd: AsyncFd<OwnedFd>, watched: Watched, id: u64, inner: Weak<Inner>) {
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
        inner.bury(watched.0);
    }
    // Those who wait choose anew whom to watch.
    inner.seats.notify_all();
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
        let (inner, member) = (&store.inner, other.inner.table.me());
        let register = || inner.watches.0.lock();
        let waiters = || register().watches.values().map(|watch| watch.waiters).sum::<usize>();
        let first = Inner::watch(inner, member).unwrap();
        // As the task does where it can no longer wait for the process.
        register().watches.clear();
        let second = Inner::watch(inner, member).unwrap();
        drop(first);
        assert_eq!(waiters(), 1, "the second still needs it");
        drop(second);
        assert_eq!(waiters(), 0);
    }
}
