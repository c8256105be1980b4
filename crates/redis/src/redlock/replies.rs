//! Replies of several nodes, as they come.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::wire::{Lost, Outcome, Reply};

/// Replies that are on their way, each with what it answers.
pub(super) struct Replies<T> {
    waiting: Vec<(usize, T, Reply)>,
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    ticks: u32,
}

pub(super) enum News<T> {
    /// A node has answered, or its connection broke.
    Said(usize, T, Outcome),
    /// All that are still awaited are late.
    Late,
}

/// The limit is waited for in so many pieces. If this process stands still for longer than all of
/// them, only one has passed: that the replies were not read is not the nodes' fault.
const TICKS: u32 = 4;

impl<T> Replies<T> {
    /// So long each batch of requests may take.
    pub(super) const fn new(limit: Duration) -> Self {
        Self { waiting: Vec::new(), limit, timer: None, ticks: 0 }
    }

    pub(super) fn push(&mut self, node: usize, what: T, reply: Reply) {
        self.waiting.push((node, what, reply));
        self.ticks = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The nodes that are still awaited.
    pub(super) fn awaited(&self) -> impl Iterator<Item = usize> {
        self.waiting.iter().map(|(node, ..)| *node)
    }

    /// What has not come yet.
    pub(super) fn rest(self) -> impl Iterator<Item = (usize, Reply)> {
        self.waiting.into_iter().map(|(node, _, reply)| (node, reply))
    }

    /// Those that are still awaited. They are not awaited any more.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = (usize, T)> {
        std::mem::take(&mut self.waiting).into_iter().map(|(node, what, _)| (node, what))
    }

    pub(super) async fn next(&mut self) -> News<T> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<News<T>> {
        for place in 0..self.waiting.len() {
            if let Poll::Ready(reply) = Pin::new(&mut self.waiting[place].2).poll(context) {
                let (node, what, _) = self.waiting.remove(place);
                let reply = reply.unwrap_or_else(|_| Err(Lost::Broken("its task is gone".into())));
                return Poll::Ready(News::Said(node, what, reply));
            }
        }
        if self.is_empty() {
            return Poll::Ready(News::Late);
        }
        let tick = self.limit / TICKS;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(tick)));
        while timer.as_mut().poll(context).is_ready() {
            self.ticks += 1;
            if self.ticks >= TICKS {
                return Poll::Ready(News::Late);
            }
            timer.as_mut().reset(Instant::now() + tick);
        }
        Poll::Pending
    }
}
