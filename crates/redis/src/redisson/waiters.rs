//! The claims of this client that wait. Redisson keeps none in the server: a waiter hears that a lock may be
//! free, and asks.
//!
//! A message wakes one claim of this client, as it wakes one thread of a Redisson instance, and all readers
//! where they may come in together. So a release costs each client one call, not one for each of its waiters.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::OwnerId;
use tokio::sync::Notify;

use super::names::{Channel, is_semaphore, lock_of_channel};
use crate::wire::MessageListener;

#[derive(Default)]
pub(super) struct Waiters(Mutex<Registered>);

#[derive(Default)]
struct Registered {
    claims: HashMap<OwnerId, Waiter>,
    /// The waiters of each lock, by its key, in the order of their arrival here.
    queues: HashMap<String, VecDeque<OwnerId>>,
    /// The channels that this client has subscribed to, with their slots, and whether no claim waited for the
    /// lock at the last sweep.
    channels: HashMap<(String, Channel), (u16, bool)>,
}

/// What a claim waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Writer,
    Reader,
    /// So many permits.
    Permits(u32),
}

struct Waiter {
    lock: String,
    wanted: Wanted,
    /// A message has arrived since it last asked.
    woken: bool,
    /// Its caller is in `wait`.
    waits: bool,
    notify: Arc<Notify>,
}

impl Waiters {
    /// Registers a claim that will wait: from here on, messages are kept for it.
    pub(super) fn enter(&self, owner: OwnerId, lock: &str, wanted: Wanted) {
        let registered = &mut *self.0.lock();
        registered.claims.entry(owner).or_insert_with(|| {
            registered.queues.entry(lock.to_owned()).or_default().push_back(owner);
            let (lock, notify) = (lock.to_owned(), Arc::new(Notify::new()));
            Waiter { lock, wanted, woken: false, waits: false, notify }
        });
    }

    /// The claim is about to ask: what it has heard so far is served by that. Returns whether it is
    /// registered.
    pub(super) fn asking(&self, owner: OwnerId) -> bool {
        let mut registered = self.0.lock();
        let waiter = registered.claims.get_mut(&owner);
        waiter.map(|waiter| waiter.woken = false).is_some()
    }

    /// The claim has asked and must wait on. If it wants several permits, one that wants fewer may be served
    /// by what woke it.
    pub(super) fn refused(&self, owner: OwnerId) {
        let registered = &mut *self.0.lock();
        let Some(Waiter { lock, wanted: Wanted::Permits(2..), .. }) = registered.claims.get(&owner)
        else {
            return;
        };
        let Some(queue) = registered.queues.get(lock) else { return };
        let behind = queue.iter().skip_while(|other| **other != owner).skip(1);
        for other in behind {
            if let Some(waiter) = registered.claims.get_mut(other)
                && waiter.waits
                && !waiter.woken
            {
                waiter.woken = true;
                waiter.notify.notify_one();
                return;
            }
        }
    }

    /// Forgets a claim. If it leaves without the lock, a message that it has heard goes to the next one.
    pub(super) fn forget(&self, owner: OwnerId, granted: bool) {
        let registered = &mut *self.0.lock();
        let Some(waiter) = registered.claims.remove(&owner) else { return };
        if let Some(queue) = registered.queues.get_mut(&waiter.lock) {
            queue.retain(|other| *other != owner);
            if queue.is_empty() {
                registered.queues.remove(&waiter.lock);
            }
        }
        if waiter.woken && !granted {
            registered.wake(&waiter.lock, 1, false);
        }
    }

    /// Returns when the claim should ask, or at once if it does not wait.
    ///
    /// # Cancel safety
    /// A message that arrives while no call is pending ends the next one.
    pub(super) async fn woken(&self, owner: OwnerId) {
        let _waits = Waits::begin(self, owner);
        loop {
            let notify = match self.0.lock().claims.get(&owner) {
                Some(waiter) if !waiter.woken => Arc::clone(&waiter.notify),
                _ => return,
            };
            notify.notified().await;
        }
    }

    /// Notes that this client listens to a channel.
    pub(super) fn track(&self, lock: &str, channel: Channel, slot: u16) {
        self.0.lock().channels.insert((lock.to_owned(), channel), (slot, false));
    }

    /// Takes the channels out for whose locks no claim has waited since the last call, and calls `leave` for
    /// each. Returns whether any are left.
    pub(super) fn sweep(&self, mut leave: impl FnMut(&str, Channel, u16)) -> bool {
        let registered = &mut *self.0.lock();
        let Registered { queues, channels, .. } = registered;
        channels.retain(|(lock, channel), (slot, idle)| {
            if queues.contains_key(lock) {
                *idle = false;
            } else if std::mem::replace(idle, true) {
                leave(lock, *channel, *slot);
                return false;
            }
            true
        });
        !channels.is_empty()
    }
}

/// Says that the caller of a claim is in `wait`, until it is dropped.
struct Waits<'a>(&'a Waiters, OwnerId);

impl<'a> Waits<'a> {
    fn begin(waiters: &'a Waiters, owner: OwnerId) -> Self {
        let this = Self(waiters, owner);
        this.set(true);
        this
    }

    fn set(&self, waits: bool) {
        if let Some(waiter) = self.0.0.lock().claims.get_mut(&self.1) {
            waiter.waits = waits;
        }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl Registered {
    /// Wakes the first `count` claims whose callers wait, and those before them: they may have been given up.
    /// If one is a reader, or if `readers`, all readers are woken, because they may hold together.
    fn wake(&mut self, lock: &str, count: usize, readers: bool) {
        let Some(queue) = self.queues.get(lock) else { return };
        let (mut readers, mut left) = (readers, count);
        for owner in queue {
            let Some(waiter) = self.claims.get_mut(owner) else { continue };
            let is_reader = waiter.wanted == Wanted::Reader;
            if left == 0 && !(readers && is_reader) {
                continue;
            }
            waiter.woken = true;
            waiter.notify.notify_one();
            if waiter.waits && left > 0 {
                left -= 1;
                readers |= is_reader;
            }
        }
    }
}

impl MessageListener for Waiters {
    fn on_message(&self, channel: &[u8], message: &[u8]) {
        let number = || std::str::from_utf8(message).ok()?.parse().ok();
        match lock_of_channel(channel) {
            // So many permits may be free.
            Some(lock) if is_semaphore(channel) => {
                self.0.lock().wake(lock, number().unwrap_or(1), false);
            }
            // `1`: a writer has left.
            Some(lock) => self.0.lock().wake(lock, 1, message == b"1"),
            None => tracing::debug!("a message arrived on a channel that is no lock's"),
        }
    }

    fn on_gap(&self) {
        let registered = &mut *self.0.lock();
        let locks: Vec<String> = registered.queues.keys().cloned().collect();
        for lock in locks {
            registered.wake(&lock, 1, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LOCK: &[u8] = b"redisson_lock__channel:{a}";
    const RWLOCK: &[u8] = b"redisson_rwlock:{a}";

    fn entered(readers: &[bool]) -> (Waiters, Vec<OwnerId>) {
        let wanted = |is_reader| if is_reader { Wanted::Reader } else { Wanted::Writer };
        waiting_for(&readers.iter().map(|is_reader| wanted(*is_reader)).collect::<Vec<_>>())
    }

    fn waiting_for(wanted: &[Wanted]) -> (Waiters, Vec<OwnerId>) {
        let waiters = Waiters::default();
        let owners: Vec<OwnerId> = wanted.iter().map(|_| OwnerId::random()).collect();
        for (owner, wanted) in owners.iter().zip(wanted) {
            waiters.enter(*owner, "a", *wanted);
        }
        (waiters, owners)
    }

    /// Which of them are woken, if the callers of all are waiting.
    fn woken(waiters: &Waiters, owners: &[OwnerId], message: (&[u8], &[u8])) -> Vec<bool> {
        let mut waits: Vec<_> =
            owners.iter().map(|owner| Box::pin(waiters.woken(*owner))).collect();
        assert!(waits.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        waiters.on_message(message.0, message.1);
        waits.iter_mut().map(|wait| wait.as_mut().now_or_never().is_some()).collect()
    }

    #[tokio::test]
    async fn a_message_wakes_one_writer_and_the_readers_that_may_join() {
        let (waiters, owners) = entered(&[false, false, true, true]);
        assert_eq!(woken(&waiters, &owners, (LOCK, b"0")), [true, false, false, false]);
        waiters.asking(owners[0]);
        assert_eq!(woken(&waiters, &owners, (RWLOCK, b"1")), [true, false, true, true]);
        let (waiters, owners) = entered(&[true, false, true]);
        assert_eq!(woken(&waiters, &owners, (RWLOCK, b"0")), [true, false, true]);
        waiters.on_message(b"redisson_countdownlatch__channel__{a}", b"1");
    }

    #[tokio::test]
    async fn a_message_of_a_semaphore_wakes_as_many_claims_as_permits_are_free() {
        const CHANNEL: &[u8] = b"redisson_sc:{a}";
        let (waiters, owners) =
            waiting_for(&[Wanted::Permits(2), Wanted::Permits(1), Wanted::Permits(1)]);
        assert_eq!(woken(&waiters, &owners, (CHANNEL, b"2")), [true, true, false]);
        let (waiters, owners) =
            waiting_for(&[Wanted::Permits(2), Wanted::Permits(1), Wanted::Permits(1)]);
        let mut others: Vec<_> =
            owners[1..].iter().map(|owner| Box::pin(waiters.woken(*owner))).collect();
        assert!(others.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        waiters.refused(owners[0]);
        let passed_on = others.iter_mut().map(|wait| wait.as_mut().now_or_never().is_some());
        assert_eq!(passed_on.collect::<Vec<_>>(), [true, false], "what two did not suffice for");
        waiters.asking(owners[1]);
        waiters.refused(owners[1]);
        assert!(others[1].as_mut().now_or_never().is_none(), "not even one is free");
    }

    #[tokio::test]
    async fn a_message_passes_a_claim_that_nobody_waits_for() {
        let (waiters, owners) = entered(&[false, false]);
        let mut second = Box::pin(waiters.woken(owners[1]));
        assert!(second.as_mut().now_or_never().is_none());
        waiters.on_message(LOCK, b"0");
        assert!(second.now_or_never().is_some());
        assert!(waiters.woken(owners[0]).now_or_never().is_some(), "it is kept for the first, too");
    }

    #[tokio::test]
    async fn a_claim_that_leaves_passes_its_message_on_and_one_that_was_granted_does_not() {
        for granted in [false, true] {
            let (waiters, owners) = entered(&[false, false]);
            assert_eq!(woken(&waiters, &owners, (LOCK, b"0")), [true, false]);
            let mut second = Box::pin(waiters.woken(owners[1]));
            assert!(second.as_mut().now_or_never().is_none());
            waiters.forget(owners[0], granted);
            assert_eq!(second.now_or_never().is_some(), !granted);
        }
    }

    #[test]
    fn a_channel_is_left_when_no_claim_has_waited_between_two_sweeps() {
        let (waiters, owners) = entered(&[false]);
        waiters.track("a", Channel::Lock, 7);
        let left = || {
            let mut left = 0;
            waiters.sweep(|lock, channel, slot| {
                assert_eq!((lock, channel, slot), ("a", Channel::Lock, 7));
                left += 1;
            });
            left
        };
        assert_eq!([left(), left()], [0, 0]);
        waiters.forget(owners[0], true);
        assert_eq!([left(), left(), left()], [0, 1, 0]);
    }
}
