//! Lock algorithms as people write them, with their mistakes. They are here to break: no program may use them.

mod etcd;
mod etcd_gateway;
mod redis;
mod redis_link;
mod redlock;
mod zookeeper;
mod zookeeper_link;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;

use crate::history::{Stamp, now};
use crate::steps::Steps;

pub(crate) use etcd::PutIfAbsent;
pub(crate) use redis::{Kind as RedisKind, RedisSpecimen};
pub(crate) use redlock::TextbookRedlock;
pub(crate) use zookeeper::OneNode;

/// A lock algorithm in a client process.
#[async_trait(?Send)]
pub(crate) trait Algorithm {
    /// Waits for the lock for at most `wait`. `None` if it stayed busy. Dropping the call gives it up, in the way
    /// of the algorithm.
    async fn acquire(&self, lock: &str, ttl: Duration, wait: Duration) -> io::Result<Option<Hold>>;

    /// The client that holds the lock by what the servers have stored: an empty name if they do not say which.
    async fn holder(&self, lock: &str) -> io::Result<Option<String>>;

    /// Waits for what goes on in the background.
    async fn close(&self) {}
}

/// A lock that is held.
pub(crate) type Hold = Box<dyn Held>;

/// A lock that is held.
#[async_trait(?Send)]
pub(crate) trait Held {
    /// The fencing token, if the algorithm has one.
    fn token(&self) -> Option<u64> {
        None
    }

    /// Until when the lock is held without a further renewal, if the algorithm says so.
    fn deadline(&self) -> Option<Stamp> {
        None
    }

    /// Whether the client still believes that it holds the lock.
    fn is_valid(&self) -> bool {
        true
    }

    /// Gives the lock back. False if it was not held any more.
    async fn release(self: Box<Self>) -> io::Result<bool>;
}

/// How often a specimen that cannot be woken asks again.
const POLL: Duration = Duration::from_millis(20);

/// How long a specimen waits for a reply.
pub(crate) const REPLY: Duration = Duration::from_millis(1_500);

/// Tries until it succeeds or the time is up.
async fn poll(
    wait: Duration,
    mut attempt: impl AsyncFnMut() -> io::Result<Option<Hold>>,
) -> io::Result<Option<Hold>> {
    let end = now() + wait.as_nanos() as u64;
    loop {
        if let Some(hold) = attempt().await? {
            return Ok(Some(hold));
        }
        if now() >= end {
            return Ok(None);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// A value that no other attempt has, and that tells whose it is.
fn owner_id(steps: &Steps) -> String {
    format!("{}:{}", steps.client(), now())
}

/// The client that has made this value.
fn client_of(owner_id: &str) -> String {
    owner_id.split(':').next().unwrap_or_default().to_owned()
}

/// What specimens share: where their servers are, and the points at which an experiment can stop them.
#[derive(Clone)]
pub(crate) struct Bench {
    /// Addresses of the servers.
    pub(crate) servers: Vec<String>,
    /// Points at which the experiment can stop the client.
    pub(crate) steps: Rc<Steps>,
}
