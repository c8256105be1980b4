//! Reads that are as recent as the leader's state, and watches that are set with them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_core::Result;
use tenure_ordered::{Change, Details, Listing};
use tokio::time::Instant;

use crate::engine::{WAIT, ZooKeeperEngine, token};
use crate::fault::fault;
use crate::names::{Key, listing, order_before, reader_in_place_of};
use crate::session::ZooKeeperSession;
use crate::wire::{Code, Event, Exists, Fault, GetChildren, GetData, Stat, Sync, Watch};

/// The pause between two listings behind an entry that may not be read.
const RELIST: Duration = Duration::from_secs(1);

impl ZooKeeperEngine {
    /// The queue of a lock, at least as the leader knew it when this was called, and as any session of
    /// this client has seen it.
    pub(crate) async fn list_lock(
        &self,
        session: Arc<ZooKeeperSession>,
        lock: String,
    ) -> Result<Listing<Key>, Fault> {
        let seen = self.sessions.seen();
        let (listed, zxid) = children(&session, &lock).await?;
        up_to_date(zxid, seen)?;
        Ok(match listed {
            Some((children, stat)) => listing(children, &stat),
            None => empty_listing(zxid),
        })
    }
}

pub(crate) fn if_there<T>(read: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match read {
        Err(Fault::Refused(Code::NoNode)) => Ok(None),
        read => read.map(Some),
    }
}

/// The queue of a lock whose node is not there. Earlier entries are gone, and later entries belong to a
/// later node, so an empty listing up to `zxid` is complete.
pub(crate) fn empty_listing(zxid: i64) -> Listing<Key> {
    Listing { entries: Vec::new(), covers: order_before(zxid) }
}

/// The children of a node and its own state, at least as the leader knew them when this was called;
/// and a transaction that the server had seen by then.
pub(crate) async fn children(
    session: &ZooKeeperSession,
    path: &str,
) -> Result<(Option<(Vec<String>, Stat)>, i64), Fault> {
    let synced = session.wire.send(Sync { path: path.into() });
    let listed = session.wire.send(GetChildren::new(path));
    let zxid = synced.zxid().await?;
    Ok((if_there(listed.await)?, zxid))
}

/// Fails if a server that knows the transaction `zxid` is behind one that knew `seen`.
pub(crate) const fn up_to_date(zxid: i64, seen: i64) -> Result<(), Fault> {
    if zxid < seen { Err(Fault::Behind) } else { Ok(()) }
}

/// A change of a node that is watched, to be awaited.
pub(crate) type NextChange = BoxFuture<'static, Result<Change>>;

/// Watches a node. `None`: it is not there, and the leader agrees.
pub(crate) async fn watch_synced(
    session: &Arc<ZooKeeperSession>,
    path: &str,
    since: i64,
    seen: i64,
) -> Result<Option<NextChange>, Fault> {
    match watch(session, path, since).await {
        // This session's server may not have heard of the node yet.
        Ok(None) => {
            let synced = session.wire.send(Sync { path: path.into() });
            let watched = watch(session, path, since).await;
            up_to_date(synced.zxid().await?, seen)?;
            watched
        }
        watched => watched,
    }
}

/// The node of the reader that has the place of a Curator writer, whose own node is gone.
pub(crate) async fn find_reader(
    session: &ZooKeeperSession,
    lock: &str,
    writer: &str,
    seen: i64,
) -> Result<Option<String>, Fault> {
    let (listed, zxid) = children(session, lock).await?;
    up_to_date(zxid, seen)?;
    let reader = listed.as_ref().and_then(|(children, _)| reader_in_place_of(writer, children));
    Ok(reader.map(str::to_owned))
}

/// Watches a node that was created after the transaction `since`. `None`: it is not there.
///
/// Numbers begin anew with the lock's node, so a server that lags behind may still have a node of the
/// same claim and number from an earlier queue, and will report its removal.
async fn watch(
    session: &Arc<ZooKeeperSession>,
    path: &str,
    since: i64,
) -> Result<Option<NextChange>, Fault> {
    match session.wire.send_watched(GetData::new(path)).await {
        Ok(((_, stat), watch)) => {
            Ok((stat.czxid > since).then(|| changed(WAIT, Arc::clone(session), watch)))
        }
        Err(Fault::Refused(Code::NoNode)) => Ok(None),
        // Servers do not report the deletion of a node that may not be read, but they report changes of
        // its parent's children.
        Err(Fault::Refused(Code::NoAuth)) => {
            let (lock, node) = path.rsplit_once('/').unwrap_or_default();
            let listed = Instant::now();
            let ((children, _), watch) = session.wire.send_watched(GetChildren::new(lock)).await?;
            let there = children.iter().any(|child| child == node);
            let next = || changed_or_gone(Arc::clone(session), path.to_owned(), watch, listed);
            Ok(there.then(|| next().boxed()))
        }
        Err(error) => Err(error),
    }
}

/// Resolves when a node that may not be read is gone, or may have changed: its parent's children have. Each
/// arrival in the queue changes them, and to watch them again is to list them. So this resolves at most once
/// in [`RELIST`] after `listed`, unless the node is gone.
async fn changed_or_gone(
    session: Arc<ZooKeeperSession>,
    path: String,
    watch: Watch,
    listed: Instant,
) -> Result<Change> {
    let change = changed(WAIT, Arc::clone(&session), watch).await?;
    let seen = session.wire.send(Exists::new(path)).await;
    if change == Change::Removed || matches!(seen, Ok(None)) {
        return Ok(Change::Removed);
    }
    tokio::time::sleep_until(listed + RELIST).await;
    Ok(change)
}

/// Resolves with what happens to a watched node. The session is kept as long.
pub(crate) fn changed(
    operation: &'static str,
    session: Arc<ZooKeeperSession>,
    watch: Watch,
) -> BoxFuture<'static, Result<Change>> {
    Box::pin(async move {
        let event = watch.await;
        drop(session);
        match event {
            Event::Deleted => Ok(Change::Removed),
            Event::Created | Event::DataChanged | Event::ChildrenChanged => Ok(Change::Written),
            Event::SessionOver => Err(fault(operation, Fault::Over)),
        }
    })
}

/// What an entry's first node says; `None` if it is gone, and the leader agrees: the session's server may not
/// have heard of the node yet.
pub(crate) async fn read_synced(
    session: &ZooKeeperSession,
    path: String,
) -> Result<Option<Details>, Fault> {
    let found = read(session, path.clone()).await?;
    if found.is_some() {
        return Ok(found);
    }
    let synced = session.wire.send(Sync { path: path.clone() });
    let found = read(session, path).await?;
    synced.await?;
    Ok(found)
}

async fn read(session: &ZooKeeperSession, path: String) -> Result<Option<Details>, Fault> {
    let details = |record, stat: &Stat| Details { record, token: token(stat), time_left: None };
    match session.wire.send(GetData::new(path.as_str())).await {
        Ok((record, stat)) => Ok(Some(details(record, &stat))),
        Err(Fault::Refused(Code::NoNode)) => Ok(None),
        // The user may not read the node. The node's name carries mode and owner, and `exists` needs no
        // read permission.
        Err(Fault::Refused(Code::NoAuth)) => {
            let stat = session.wire.send(Exists::new(path)).await?;
            Ok(stat.map(|stat| details(Vec::new(), &stat)))
        }
        Err(error) => Err(error),
    }
}
