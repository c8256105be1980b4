//! Those who wait, and the news of their grants.
//!
//! A grant is published to the waiter's client, which listens on one channel (on a Cluster on one
//! for each slot it waits in). Beside that, each line that somebody here stands in is looked after
//! as long as they wait: all of them are refreshed with one call, which also finds what was missed.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Claim, LockName, Moment, OwnerId, Result, Token, now};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::keys::{Keyring, Keys};
use crate::scripts::{Call, Scripts};
use crate::servers::Servers;
use crate::wire::{Arg, Hearer};

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
}

/// Who waits, and what was heard for them.
#[derive(Default)]
pub(crate) struct Desk(Mutex<Books>);

#[derive(Default)]
struct Books {
    claims: HashMap<OwnerId, Waiter>,
    lines: HashMap<LockName, Line>,
    /// How often messages may have been missed. After that, another server may answer.
    misses: u64,
}

/// A claim that is in line, or on its way into it.
struct Waiter {
    lease: Duration,
    poll: Duration,
    /// Whether it may be in line.
    in_line: bool,
    /// Of the server that said that it is in line; another may serve the lock by now.
    anchor: Option<Anchor>,
    ask_again_in: Option<Duration>,
    news: Option<News>,
    /// The server has said that there is more to do in the line than one call does.
    more: bool,
    bell: Arc<Notify>,
}

impl Waiter {
    /// What was granted before the claim was found to wait is over.
    fn is_over(&self, news: &News) -> bool {
        self.anchor.is_some_and(|anchor| news.server_ms < anchor.server_us / 1000)
    }

    /// The server says that the claim waits, and what its clock shows.
    fn set_anchor(&mut self, anchor: Option<Anchor>) {
        self.anchor = anchor;
        if self.news.is_some_and(|news| self.is_over(&news)) {
            self.news = None;
        }
    }
}

/// The moment before a call was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    local: Moment,
    misses: u64,
}

/// Those of one lock who wait at this moment.
struct Line {
    owners: HashSet<OwnerId>,
    due: Instant,
    /// Rung when it is due earlier than before.
    bell: Arc<Notify>,
    /// The task that looks after it.
    tender: AbortHandle,
}

/// A grant as it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) token: Option<Token>,
    pub(crate) server_ms: u64,
}

/// What a waiter knows of the server's clock: at `local` or later, the server's showed `server_us`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    pub(crate) local: Moment,
    pub(crate) server_us: u64,
}

impl Anchor {
    /// A moment of ours that is not after the server's `ms`. The clocks may run apart by one per
    /// cent, as everywhere.
    pub(crate) fn date(&self, ms: u64) -> Moment {
        let us = ms.saturating_mul(1000);
        let ahead = Duration::from_micros(us.saturating_sub(self.server_us));
        let behind = Duration::from_micros(self.server_us.saturating_sub(us));
        self.local + (ahead - ahead / 100) - (behind + behind / 100)
    }
}

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
        let inner = Arc::new(Inner { id, channel, keyring, servers, scripts, desk });
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
        self.inner.subscribe(keys).await
    }

    /// A claim may get in line: from here on, news of it are kept.
    pub(crate) fn enter(&self, owner: OwnerId, lease: Duration, poll: Duration) {
        let mut books = self.inner.desk.0.lock();
        let waiter = books.claims.entry(owner).or_insert_with(|| Waiter {
            lease,
            poll,
            in_line: false,
            anchor: None,
            ask_again_in: None,
            news: None,
            more: false,
            bell: Arc::new(Notify::new()),
        });
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
        let books = self.inner.desk.0.lock();
        let waiter = books.claims.get(&claim.owner)?;
        let news = waiter.news?;
        Some((news, waiter.anchor?.date(news.server_ms)))
    }

    fn attend(&self, claim: &Claim) -> Option<Arc<Notify>> {
        let books = &mut *self.inner.desk.0.lock();
        let waiter = books.claims.get_mut(&claim.owner)?;
        let due = match std::mem::take(&mut waiter.more) {
            true => Duration::ZERO,
            false => waiter.ask_again_in.map_or(waiter.poll, |obstacle| obstacle.min(waiter.poll)),
        };
        let due = Instant::now() + due;
        let tend = |bell: &Arc<Notify>| {
            let inner = Arc::downgrade(&self.inner);
            tokio::spawn(tend(inner, claim.name.clone(), Arc::clone(bell))).abort_handle()
        };
        let line = books.lines.entry(claim.name.clone()).or_insert_with(|| {
            let bell = Arc::new(Notify::new());
            Line { owners: HashSet::new(), due, tender: tend(&bell), bell }
        });
        if line.tender.is_finished() {
            // The runtime that it was on has ended.
            line.tender = tend(&line.bell);
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

/// Looks after one line until nobody here stands in it.
async fn tend(inner: Weak<Inner>, name: LockName, bell: Arc<Notify>) {
    loop {
        let due = {
            let Some(inner) = inner.upgrade() else { return };
            let mut books = inner.desk.0.lock();
            match books.lines.get(&name) {
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
        };
        let sent = self.desk.sending();
        let reply = self.scripts.refresh.run(&self.servers, call).await?;
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

impl Books {
    /// Unless messages were missed since: then another server may answer by now, with another clock.
    fn anchor(&self, sent: Sent, server_us: u64) -> Option<Anchor> {
        (self.misses == sent.misses).then_some(Anchor { local: sent.local, server_us })
    }
}

impl Desk {
    fn sending(&self) -> Sent {
        let misses = self.0.lock().misses;
        Sent { local: now(), misses }
    }

    /// All of these still wait, but for those that are gone.
    fn refreshed(&self, owners: &[OwnerId], gone: &[OwnerId], sent: Sent, server_us: u64) {
        let gone: HashSet<&OwnerId> = gone.iter().collect();
        let books = &mut *self.0.lock();
        let Some(anchor) = books.anchor(sent, server_us) else { return };
        for owner in owners.iter().filter(|owner| !gone.contains(owner)) {
            // One that asked meanwhile has a newer one.
            if let Some(waiter) = books.claims.get_mut(owner)
                && waiter.anchor.is_none_or(|older| older.server_us < server_us)
            {
                waiter.set_anchor(Some(anchor));
            }
        }
    }

    /// Who waits for this lock, with the longest lease and the shortest poll among them.
    fn present(&self, name: &LockName) -> (Vec<OwnerId>, Duration, Duration) {
        let books = self.0.lock();
        let owners = books.lines.get(name).into_iter().flat_map(|line| &line.owners);
        let (mut present, mut lease, mut poll) = (Vec::new(), Duration::ZERO, Duration::MAX);
        for owner in owners {
            if let Some(waiter) = books.claims.get(owner) {
                present.push(*owner);
                (lease, poll) = (lease.max(waiter.lease), poll.min(waiter.poll));
            }
        }
        (present, lease, poll.min(Duration::from_secs(3600)))
    }

    fn postpone(&self, name: &LockName, by: Duration) {
        if let Some(line) = self.0.lock().lines.get_mut(name) {
            line.due = Instant::now() + by;
        }
    }

    fn bring_forward(&self, name: &LockName, within: Duration) {
        if let Some(line) = self.0.lock().lines.get_mut(name) {
            line.due = line.due.min(Instant::now() + within);
        }
    }

    fn ring<'a>(&self, owners: impl Iterator<Item = &'a OwnerId>) {
        let books = self.0.lock();
        for waiter in owners.filter_map(|owner| books.claims.get(owner)) {
            waiter.bell.notify_one();
        }
    }
}

impl Hearer for Desk {
    fn hear(&self, message: &[u8]) {
        let Some((owner, news)) = std::str::from_utf8(message).ok().and_then(parse) else {
            tracing::debug!("a message in the inbox makes no sense");
            return;
        };
        let books = &mut *self.0.lock();
        // Who has given up meanwhile releases what it got.
        let Some(waiter) = books.claims.get_mut(&owner) else { return };
        match news {
            Some(news) if !waiter.is_over(&news) => {
                waiter.news = Some(news);
                waiter.bell.notify_one();
            }
            Some(_) => {}
            None => {
                let line = books.lines.values_mut().find(|line| line.owners.contains(&owner));
                match line {
                    Some(line) => {
                        line.due = Instant::now();
                        line.bell.notify_one();
                    }
                    // It is not waited for yet.
                    None => waiter.more = true,
                }
            }
        }
    }

    fn miss(&self) {
        let books = &mut *self.0.lock();
        books.misses += 1;
        for line in books.lines.values_mut() {
            line.due = Instant::now();
            line.bell.notify_one();
        }
        // What comes next may be dated by another server's clock.
        for waiter in books.claims.values_mut() {
            waiter.anchor = None;
        }
    }
}

/// `<owner> <token or -> <server ms>`: a grant; or `<owner> more`: there is more to do in its line than
/// one call does, and it is for this client to go on.
fn parse(payload: &str) -> Option<(OwnerId, Option<News>)> {
    let mut words = payload.split(' ');
    let owner = words.next()?.parse().ok()?;
    let token = match words.next()? {
        "more" => return Some((owner, None)),
        token => token.parse().ok().map(Token::new),
    };
    let server_ms = words.next()?.parse().ok()?;
    Some((owner, Some(News { token, server_ms })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pushed_grant_is_never_dated_after_it_was_made() {
        let anchor = Anchor { local: Moment::from_nanos(5_000_000_000), server_us: 1_000_400 };
        // 1,003 ms on the server's clock: 2.6 ms after the anchor, which was not before `local`.
        let dated = anchor.date(1003);
        assert_eq!(dated, anchor.local + Duration::from_micros(2574));
        // A grant in the millisecond of the anchor may have been before it.
        assert_eq!(anchor.date(1000), anchor.local - Duration::from_micros(404));
    }

    #[test]
    fn a_pushed_grant_is_dated_with_an_allowance_for_clocks_that_drift_apart() {
        let local = Moment::from_nanos(7_200_000_000_000);
        let anchor = Anchor { local, server_us: 1_000_000_000 };
        // An hour on a server's clock that runs fast by one per cent is 59 minutes and 24 seconds.
        let hour = Duration::from_secs(3600);
        assert!(anchor.date(1_000_000 + hour.as_millis() as u64) <= local + hour * 99 / 100);
    }

    #[test]
    fn a_reply_from_before_messages_were_missed_dates_nothing() {
        let desk = Desk::default();
        let sent = desk.sending();
        assert!(desk.0.lock().anchor(sent, 1).is_some());
        desk.miss();
        assert!(desk.0.lock().anchor(sent, 1).is_none());
        let sent = desk.sending();
        assert!(desk.0.lock().anchor(sent, 1).is_some());
    }

    #[test]
    fn messages_are_read_and_nonsense_is_not() {
        let owner = OwnerId::random();
        let (heard, news) = parse(&format!("{owner} 17 99")).unwrap();
        assert_eq!(
            (heard, news),
            (owner, Some(News { token: Some(Token::new(17)), server_ms: 99 }))
        );
        let (_, news) = parse(&format!("{owner} - 99")).unwrap();
        assert_eq!(news, Some(News { token: None, server_ms: 99 }));
        assert_eq!(parse(&format!("{owner} more")).unwrap(), (owner, None));
        for nonsense in ["", "a b c", "0", &format!("{owner} 1")] {
            assert!(parse(nonsense).is_none(), "{nonsense}");
        }
    }
}
