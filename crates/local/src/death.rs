//! Noticing that a process has died, and clearing up after it.
//!
//! A waiter's process watches the processes right before it: the predecessor in line, or, at its
//! head, the holders. The hint is a pidfd that becomes readable; the truth is the member's lock
//! on its byte. Whoever notices takes all claims of the dead out, each with its hand-off.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use tokio::io::unix::AsyncFd;

use crate::fault::Result;
use crate::members::{self, IN_USE, Member};
use crate::readiness;
use crate::records::CLAIM;
use crate::store::Inner;

/// Records looked at in one go while clearing up, so that others get their turn.
const SWATH: u32 = 1024;

/// The members watched already. A watch lasts as long as the member: one per process that was
/// ever in our way, which costs less than starting and ending one with every wait.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<HashSet<Member>>);

impl Inner {
    /// Watches a member until it dies, unless it is watched already.
    pub(crate) fn watch(this: &Arc<Self>, member: Member) {
        if !this.watches.0.lock().insert(member) {
            return;
        }
        let _inside = this.runtime.enter();
        match pidfd(this, member) {
            Some(pidfd) => {
                this.runtime.spawn(keep_watch(pidfd, member, Arc::downgrade(this)));
            }
            None => {
                // Dead, or out of sight (another pid namespace): then the poll must do.
                this.watches.0.lock().remove(&member);
                this.bury(member);
            }
        }
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

async fn keep_watch(pidfd: AsyncFd<OwnedFd>, member: Member, inner: Weak<Inner>) {
    let died = pidfd.readable().await;
    let Some(inner) = inner.upgrade() else {
        return;
    };
    inner.watches.0.lock().remove(&member);
    if died.is_ok() {
        inner.bury(member);
    }
    // Those who wait choose anew whom to watch.
    inner.seats.notify_all();
}
