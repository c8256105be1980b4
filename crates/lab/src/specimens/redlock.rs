//! Redlock on independent Redis servers, as the essays describe it.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;

use super::redis_link::Link;
use super::{Algorithm, Bench, Held, Hold, client_of, owner_id, poll};
use crate::history::{Stamp, now};
use crate::steps::Steps;

/// Sets the lock on one server, and counts a token if there is one to count.
const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
    return redis.call('INCR', KEYS[1] .. ':token') end return 0";

const GIVE_BACK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// How long one server is waited for.
const PATIENCE: Duration = Duration::from_millis(400);

/// A client of textbook Redlock.
pub(crate) struct TextbookRedlock(Rc<Inner>);

struct Inner {
    links: Vec<Link>,
    steps: Rc<Steps>,
    at_once: bool,
    with_tokens: bool,
}

struct RedlockHold {
    inner: Rc<Inner>,
    lock: String,
    value: String,
    token: Option<u64>,
    deadline: Stamp,
}

impl TextbookRedlock {
    /// The servers are asked one after the other, or `at_once`. The token is the largest `INCR` of the servers.
    pub(crate) fn new(bench: &Bench, at_once: bool, with_tokens: bool) -> Self {
        let links = bench.servers.iter().map(|server| Link::to(server)).collect();
        Self(Rc::new(Inner { links, steps: Rc::clone(&bench.steps), at_once, with_tokens }))
    }
}

#[async_trait(?Send)]
impl Algorithm for TextbookRedlock {
    async fn acquire(&self, lock: &str, ttl: Duration, wait: Duration) -> io::Result<Option<Hold>> {
        poll(wait, async || {
            let hold = Inner::attempt(&self.0, lock, ttl).await;
            Ok(hold.map(|hold| Box::new(hold) as Hold))
        })
        .await
    }

    async fn holder(&self, lock: &str) -> io::Result<Option<String>> {
        let mut votes: BTreeMap<String, usize> = BTreeMap::new();
        let mut replies = 0;
        for link in &self.0.links {
            let Ok(reply) = link.call(&["GET", lock]).await else { continue };
            replies += 1;
            if let Some(value) = reply.text() {
                *votes.entry(value).or_default() += 1;
            }
        }
        let majority = self.0.links.len() / 2 + 1;
        match votes.into_iter().find(|(_, votes)| *votes >= majority) {
            None if replies < majority => Err(io::ErrorKind::NotConnected.into()),
            winner => Ok(winner.map(|(value, _)| client_of(&value))),
        }
    }
}

impl Inner {
    async fn attempt(this: &Rc<Self>, lock: &str, ttl: Duration) -> Option<RedlockHold> {
        let (start, value) = (now(), owner_id(&this.steps));
        let counts =
            this.on_each(&["EVAL", TAKE, "1", lock, &value, &ttl.as_millis().to_string()]).await;
        let (votes, most) = counts.iter().fold((0, 0), |(votes, most), &count| {
            (votes + usize::from(count > 0), most.max(count))
        });
        // The time that the servers' clocks may drift apart, as the essays have it.
        let drift = ttl / 100 + Duration::from_millis(2);
        let deadline = start + (ttl - drift).as_nanos() as u64;
        let token = this.with_tokens.then(|| u64::try_from(most).unwrap_or(0));
        let hold =
            RedlockHold { inner: Rc::clone(this), lock: lock.to_owned(), value, token, deadline };
        if votes > this.links.len() / 2 && now() < deadline {
            return Some(hold);
        }
        hold.give_back().await;
        None
    }

    /// Calls each server, and returns the numbers that they reply. A server that does not reply counts as zero.
    async fn on_each(&self, words: &[&str]) -> Vec<i64> {
        let call = async |link: &Link| {
            let reply = tokio::time::timeout(PATIENCE, link.call(words)).await;
            reply.ok().and_then(Result::ok).map_or(0, |reply| reply.int())
        };
        if self.at_once {
            return futures(self.links.iter().map(call)).await;
        }
        let mut replies = Vec::new();
        for link in &self.links {
            replies.push(call(link).await);
            self.steps.reach("between").await;
        }
        replies
    }
}

/// Drives all at once.
async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        for (future, done) in running.iter_mut().filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *done = Some(value);
            }
        }
        match running.iter().all(|(_, done)| done.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    running.into_iter().filter_map(|(_, done)| done).collect()
}

impl RedlockHold {
    async fn give_back(&self) -> usize {
        let replies = self.inner.on_each(&["EVAL", GIVE_BACK, "1", &self.lock, &self.value]).await;
        replies.into_iter().filter(|&reply| reply > 0).count()
    }
}

#[async_trait(?Send)]
impl Held for RedlockHold {
    fn token(&self) -> Option<u64> {
        self.token
    }

    fn deadline(&self) -> Option<Stamp> {
        Some(self.deadline)
    }

    async fn release(self: Box<Self>) -> io::Result<bool> {
        Ok(self.give_back().await > self.inner.links.len() / 2)
    }
}
