//! The task that serves one connection: it reads, writes what was gathered, and gives up calls that
//! take too long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::ReadBuf;
use tokio::time::Sleep;

use super::Stream;
use super::connection::{Input, Lost, Pending, Shared, broken};

/// Ends all calls when the task ends, in whatever way, also with its runtime.
pub(super) struct Ending(pub(super) Arc<Shared>);

impl Ending {
    pub(super) fn end(&self, why: &Lost) {
        let mut state = self.0.state.lock();
        if state.ended {
            return;
        }
        state.ended = true;
        let pending = std::mem::take(&mut state.pending);
        let heard = !std::mem::take(&mut state.listening).is_empty();
        drop(state);
        for reply in pending.into_iter().filter_map(|pending| pending.reply) {
            let _ = reply.send(Err(why.clone()));
        }
        if let Some(listener) = self.0.listener.as_ref().filter(|_| heard) {
            listener.on_gap();
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end(&broken("its task was dropped"));
    }
}

/// Serves one connection.
pub(super) struct Task {
    shared: Arc<Shared>,
    stream: Stream,
    limit: Duration,
    writing: Vec<u8>,
    written: usize,
    /// Whether the tasks that were ready to run have run since commands were gathered.
    gave_way: bool,
    timer: Pin<Box<Sleep>>,
}

/// A connection whose oldest call has waited for this many timeouts is given up.
const DEAD: u32 = 5;

#[derive(PartialEq, Eq)]
enum Verdict {
    Alive,
    Dead,
}

impl Task {
    pub(super) fn new(shared: Arc<Shared>, stream: Stream, limit: Duration) -> Self {
        let timer = Box::pin(tokio::time::sleep(limit));
        Self { shared, stream, limit, writing: Vec::new(), written: 0, gave_way: false, timer }
    }

    /// Resolves with why the connection ended.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Lost> {
        self.shared.task.register(context.waker());
        if let Some(why) = self.shared.state.lock().closed {
            return Poll::Ready(broken(why));
        }
        if let Poll::Ready(Err(error)) = self.poll_write(context) {
            return Poll::Ready(error.into());
        }
        if let Poll::Ready(why) = self.poll_read(context) {
            return Poll::Ready(why);
        }
        if self.poll_timer(context) == Verdict::Dead {
            return Poll::Ready(broken(&format!("it has been silent for {:?}", self.limit * DEAD)));
        }
        Poll::Pending
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.writing.len() {
                self.writing.clear();
                self.written = 0;
                let mut state = self.shared.state.lock();
                // A runtime may run this task right after the caller that woke it. It goes to the end of the
                // queue once, so that all callers that are ready share one write.
                if !state.outgoing.is_empty() && !std::mem::replace(&mut self.gave_way, true) {
                    context.waker().wake_by_ref();
                    return Poll::Ready(Ok(()));
                }
                self.gave_way = false;
                std::mem::swap(&mut self.writing, &mut state.outgoing);
                state.gathered = 0;
                state.writing = !self.writing.is_empty();
                drop(state);
                if self.writing.is_empty() {
                    return self.stream.poll_flush(context);
                }
            }
            self.written += ready!(self.stream.poll_write(context, &self.writing[self.written..]))?;
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Lost> {
        let mut input = self.shared.input.lock();
        let Input { chunk, buffer, reader } = &mut *input;
        loop {
            let mut read = ReadBuf::new(chunk);
            if let Err(error) = ready!(self.stream.poll_read(context, &mut read)) {
                return Poll::Ready(error.into());
            }
            if read.filled().is_empty() {
                return Poll::Ready(broken("the server closed it"));
            }
            buffer.extend_from_slice(read.filled());
            if let Err(why) = self.shared.dispatch(buffer, reader) {
                return Poll::Ready(broken(why));
            }
        }
    }

    /// Gives up calls that take too long. They keep their place: their replies may still come.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Verdict {
        while self.timer.as_mut().poll(context).is_ready() {
            let mut state = self.shared.state.lock();
            let late = |pending: &&mut Pending| pending.sent.elapsed() >= self.limit;
            let given_up: Vec<_> = state
                .pending
                .iter_mut()
                .take_while(late)
                .filter_map(|pending| pending.reply.take())
                .collect();
            let oldest = state.pending.front();
            if oldest.is_some_and(|pending| pending.sent.elapsed() >= self.limit * DEAD) {
                return Verdict::Dead;
            }
            let next = state.pending.iter().find(|pending| pending.reply.is_some());
            let next = next.map(|pending| pending.sent + self.limit);
            state.watched = next.is_some();
            drop(state);
            for reply in given_up {
                let _ = reply.send(Err(Lost::Silent(self.limit)));
            }
            match next {
                Some(next) => self.timer.as_mut().reset(next),
                None => return Verdict::Alive,
            }
        }
        Verdict::Alive
    }
}
