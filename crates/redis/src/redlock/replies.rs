//! Replies of several nodes, in the order of their arrival.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::{Instant, Sleep};

use crate::wire::{Lost, Outcome, Reply};

/// Outstanding replies, each with its node and the request that it answers.
pub(super) struct Replies<T> {
    waiting: Vec<(usize, T, Reply)>,
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    ticks: u32,
    /// How many replies are needed before they can decide anything.
    needed: usize,
    gate: Arc<Gate>,
}

/// Wakes the caller when enough replies have arrived to decide, not for each: another thread serves the
/// connections, and waking the caller's thread is expensive.
#[derive(Default)]
struct Gate {
    left: AtomicUsize,
    caller: AtomicWaker,
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let less = |left: usize| Some(left.saturating_sub(1));
        // This never fails: the closure always returns a value.
        let left = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        if left.is_ok_and(|left| left <= 1) {
            self.caller.wake();
        }
    }
}

pub(super) enum ReplyEvent<T> {
    /// A node has answered, or its connection broke.
    Arrived(usize, T, Outcome),
    /// All outstanding replies are late.
    TimedOut,
}

/// The timeout is split into this many sleeps. After a suspend, only one sleep has ended, so replies that
/// have arrived are read before their nodes count as silent.
const TICKS: u32 = 4;

impl<T> Replies<T> {
    /// `limit` is the timeout of each batch of requests.
    pub(super) fn new(limit: Duration) -> Self {
        Self { waiting: Vec::new(), limit, timer: None, ticks: 0, needed: 0, gate: Arc::default() }
    }

    /// Sets how many of the outstanding replies can decide: a `majority` that agrees, or fewer if their
    /// refusals leave no majority.
    pub(super) fn decided_by(&mut self, majority: usize) {
        let against = (self.waiting.len() + 1).saturating_sub(majority);
        self.needed = majority.min(against);
    }

    pub(super) fn push(&mut self, node: usize, what: T, reply: Reply) {
        self.waiting.push((node, what, reply));
        self.ticks = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The nodes whose replies are outstanding.
    pub(super) fn awaited(&self) -> impl Iterator<Item = usize> {
        self.waiting.iter().map(|(node, ..)| *node)
    }

    /// The outstanding replies.
    pub(super) fn rest(self) -> impl Iterator<Item = (usize, Reply)> {
        self.waiting.into_iter().map(|(node, _, reply)| (node, reply))
    }

    /// Stops waiting for the outstanding replies, and returns their nodes.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = (usize, T)> {
        std::mem::take(&mut self.waiting).into_iter().map(|(node, what, _)| (node, what))
    }

    pub(super) async fn next(&mut self) -> ReplyEvent<T> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<ReplyEvent<T>> {
        self.gate.caller.register(context.waker());
        // Set before the replies are polled: those that arrive later count.
        self.gate.left.store(self.needed.max(1), Ordering::Release);
        let waker = Waker::from(Arc::clone(&self.gate));
        let mut counting = Context::from_waker(&waker);
        for place in 0..self.waiting.len() {
            if let Poll::Ready(reply) = Pin::new(&mut self.waiting[place].2).poll(&mut counting) {
                let (node, what, _) = self.waiting.remove(place);
                self.needed = self.needed.saturating_sub(1);
                let reply = reply.unwrap_or_else(|_| Err(Lost::Broken("its task is gone".into())));
                return Poll::Ready(ReplyEvent::Arrived(node, what, reply));
            }
        }
        if self.is_empty() {
            return Poll::Ready(ReplyEvent::TimedOut);
        }
        let tick = self.limit / TICKS;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(tick)));
        while timer.as_mut().poll(context).is_ready() {
            self.ticks += 1;
            if self.ticks >= TICKS {
                return Poll::Ready(ReplyEvent::TimedOut);
            }
            timer.as_mut().reset(Instant::now() + tick);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Value;
    use std::sync::atomic::AtomicU32;
    use tokio::sync::oneshot;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls until nothing is ready; how many replies there were.
    fn drain(replies: &mut Replies<()>, waker: &Waker) -> usize {
        let mut context = Context::from_waker(waker);
        let mut found = 0;
        while replies.poll_next(&mut context).is_ready() {
            found += 1;
        }
        found
    }

    #[tokio::test]
    async fn the_caller_is_woken_when_a_majority_has_answered_and_for_each_after_that() {
        // Of five nodes, this many have answered before the caller looks for the first time.
        for early in 0..3 {
            let mut replies = Replies::new(Duration::from_secs(60));
            let mut senders = Vec::new();
            for node in 0..5 {
                let (sender, reply) = oneshot::channel();
                senders.push(sender);
                replies.push(node, (), reply);
            }
            replies.decided_by(3);
            let count = Arc::new(Count::default());
            let waker = Waker::from(Arc::clone(&count));
            let wakes = || count.0.load(Ordering::Relaxed);
            let mut answer = || senders.pop().unwrap().send(Ok(Value::Null)).unwrap();
            (0..early).for_each(|_| answer());
            assert_eq!(drain(&mut replies, &waker), early);
            for _ in early..2 {
                answer();
                assert_eq!(wakes(), 0, "{early}");
            }
            answer();
            assert_eq!(wakes(), 1, "{early}");
            assert_eq!(drain(&mut replies, &waker), 3 - early);
            answer();
            assert_eq!(wakes(), 2, "{early}");
        }
    }

    #[tokio::test]
    async fn where_one_reply_can_decide_the_caller_is_woken_by_it() {
        let mut replies = Replies::new(Duration::from_secs(60));
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::channel()).unzip();
        for (node, reply) in receivers.into_iter().enumerate() {
            replies.push(node, (), reply);
        }
        // Three of five are there: one that refuses is enough to lose.
        replies.decided_by(3);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        assert_eq!(drain(&mut replies, &waker), 0);
        senders.into_iter().next().unwrap().send(Ok(Value::Null)).unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
