//! Watches: all of a client on one stream, each for the next change of a key or of a line.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::stream::poll_fn;
use parking_lot::Mutex;
use tenure_core::{Background, Error, ErrorKind, Result};
use tokio::sync::{Notify, mpsc, watch};

use crate::members::{Link, Members};
use crate::rpc::watch_client::WatchClient;
use crate::rpc::watch_create_request::FilterType;
use crate::rpc::watch_request::RequestUnion;
use crate::rpc::{KeyValue, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse};

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) key: Vec<u8>,
    /// Empty: the key alone.
    pub(crate) end: Vec<u8>,
    /// Whether a write counts as a change, or only a deletion.
    pub(crate) writes: bool,
}

/// Makes watches, on a stream that is opened when it is first needed, and anew after a fault.
pub(crate) struct Watches {
    members: Arc<Members>,
    background: Background,
    stream: Mutex<Option<Arc<Stream>>>,
}

struct Stream {
    /// The turn of the members it was opened in.
    turn: usize,
    orders: mpsc::UnboundedSender<WatchRequest>,
    last: AtomicI64,
    watchers: Mutex<Watchers>,
    closing: Notify,
}

#[derive(Default)]
struct Watchers {
    ended: bool,
    by_id: HashMap<i64, watch::Sender<News>>,
}

#[derive(Clone, Debug)]
enum News {
    Ordered,
    Created,
    /// With what the key held before, where the server tells.
    Changed(Option<KeyValue>),
    Ended,
}

impl News {
    /// News only ever move on.
    const fn stage(&self) -> u8 {
        match self {
            Self::Ordered => 0,
            Self::Created => 1,
            Self::Changed(_) => 2,
            Self::Ended => 3,
        }
    }
}

/// One watch; dropping it ends it.
pub(crate) struct Watch {
    id: i64,
    stream: Arc<Stream>,
    news: watch::Receiver<News>,
}

impl Watches {
    pub(crate) fn new(members: Arc<Members>, background: Background) -> Self {
        Self { members, background, stream: Mutex::default() }
    }

    /// Watches from now on. When this returns, whatever changes is heard: what changed before must
    /// be looked up *after*.
    ///
    /// A watch that asked for earlier changes would have to wait for a loop in the server that runs
    /// ten times a second.
    pub(crate) async fn start(&self, scope: &Scope) -> Result<Watch> {
        let mut watch = self.order(scope);
        let created = watch.news.wait_for(|news| !matches!(news, News::Ordered));
        let ended = match tokio::time::timeout(self.members.timeout(), created).await {
            Ok(Ok(news)) => Some(matches!(*news, News::Ended)),
            Ok(Err(_)) => Some(true),
            Err(_) => None,
        };
        match ended {
            Some(false) => Ok(watch),
            Some(true) => Err(broken("the stream of news ended")),
            None => {
                self.members.turn_from(watch.stream.turn);
                watch.stream.end();
                Err(broken("the member did not answer in time"))
            }
        }
    }

    fn order(&self, scope: &Scope) -> Watch {
        let stream = self.stream();
        let id = stream.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, news) = watch::channel(News::Ordered);
        {
            let mut watchers = stream.watchers.lock();
            if watchers.ended {
                sender.send_replace(News::Ended);
            }
            watchers.by_id.insert(id, sender);
        }
        let filters = if scope.writes { vec![] } else { vec![FilterType::Noput.into()] };
        let (key, range_end) = (scope.key.clone(), scope.end.clone());
        let create = WatchCreateRequest { key, range_end, filters, prev_kv: true, watch_id: id };
        stream.send(RequestUnion::CreateRequest(create));
        Watch { id, stream, news }
    }

    /// The stream on the member that is asked now.
    fn stream(&self) -> Arc<Stream> {
        let turn = self.members.turns();
        let mut current = self.stream.lock();
        if let Some(stream) = &*current {
            if stream.turn == turn && !stream.watchers.lock().ended {
                return Arc::clone(stream);
            }
            // The member it is on was silent: so may it be.
            stream.end();
        }
        let (orders, ordered) = mpsc::unbounded_channel();
        let watchers = Mutex::default();
        // An id of zero would let the server choose.
        let stream = Arc::new(Stream {
            turn,
            orders,
            last: AtomicI64::new(0),
            watchers,
            closing: Notify::new(),
        });
        let (members, listened) = (Arc::clone(&self.members), Arc::clone(&stream));
        // The link is that of the runtime in which it is asked for.
        let listening = async move { listen(members.link(), listened, ordered).await };
        self.background.runtime().spawn(listening);
        *current = Some(Arc::clone(&stream));
        stream
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        if let Some(stream) = &*self.stream.lock() {
            stream.end();
        }
    }
}

impl Watch {
    /// Resolves with the first change: what the key held before, where the server tells.
    ///
    /// # Errors
    /// If the stream has ended: there may have been one.
    pub(crate) async fn changed(&mut self) -> Result<Option<KeyValue>> {
        match self.news.wait_for(|news| news.stage() >= 2).await.as_deref() {
            Ok(News::Changed(before)) => Ok(before.clone()),
            _ => Err(broken("the stream of news ended")),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let known = self.stream.watchers.lock().by_id.remove(&self.id).is_some();
        if known {
            let cancel = WatchCancelRequest { watch_id: self.id };
            self.stream.send(RequestUnion::CancelRequest(cancel));
        }
    }
}

impl Stream {
    fn send(&self, request: RequestUnion) {
        // It fails only when the stream has ended, which all watchers are told.
        let _ = self.orders.send(WatchRequest { request_union: Some(request) });
    }

    fn tell(&self, reply: WatchResponse) {
        // Refused: the login that the stream began with is not valid any more, or never was. A new one
        // begins with the present one.
        if reply.created && reply.canceled {
            return self.end();
        }
        let watchers = self.watchers.lock();
        let Some(watcher) = watchers.by_id.get(&reply.watch_id) else { return };
        let news = if reply.canceled {
            News::Ended
        } else if let Some(event) = reply.events.into_iter().next() {
            News::Changed(event.prev_kv)
        } else if reply.created {
            News::Created
        } else {
            return;
        };
        watcher.send_if_modified(|known| {
            let newer = known.stage() < news.stage();
            if newer {
                *known = news;
            }
            newer
        });
    }

    fn end(&self) {
        let mut watchers = self.watchers.lock();
        watchers.ended = true;
        for (_, watcher) in watchers.by_id.drain() {
            watcher.send_replace(News::Ended);
        }
        self.closing.notify_one();
    }
}

/// Spreads the news of one stream until it ends, or is ended.
async fn listen(link: Link, stream: Arc<Stream>, orders: mpsc::UnboundedReceiver<WatchRequest>) {
    tokio::select! {
        () = spread(link, &stream, orders) => {}
        () = stream.closing.notified() => {}
    }
    stream.end();
}

async fn spread(link: Link, stream: &Stream, mut orders: mpsc::UnboundedReceiver<WatchRequest>) {
    let orders = poll_fn(move |context| orders.poll_recv(context));
    // The server answers nothing, not even that it hears us, before the first watch is made.
    match WatchClient::new(link).watch(orders).await {
        Ok(replies) => {
            let mut replies = replies.into_inner();
            while let Ok(Some(reply)) = replies.message().await {
                stream.tell(reply);
            }
        }
        Err(status) => tracing::debug!(%status, "no stream of news"),
    }
}

fn broken(why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "wait for news", why)
}
