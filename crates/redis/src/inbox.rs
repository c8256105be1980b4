//! News of grants: one subscription per client, handed to whoever waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use parking_lot::Mutex;
use rustis::client::{Client, PubSubSplitSink, PubSubSplitStream};
use rustis::{ClientError, ErrorKind as Kind};
use tenure_core::{Moment, OwnerId, Result, Token};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::config::RedisConfig;
use crate::connect::connect;
use crate::fault::fault;
use crate::keys::{Keyring, Keys};
use crate::pool::{Address, Pool};
use crate::servers::{Servers, alone};

/// Hears of grants, on one channel; on a Cluster on one per slot it waits in, at the node that has
/// the slot, because sharded channels reach only that.
pub(crate) struct Inbox {
    id: String,
    config: RedisConfig,
    servers: Servers,
    listeners: Pool<Listener>,
    /// The slots whose channel is subscribed to, and where.
    subscribed: Mutex<HashMap<u16, Address>>,
    desk: Arc<Mutex<Desk>>,
}

/// A connection that hears.
struct Listener {
    sink: tokio::sync::Mutex<PubSubSplitSink>,
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
    pub(crate) fn open(config: &RedisConfig, servers: Servers, id: String) -> Self {
        let (config, desk) = (config.clone(), Arc::default());
        let (listeners, subscribed) = (Pool::default(), Mutex::default());
        Self { id, config, servers, listeners, subscribed, desk }
    }

    /// The channel for grants of a lock with these keys.
    pub(crate) fn channel(&self, keyring: &Keyring, keys: &Keys) -> String {
        keyring.inbox(keys.slot, &self.id)
    }

    /// Whether news of this lock's grants will be heard: at the node that has the slot now.
    pub(crate) fn is_subscribed(&self, keys: &Keys) -> bool {
        let subscribed = self.subscribed.lock();
        let Some(at) = subscribed.get(&keys.slot) else { return false };
        self.servers.known_address(keys.slot).is_none_or(|now| now == *at)
    }

    /// Returns when news of this lock's grants will be heard.
    pub(crate) async fn subscribe(&self, keyring: &Keyring, keys: &Keys) -> Result<()> {
        if self.is_subscribed(keys) {
            return Ok(());
        }
        let address = self.servers.address(keys.slot).await?;
        let sharded = address.is_some();
        let address = address.unwrap_or_default();
        let listener = self.listeners.get(&address, self.listen(&address, sharded)).await?;
        let mut sink = listener.sink.lock().await;
        if self.is_subscribed(keys) {
            return Ok(());
        }
        let channel = self.channel(keyring, keys);
        let done = if sharded {
            shard(&mut sink, &channel).await
        } else {
            match sink.subscribe(channel).await {
                // An attempt before this one was dropped half-way: the request is on its way.
                Err(error) if is_subscribed_already(&error) => Ok(()),
                done => done,
            }
        };
        if done.is_err() {
            self.servers.doubt();
        }
        done.map_err(|error| fault("subscribe to news of locks", error))?;
        self.subscribed.lock().insert(keys.slot, address);
        Ok(())
    }

    async fn listen(&self, address: &Address, sharded: bool) -> Result<Listener> {
        // A node that gives a slot away ends its subscriptions unasked, and the client library
        // takes that for the reply to whatever it sent last: nothing else may be under way there.
        let client = match &self.servers {
            Servers::One(client) if !sharded => client.clone(),
            _ => connect(&alone(&self.config, address)).await?,
        };
        if sharded {
            // Those who serve nothing any more would be sought for ever.
            self.listeners.retain(|at| self.servers.serves(at));
        }
        Ok(Listener::start(&client, &self.desk))
    }

    /// A claim is queued, and may hear of its grant from now on.
    pub(crate) fn expect(&self, owner: OwnerId, anchor: Anchor) {
        let mut desk = self.desk.lock();
        // What was granted before the claim was found to wait is over.
        let is_over = |news: &News| news.server_ms < anchor.server_us / 1000;
        let early = desk.take_early(owner).filter(|news| !is_over(news));
        let waiting = desk.waiting.entry(owner).or_insert_with(|| Waiting {
            anchor,
            news: None,
            bell: Arc::new(Notify::new()),
        });
        waiting.anchor = anchor;
        if waiting.news.as_ref().is_some_and(is_over) {
            waiting.news = None;
        }
        if early.is_some() {
            waiting.news = early;
            waiting.bell.notify_one();
        }
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
        if unheard && matches!(self.servers, Servers::Cluster(_)) {
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

impl Listener {
    fn start(client: &Client, desk: &Arc<Mutex<Desk>>) -> Self {
        let (sink, stream) = client.create_pub_sub().split();
        let mut reconnected = client.on_reconnect();
        let at_desk = Arc::clone(desk);
        // What was published while we were away is lost: everybody asks again.
        let bells = tokio::spawn(async move {
            while !matches!(
                reconnected.recv().await,
                Err(tokio::sync::broadcast::error::RecvError::Closed)
            ) {
                at_desk.lock().ring_all();
            }
        });
        let reader = tokio::spawn(read(stream, Arc::clone(desk)));
        let tasks = [bells.abort_handle(), reader.abort_handle()];
        Self { sink: tokio::sync::Mutex::new(sink), tasks }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Subscribes to a sharded channel, also to one that was before its slot moved away and back.
async fn shard(sink: &mut PubSubSplitSink, channel: &str) -> rustis::Result<()> {
    match sink.ssubscribe(channel).await {
        Err(error) if is_subscribed_already(&error) => {
            let _gone = sink.sunsubscribe(channel).await;
            sink.ssubscribe(channel).await
        }
        done => done,
    }
}

fn is_subscribed_already(error: &rustis::Error) -> bool {
    matches!(error.kind(), Kind::Client(ClientError::AlreadySubscribed))
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
