//! The task that serves one connection: it writes what callers have gathered, dispatches replies, sends
//! pings, and ends the connection when the server is silent while it owes a reply.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tenure_tls::Stream;
use tokio::io::ReadBuf;
use tokio::time::{Instant, Sleep};

use super::super::Fault;
use super::super::frame::frame;
use super::super::messages::{PING, XID_PING};
use super::{Pace, Pending, Shared, broken};

/// A connection whose oldest call has waited for this many call timeouts is given up.
const DEAD: u32 = 5;

const CHUNK: usize = 16 << 10;

const NONSENSE: &str = "the reply makes no sense: is this a ZooKeeper server?";

/// Serves a connection until it ends, and resolves with why. `input` has arrived already.
pub(super) fn serve(
    shared: Arc<Shared>,
    stream: Stream,
    input: Vec<u8>,
    pace: Pace,
) -> impl Future<Output = Fault> {
    // It must be dropped with a future that is never polled.
    let ending = Ending(Arc::clone(&shared));
    let mut task = Task {
        shared,
        stream,
        pace,
        input,
        chunk: vec![0; CHUNK].into(),
        writing: Vec::new(),
        written: 0,
        timer: Box::pin(tokio::time::sleep_until(Instant::now())),
    };
    async move {
        let why = poll_fn(|context| task.poll(context)).await;
        // Requests that the server has not taken yet must not reach it later.
        task.stream.discard_unsent();
        ending.end(&why);
        why
    }
}

/// Serves one connection.
struct Task {
    shared: Arc<Shared>,
    stream: Stream,
    pace: Pace,
    input: Vec<u8>,
    chunk: Box<[u8]>,
    writing: Vec<u8>,
    written: usize,
    timer: Pin<Box<Sleep>>,
}

/// What is due.
enum Due {
    /// A ping was added to what is to be written.
    Write,
    /// Nothing before this moment.
    At(Instant),
}

impl Task {
    /// Resolves with why the connection ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Fault> {
        self.shared.task.register(context.waker());
        loop {
            if let Some(why) = self.shared.state.lock().closed {
                return Poll::Ready(broken(why));
            }
            if let Poll::Ready(Err(error)) = self.poll_write(context) {
                return Poll::Ready(error.into());
            }
            // Before the clock is looked at: a process that was stopped finds the replies here.
            if let Poll::Ready(why) = self.poll_read(context) {
                return Poll::Ready(why);
            }
            match self.due() {
                Err(why) => return Poll::Ready(why),
                Ok(Due::Write) => {}
                Ok(Due::At(next)) => {
                    self.timer.as_mut().reset(next);
                    if self.timer.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.writing.len() {
                self.writing.clear();
                self.written = 0;
                let mut state = self.shared.state.lock();
                std::mem::swap(&mut self.writing, &mut state.outgoing);
                state.writing = !self.writing.is_empty();
                drop(state);
                if self.writing.is_empty() {
                    return self.stream.poll_flush(context);
                }
            }
            self.written += ready!(self.stream.poll_write(context, &self.writing[self.written..]))?;
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Fault> {
        loop {
            if self.shared.dispatch(&mut self.input).is_err() {
                return Poll::Ready(broken(NONSENSE));
            }
            let mut read = ReadBuf::new(&mut self.chunk);
            if let Err(error) = ready!(self.stream.poll_read(context, &mut read)) {
                return Poll::Ready(error.into());
            }
            if read.filled().is_empty() {
                return Poll::Ready(broken("the server closed it"));
            }
            self.input.extend_from_slice(read.filled());
        }
    }

    /// Gives up calls that take too long, and adds a ping when nothing was sent for a while.
    ///
    /// # Errors
    /// If the server has owed a reply for too long.
    fn due(&mut self) -> Result<Due, Fault> {
        let Pace { limit, ping, silence } = self.pace;
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let oldest = state.pending.front().map(|pending| pending.sent);
        let owed_since = oldest.into_iter().chain(state.ping).min();
        let heard = state.last_heard;
        let dead = owed_since.map(|since| (since.max(heard) + silence).min(since + limit * DEAD));
        if dead.is_some_and(|dead| dead <= now) {
            let waited = owed_since.map_or(silence, |since| now - since);
            return Err(broken(&format!("the server has owed a reply for {waited:?}")));
        }
        if state.ping.is_none() && state.last_sent + ping <= now {
            let written = frame(&mut state.outgoing, |out| {
                out.int(XID_PING);
                out.int(PING);
            });
            debug_assert!(written.is_ok(), "a ping is short");
            state.ping = Some(now);
            state.last_sent = now;
            return Ok(Due::Write);
        }
        let late = |pending: &&mut Pending| pending.sent + limit <= now;
        let given_up: Vec<_> = state
            .pending
            .iter_mut()
            .take_while(late)
            .filter_map(|pending| pending.reply.take())
            .collect();
        let call = state.pending.iter().find(|pending| pending.reply.is_some());
        let call = call.map(|pending| pending.sent + limit);
        let ping = state.ping.is_none().then(|| state.last_sent + ping);
        let next = [dead, call, ping].into_iter().flatten().min().unwrap_or(now + silence);
        state.armed = next;
        drop(state);
        for reply in given_up {
            let _ = reply.send(Err(Fault::Silent(limit)));
        }
        Ok(Due::At(next))
    }
}

/// However the task ends, also with its runtime: no call waits for it any more.
struct Ending(Arc<Shared>);

impl Ending {
    fn end(&self, why: &Fault) {
        let mut state = self.0.state.lock();
        state.ended = true;
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        for reply in pending.into_iter().filter_map(|pending| pending.reply) {
            let _ = reply.send(Err(why.clone()));
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end(&broken("its task was dropped"));
    }
}
