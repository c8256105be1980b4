//! A lock in ZooKeeper that is one ephemeral node, which every waiter watches.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;

use super::zookeeper_link::{NO_NODE, NODE_EXISTS, Session};
use super::{Algorithm, Bench, Held, Hold};
use crate::history::now;
use crate::steps::Steps;

/// The session timeout of a client that only looks.
const OBSERVER_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of the lock. Its name is its path.
pub(crate) struct OneNode {
    server: String,
    steps: Rc<Steps>,
    session: RefCell<Option<Rc<Session>>>,
}

struct NodeHold {
    session: Rc<Session>,
    path: String,
}

impl OneNode {
    pub(crate) fn new(bench: &Bench) -> Self {
        let server = bench.servers.first().cloned().unwrap_or_default();
        Self { server, steps: Rc::clone(&bench.steps), session: RefCell::new(None) }
    }

    async fn session(&self, ttl: Duration) -> io::Result<Rc<Session>> {
        let open = self.session.borrow().clone();
        if let Some(session) = open.filter(|session| !session.has_ended()) {
            return Ok(session);
        }
        let session = Rc::new(Session::open(&self.server, ttl).await?);
        *self.session.borrow_mut() = Some(Rc::clone(&session));
        Ok(session)
    }

    /// Waits until the node does not exist, and creates it.
    async fn attempt(&self, path: &str, ttl: Duration) -> io::Result<Hold> {
        let session = self.session(ttl).await?;
        loop {
            match session.create(path, self.steps.client(), true).await? {
                0 => {
                    self.steps.reach("between").await;
                    return Ok(Box::new(NodeHold { session, path: path.to_owned() }));
                }
                NODE_EXISTS => {
                    if session.watch(path).await? {
                        session.changed().await;
                        if session.has_ended() {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                    }
                }
                // The nodes above it do not exist yet.
                NO_NODE => {
                    for (end, _) in path.match_indices('/').skip(1) {
                        session.create(&path[..end], "", false).await?;
                    }
                }
                code => return Err(io::Error::other(format!("ZooKeeper's error {code}"))),
            }
        }
    }
}

#[async_trait(?Send)]
impl Algorithm for OneNode {
    async fn acquire(&self, lock: &str, ttl: Duration, wait: Duration) -> io::Result<Option<Hold>> {
        let (path, end) = (format!("/{lock}"), now() + wait.as_nanos() as u64);
        loop {
            let left = Duration::from_nanos(end.saturating_sub(now()));
            match tokio::time::timeout(left, self.attempt(&path, ttl)).await {
                Ok(Ok(hold)) => return Ok(Some(hold)),
                Ok(Err(error)) if now() >= end => return Err(error),
                // A server that cannot be reached may be back soon.
                Ok(Err(_)) => {
                    *self.session.borrow_mut() = None;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(_) => return Ok(None),
            }
        }
    }

    async fn holder(&self, lock: &str) -> io::Result<Option<String>> {
        let session = self.session(OBSERVER_TIMEOUT).await?;
        let found = session.data(&format!("/{lock}")).await;
        if found.is_err() {
            *self.session.borrow_mut() = None;
        }
        found
    }
}

impl Drop for OneNode {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            tokio::task::spawn_local(async move { session.close().await });
        }
    }
}

#[async_trait(?Send)]
impl Held for NodeHold {
    async fn release(self: Box<Self>) -> io::Result<bool> {
        Ok(self.session.delete(&self.path).await? == 0)
    }
}
