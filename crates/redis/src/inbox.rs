//! Claims that wait, and the grants that are pushed to them.
//!
//! A grant is published to the waiter's client, which subscribes to one channel (on a Cluster to one for
//! each slot in which its claims wait). Besides, one task for each lock refreshes the places of all local
//! waiters with one call, which also finds what a lost message would have told.

mod waiters;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Claim, Moment, now};
use tenure_core::{LockName, OwnerId, Result};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use waiters::{LocalQueue, RefreshTask, Waiter};
pub(crate) use waiters::{PushedGrant, Sent, WaiterRegistry};

use crate::keys::{Keyring, Keys};
use crate::scripts::{Call, Scripts};
use crate::servers::Servers;
use crate::wire::Arg;

/// How many waiters one call refreshes: the server is busy for a millisecond at most.
const BATCH: usize = 256;

/// How many calls in a row admit waiters before the local waiters are refreshed again.
const ADMIT_CALLS: usize = 64;

/// The waiters of one store, and the channels on which their grants arrive.
pub(crate) struct Inbox {
    inner: Arc<Inner>,
}

struct Inner {
    id: String,
    /// The channel, where there is only one.
    channel: Option<String>,
    keyring: Keyring,
    servers: Servers,
    scripts: Arc<Scripts>,
    waiters: Arc<WaiterRegistry>,
    channels: Mutex<Channels>,
}

/// The slots of a Cluster whose channels this client has subscribed to.
#[derive(Default)]
struct Channels {
    /// Each slot, with whether no claim waited in it at the last sweep.
    slots: HashMap<u16, bool>,
    /// Unsubscribes from the channels of slots in which no claim waits.
    sweeper: Option<AbortHandle>,
}

/// How often channels that no claim waits in are looked for.
const SWEEP: Duration = Duration::from_secs(5);

impl Inbox {
    pub(crate) fn new(
        keyring: Keyring,
        servers: Servers,
        scripts: Arc<Scripts>,
        waiters: Arc<WaiterRegistry>,
    ) -> Self {
        let id = OwnerId::random().to_string();
        let channel = match servers {
            Servers::One(_) => Some(keyring.inbox(0, &id)),
            Servers::Cluster(_) => None,
        };
        let channels = Mutex::default();
        let inner = Arc::new(Inner { id, channel, keyring, servers, scripts, waiters, channels });
        Self { inner }
    }

    /// The channel for grants of a lock with these keys.
    pub(crate) fn channel(&self, keys: &Keys) -> Cow<'_, str> {
        self.inner.channel(keys)
    }

    /// Whether grants of this lock will arrive.
    pub(crate) fn is_subscribed(&self, keys: &Keys) -> bool {
        self.inner.servers.listens_to(keys.slot, &self.channel(keys))
    }

    /// Returns when grants of this lock will arrive.
    pub(crate) async fn subscribe(&self, keys: &Keys) -> Result<()> {
        self.inner.subscribe(keys).await?;
        if self.inner.channel.is_none() {
            self.inner.track_channel(keys.slot);
        }
        Ok(())
    }

    /// Registers a claim that may be queued: from here on, a grant that is pushed to it is kept.
    pub(crate) fn enter(&self, owner: OwnerId, slot: u16, lease: Duration, poll: Duration) {
        let mut registered = self.inner.waiters.0.lock();
        let waiter =
            registered.claims.entry(owner).or_insert_with(|| Waiter::new(slot, lease, poll));
        (waiter.lease, waiter.poll) = (lease, poll);
    }

    /// The moment before a call is sent whose reply may say that claims wait.
    pub(crate) fn sending(&self) -> Sent {
        self.inner.waiters.sending()
    }

    /// The server has queued a claim, when its clock showed `server_us`.
    pub(crate) fn queued(
        &self,
        owner: OwnerId,
        sent: Sent,
        server_us: u64,
        ask_again_in: Option<Duration>,
    ) {
        let mut registered = self.inner.waiters.0.lock();
        let anchor = registered.anchor(sent, server_us);
        let Some(waiter) = registered.claims.get_mut(&owner) else { return };
        (waiter.in_queue, waiter.ask_again_in) = (true, ask_again_in);
        waiter.set_anchor(anchor);
    }

    /// A call is about to be sent that may queue the claim. Unless a reply settles it, the claim counts as
    /// queued: the caller may stop waiting for the reply.
    pub(crate) fn assume_queued(&self, owner: OwnerId) -> AssumeQueued<'_> {
        AssumeQueued { waiters: &self.inner.waiters, owner }
    }

    /// Whether the claim is in the queue, as far as this client knows.
    pub(crate) fn is_queued(&self, owner: OwnerId) -> bool {
        self.inner.waiters.0.lock().claims.get(&owner).is_some_and(|one| one.in_queue)
    }

    /// Whether the claim may be in the queue: a call that may queue it was sent.
    pub(crate) fn is_registered(&self, owner: OwnerId) -> bool {
        self.inner.waiters.0.lock().claims.contains_key(&owner)
    }

    /// Whether claims of this client wait for the lock.
    pub(crate) fn has_waiters(&self, name: &LockName) -> bool {
        self.inner.waiters.0.lock().queues.contains_key(name)
    }

    /// Forgets a claim that was granted or given up.
    pub(crate) fn forget(&self, owner: OwnerId) {
        self.inner.waiters.0.lock().claims.remove(&owner);
    }

    /// Resolves with a pushed grant and its date, or with `None` if the claim should ask. Its place is
    /// refreshed meanwhile.
    pub(crate) async fn pushed(&self, claim: &Claim) -> Option<(PushedGrant, Moment)> {
        let wakeup = self.enrol(claim)?;
        let _present = Presence { waiters: &self.inner.waiters, claim };
        wakeup.notified().await;
        let mut registered = self.inner.waiters.0.lock();
        let waiter = registered.claims.get_mut(&claim.owner)?;
        let pushed = waiter.pushed.take()?;
        let since = waiter.anchor?.date(pushed.server_ms);
        // A date in the future: a clock was set, so the grant cannot be dated.
        (since <= now()).then_some((pushed, since))
    }

    fn enrol(&self, claim: &Claim) -> Option<Arc<Notify>> {
        let registered = &mut *self.inner.waiters.0.lock();
        let waiter = registered.claims.get_mut(&claim.owner)?;
        let due = match std::mem::take(&mut waiter.refresh_at_once) {
            true => Duration::ZERO,
            false => waiter.ask_again_in.map_or(waiter.poll, |obstacle| obstacle.min(waiter.poll)),
        };
        let (now, here) = (Instant::now(), Handle::current().id());
        let due = now + due;
        let begin = || {
            let wakeup = Arc::new(Notify::new());
            let refresh_while_waiting = refresh_while_waiting(
                Arc::downgrade(&self.inner),
                claim.name.clone(),
                Arc::clone(&wakeup),
            );
            let refresher = RefreshTask {
                task: tokio::spawn(refresh_while_waiting).abort_handle(),
                runtime: here,
            };
            LocalQueue { owners: HashSet::new(), due, refresher, wakeup }
        };
        let line = registered.queues.entry(claim.name.clone()).or_insert_with(begin);
        // The runtime of the refresh task has ended, or may be blocked.
        let idle = line.owners.is_empty() || now.duration_since(line.due) > waiter.poll;
        if line.refresher.task.is_finished() || idle && line.refresher.runtime != here {
            let LocalQueue { due, refresher, wakeup, .. } = begin();
            (line.due, line.wakeup) = (line.due.min(due), wakeup);
            std::mem::replace(&mut line.refresher, refresher).task.abort();
        }
        line.owners.insert(claim.owner);
        if due < line.due {
            line.due = due;
            line.wakeup.notify_one();
        }
        Some(Arc::clone(&waiter.wakeup))
    }
}

/// Marks a claim as queued when it is dropped, unless a reply has settled the question.
#[must_use]
pub(crate) struct AssumeQueued<'a> {
    waiters: &'a WaiterRegistry,
    owner: OwnerId,
}

impl AssumeQueued<'_> {
    /// A reply has said whether the claim is in the queue.
    pub(crate) fn settle(self) {
        std::mem::forget(self);
    }
}

impl Drop for AssumeQueued<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiters.0.lock().claims.get_mut(&self.owner) {
            waiter.in_queue = true;
        }
    }
}

/// Counts a claim among the local waiters of its lock until it is dropped.
struct Presence<'a> {
    waiters: &'a WaiterRegistry,
    claim: &'a Claim,
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.waiters.0.lock().queues.get_mut(&self.claim.name) {
            line.owners.remove(&self.claim.owner);
        }
    }
}

/// Unsubscribes from channels of slots in which no claim waits, as long as there are channels.
async fn sweep(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(inner) = inner.upgrade() else { return };
        if !inner.unsubscribe_idle() {
            return;
        }
    }
}

/// Refreshes the local waiters of one lock until there are none.
async fn refresh_while_waiting(inner: Weak<Inner>, name: LockName, wakeup: Arc<Notify>) {
    loop {
        let due = {
            let Some(inner) = inner.upgrade() else { return };
            let mut registered = inner.waiters.0.lock();
            match registered.queues.get(&name) {
                // Another task has taken over.
                Some(line) if !Arc::ptr_eq(&line.wakeup, &wakeup) => return,
                Some(line) if !line.owners.is_empty() => line.due,
                _ => {
                    registered.queues.remove(&name);
                    return;
                }
            }
        };
        if Instant::now() < due {
            let _ = tokio::time::timeout_at(due, wakeup.notified()).await;
            continue;
        }
        let Some(inner) = inner.upgrade() else { return };
        inner.refresh(&name).await;
    }
}

impl Inner {
    fn channel(&self, keys: &Keys) -> Cow<'_, str> {
        match &self.channel {
            Some(channel) => channel.into(),
            None => self.keyring.inbox(keys.slot, &self.id).into(),
        }
    }

    async fn subscribe(&self, keys: &Keys) -> Result<()> {
        self.servers.subscribe(keys.slot, &self.channel(keys)).await
    }

    /// Notes that this client has subscribed to the channel of this slot.
    fn track_channel(self: &Arc<Self>, slot: u16) {
        let mut channels = self.channels.lock();
        channels.slots.insert(slot, false);
        if channels.sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            channels.sweeper = Some(tokio::spawn(sweep(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Unsubscribes from the channels of slots in which no claim has waited since the last sweep. Returns
    /// whether any channels are left.
    fn unsubscribe_idle(&self) -> bool {
        let mut channels = self.channels.lock();
        // Under this lock no claim registers and relies on a channel that is given up.
        let registered = self.waiters.0.lock();
        let used: HashSet<u16> = registered.claims.values().map(|waiter| waiter.slot).collect();
        channels.slots.retain(|slot, idle| {
            if used.contains(slot) {
                *idle = false;
            } else if std::mem::replace(idle, true) {
                self.servers.unsubscribe(*slot, &self.keyring.inbox(*slot, &self.id));
                return false;
            }
            true
        });
        if channels.slots.is_empty() {
            channels.sweeper = None;
        }
        channels.sweeper.is_some()
    }

    /// Refreshes all local waiters of this lock, and wakes those that should ask.
    async fn refresh(&self, name: &LockName) {
        let (owners, lease, poll) = self.waiters.present(name);
        // Before the calls: a waiter that arrives meanwhile may bring it forward.
        self.waiters.postpone(name, poll);
        let keys = self.keyring.keys(name);
        let lease = lease.as_millis() as u64;
        let mut more = false;
        for batch in owners.chunks(BATCH) {
            match self.refresh_batch(&keys, lease, batch).await {
                Ok((again, gone)) => {
                    self.waiters.wake(gone.iter());
                    more = again == Some(Duration::ZERO);
                    if let Some(again) = again.filter(|_| !more) {
                        self.waiters.bring_forward(name, again);
                    }
                }
                Err(error) => {
                    tracing::debug!(lock = %name, %error, "could not refresh the waiters");
                    self.waiters.wake(batch.iter());
                }
            }
        }
        if more {
            let again = self.admit_more(&keys, lease).await;
            self.waiters.bring_forward(name, again.unwrap_or(poll));
        }
    }

    /// Admits waiters, a batch with each call, while there is more to do, but not for so long that the
    /// places of the local waiters end. Returns when to refresh again.
    async fn admit_more(&self, keys: &Keys, lease: u64) -> Option<Duration> {
        for _ in 0..ADMIT_CALLS {
            match self.refresh_batch(keys, lease, &[]).await {
                Ok((Some(Duration::ZERO), _)) => {}
                Ok((again, _)) => return again,
                Err(_) => return None,
            }
        }
        Some(Duration::ZERO)
    }

    async fn refresh_batch(
        &self,
        keys: &Keys,
        lease: u64,
        owners: &[OwnerId],
    ) -> Result<(Option<Duration>, Vec<OwnerId>)> {
        self.subscribe(keys).await?;
        let mut arguments = vec![Arg::Number(lease)];
        arguments.extend(owners.iter().copied().map(Arg::Owner));
        let call = Call {
            operation: "wait for",
            slot: keys.slot,
            keys: &keys.all(),
            arguments: &arguments,
            wait: None,
        };
        let sent = self.waiters.sending();
        let (reply, _) = self.scripts.refresh.run(&self.servers, call).await?;
        let mut words = reply.texts().unwrap_or_default().into_iter();
        let again = words.next().and_then(|again| again.parse().ok()).map(Duration::from_millis);
        let server_us = words.next().and_then(|us| us.parse().ok());
        let gone: Vec<OwnerId> = words.filter_map(|owner| owner.parse().ok()).collect();
        if let Some(server_us) = server_us {
            self.waiters.refreshed(owners, &gone, sent, server_us);
        }
        Ok((again, gone))
    }
}
