//! Watches: all of a client on one stream, each for the next change of a key.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::stream::poll_fn;
use parking_lot::Mutex;
use tenure_core::store::Background;
use tenure_core::{Error, ErrorKind, Result};
use tenure_ordered::{Change, Watching};
use tokio::sync::{Notify, mpsc, watch};

use crate::endpoints::{Endpoints, Link};
use crate::rpc::event::EventType;
use crate::rpc::watch_client::WatchClient;
use crate::rpc::watch_create_request::FilterType;
use crate::rpc::watch_request::RequestUnion;
use crate::rpc::{Event, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse};

/// Makes watches, on a stream that is opened when it is first needed, and anew after a fault.
pub(crate) struct Watches {
    endpoints: Arc<Endpoints>,
    background: Background,
    stream: Mutex<Option<Arc<Stream>>>,
}

struct Stream {
    /// The rotation of the endpoints in which it was opened.
    rotation: usize,
    requests: mpsc::UnboundedSender<WatchRequest>,
    last: AtomicI64,
    watchers: Mutex<Watchers>,
    closing: Notify,
}

#[derive(Default)]
struct Watchers {
    ended: bool,
    by_id: HashMap<i64, Watcher>,
}

struct Watcher {
    state: watch::Sender<State>,
    /// Events up to this revision are not reported.
    after: i64,
}

/// The stages of a watch. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Requested,
    Created,
    Changed(Change),
    Ended,
}

impl State {
    const fn stage(self) -> u8 {
        match self {
            Self::Requested => 0,
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
    state: watch::Receiver<State>,
}

impl Watches {
    pub(crate) fn new(endpoints: Arc<Endpoints>, background: Background) -> Self {
        Self { endpoints, background, stream: Mutex::default() }
    }

    /// Watches a key from now on. When this returns, every change is heard: what changed before must
    /// be looked up *after*.
    ///
    /// "Now" is the server's own view, and a server that lags behind reports changes that a linearizable
    /// read already shows. A caller that must not take such an event for a new one gives the revision
    /// that it knows of: events up to `after` are not reported.
    ///
    /// A watch that asked for earlier changes would have to wait for a loop in the server that runs
    /// ten times a second.
    pub(crate) async fn start(&self, key: &[u8], watching: Watching, after: i64) -> Result<Watch> {
        self.start_at(key.to_vec(), Vec::new(), watching, after).await
    }

    /// As [`start`](Self::start), for all keys from `key` to `range_end`, and for every event.
    pub(crate) async fn start_range(
        &self,
        key: Vec<u8>,
        range_end: Vec<u8>,
        watching: Watching,
    ) -> Result<Watch> {
        self.start_at(key, range_end, watching, 0).await
    }

    async fn start_at(
        &self,
        key: Vec<u8>,
        range_end: Vec<u8>,
        watching: Watching,
        after: i64,
    ) -> Result<Watch> {
        let mut watch = self.request(key, range_end, watching, after);
        let created = watch.state.wait_for(|state| *state != State::Requested);
        let ended = match tokio::time::timeout(self.endpoints.step_limit(), created).await {
            Ok(Ok(state)) => Some(*state == State::Ended),
            Ok(Err(_)) => Some(true),
            Err(_) => None,
        };
        match ended {
            Some(false) => Ok(watch),
            Some(true) => Err(broken("the stream of watches ended")),
            None => {
                self.endpoints.rotate_from(watch.stream.rotation);
                watch.stream.end();
                Err(broken("the server did not answer in time"))
            }
        }
    }

    /// An empty `range_end`: one key.
    fn request(&self, key: Vec<u8>, range_end: Vec<u8>, watching: Watching, after: i64) -> Watch {
        let stream = self.stream();
        let id = stream.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, state) = watch::channel(State::Requested);
        {
            let mut watchers = stream.watchers.lock();
            if watchers.ended {
                sender.send_replace(State::Ended);
            }
            watchers.by_id.insert(id, Watcher { state: sender, after });
        }
        let filters = match watching {
            Watching::Removal => vec![FilterType::Noput.into()],
            Watching::Change => Vec::new(),
        };
        let create = WatchCreateRequest { key, range_end, filters, watch_id: id };
        stream.send(RequestUnion::CreateRequest(create));
        Watch { id, stream, state }
    }

    /// The stream on the endpoint that is asked now.
    fn stream(&self) -> Arc<Stream> {
        let rotation = self.endpoints.rotations();
        let mut current = self.stream.lock();
        if let Some(stream) = &*current {
            if stream.rotation == rotation && !stream.watchers.lock().ended {
                return Arc::clone(stream);
            }
            // Calls have left the server that it is on.
            stream.end();
        }
        let (requests, requested) = mpsc::unbounded_channel();
        let watchers = Mutex::default();
        // An id of zero would let the server choose.
        let stream = Arc::new(Stream {
            rotation,
            requests,
            last: AtomicI64::new(0),
            watchers,
            closing: Notify::new(),
        });
        let (endpoints, listened) = (Arc::clone(&self.endpoints), Arc::clone(&stream));
        // The link is that of the runtime in which it is asked for.
        let listening = async move { listen(endpoints.link(), listened, requested).await };
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
    /// Resolves with the first change.
    ///
    /// # Errors
    /// If the stream has ended: there may have been one.
    pub(crate) async fn changed(mut self) -> Result<Change> {
        match self.state.wait_for(|state| state.stage() >= 2).await.as_deref() {
            Ok(State::Changed(change)) => Ok(*change),
            _ => Err(broken("the stream of watches ended")),
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
        // This fails only if the stream has ended, which every watcher is notified of.
        let _ = self.requests.send(WatchRequest { request_union: Some(request) });
    }

    fn dispatch(&self, reply: WatchResponse) {
        // Refused: the login that the stream began with is not valid any more. The next stream begins
        // with the present login.
        if reply.created && reply.canceled {
            return self.end();
        }
        let watchers = self.watchers.lock();
        let Some(watcher) = watchers.by_id.get(&reply.watch_id) else { return };
        let state = if reply.canceled {
            State::Ended
        } else if let Some(event) = reply.events.iter().rfind(|event| watcher.is_new(event)) {
            let removed = event.r#type() == EventType::Delete;
            State::Changed(if removed { Change::Removed } else { Change::Written })
        } else if reply.created {
            State::Created
        } else {
            return;
        };
        watcher.state.send_if_modified(|known| {
            let newer = known.stage() < state.stage();
            if newer {
                *known = state;
            }
            newer
        });
    }

    fn end(&self) {
        let mut watchers = self.watchers.lock();
        watchers.ended = true;
        for (_, watcher) in watchers.by_id.drain() {
            watcher.state.send_replace(State::Ended);
        }
        self.closing.notify_one();
    }
}

impl Watcher {
    fn is_new(&self, event: &Event) -> bool {
        event.kv.as_ref().is_some_and(|kv| kv.mod_revision > self.after)
    }
}

/// Dispatches the replies of one stream until it ends, or is ended.
async fn listen(link: Link, stream: Arc<Stream>, requests: mpsc::UnboundedReceiver<WatchRequest>) {
    tokio::select! {
        () = dispatch_all(link, &stream, requests) => {}
        () = stream.closing.notified() => {}
    }
    stream.end();
}

async fn dispatch_all(
    link: Link,
    stream: &Stream,
    mut requests: mpsc::UnboundedReceiver<WatchRequest>,
) {
    let requests = poll_fn(move |context| requests.poll_recv(context));
    // The server sends no headers before the first watch is created.
    match WatchClient::new(link).watch(requests).await {
        Ok(replies) => {
            let mut replies = replies.into_inner();
            while let Ok(Some(reply)) = replies.message().await {
                stream.dispatch(reply);
            }
        }
        Err(status) => tracing::debug!(%status, "no stream of watches"),
    }
}

fn broken(why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "watch", why)
}
