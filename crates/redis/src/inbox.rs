//! News of grants: one subscription per client, handed to whoever waits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use parking_lot::Mutex;
use rustis::client::{Client, PubSubSplitSink, PubSubSplitStream};
use rustis::{ClientError, ErrorKind as Kind};
use tenure_core::{Moment, OwnerId, Result, Token};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::fault::fault;
use crate::keys::{Keyring, Keys};

/// Hears of grants, on one channel; on a Cluster on one per slot it waits in, because sharded
/// channels reach only the node concerned.
pub(crate) struct Inbox {
    id: String,
    sharded: bool,
    sink: tokio::sync::Mutex<PubSubSplitSink>,
    subscribed: Mutex<HashSet<u16>>,
    desk: Arc<Mutex<Desk>>,
    tasks: [AbortHandle; 2],
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
    /// A moment of ours that is not after the server's `ms`.
    pub(crate) fn date(&self, ms: u64) -> Moment {
        let us = ms.saturating_mul(1000);
        let ahead = std::time::Duration::from_micros(us.saturating_sub(self.server_us));
        let behind = std::time::Duration::from_micros(self.server_us.saturating_sub(us));
        self.local + ahead - behind
    }
}

#[derive(Default)]
struct Desk {
    waiting: HashMap<OwnerId, Waiting>,
    /// News that came before its waiter had read the reply that it was queued.
    early: VecDeque<(OwnerId, News)>,
}

#[derive(Clone)]
struct Waiting {
    anchor: Anchor,
    news: Option<News>,
    bell: Arc<Notify>,
}

/// More early news than this is forgotten, oldest first: it costs its waiter a poll.
const EARLY: usize = 1024;

impl Inbox {
    pub(crate) fn open(client: &Client, id: String, sharded: bool) -> Self {
        let (sink, stream) = client.create_pub_sub().split();
        let desk = Arc::new(Mutex::new(Desk::default()));
        let mut reconnected = client.on_reconnect();
        let at_desk = Arc::clone(&desk);
        // What was published while we were away is lost: everybody asks again.
        let bells = tokio::spawn(async move {
            while !matches!(
                reconnected.recv().await,
                Err(tokio::sync::broadcast::error::RecvError::Closed)
            ) {
                at_desk.lock().ring_all();
            }
        });
        let reader = tokio::spawn(read(stream, Arc::clone(&desk)));
        let tasks = [bells.abort_handle(), reader.abort_handle()];
        let (sink, subscribed) = (tokio::sync::Mutex::new(sink), Mutex::default());
        Self { id, sharded, sink, subscribed, desk, tasks }
    }

    /// The channel for grants of a lock with these keys.
    pub(crate) fn channel(&self, keyring: &Keyring, keys: &Keys) -> String {
        keyring.inbox(keys.slot, &self.id)
    }

    pub(crate) fn is_subscribed(&self, keys: &Keys) -> bool {
        self.subscribed.lock().contains(&keys.slot)
    }

    /// Returns when news of this lock's grants will be heard.
    pub(crate) async fn subscribe(&self, keyring: &Keyring, keys: &Keys) -> Result<()> {
        let mut sink = self.sink.lock().await;
        if self.is_subscribed(keys) {
            return Ok(());
        }
        let channel = self.channel(keyring, keys);
        let done = match self.sharded {
            true => match sink.ssubscribe(&channel).await {
                // It was, before the slot moved.
                Err(error)
                    if matches!(error.kind(), Kind::Client(ClientError::AlreadySubscribed)) =>
                {
                    let _gone = sink.sunsubscribe(&channel).await;
                    sink.ssubscribe(&channel).await
                }
                done => done,
            },
            false => sink.subscribe(channel).await,
        };
        done.map_err(|error| fault("subscribe to news of locks", error))?;
        self.subscribed.lock().insert(keys.slot);
        Ok(())
    }

    /// A claim is queued, and may hear of its grant from now on.
    pub(crate) fn expect(&self, owner: OwnerId, anchor: Anchor) {
        let mut desk = self.desk.lock();
        let early = desk.take_early(owner);
        let waiting = desk.waiting.entry(owner).or_insert_with(|| Waiting {
            anchor,
            news: None,
            bell: Arc::new(Notify::new()),
        });
        waiting.anchor = anchor;
        if early.is_some() {
            waiting.news = early;
            waiting.bell.notify_one();
        }
    }

    /// Whether the claim is known to wait.
    pub(crate) fn expects(&self, owner: OwnerId) -> bool {
        self.desk.lock().waiting.contains_key(&owner)
    }

    /// Resolves with the news, dated, or with `None` if the claim should ask.
    pub(crate) async fn news(&self, owner: OwnerId) -> Option<(News, Moment)> {
        let bell = Arc::clone(&self.desk.lock().waiting.get(&owner)?.bell);
        bell.notified().await;
        let desk = self.desk.lock();
        let waiting = desk.waiting.get(&owner)?;
        let news = waiting.news?;
        Some((news, waiting.anchor.date(news.server_ms)))
    }

    /// Whether the claim is in line, as far as this client knows.
    pub(crate) fn expects(&self, owner: OwnerId) -> bool {
        self.desk.lock().waiting.contains_key(&owner)
    }

    /// The claim asked, and was told that it holds. If it waited and had heard nothing, the slot
    /// may have moved to a node that knows nothing of us: the next to wait subscribes anew.
    pub(crate) fn settle(&self, owner: OwnerId, keys: &Keys) {
        let unheard = self.desk.lock().waiting.get(&owner).is_some_and(|one| one.news.is_none());
        if self.sharded && unheard {
            self.subscribed.lock().remove(&keys.slot);
        }
        self.forget(owner);
    }

    /// The claim is granted or given up: nothing more is to be heard of it.
    pub(crate) fn forget(&self, owner: OwnerId) {
        let mut desk = self.desk.lock();
        desk.waiting.remove(&owner);
        desk.take_early(owner);
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Desk {
    fn deliver(&mut self, owner: OwnerId, news: News) {
        if let Some(waiting) = self.waiting.get_mut(&owner) {
            waiting.news = Some(news);
            waiting.bell.notify_one();
        } else {
            if self.early.len() == EARLY {
                self.early.pop_front();
            }
            self.early.push_back((owner, news));
        }
    }

    fn take_early(&mut self, owner: OwnerId) -> Option<News> {
        let place = self.early.iter().position(|(early, _)| *early == owner)?;
        self.early.remove(place).map(|(_, news)| news)
    }

    fn ring_all(&self) {
        for waiting in self.waiting.values() {
            waiting.bell.notify_one();
        }
    }
}

async fn read(mut stream: PubSubSplitStream, desk: Arc<Mutex<Desk>>) {
    while let Some(message) = stream.next().await {
        let Ok(message) = message else { continue };
        match std::str::from_utf8(message.payload()).ok().and_then(parse) {
            Some((owner, news)) => desk.lock().deliver(owner, news),
            None => tracing::debug!("a message in the inbox makes no sense"),
        }
    }
}

/// `<owner> <token or -> <server ms>`
fn parse(payload: &str) -> Option<(OwnerId, News)> {
    let mut words = payload.split(' ');
    let owner = words.next()?.parse().ok()?;
    let token = words.next()?.parse().ok().map(Token::new);
    let server_ms = words.next()?.parse().ok()?;
    Some((owner, News { token, server_ms }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_pushed_grant_is_never_dated_after_it_was_made() {
        let anchor = Anchor { local: Moment::from_nanos(5_000_000_000), server_us: 1_000_400 };
        // 1,003 ms on the server's clock: 2.6 ms after the anchor, which was not before `local`.
        let dated = anchor.date(1003);
        assert_eq!(dated, anchor.local + Duration::from_micros(2600));
        // A grant in the millisecond of the anchor may have been before it.
        assert_eq!(anchor.date(1000), anchor.local - Duration::from_micros(400));
    }

    #[test]
    fn messages_are_read_and_nonsense_is_not() {
        let owner = OwnerId::random();
        let (heard, news) = parse(&format!("{owner} 17 99")).unwrap();
        assert_eq!((heard, news.token, news.server_ms), (owner, Some(Token::new(17)), 99));
        assert_eq!(parse(&format!("{owner} - 99")).unwrap().1.token, None);
        for nonsense in ["", "a b c", "0", &format!("{owner} 1")] {
            assert!(parse(nonsense).is_none(), "{nonsense}");
        }
    }

    #[test]
    fn news_before_its_waiter_is_kept_and_bounded() {
        let mut desk = Desk::default();
        let news = News { token: None, server_ms: 1 };
        let first = OwnerId::random();
        desk.deliver(first, news);
        assert_eq!(desk.take_early(first), Some(news));
        assert_eq!(desk.take_early(first), None);
        for _ in 0..2 * EARLY {
            desk.deliver(OwnerId::random(), news);
        }
        assert_eq!(desk.early.len(), EARLY);
    }
}
