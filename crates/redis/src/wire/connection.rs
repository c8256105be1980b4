//! One connection that many calls share: replies come in the order of the commands.
//!
//! A call that finds the connection idle writes to the socket itself, and polls for the reply for a moment
//! ([`BusyPoller`]): a lone caller needs no other task. Otherwise one task reads. While replies are
//! outstanding, commands are gathered and written together: by the task, or before it runs by the caller
//! that completes a batch. So the server works on one part of the calls while this process handles
//! another, and neither goes to sleep in between. A call that is given up, or takes too long, keeps its
//! position: what is sent after it arrives after it.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tenure_tls::distrust;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::busy_poll::BusyPoller;
use super::task::{Ending, Task};
use super::value::{Frame, Reader, Stop, Value};
use super::{Command, Stream, cmd};

/// Receives published messages.
pub(crate) trait MessageListener: Send + Sync {
    /// A message arrived on a channel that this connection has subscribed to.
    fn on_message(&self, channel: &[u8], message: &[u8]);

    /// Messages may have been missed: a channel or the connection was lost.
    fn on_gap(&self);
}

/// Why there is no reply. Whether the command was carried out is unknown.
#[derive(Clone, Debug)]
pub(crate) enum Lost {
    /// No reply came in time.
    Silent(Duration),
    /// The connection broke.
    Broken(Arc<str>),
    /// TLS: one side does not trust the other.
    Untrusted(Arc<str>),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        let why = error.to_string().into();
        if distrust(&error).is_some() { Self::Untrusted(why) } else { Self::Broken(why) }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(limit) => {
                write!(f, "Redis did not answer within {limit:?}: check that it runs")
            }
            Self::Broken(why) => {
                write!(f, "the connection to Redis failed: {why}; check that it runs")
            }
            Self::Untrusted(why) => {
                write!(f, "TLS failed: {why}; check `ca`, `cert` and `key`")
            }
        }
    }
}

/// A handle on a connection. It closes with its last handle.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Owner>);

struct Owner {
    shared: Arc<Shared>,
    shortcut: Option<Arc<OwnedWriteHalf>>,
    poller: BusyPoller,
}

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Locked before `state`, by the caller or task that reads.
    pub(super) input: Mutex<Input>,
    pub(super) listener: Option<Arc<dyn MessageListener>>,
    /// Whether messages come between replies, as in RESP3. Otherwise a connection that subscribes can do
    /// nothing else.
    pushes: AtomicBool,
    /// Whether every list that arrives is a message.
    listening_only: AtomicBool,
    /// Wakes the task that serves the connection.
    pub(super) task: AtomicWaker,
}

/// Bytes that have arrived and are not handed out yet.
pub(super) struct Input {
    pub(super) chunk: Box<[u8]>,
    pub(super) buffer: Vec<u8>,
    /// The state of reading the buffer.
    pub(super) reader: Reader,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) outgoing: Vec<u8>,
    /// How many commands are in `outgoing`.
    pub(super) gathered: usize,
    /// Whether the task is in the middle of writing.
    pub(super) writing: bool,
    pub(super) pending: VecDeque<Pending>,
    pub(super) listening: HashSet<String>,
    /// Channels that an unsubscription was sent for, until the server confirms it.
    pub(super) leaving: HashSet<String>,
    /// Whether the task has set its timer for calls that take too long.
    pub(super) watched: bool,
    /// Why the connection is to end.
    pub(super) closed: Option<&'static str>,
    pub(super) ended: bool,
}

impl State {
    /// Whether enough commands are gathered for a write. The fewer are unanswered, the fewer are enough:
    /// the server should not run out of work.
    fn is_batch(&self) -> bool {
        let on_the_way = self.pending.len().saturating_sub(self.gathered);
        self.gathered >= (on_the_way / BATCH_SHARE).max(SMALLEST_BATCH)
    }
}

/// A command without a reply.
pub(super) struct Pending {
    pub(super) sent: Instant,
    /// The channel it subscribes to or leaves: then the reply comes as a push.
    pub(super) channel: Option<String>,
    pub(super) reply: Option<oneshot::Sender<Outcome>>,
}

const CHUNK: usize = 64 << 10;
/// A batch is this part of the unanswered commands.
const BATCH_SHARE: usize = 3;
/// Fewer commands are not worth a system call of the caller while others are unanswered: the write wakes the
/// server, and the next few would wake it again. The connection's task writes them once all callers have run.
const SMALLEST_BATCH: usize = 32;

pub(crate) type Outcome = Result<Value, Lost>;

/// A reply that will arrive.
pub(crate) type Reply = oneshot::Receiver<Outcome>;

impl Connection {
    /// Serves a stream, on the current runtime. A call without a reply is given up after `limit`.
    pub(crate) fn start(
        stream: Stream,
        limit: Duration,
        listener: Option<Arc<dyn MessageListener>>,
    ) -> Self {
        let input =
            Input { chunk: vec![0; CHUNK].into(), buffer: Vec::new(), reader: Reader::default() };
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            input: Mutex::new(input),
            listener,
            pushes: AtomicBool::new(false),
            listening_only: AtomicBool::new(false),
            task: AtomicWaker::new(),
        });
        let shortcut = stream.shortcut();
        let (end, served) = (Ending(Arc::clone(&shared)), Arc::clone(&shared));
        tokio::spawn(async move {
            let mut task = Task::new(served, stream, limit);
            let why = poll_fn(|context| task.poll(context)).await;
            end.end(&why);
        });
        Self(Arc::new(Owner { shared, shortcut, poller: BusyPoller::default() }))
    }

    /// A weak handle: returns a handle again unless the last one was dropped.
    pub(crate) fn weak(&self) -> impl Fn() -> Option<Self> + Send + 'static {
        let owner = Arc::downgrade(&self.0);
        move || owner.upgrade().map(Self)
    }

    pub(crate) fn is_open(&self) -> bool {
        let state = self.0.shared.state.lock();
        !state.ended && state.closed.is_none()
    }

    /// Closes the connection: outstanding replies are lost.
    pub(crate) fn close(&self) {
        self.0.shared.close("it was closed");
    }

    /// Whether messages on this channel arrive.
    pub(crate) fn listens_to(&self, channel: &str) -> bool {
        let state = self.0.shared.state.lock();
        !state.ended && state.listening.contains(channel)
    }

    /// Sends a command and awaits the reply. `None`: the connection had ended, nothing was sent.
    pub(crate) async fn call(&self, command: &Command) -> Option<Outcome> {
        let [reply] = self.send([command], None).await?;
        Some(received(reply).await)
    }

    /// Sends a command without polling for the reply, which the caller may await. `None`: the connection
    /// had ended, nothing was sent.
    pub(crate) fn post(&self, command: &Command) -> Option<Reply> {
        let [reply] = self.write([command], None)?.0;
        Some(reply)
    }

    /// Subscribes to a channel without awaiting the reply. What is sent after it arrives after it.
    pub(crate) fn post_subscribe(&self, channel: &str) {
        let _heard_of = self.write([&cmd("SUBSCRIBE").arg(channel)], Some(channel));
    }

    /// Unsubscribes from a channel without awaiting the reply. Messages on it count as missed from here
    /// on; a later subscription arrives behind this.
    pub(crate) fn post_unsubscribe(&self, command: &str, channel: &str) {
        let mut state = self.0.shared.state.lock();
        state.listening.remove(channel);
        state.leaving.insert(channel.to_owned());
        drop(state);
        let _heard_of = self.write([&cmd(command).arg(channel)], Some(channel));
    }

    /// For how long the oldest unanswered command has waited for its reply.
    pub(crate) fn oldest_unanswered(&self) -> Option<Duration> {
        self.0.shared.state.lock().pending.front().map(|pending| pending.sent.elapsed())
    }

    /// Sends commands with nothing in between, and awaits all replies.
    pub(crate) async fn call_all<const N: usize>(
        &self,
        commands: [&Command; N],
    ) -> Option<Result<[Value; N], Lost>> {
        let mut values = [const { Value::Null }; N];
        for (value, reply) in values.iter_mut().zip(self.send(commands, None).await?) {
            match received(reply).await {
                Ok(reply) => *value = reply,
                Err(lost) => return Some(Err(lost)),
            }
        }
        Some(Ok(values))
    }

    /// The server has agreed to RESP3.
    pub(crate) fn expect_pushes(&self) {
        self.0.shared.pushes.store(true, Ordering::Release);
    }

    /// Whether messages come over this connection besides replies.
    pub(crate) fn carries_pushes(&self) -> bool {
        self.0.shared.pushes.load(Ordering::Acquire)
    }

    /// From now on every array that arrives is a message: that is how they come in RESP2.
    pub(crate) fn take_lists_for_messages(&self) {
        self.0.shared.listening_only.store(true, Ordering::Release);
    }

    /// Subscribes to a channel with this command.
    pub(crate) async fn subscribe(&self, command: &Command, channel: &str) -> Option<Outcome> {
        let [reply] = self.send([command], Some(channel)).await?;
        Some(received(reply).await)
    }

    async fn send<const N: usize>(
        &self,
        commands: [&Command; N],
        channel: Option<&str>,
    ) -> Option<[Reply; N]> {
        let (replies, alone) = self.write(commands, channel)?;
        if BusyPoller::is_threads_only_caller().await && alone {
            self.0.poller.poll(|| self.look());
        }
        Some(replies)
    }

    /// Writes commands. Returns the replies, and whether no other reply is outstanding.
    fn write<const N: usize>(
        &self,
        commands: [&Command; N],
        channel: Option<&str>,
    ) -> Option<([Reply; N], bool)> {
        let mut state = self.0.shared.state.lock();
        if state.ended || state.closed.is_some() {
            return None;
        }
        let idle = state.pending.is_empty() && !state.writing;
        let sent = Instant::now();
        let replies = commands.map(|command| {
            command.write_to(&mut state.outgoing);
            let (reply, receiver) = oneshot::channel();
            let channel = channel.map(str::to_owned);
            state.pending.push_back(Pending { sent, channel, reply: Some(reply) });
            receiver
        });
        state.gathered += N;
        if (idle || !state.writing && state.is_batch())
            && let Some(socket) = &self.0.shortcut
            && let Ok(written) = socket.try_write(&state.outgoing)
        {
            // The task writes the rest, and handles any error.
            state.outgoing.drain(..written);
            state.gathered = 0;
        }
        let sent = state.outgoing.is_empty();
        let wake = !sent || !std::mem::replace(&mut state.watched, true);
        drop(state);
        if wake {
            self.0.shared.task.wake();
        }
        Some((replies, idle && sent))
    }

    /// Hands out the replies that have arrived, if that helped lately.
    pub(crate) fn look_once(&self) {
        self.0.poller.poll_once(|| self.look());
    }

    /// Hands out the replies that have arrived. False if there are none.
    fn look(&self) -> bool {
        let shared = &self.0.shared;
        let (Some(socket), Some(mut input)) = (&self.0.shortcut, shared.input.try_lock()) else {
            return false;
        };
        let Input { chunk, buffer, reader } = &mut *input;
        let socket: &TcpStream = socket.as_ref().as_ref();
        // Past the runtime, which would first have to be told that there is something to read. The
        // end of the stream, errors and nonsense are found again by the task.
        if let Ok(length @ 1..) = receive_now(socket, chunk) {
            buffer.extend_from_slice(&chunk[..length]);
            if let Err(why) = shared.dispatch(buffer, reader) {
                shared.close(why);
            }
            return true;
        }
        false
    }
}

/// Reads what the socket has, without waiting.
#[cfg(unix)]
fn receive_now(socket: &TcpStream, chunk: &mut [u8]) -> io::Result<usize> {
    use rustix::net::{RecvFlags, recv};
    Ok(recv(socket, chunk, RecvFlags::DONTWAIT)?.0)
}

/// Elsewhere only what the runtime already knows to be there.
#[cfg(not(unix))]
fn receive_now(socket: &TcpStream, chunk: &mut [u8]) -> io::Result<usize> {
    socket.try_read(chunk)
}

pub(super) fn broken(why: &str) -> Lost {
    Lost::Broken(why.into())
}

async fn received(reply: oneshot::Receiver<Outcome>) -> Outcome {
    reply.await.unwrap_or_else(|_| Err(broken("its task is gone")))
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close("it was closed");
    }
}

impl Shared {
    fn close(&self, why: &'static str) {
        self.state.lock().closed.get_or_insert(why);
        self.task.wake();
    }

    /// Hands out everything that has arrived in full.
    pub(super) fn dispatch(
        &self,
        input: &mut Vec<u8>,
        reader: &mut Reader,
    ) -> Result<(), &'static str> {
        let mut taken = 0;
        let done = self.dispatch_from(input, reader, &mut taken);
        if done.is_ok() {
            input.drain(..taken);
        } else {
            // Replies that were handed out must not be handed out again.
            (*reader, *input) = (Reader::default(), Vec::new());
        }
        if input.is_empty() {
            // The memory of a large reply is freed.
            input.shrink_to(CHUNK);
        }
        done
    }

    fn dispatch_from(
        &self,
        input: &[u8],
        reader: &mut Reader,
        taken: &mut usize,
    ) -> Result<(), &'static str> {
        const NONSENSE: &str = "what it sends makes no sense: is this a Redis server?";
        loop {
            let received = match reader.frame(&input[*taken..]) {
                Ok((received, length)) => {
                    *taken += length;
                    received
                }
                Err(Stop::More) => return Ok(()),
                Err(Stop::Nonsense) => return Err(NONSENSE),
            };
            let expected = match received {
                Frame::Reply(Value::Array(parts))
                    if self.listening_only.load(Ordering::Acquire) =>
                {
                    self.push(parts)
                }
                Frame::Reply(value) => self.reply(value),
                Frame::Push(parts) => self.push(parts),
            };
            if expected.is_none() {
                return Err(NONSENSE);
            }
        }
    }

    fn reply(&self, value: Value) -> Option<()> {
        let mut state = self.state.lock();
        let pending = state.pending.pop_front()?;
        // An unsubscription that was refused.
        if let Some(channel) = &pending.channel {
            state.leaving.remove(channel);
        }
        drop(state);
        if let Some(reply) = pending.reply {
            let _given_up = reply.send(Ok(value));
        }
        Some(())
    }

    fn push(&self, parts: Vec<Value>) -> Option<()> {
        let mut parts = parts.into_iter();
        let kind = parts.next()?.text()?;
        match &*kind {
            "message" | "smessage" => {
                if let (Some(listener), Some(Value::Text(channel)), Some(Value::Text(message))) =
                    (&self.listener, parts.next(), parts.next())
                {
                    listener.on_message(&channel, &message);
                }
            }
            "subscribe" | "ssubscribe" => {
                let mut state = self.state.lock();
                let channel = state.pending.front_mut()?.channel.take()?;
                state.listening.insert(channel);
                drop(state);
                self.reply(Value::Null)?;
            }
            "unsubscribe" | "sunsubscribe" => {
                let channel = parts.next()?.text()?;
                let mut state = self.state.lock();
                let front = state.pending.front().and_then(|pending| pending.channel.as_ref());
                if front == Some(&channel) && state.leaving.remove(&channel) {
                    drop(state);
                    return self.reply(Value::Null);
                }
                // The slot has moved to another node, and its channels with it.
                state.listening.remove(&channel);
                drop(state);
                if let Some(listener) = &self.listener {
                    listener.on_gap();
                }
            }
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_part_of_what_is_on_its_way() {
        let mut state = State::default();
        let mut is_batch = |on_the_way: usize, gathered: usize| {
            state.pending.clear();
            state.pending.extend((0..on_the_way + gathered).map(|_| Pending {
                sent: Instant::now(),
                channel: None,
                reply: None,
            }));
            state.gathered = gathered;
            state.is_batch()
        };
        assert!(!is_batch(1, 31) && is_batch(1, 32));
        assert!(!is_batch(96, 31) && is_batch(96, 32));
        assert!(!is_batch(768, 255) && is_batch(768, 256));
    }

    /// A connection, and the server's end of it.
    async fn connect() -> (Connection, tokio::net::TcpListener) {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let server = ("127.0.0.1".to_owned(), listener.local_addr().unwrap().port());
        let stream = Stream::open(&server, Duration::from_secs(9), None).await.unwrap();
        (Connection::start(stream, Duration::from_secs(9), None), listener)
    }

    #[tokio::test]
    async fn an_unsubscription_that_is_refused_is_forgotten() {
        let (connection, _server) = connect().await;
        let (shared, mut reader) = (&connection.0.shared, Reader::default());
        connection.post_unsubscribe("SUNSUBSCRIBE", "c");
        assert!(shared.state.lock().leaving.contains("c"));
        let mut input = b"-MOVED 1 127.0.0.1:1\r\n".to_vec();
        assert!(shared.dispatch(&mut input, &mut reader).is_ok());
        assert!(shared.state.lock().leaving.is_empty());
        // Another subscription is not taken for its end when the slot moves again.
        connection.post_subscribe("c");
        let mut input =
            b">3\r\n+sunsubscribe\r\n+c\r\n:0\r\n>3\r\n+ssubscribe\r\n+c\r\n:1\r\n".to_vec();
        assert!(shared.dispatch(&mut input, &mut reader).is_ok());
        assert!(connection.listens_to("c"));
    }

    #[tokio::test]
    async fn replies_before_an_invalid_one_are_delivered_once() {
        let (connection, _server) = connect().await;
        let (shared, mut reader) = (&connection.0.shared, Reader::default());
        // Two replies to one command: the second makes no sense.
        let first = connection.post(&cmd("ONE")).unwrap();
        let mut input = b"+one\r\n+two\r\n".to_vec();
        assert!(shared.dispatch(&mut input, &mut reader).is_err());
        assert_eq!(first.await.unwrap().unwrap(), Value::Text(b"one".to_vec()));
        let mut second = connection.post(&cmd("TWO")).unwrap();
        assert!(shared.dispatch(&mut input, &mut reader).is_ok());
        assert!(second.try_recv().is_err(), "it got the reply to another");
    }
}
