//! The claims that wait, and what was heard for each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::store::{Moment, now};
use tenure_core::{LockName, OwnerId, Token};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::wire::Hearer;

/// The claims that wait, and what was heard for each.
#[derive(Default)]
pub(crate) struct Desk(pub(super) Mutex<Books>);

#[derive(Default)]
pub(super) struct Books {
    pub(super) claims: HashMap<OwnerId, Waiter>,
    pub(super) lines: HashMap<LockName, Line>,
    /// How often messages may have been missed. After that, another server may answer.
    pub(super) misses: u64,
}

/// A claim that is in line, or on its way into it.
pub(super) struct Waiter {
    pub(super) slot: u16,
    pub(super) lease: Duration,
    pub(super) poll: Duration,
    /// Whether it may be in line.
    pub(super) in_line: bool,
    /// Of the server that said that it is in line; another may serve the lock by now.
    pub(super) anchor: Option<Anchor>,
    pub(super) ask_again_in: Option<Duration>,
    pub(super) news: Option<News>,
    /// The line is to be looked at as soon as this claim is waited for: messages were missed, or there
    /// is more to do in the line than one call does.
    pub(super) look_at_once: bool,
    pub(super) bell: Arc<Notify>,
}

impl Waiter {
    pub(super) fn new(slot: u16, lease: Duration, poll: Duration) -> Self {
        Self {
            slot,
            lease,
            poll,
            in_line: false,
            anchor: None,
            ask_again_in: None,
            news: None,
            look_at_once: false,
            bell: Arc::new(Notify::new()),
        }
    }

    /// What was granted before the claim was found to wait is over.
    pub(super) fn is_over(&self, news: &News) -> bool {
        self.anchor.is_some_and(|anchor| news.server_ms < anchor.server_us / 1000)
    }

    /// The server says that the claim waits, and what its clock shows.
    pub(super) fn set_anchor(&mut self, anchor: Option<Anchor>) {
        self.anchor = anchor;
        if self.news.is_some_and(|news| self.is_over(&news)) {
            self.news = None;
        }
    }
}

/// The moment before a call was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(super) local: Moment,
    pub(super) misses: u64,
}

/// Those of one lock who wait at this moment.
pub(super) struct Line {
    pub(super) owners: HashSet<OwnerId>,
    pub(super) due: Instant,
    /// Rung when it is due earlier than before.
    pub(super) bell: Arc<Notify>,
    pub(super) tender: Tender,
}

/// The task that looks after a line.
pub(super) struct Tender {
    pub(super) task: AbortHandle,
    pub(super) runtime: tokio::runtime::Id,
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

impl Books {
    /// Unless messages were missed since: then another server may answer by now, with another clock.
    pub(super) fn anchor(&self, sent: Sent, server_us: u64) -> Option<Anchor> {
        (self.misses == sent.misses).then_some(Anchor { local: sent.local, server_us })
    }
}

impl Desk {
    pub(super) fn sending(&self) -> Sent {
        let misses = self.0.lock().misses;
        Sent { local: now(), misses }
    }

    /// All of these still wait, but for those that are gone.
    pub(super) fn refreshed(
        &self,
        owners: &[OwnerId],
        gone: &[OwnerId],
        sent: Sent,
        server_us: u64,
    ) {
        let gone: HashSet<&OwnerId> = gone.iter().collect();
        let books = &mut *self.0.lock();
        let Some(anchor) = books.anchor(sent, server_us) else { return };
        for owner in owners.iter().filter(|owner| !gone.contains(owner)) {
            // One that asked meanwhile has a newer one.
            if let Some(waiter) = books.claims.get_mut(owner)
                && waiter.anchor.is_none_or(|older| older.local < anchor.local)
            {
                waiter.set_anchor(Some(anchor));
            }
        }
    }

    /// The claims that wait for this lock, with the longest lease and the shortest poll among them.
    pub(super) fn present(&self, name: &LockName) -> (Vec<OwnerId>, Duration, Duration) {
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

    pub(super) fn postpone(&self, name: &LockName, by: Duration) {
        if let Some(line) = self.0.lock().lines.get_mut(name) {
            line.due = Instant::now() + by;
        }
    }

    pub(super) fn bring_forward(&self, name: &LockName, within: Duration) {
        if let Some(line) = self.0.lock().lines.get_mut(name) {
            line.due = line.due.min(Instant::now() + within);
        }
    }

    pub(super) fn ring<'a>(&self, owners: impl Iterator<Item = &'a OwnerId>) {
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
        // A claim that was given up meanwhile is released by its client.
        let Some(waiter) = books.claims.get_mut(&owner) else { return };
        match news {
            Some(news) => {
                // Else it is over, or the server's clock was set back: asking tells which.
                if !waiter.is_over(&news) {
                    waiter.news = Some(news);
                }
                waiter.bell.notify_one();
            }
            None => {
                let line = books.lines.values_mut().find(|line| line.owners.contains(&owner));
                match line {
                    Some(line) => {
                        line.due = Instant::now();
                        line.bell.notify_one();
                    }
                    // It is not waited for yet.
                    None => waiter.look_at_once = true,
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
        for waiter in books.claims.values_mut() {
            // What comes next may be dated by another server's clock.
            waiter.anchor = None;
            // A claim whose reply was just read is in no line yet, and nothing listens for it.
            waiter.look_at_once = true;
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
    fn messages_missed_before_a_claim_is_waited_for_are_made_up_for() {
        let (desk, owner) = (Desk::default(), OwnerId::random());
        let minute = Duration::from_secs(60);
        desk.0.lock().claims.insert(owner, Waiter::new(0, minute, minute));
        desk.miss();
        assert!(desk.0.lock().claims[&owner].look_at_once);
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
