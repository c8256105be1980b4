//! Those who wait, and the news of their grants.
//!
//! A grant is published to the waiter's client, which listens on one channel (on a Cluster on one
//! for each slot it waits in). Beside that, each line that somebody here stands in is looked after
//! as long as they wait: all of them are refreshed with one call, which also finds what was missed.

mod desk;

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

pub(crate) use desk::{Desk, News, Sent};
use desk::{Line, Tender, Waiter};

use crate::keys::{Keyring, Keys};
use crate::scripts::{Call, Scripts};
use crate::servers::Servers;
use crate::wire::Arg;

/// So many waiters are refreshed in one call: the server is busy for a millisecond at most.
const BATCH: usize = 256;

/// So many calls in a row admit others, before those who wait here are refreshed again.
const GO_ON: usize = 64;

/// The waiters of one store.
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
    desk: Arc<Desk>,
    channels: Mutex<Channels>,
}

/// The slots of a Cluster whose channels this client listens to.
#[derive(Default)]
struct Channels {
    /// Each with whether no claim has waited in it for a while.
    slots: HashMap<u16, bool>,
    /// Gives up those that no claim waits in.
    sweeper: Option<AbortHandle>,
}

/// How often channels that no claim waits in are looked for.
const SWEEP: Duration = Duration::from_secs(5);

impl Inbox {
    pub(crate) fn new(
        keyring: Keyring,
        servers: Servers,
        scripts: Arc<Scripts>,
        desk: Arc<Desk>,
    ) -> Self {
        let id = OwnerId::random().to_string();
        let channel = match servers {
            Servers::One(_) => Some(keyring.inbox(0, &id)),
            Servers::Cluster(_) => None,
        };
        let channels = Mutex::default();
        let inner = Arc::new(Inner { id, channel, keyring, servers, scripts, desk, channels });
        Self { inner }
    }

    /// The channel for grants of a lock with these keys.
    pub(crate) fn channel(&self, keys: &Keys) -> Cow<'_, str> {
        self.inner.channel(keys)
    }

    /// Whether news of this lock's grants will be heard.
    pub(crate) fn hears(&self, keys: &Keys) -> bool {
        self.inner.servers.listens_to(keys.slot, &self.channel(keys))
    }

    /// Returns when news of this lock's grants will be heard.
    pub(crate) async fn subscribe(&self, keys: &Keys) -> Result<()> {
        self.inner.subscribe(keys).await?;
        if self.inner.channel.is_none() {
            self.inner.remember(keys.slot);
        }
        Ok(())
    }

    /// A claim may get in line: from here on, news of it are kept.
    pub(crate) fn enter(&self, owner: OwnerId, slot: u16, lease: Duration, poll: Duration) {
        let mut books = self.inner.desk.0.lock();
        let waiter = books.claims.entry(owner).or_insert_with(|| Waiter::new(slot, lease, poll));
        (waiter.lease, waiter.poll) = (lease, poll);
    }

    /// A call is about to be sent whose reply may say that claims wait.
    pub(crate) fn sending(&self) -> Sent {
        self.inner.desk.sending()
    }

    /// A claim is in line. The server said so when its clock showed `server_us`.
    pub(crate) fn queued(
        &self,
        owner: OwnerId,
        sent: Sent,
        server_us: u64,
        ask_again_in: Option<Duration>,
    ) {
        let mut books = self.inner.desk.0.lock();
        let anchor = books.anchor(sent, server_us);
        let Some(waiter) = books.claims.get_mut(&owner) else { return };
        (waiter.in_line, waiter.ask_again_in) = (true, ask_again_in);
        waiter.set_anchor(anchor);
    }

    /// Until the reply to a call that may put the claim in line is read, it may be in line: also if
    /// the caller stops waiting for the reply.
    pub(crate) fn doubt(&self, owner: OwnerId) -> Doubt<'_> {
        Doubt { desk: &self.inner.desk, owner }
    }

    /// Whether the claim is in line, for all that this client knows.
    pub(crate) fn expects(&self, owner: OwnerId) -> bool {
        self.inner.desk.0.lock().claims.get(&owner).is_some_and(|one| one.in_line)
    }

    /// Whether the claim may be in line: it was sent there, whatever came of it.
    pub(crate) fn knows(&self, owner: OwnerId) -> bool {
        self.inner.desk.0.lock().claims.contains_key(&owner)
    }

    /// Whether others of this client wait for the lock.
    pub(crate) fn has_line(&self, name: &LockName) -> bool {
        self.inner.desk.0.lock().lines.contains_key(name)
    }

    /// The claim is granted or given up: nothing more is to be heard of it.
    pub(crate) fn forget(&self, owner: OwnerId) {
        self.inner.desk.0.lock().claims.remove(&owner);
    }

    /// Resolves with the news, dated, or with `None` if the claim should ask. Its place is kept
    /// meanwhile.
    pub(crate) async fn news(&self, claim: &Claim) -> Option<(News, Moment)> {
        let bell = self.attend(claim)?;
        let _present = Present { desk: &self.inner.desk, claim };
        bell.notified().await;
        let mut books = self.inner.desk.0.lock();
        let waiter = books.claims.get_mut(&claim.owner)?;
        let news = waiter.news.take()?;
        let since = waiter.anchor?.date(news.server_ms);
        // The server's clock was set, and dates nothing.
        (since <= now()).then_some((news, since))
    }

    fn attend(&self, claim: &Claim) -> Option<Arc<Notify>> {
        let books = &mut *self.inner.desk.0.lock();
        let waiter = books.claims.get_mut(&claim.owner)?;
        let due = match std::mem::take(&mut waiter.look_at_once) {
            true => Duration::ZERO,
            false => waiter.ask_again_in.map_or(waiter.poll, |obstacle| obstacle.min(waiter.poll)),
        };
        let (now, here) = (Instant::now(), Handle::current().id());
        let due = now + due;
        let begin = || {
            let bell = Arc::new(Notify::new());
            let tend = tend(Arc::downgrade(&self.inner), claim.name.clone(), Arc::clone(&bell));
            let tender = Tender { task: tokio::spawn(tend).abort_handle(), runtime: here };
            Line { owners: HashSet::new(), due, tender, bell }
        };
        let line = books.lines.entry(claim.name.clone()).or_insert_with(begin);
        // The runtime that it was on has ended, or may stand still.
        let idle = line.owners.is_empty() || now.duration_since(line.due) > waiter.poll;
        if line.tender.task.is_finished() || idle && line.tender.runtime != here {
            let Line { due, tender, bell, .. } = begin();
            (line.due, line.bell) = (line.due.min(due), bell);
            std::mem::replace(&mut line.tender, tender).task.abort();
        }
        line.owners.insert(claim.owner);
        if due < line.due {
            line.due = due;
            line.bell.notify_one();
        }
        Some(Arc::clone(&waiter.bell))
    }
}

/// A claim that may be in line. No reply has said so by the time that this is dropped.
#[must_use]
pub(crate) struct Doubt<'a> {
    desk: &'a Desk,
    owner: OwnerId,
}

impl Doubt<'_> {
    /// A reply says whether the claim is in line.
    pub(crate) fn settle(self) {
        std::mem::forget(self);
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.desk.0.lock().claims.get_mut(&self.owner) {
            waiter.in_line = true;
        }
    }
}

/// A claim that is being waited for.
struct Present<'a> {
    desk: &'a Desk,
    claim: &'a Claim,
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.desk.0.lock().lines.get_mut(&self.claim.name) {
            line.owners.remove(&self.claim.owner);
        }
    }
}

/// Gives up channels that no claim waits in any more, as long as there are channels.
async fn sweep(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(inner) = inner.upgrade() else { return };
        if !inner.give_up_idle() {
            return;
        }
    }
}

/// Looks after one line until nobody here stands in it.
async fn tend(inner: Weak<Inner>, name: LockName, bell: Arc<Notify>) {
    loop {
        let due = {
            let Some(inner) = inner.upgrade() else { return };
            let mut books = inner.desk.0.lock();
            match books.lines.get(&name) {
                // Another looks after it by now.
                Some(line) if !Arc::ptr_eq(&line.bell, &bell) => return,
                Some(line) if !line.owners.is_empty() => line.due,
                _ => {
                    books.lines.remove(&name);
                    return;
                }
            }
        };
        if Instant::now() < due {
            let _ = tokio::time::timeout_at(due, bell.notified()).await;
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

    /// This client listens to the channel of this slot.
    fn remember(self: &Arc<Self>, slot: u16) {
        let mut channels = self.channels.lock();
        channels.slots.insert(slot, false);
        if channels.sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            channels.sweeper = Some(tokio::spawn(sweep(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Gives up the channels of slots in which no claim has waited since the last time. Says whether
    /// any are left.
    fn give_up_idle(&self) -> bool {
        let mut channels = self.channels.lock();
        // No claim enters meanwhile and counts on a channel that is given up.
        let books = self.desk.0.lock();
        let used: HashSet<u16> = books.claims.values().map(|waiter| waiter.slot).collect();
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

    /// Refreshes all who wait for this lock, and wakes those who should ask.
    async fn refresh(&self, name: &LockName) {
        let (owners, lease, poll) = self.desk.present(name);
        // Before the calls: whoever comes meanwhile may bring it forward.
        self.desk.postpone(name, poll);
        let keys = self.keyring.keys(name);
        let lease = lease.as_millis() as u64;
        let mut more = false;
        for batch in owners.chunks(BATCH) {
            match self.refresh_batch(&keys, lease, batch).await {
                Ok((again, gone)) => {
                    self.desk.ring(gone.iter());
                    more = again == Some(Duration::ZERO);
                    if let Some(again) = again.filter(|_| !more) {
                        self.desk.bring_forward(name, again);
                    }
                }
                Err(error) => {
                    tracing::debug!(lock = %name, %error, "could not look after the line");
                    self.desk.ring(batch.iter());
                }
            }
        }
        if more {
            let again = self.go_on(&keys, lease).await;
            self.desk.bring_forward(name, again.unwrap_or(poll));
        }
    }

    /// Admits waiters, a batch with each call, as long as there is more to do; but not for so long that
    /// the places of those who wait here end. Returns when to look again.
    async fn go_on(&self, keys: &Keys, lease: u64) -> Option<Duration> {
        for _ in 0..GO_ON {
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
        let sent = self.desk.sending();
        let (reply, _) = self.scripts.refresh.run(&self.servers, call).await?;
        let mut words = reply.texts().unwrap_or_default().into_iter();
        let again = words.next().and_then(|again| again.parse().ok()).map(Duration::from_millis);
        let server_us = words.next().and_then(|us| us.parse().ok());
        let gone: Vec<OwnerId> = words.filter_map(|owner| owner.parse().ok()).collect();
        if let Some(server_us) = server_us {
            self.desk.refreshed(owners, &gone, sent, server_us);
        }
        Ok((again, gone))
    }
}
