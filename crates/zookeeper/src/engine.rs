//! ZooKeeper as an engine of ordered entries: ephemeral sequential nodes below the lock's own node.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tenure_core::store::{Background, Cells, Claim, Eviction, Fencing, Moment, Store, now};
use tenure_core::{AuditRecord, Error, ErrorKind, Fence, Finding, LockName, Mode, Result, Token};
use tenure_ordered::{Change, Details, Engine, Entered, Entry, Listing, Session, Watching};

use crate::config::ZooKeeperConfig;
use crate::diagnose::diagnose;
use crate::fault::fault;
use crate::keys::Layout;
use crate::names::{
    Key, Limits, is_curator_writer, listing, lock_created, number, reader_nodes, replaced_by,
};
use crate::reads::{
    changed, children, empty_listing, find_reader, if_there, read_synced, up_to_date, watch_synced,
};
use crate::session::ZooKeeperSession;
use crate::sessions::Sessions;
use crate::wire::{
    Code, CreateMode, Delete, Exists, FailedOp, Fault, GetChildren, GetData, Multi, Op, SetData,
    Stat, Sync,
};

pub(crate) const ACQUIRE: &str = "acquire";
const RENEW: &str = "renew";
const RELEASE: &str = "release";
const DOWNGRADE: &str = "downgrade";
pub(crate) const WAIT: &str = "wait";
const INSPECT: &str = "inspect";
const LIST: &str = "list locks";
const EVICT: &str = "evict";
const HEAR: &str = "listen for losses";
const READ_AUDIT: &str = "read the records of";
const WRITE_AUDIT: &str = "write a record of";

/// How often an entry is sent again because a node that it needs was missing.
const ROUNDS: usize = 5;

/// How many locks are looked into by one call that lists them: whether a lock's node has entries takes a
/// request for each. The servers remove an empty node within a minute or two.
const LOOKS: usize = 4_000;

/// How many nodes are read at once.
const AT_ONCE: usize = 64;

/// ZooKeeper, as [`OrderedStore`](tenure_ordered::OrderedStore) uses it.
pub struct ZooKeeperEngine {
    pub(crate) config: ZooKeeperConfig,
    pub(crate) layout: Arc<Layout>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) limits: Limits,
    pub(crate) background: Background,
    /// Locks whose own node was there, and could be listed, when it was last used.
    pub(crate) parent_cache: Mutex<HashSet<String>>,
    /// How many locks were looked into to list those in use, where there were too many for one call.
    looked: AtomicUsize,
}

#[async_trait]
impl Engine for ZooKeeperEngine {
    type Config = ZooKeeperConfig;
    type Session = ZooKeeperSession;
    type Key = Key;

    async fn connect(config: ZooKeeperConfig, background: &Background) -> Result<Self> {
        let layout = Arc::new(Layout::new(&config)?);
        let sessions = Sessions::connect(&config, &layout, background).await?;
        Ok(Self {
            config,
            layout,
            sessions,
            limits: Limits::default(),
            background: background.clone(),
            parent_cache: Mutex::default(),
            looked: AtomicUsize::default(),
        })
    }

    fn fencing(&self) -> Fencing {
        let fault = "ZooKeeper's data is wiped, or restored from an older snapshot";
        Fencing::Until { fault }
    }

    fn longest_ttl(&self) -> Option<Duration> {
        self.sessions.longest_ttl()
    }

    async fn session(&self, ttl: Duration) -> Result<Arc<ZooKeeperSession>> {
        let session = self.sessions.get(ACQUIRE, ttl).await?;
        if !session.is_prepared() || now().since(session.confirmed()) > ttl / 4 {
            let prepared = Arc::clone(&session);
            let prepare = async move { prepared.confirm(now(), None).await.map(drop) };
            self.run(ACQUIRE, prepare).await?;
        }
        Ok(session)
    }

    async fn confirm(&self, session: &Arc<ZooKeeperSession>, began: Moment) -> Result<bool> {
        let seen = self.confirm_and_look(RENEW, session, began, None).await?;
        Ok(seen.is_some())
    }

    async fn enter(
        &self,
        session: &Arc<ZooKeeperSession>,
        claim: &Claim,
        record: Vec<u8>,
        look: bool,
    ) -> Result<Entered<Key>> {
        let lock = self.layout.lock(&claim.name);
        for round in 0..ROUNDS {
            let entered = self.try_enter(session, claim, &lock, &record, look, round > 0).await?;
            if let Some(entered) = entered {
                return Ok(entered);
            }
        }
        let why = format!("{lock} or the session's fence was deleted at every try: try again");
        Err(Error::new(ErrorKind::Unreachable, ACQUIRE, why))
    }

    async fn fence_writes(&self, session: &Arc<ZooKeeperSession>, began: Moment) -> Result<bool> {
        let fenced = Arc::clone(session);
        let outcome = self.run(ACQUIRE, async move { fenced.move_fence(began).await }).await;
        if session.is_over() { Ok(false) } else { outcome.map(|()| true) }
    }

    async fn find(
        &self,
        session: &Arc<ZooKeeperSession>,
        claim: &Claim,
    ) -> Result<Option<(Entry<Key>, Token)>> {
        let lock = self.layout.lock(&claim.name);
        let queue = self.list_lock(Arc::clone(session), lock.clone()).await;
        let queue = queue.map_err(|error| fault(ACQUIRE, error))?;
        let own = queue.entries.into_iter().filter(|entry| entry.owner == Some(claim.owner));
        for entry in own {
            let seen = session.wire.send(Exists::new(format!("{lock}/{}", entry.key[0]))).await;
            let stat = seen.map_err(|error| fault(ACQUIRE, error))?;
            // An earlier session of the same claim may have left one behind.
            if let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == session.id()) {
                return Ok(token(&stat).map(|token| (entry, token)));
            }
        }
        Ok(None)
    }

    async fn is_free(&self, name: &LockName) -> Result<Option<bool>> {
        let lock = self.layout.lock(name);
        let look = |session: Arc<ZooKeeperSession>| {
            let synced = session.wire.send(Sync { path: lock.clone() });
            let seen = session.wire.send(Exists::new(lock.as_str()));
            async move { synced.await.and(seen.await) }
        };
        let stat = self.with_any_session(ACQUIRE, look).await?;
        // Other children may belong to no queue.
        Ok(stat.is_none_or(|stat| stat.num_children == 0).then_some(true))
    }

    async fn list(&self, name: &LockName) -> Result<Listing<Key>> {
        let lock = self.layout.lock(name);
        let list = |session| self.list_lock(session, lock.clone());
        self.with_any_session(WAIT, list).await
    }

    async fn watch_queue(
        &self,
        name: &LockName,
    ) -> Result<(Listing<Key>, BoxFuture<'static, Result<()>>)> {
        let failed = |error| fault(WAIT, error);
        let (session, seen) = (self.sessions.any(WAIT).await?, self.sessions.seen());
        let lock = self.layout.lock(name);
        let synced = session.wire.send(Sync { path: lock.clone() });
        let watched = session.wire.send_watched(GetChildren::new(lock)).await;
        let zxid = synced.zxid().await.map_err(failed)?;
        up_to_date(zxid, seen).map_err(failed)?;
        let Some(((children, stat), watch)) = if_there(watched).map_err(failed)? else {
            // The queue is empty, so none of its entries will be removed.
            return Ok((empty_listing(zxid), Box::pin(std::future::pending())));
        };
        let event = changed(WAIT, session, watch);
        Ok((listing(children, &stat), Box::pin(async move { event.await.map(drop) })))
    }

    async fn watch(
        &self,
        name: &LockName,
        entry: &Entry<Key>,
        _: Watching,
    ) -> Result<Option<BoxFuture<'static, Result<Change>>>> {
        let failed = |error| fault(WAIT, error);
        let (session, seen) = (self.sessions.any(WAIT).await?, self.sessions.seen());
        let (lock, node) = (self.layout.lock(name), entry.key[0].clone());
        let since = lock_created(entry.order);
        let path = format!("{lock}/{node}");
        let watched = watch_synced(&session, &path, since, seen).await.map_err(failed)?;
        if !is_curator_writer(&node) {
            return Ok(watched);
        }
        let Some(changed) = watched else {
            let reader = find_reader(&session, &lock, &node, seen).await.map_err(failed)?;
            let Some(reader) = reader else { return Ok(None) };
            let path = format!("{lock}/{reader}");
            return watch_synced(&session, &path, since, seen).await.map_err(failed);
        };
        Ok(Some(Box::pin(async move {
            let change = changed.await?;
            if change != Change::Removed {
                return Ok(change);
            }
            let reader = find_reader(&session, &lock, &node, seen).await;
            let reader = reader.map_err(|error| fault(WAIT, error))?;
            Ok(if reader.is_some() { Change::Replaced } else { Change::Removed })
        })))
    }

    async fn remove(&self, name: &LockName, entry: &Entry<Key>) -> Result<bool> {
        let (lock, paths) = (self.layout.lock(name), self.paths(name, entry));
        // If a downgrade had no effect, the nodes that it would have replaced are there.
        let replaced = entry.key[1..].iter().filter_map(|node| replaced_by(node, &entry.key[0]));
        let replaced: Vec<String> = replaced.map(|node| format!("{lock}/{node}")).collect();
        let remove = |session: Arc<ZooKeeperSession>| {
            let (lock, paths) = (lock.as_str(), paths.as_slice());
            let replaced = replaced.as_slice();
            async move {
                let removed = delete(&session, paths, replaced).await;
                self.renew_numbers(&session, lock, entry);
                removed
            }
        };
        match self.ask_twice(RELEASE, remove).await? {
            // The first request may have removed it.
            (false, Some(unanswered)) => Err(fault(RELEASE, unanswered)),
            (removed, _) => Ok(removed),
        }
    }

    async fn renew(
        &self,
        session: &Arc<ZooKeeperSession>,
        name: &LockName,
        entry: &Entry<Key>,
        record: Option<Vec<u8>>,
    ) -> Result<bool> {
        let path = self.path(name, entry);
        let stat = match record {
            None => {
                let look = Some(Exists::new(path));
                self.confirm_and_look(RENEW, session, now(), look).await?.flatten()
            }
            Some(data) => match self.set(session, path, data).await {
                Err(_) if session.is_over() => None,
                stat => stat.map_err(|error| fault(RENEW, error))?,
            },
        };
        Ok(stat.is_some_and(|stat| stat.ephemeral_owner == session.id()))
    }

    fn as_reader(&self, entry: &Entry<Key>) -> Entry<Key> {
        if entry.mode == Mode::Shared {
            return entry.clone();
        }
        Entry { mode: Mode::Shared, key: reader_nodes(&entry.key).into(), ..entry.clone() }
    }

    async fn downgrade(
        &self,
        session: &Arc<ZooKeeperSession>,
        name: &LockName,
        entry: &Entry<Key>,
        record: Vec<u8>,
    ) -> Result<bool> {
        let failed = |error| fault(DOWNGRADE, error);
        let (lock, first) = (self.layout.lock(name), &entry.key[0]);
        let path = |node: &str| format!("{lock}/{node}");
        let set = SetData { path: path(first), data: record.clone(), version: None };
        let mut ops = vec![Op::SetData(set)];
        ops.extend(entry.key[1..].iter().map(|node| {
            Op::Create(self.layout.create(&path(node), &record, CreateMode::Ephemeral))
        }));
        let replaced = entry.key[1..].iter().filter_map(|node| replaced_by(node, first));
        ops.extend(replaced.map(|node| Op::Delete(Delete { path: path(&node), version: None })));
        session.wire.ready().await.map_err(failed)?;
        let sent = now();
        let outcome = session.wire.send(Multi { ops }).await;
        match outcome {
            Err(_) if session.is_over() => Ok(false),
            Err(error) => Err(failed(error)),
            Ok(Ok(_)) => {
                session.confirmed_at(sent);
                Ok(true)
            }
            // The writer's node is not there.
            Ok(Err(FailedOp { index: 0, code: Code::NoNode })) => Ok(false),
            // The writer's node is there, and so are the reader's: an earlier call has had its effect.
            Ok(Err(FailedOp { code: Code::NodeExists, .. })) => Ok(true),
            Ok(Err(FailedOp { code, .. })) => Err(failed(Fault::Refused(code))),
        }
    }

    async fn write(&self, name: &LockName, entry: &Entry<Key>, record: Vec<u8>) -> Result<()> {
        let session = self.sessions.any(ACQUIRE).await?;
        let written = self.set(&session, self.path(name, entry), record).await;
        written.map(drop).map_err(|error| fault(ACQUIRE, error))
    }

    async fn open_loss_channel(
        &self,
        session: &Arc<ZooKeeperSession>,
    ) -> Result<Option<(Vec<u8>, BoxFuture<'static, Result<Change>>)>> {
        let failed = |error| fault(HEAR, error);
        let channel = session.loss_channel();
        for _ in 0..ROUNDS {
            session.wire.ready().await.map_err(failed)?;
            match session.wire.send_watched(GetData::new(channel.as_str())).await {
                Ok(((content, _), watch)) => {
                    return Ok(Some((content, changed(HEAR, Arc::clone(session), watch))));
                }
                Err(_) if session.is_over() => return Ok(None),
                Err(Fault::Refused(Code::NoNode)) => {
                    session.make_folder(self.layout.folder()).await.map_err(failed)?;
                    match session.wire.send(session.create_loss_channel()).await {
                        Ok(_) | Err(Fault::Refused(Code::NodeExists)) => {}
                        Err(error) => return Err(failed(error)),
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let why = format!("{channel} was deleted at every try: try again");
        Err(Error::new(ErrorKind::Unreachable, HEAR, why))
    }

    async fn evict(&self, eviction: &Eviction, entry: &Entry<Key>, held: bool) -> Result<bool> {
        let session = self.sessions.any(EVICT).await?;
        let outcome = self.try_evict(&session, eviction, entry, held).await;
        if held {
            self.forget_old_records(&session, &eviction.name);
        }
        match outcome {
            Err(Fault::Refused(Code::NoNode | Code::BadVersion | Code::NodeExists)) => Ok(false),
            outcome => outcome.map(|()| true).map_err(|error| fault(EVICT, error)),
        }
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<u8>> {
        let data = self.latest(READ_AUDIT, &self.layout.audit(name)).await;
        Ok(data.map_err(|error| error.about(name))?.map(|(data, _)| data).unwrap_or_default())
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<bool> {
        let session = self.sessions.any(WRITE_AUDIT).await?;
        let outcome = self.try_record(&session, name, record).await;
        self.forget_old_records(&session, name);
        match outcome {
            Err(Fault::Refused(Code::NoNode | Code::BadVersion | Code::NodeExists)) => Ok(false),
            outcome => {
                let failed = |error| fault(WRITE_AUDIT, error).about(name);
                outcome.map(|()| true).map_err(failed)
            }
        }
    }

    async fn details(
        &self,
        name: &LockName,
        entries: &[Entry<Key>],
        _: usize,
    ) -> Result<Vec<Option<Details>>> {
        let session = self.sessions.any(INSPECT).await?;
        let paths: Vec<String> = entries.iter().map(|entry| self.path(name, entry)).collect();
        let read = |path: String| {
            let session = Arc::clone(&session);
            async move { read_synced(&session, path).await.map_err(|error| fault(INSPECT, error)) }
        };
        let read: Vec<_> = stream::iter(paths).map(read).buffered(AT_ONCE).collect().await;
        read.into_iter().collect()
    }

    async fn names(&self, prefix: &str) -> Result<Vec<LockName>> {
        let session = self.sessions.any(LIST).await?;
        let folder = self.layout.folder();
        let (children, _) = children(&session, folder).await.map_err(|error| fault(LIST, error))?;
        let children = children.map(|(names, _)| names).unwrap_or_default();
        let locks = children.iter().filter_map(|child| self.layout.lock_of(child));
        let mut asked: Vec<LockName> =
            locks.filter(|name| name.as_str().starts_with(prefix)).collect();
        asked.sort();
        let unseen = self.beyond_turn(&mut asked);
        let look = |name: LockName| {
            let (session, lock) = (Arc::clone(&session), self.layout.lock(&name));
            async move {
                let listed = if_there(session.wire.send(GetChildren::new(lock)).await)?;
                let queue = listed.map(|(children, stat)| listing(children, &stat));
                // A node stays for a while after its last child.
                Ok(queue.filter(|queue| !queue.entries.is_empty()).map(|_| name))
            }
        };
        let mut looks = stream::iter(asked).map(look).buffer_unordered(AT_ONCE);
        let (mut names, mut refused, mut all) = (Vec::new(), None, true);
        while let Some(seen) = looks.next().await {
            match seen {
                // An unreadable node of another user must not hide tenure's locks.
                Err(error @ Fault::Refused(Code::NoAuth)) => refused = Some(error),
                seen => {
                    names.extend(seen.map_err(|error| fault(LIST, error))?);
                    all = false;
                }
            }
        }
        if let Some(error) = refused.filter(|_| all) {
            return Err(fault(LIST, error));
        }
        names.extend(unseen);
        names.sort();
        Ok(names)
    }

    fn foreign_owner(&self, _: &LockName, key: &Key) -> String {
        key.concat()
    }

    fn fence(&self, name: &LockName, entry: &Entry<Key>) -> Option<Fence> {
        Some(Fence::Exists { path: self.path(name, entry) })
    }

    fn cells(&self) -> Result<&dyn Cells> {
        Ok(self)
    }

    async fn diagnose(&self, store: &dyn Store) -> Result<Vec<Finding>> {
        diagnose(store, self).await
    }

    async fn end_unused_sessions(&self) {
        self.sessions.close_unused().await;
    }
}

impl ZooKeeperEngine {
    /// Has the session confirmed, and looks at a node. `None`: the session is over.
    async fn confirm_and_look(
        &self,
        operation: &'static str,
        session: &Arc<ZooKeeperSession>,
        began: Moment,
        look: Option<Exists>,
    ) -> Result<Option<Option<Stat>>> {
        let confirmed = Arc::clone(session);
        let confirm = async move { confirmed.confirm(began, look).await };
        let outcome = self.run(operation, confirm).await;
        if session.is_over() { Ok(None) } else { outcome.map(Some) }
    }

    /// Runs work that other calls may wait for in the background: it goes on although its caller may not
    /// be polled.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T> {
        let work = async move { work.await.map_err(|error| fault(operation, error)) };
        self.background.run(operation, work).await
    }

    /// Makes a call that may be made twice on any session. If its connection turns out to have ended,
    /// it is made once more on the next one: after a pause of the process, all of them have.
    pub(crate) async fn with_any_session<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        operation: &'static str,
        call: impl Fn(Arc<ZooKeeperSession>) -> F,
    ) -> Result<T> {
        self.ask_twice(operation, call).await.map(|(answer, _)| answer)
    }

    /// As [`with_any_session`](Self::with_any_session). Also returns why the first call had no answer, if
    /// it may have been carried out.
    async fn ask_twice<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        operation: &'static str,
        call: impl Fn(Arc<ZooKeeperSession>) -> F,
    ) -> Result<(T, Option<Fault>)> {
        let first = call(self.sessions.any(operation).await?).await;
        let (outcome, unanswered) = match first {
            Err(error @ (Fault::Broken(_) | Fault::NotConnected | Fault::Over)) => {
                let second = call(self.sessions.any(operation).await?).await;
                (second, Some(error).filter(|error| !error.had_no_effect()))
            }
            outcome => (outcome, None),
        };
        outcome.map(|answer| (answer, unanswered)).map_err(|error| fault(operation, error))
    }

    /// Replaces a node's data. `None`: it is not there.
    async fn set(
        &self,
        session: &ZooKeeperSession,
        path: String,
        data: Vec<u8>,
    ) -> Result<Option<Stat>, Fault> {
        session.wire.ready().await?;
        let sent = now();
        match session.wire.send(SetData { path, data, version: None }).await {
            Ok(stat) => {
                session.confirmed_at(sent);
                Ok(Some(stat))
            }
            Err(Fault::Refused(Code::NoNode)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the node of a lock after its last entry was removed, if many of its numbers are used. An
    /// entry that is added at the same moment creates it again.
    fn renew_numbers(&self, session: &ZooKeeperSession, lock: &str, left: &Entry<Key>) {
        let high = left.key.iter().filter_map(|node| number(node)).max();
        // kazoo would not create it again.
        if high.is_some_and(|high| high > self.limits.renew) && !self.config.compat.kazoo {
            self.parent_cache.lock().remove(lock);
            // The servers refuse this if there are other entries.
            drop(session.wire.send(Delete { path: lock.into(), version: None }));
        }
    }

    /// Leaves those of the locks whose turn it is to be looked into, and returns the others.
    fn beyond_turn(&self, locks: &mut Vec<LockName>) -> Vec<LockName> {
        if locks.len() <= LOOKS {
            return Vec::new();
        }
        let turn = self.looked.fetch_add(LOOKS, Ordering::Relaxed) % locks.len();
        locks.rotate_left(turn);
        locks.split_off(LOOKS)
    }

    /// The path of the node that is watched.
    pub(crate) fn path(&self, name: &LockName, entry: &Entry<Key>) -> String {
        format!("{}/{}", self.layout.lock(name), entry.key[0])
    }

    pub(crate) fn paths(&self, name: &LockName, entry: &Entry<Key>) -> Vec<String> {
        let lock = self.layout.lock(name);
        entry.key.iter().map(|node| format!("{lock}/{node}")).collect()
    }
}

impl fmt::Debug for ZooKeeperEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperEngine").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The transaction that created the node: they are numbered for the whole of ZooKeeper.
pub(crate) fn token(stat: &Stat) -> Option<Token> {
    u64::try_from(stat.czxid).ok().map(Token::new)
}

/// Deletes the nodes of one entry, together; and if not all of them are there, `others` too. False: they
/// were gone.
pub(crate) async fn delete(
    session: &ZooKeeperSession,
    paths: &[String],
    others: &[String],
) -> Result<bool, Fault> {
    let delete = |path: &String| Delete { path: path.clone(), version: None };
    if let [path] = paths {
        return if_there(session.wire.send(delete(path)).await).map(|deleted| deleted.is_some());
    }
    let ops = paths.iter().map(|path| Op::Delete(delete(path))).collect();
    match session.wire.send(Multi { ops }).await? {
        Ok(_) => return Ok(true),
        Err(FailedOp { code: Code::NoNode, .. }) => {}
        Err(FailedOp { code, .. }) => return Err(Fault::Refused(code)),
    }
    // One of the nodes is gone: the others must go all the same.
    let left = paths.iter().chain(others);
    let calls: Vec<_> = left.map(|path| session.wire.send(delete(path))).collect();
    let mut any = false;
    for call in calls {
        any |= if_there(call.await)?.is_some();
    }
    Ok(any)
}
