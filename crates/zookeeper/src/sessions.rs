//! The sessions of one client: few, each shared by the claims that it fits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use parking_lot::Mutex;
use tenure_core::store::{Background, now, step_limit};
use tenure_core::{Error, ErrorKind, Result};
use tenure_ordered::Session;

use crate::config::ZooKeeperConfig;
use crate::fault::fault;
use crate::keys::Layout;
use crate::session::{GRACE, ZooKeeperSession};
use crate::wire::{self, Target};

const CONNECT: &str = "connect to ZooKeeper";

/// How many sessions there are before claims share one that outlives them by more than their TTL.
const FEW: usize = 8;

pub(crate) struct Sessions {
    layout: Arc<Layout>,
    target: Arc<Target>,
    /// The TTL that a session is for which is opened before any lock is asked for.
    first: Duration,
    background: Background,
    open: Mutex<Vec<Arc<ZooKeeperSession>>>,
    /// The latest transaction that sessions have seen that are not among the open ones any more.
    seen_before: AtomicI64,
    /// The sessions that are being opened, by the TTL that they are for.
    opening: Mutex<HashMap<Duration, Opening>>,
    /// The longest TTL that the servers allow, if they have cut a session short: the latest one they did.
    longest: Mutex<Option<Duration>>,
}

type Opening = Shared<BoxFuture<'static, Result<Arc<ZooKeeperSession>>>>;

impl Sessions {
    /// Opens the first session.
    pub(crate) async fn connect(
        config: &ZooKeeperConfig,
        layout: &Arc<Layout>,
        background: &Background,
    ) -> Result<Arc<Self>> {
        let target = Target {
            servers: config.servers.clone(),
            tls: config.tls.clone(),
            login: config.username.clone().zip(config.password.clone()),
            timeout: step_limit(config.timeout),
        };
        let sessions = Arc::new(Self {
            layout: Arc::clone(layout),
            target: Arc::new(target),
            first: config.ttl,
            background: background.clone(),
            open: Mutex::default(),
            seen_before: AtomicI64::default(),
            opening: Mutex::default(),
            longest: Mutex::default(),
        });
        sessions.open(CONNECT, config.ttl).await?;
        Ok(sessions)
    }

    /// The longest TTL that the servers allow, as far as it is known.
    pub(crate) fn longest_ttl(&self) -> Option<Duration> {
        *self.longest.lock()
    }

    /// A session for claims of this TTL, connected.
    pub(crate) async fn get(
        self: &Arc<Self>,
        operation: &'static str,
        ttl: Duration,
    ) -> Result<Arc<ZooKeeperSession>> {
        let length = match self.choose(ttl) {
            Ok(session) => match session.wire.ready().await {
                Ok(()) => return Ok(session),
                // A session that turns out to be over is replaced.
                Err(_) if session.is_over() => ttl,
                Err(error) => return Err(fault(operation, error)),
            },
            Err(length) => length,
        };
        let session = self.open(operation, length).await?;
        let (life, longest) = (session.wire.life(), session.life());
        if longest < ttl {
            let why = format!(
                "the servers end a session after {life:?}: ask for a TTL of at most {longest:?}, or \
                 raise their maxSessionTimeout"
            );
            return Err(Error::new(ErrorKind::Invalid, operation, why));
        }
        session.wire.ready().await.map_err(|error| fault(operation, error))?;
        Ok(session)
    }

    /// The latest transaction that any session of this client has seen. What a server shows that has
    /// not seen it may be older than what the client acted on: a leader that lost the others goes on
    /// answering, even to `sync`.
    pub(crate) fn seen(&self) -> i64 {
        let seen = self.open.lock().iter().map(|session| session.wire.zxid()).max();
        seen.unwrap_or_default().max(self.seen_before.load(Ordering::Acquire))
    }

    /// Any session, to read with, connected: of several, the one that has seen the most.
    pub(crate) async fn any(
        self: &Arc<Self>,
        operation: &'static str,
    ) -> Result<Arc<ZooKeeperSession>> {
        let alive = {
            let open = self.open.lock();
            let mut alive = open.iter().filter(|session| !session.is_over());
            let connected = alive.clone().filter(|session| session.wire.is_connected());
            let connected = connected.max_by_key(|session| session.wire.zxid());
            connected.or_else(|| alive.next()).cloned()
        };
        if let Some(session) = alive {
            match session.wire.ready().await {
                Ok(()) => return Ok(session),
                Err(_) if session.is_over() => {}
                Err(error) => return Err(fault(operation, error)),
            }
        }
        let session = self.open(operation, self.first).await?;
        session.wire.ready().await.map_err(|error| fault(operation, error))?;
        Ok(session)
    }

    /// Closes the sessions that are not used.
    pub(crate) async fn close_unused(&self) {
        let unused = self.take_unused(&mut self.open.lock());
        join_all(unused.iter().map(|session| session.wire.close())).await;
    }

    /// A session that is open, or the TTL to open one for.
    fn choose(&self, ttl: Duration) -> Result<Arc<ZooKeeperSession>, Duration> {
        let open = self.open.lock();
        let alive = || open.iter().filter(|session| !session.is_over());
        let shortest = |session: &&Arc<ZooKeeperSession>| session.life();
        if let Some(session) = alive().filter(|session| session.fits(ttl)).min_by_key(shortest) {
            return Ok(Arc::clone(session));
        }
        let used = || alive().filter(|session| is_used(session));
        // A session slightly too short is in use, so more TTLs like this one are likely: allow for them.
        let near =
            |session: &Arc<ZooKeeperSession>| session.life() < ttl && ttl < 2 * session.life();
        if used().count() < FEW {
            return Err(if used().any(near) { ttl.mul_f64(1.5) } else { ttl });
        }
        match alive().filter(|session| session.life() >= ttl).min_by_key(shortest) {
            Some(session) => Ok(Arc::clone(session)),
            // Twice as long as the longest one, so that later TTLs fit it, too.
            None => {
                let longest = alive().map(|session| session.life()).max().unwrap_or_default();
                Err(ttl.max(2 * longest))
            }
        }
    }

    /// Opens a session for claims of this TTL, one for all calls that want it.
    async fn open(
        self: &Arc<Self>,
        operation: &'static str,
        ttl: Duration,
    ) -> Result<Arc<ZooKeeperSession>> {
        let opening = {
            let mut opening = self.opening.lock();
            let begin = || {
                let sessions = Arc::clone(self);
                // The task goes on although its caller may not be polled any more.
                let task = self.background.runtime().spawn(async move {
                    let opened = sessions.open_now(ttl).await;
                    sessions.opening.lock().remove(&ttl);
                    opened
                });
                let failed = |_| Error::new(ErrorKind::Internal, CONNECT, "the task ended early");
                async move { task.await.map_err(failed)? }.boxed().shared()
            };
            opening.entry(ttl).or_insert_with(begin).clone()
        };
        let named = |error: Error| match operation {
            CONNECT => error,
            _ => Error::new(error.kind(), operation, error.to_string()).caused_by(error),
        };
        opening.await.map_err(named)
    }

    async fn open_now(&self, ttl: Duration) -> Result<Arc<ZooKeeperSession>> {
        let sent = now();
        let target = Arc::clone(&self.target);
        let wire = wire::Session::open(target, ttl + GRACE, &self.background).await?;
        let layout = Arc::clone(&self.layout);
        let session = Arc::new(ZooKeeperSession::new(wire, layout, ttl, sent));
        if session.life() < ttl {
            *self.longest.lock() = Some(session.life());
        }
        let unused = {
            let mut open = self.open.lock();
            let unused = self.take_unused(&mut open);
            if open.is_empty() {
                // No claim is left that relies on it. If the servers' data was restored from an older
                // snapshot, none of them will ever know it again.
                self.seen_before.store(0, Ordering::Release);
            }
            open.push(Arc::clone(&session));
            unused
        };
        for session in unused {
            self.background.runtime().spawn(async move { session.wire.close().await });
        }
        Ok(session)
    }

    /// Takes those out that are over or not used.
    fn take_unused(&self, open: &mut Vec<Arc<ZooKeeperSession>>) -> Vec<Arc<ZooKeeperSession>> {
        let unused: Vec<_> =
            open.extract_if(.., |session| session.is_over() || !is_used(session)).collect();
        for session in &unused {
            self.seen_before.fetch_max(session.wire.zxid(), Ordering::AcqRel);
        }
        unused
    }
}

/// Whether a claim or a call has the session, beside the list of open ones.
fn is_used(session: &Arc<ZooKeeperSession>) -> bool {
    Arc::strong_count(session) > 1
}
