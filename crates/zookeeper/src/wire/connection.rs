//! One connection, which many calls share: replies come in the order of the requests.
//!
//! A caller writes to the socket by itself as long as few replies are owed, so that a lone caller
//! pays for no hop to another task. Otherwise requests are gathered, and the task that reads writes
//! them together. A call that is given up, or takes too long, keeps its place in the order.
//!
//! The task also sends pings, and ends the connection when the server is silent while it owes a
//! reply.

#[cfg(test)]
mod fuzz;
mod task;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use tenure_tls::Stream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Fault;
use super::code::Code;
use super::frame::{discard, frame, unframe};
use super::jute::{Malformed, Reader};
use super::messages::{
    ReplyHeader, Request, SetWatches, WatchKind, Watchable, XID_EVENT, XID_PING, XID_SET_WATCHES,
    read_event,
};
use super::watches::{Watch, Watches};

/// While fewer replies than this are owed, callers write to the socket by themselves.
const FEW: usize = 16;

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// For the reply to a call.
    limit: Duration,
    /// After the last request, before a ping.
    ping: Duration,
    /// For any reply or event of a server that owes a reply.
    silence: Duration,
}

impl Pace {
    /// The pace for sessions of this length. After a server has gone silent, more than half of the
    /// session's life is left to find another. Pings are frequent, because the leader hears of them
    /// with a delay, and counts from the last one it heard of.
    pub(super) fn new(life: Duration, limit: Duration) -> Self {
        let ping = (life / 6).min(Duration::from_secs(1));
        let silence = (life / 3).min(Duration::from_millis(2500));
        Self { limit, ping, silence }
    }
}

/// What a server answered.
pub(super) struct Answer {
    /// `None` means success.
    pub(super) code: Option<Code>,
    /// The latest transaction that the server knew when it answered.
    pub(super) zxid: i64,
    /// The reply without its header.
    pub(super) body: Vec<u8>,
    /// The watch that the reply has left, if one was asked for.
    pub(super) watch: Option<Watch>,
}

pub(super) type Outcome = Result<Answer, Fault>;

/// A handle on a connection, which closes with the last handle.
#[derive(Clone)]
pub(super) struct Connection(Arc<Owner>);

struct Owner {
    shared: Arc<Shared>,
    /// Where callers write by themselves.
    shortcut: Option<Arc<OwnedWriteHalf>>,
    pace: Pace,
}

struct Shared {
    state: Mutex<State>,
    watches: Arc<Watches>,
    /// The latest transaction that a server has reported to this session.
    zxid: Arc<AtomicI64>,
    /// Wakes the task that serves the connection.
    task: AtomicWaker,
}

struct State {
    outgoing: Vec<u8>,
    /// Whether the task is in the middle of writing.
    writing: bool,
    pending: VecDeque<Pending>,
    /// When the ping was sent that has no reply yet.
    ping: Option<Instant>,
    next_xid: i32,
    last_sent: Instant,
    last_heard: Instant,
    /// When the task's timer will fire, at the latest.
    armed: Instant,
    /// When the latest request was sent that has been answered.
    contact: Instant,
    /// Why the connection is to end.
    closed: Option<&'static str>,
    ended: bool,
}

impl State {
    fn is_open(&self) -> bool {
        !self.ended && self.closed.is_none()
    }

    /// Whether a caller may write to the socket by itself.
    fn is_idle(&self) -> bool {
        !self.writing && self.pending.len() < FEW
    }

    /// Adds a request to what is to be written.
    fn add<R: Request>(
        &mut self,
        xid: Option<i32>,
        request: &R,
        watch: Option<RequestedWatch>,
    ) -> Result<oneshot::Receiver<Outcome>, Fault> {
        if !self.is_open() {
            return Err(Fault::NotConnected);
        }
        let xid = xid.unwrap_or(self.next_xid);
        frame(&mut self.outgoing, |out| {
            out.int(xid);
            out.int(request.opcode());
            request.write(out);
        })
        .map_err(|Malformed| Fault::Refused(Code::BadArguments))?;
        if xid == self.next_xid {
            self.next_xid = xid.checked_add(1).unwrap_or(1);
        }
        let (reply, receiver) = oneshot::channel();
        self.last_sent = Instant::now();
        let (sent, reply) = (self.last_sent, Some(reply));
        self.pending.push_back(Pending { xid, sent, watch, reply });
        Ok(receiver)
    }
}

/// A request without a reply.
struct Pending {
    xid: i32,
    sent: Instant,
    watch: Option<RequestedWatch>,
    reply: Option<oneshot::Sender<Outcome>>,
}

/// A watch that a reply may leave.
struct RequestedWatch {
    path: String,
    /// Which watch is left by a reply with this code.
    kind: fn(Option<Code>) -> Option<WatchKind>,
}

impl Connection {
    /// Serves a stream on the current runtime, after the handshake. The handle resolves with why the
    /// connection ended. `began` is when the handshake was sent, `input` what has arrived since.
    pub(super) fn start(
        stream: Stream,
        input: Vec<u8>,
        pace: Pace,
        began: Instant,
        zxid: Arc<AtomicI64>,
        watches: Arc<Watches>,
    ) -> (Self, JoinHandle<Fault>) {
        let now = Instant::now();
        let state = State {
            outgoing: Vec::new(),
            writing: false,
            pending: VecDeque::new(),
            ping: None,
            next_xid: 1,
            last_sent: now,
            last_heard: now,
            armed: now,
            contact: began,
            closed: None,
            ended: false,
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), watches, zxid, task: AtomicWaker::new() });
        let shortcut = stream.shortcut();
        let task = tokio::spawn(task::serve(Arc::clone(&shared), stream, input, pace));
        (Self(Arc::new(Owner { shared, shortcut, pace })), task)
    }

    /// Sends a request. Its reply is awaited for at most the pace's limit.
    ///
    /// # Errors
    /// [`Fault::NotConnected`] if the connection has ended: nothing was sent.
    pub(super) fn send<R: Request>(
        &self,
        request: &R,
    ) -> Result<oneshot::Receiver<Outcome>, Fault> {
        self.write(None, request, None)
    }

    /// Sends two requests with one write. As [`send`](Self::send) for each.
    pub(super) fn send_both<A: Request, B: Request>(
        &self,
        first: &A,
        second: &B,
    ) -> [Result<oneshot::Receiver<Outcome>, Fault>; 2] {
        let mut state = self.0.shared.state.lock();
        let idle = state.is_idle();
        let sent = [state.add(None, first, None), state.add(None, second, None)];
        self.flush(state, idle);
        sent
    }

    /// As [`send`](Self::send), with a watch.
    pub(super) fn send_watched<R: Watchable>(
        &self,
        request: R,
    ) -> Result<oneshot::Receiver<Outcome>, Fault> {
        let requested = RequestedWatch { path: request.path().to_owned(), kind: R::watch };
        self.write(None, &request.watching(), Some(requested))
    }

    /// Restores the watches of earlier connections. Nothing else may have been sent.
    pub(super) fn restore(&self, request: &SetWatches) {
        // If the connection has ended, the next one restores them.
        let _ = self.write(Some(XID_SET_WATCHES), request, None);
    }

    /// Whether requests can be sent.
    pub(super) fn is_open(&self) -> bool {
        self.0.shared.state.lock().is_open()
    }

    /// When the latest request was sent that has been answered: the session lasts from then on.
    pub(super) fn contact(&self) -> Instant {
        self.0.shared.state.lock().contact
    }

    fn write<R: Request>(
        &self,
        xid: Option<i32>,
        request: &R,
        watch: Option<RequestedWatch>,
    ) -> Result<oneshot::Receiver<Outcome>, Fault> {
        let mut state = self.0.shared.state.lock();
        let idle = state.is_idle();
        let receiver = state.add(xid, request, watch)?;
        self.flush(state, idle);
        Ok(receiver)
    }

    /// Writes what was added, if the connection was idle before; else leaves it to the task.
    fn flush(&self, mut state: MutexGuard<'_, State>, idle: bool) {
        let Owner { shared, shortcut, pace } = &*self.0;
        if idle
            && let Some(socket) = shortcut
            && let Ok(written) = socket.try_write(&state.outgoing)
        {
            // The rest, and any error, is left to the task.
            state.outgoing.drain(..written);
        }
        let due = state.last_sent + pace.limit.min(pace.silence);
        let wake = !state.outgoing.is_empty() || due < state.armed;
        drop(state);
        if wake {
            shared.task.wake();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.state.lock().closed.get_or_insert("it was closed");
        self.shared.task.wake();
    }
}

impl Shared {
    /// Dispatches all frames that have arrived in full.
    fn dispatch(&self, input: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut taken = 0;
        while let Some(content) = unframe(&input[taken..])? {
            taken += size_of::<i32>() + content.len();
            self.take(content)?;
        }
        discard(input, taken);
        Ok(())
    }

    fn take(&self, content: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(content);
        let header = ReplyHeader::read(&mut reader)?;
        let mut state = self.state.lock();
        state.last_heard = Instant::now();
        match header.xid {
            XID_EVENT => {
                drop(state);
                if let Some((event, path)) = read_event(&mut reader)? {
                    self.watches.fire(event, path);
                }
                return Ok(());
            }
            XID_PING => {
                let sent = state.ping.take().ok_or(Malformed)?;
                state.contact = state.contact.max(sent);
                self.zxid.fetch_max(header.zxid, Ordering::AcqRel);
                return Ok(());
            }
            _ => {}
        }
        // Replies come in order.
        state.pending.front().filter(|oldest| oldest.xid == header.xid).ok_or(Malformed)?;
        let Pending { sent, watch, reply, .. } = state.pending.pop_front().ok_or(Malformed)?;
        state.contact = state.contact.max(sent);
        self.zxid.fetch_max(header.zxid, Ordering::AcqRel);
        if header.xid == XID_SET_WATCHES && header.code.is_some() {
            // A server that throttles requests does so: events would be missed there.
            state.closed.get_or_insert("the server refused to restore the watches");
            self.task.wake();
        }
        drop(state);
        let Some(reply) = reply.filter(|reply| !reply.is_closed()) else { return Ok(()) };
        // An event for this watch comes after this reply, so it cannot be missed.
        let left =
            watch.and_then(|requested| Some(((requested.kind)(header.code)?, requested.path)));
        let watch = left.map(|(kind, path)| self.watches.add(kind, path));
        let _given_up = reply.send(Ok(Answer {
            code: header.code,
            zxid: header.zxid,
            body: reader.rest().to_vec(),
            watch,
        }));
        Ok(())
    }
}

fn broken(why: &str) -> Fault {
    Fault::Broken(why.into())
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        broken(&error.to_string())
    }
}
