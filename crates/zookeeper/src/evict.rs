//! Eviction, and the audit record of a lock: each is one transaction.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::store::{AUDIT_KEPT, Eviction};
use tenure_core::{AuditRecord, LockName, Mode};
use tenure_ordered::{Entry, with_loss};

use crate::engine::{ZooKeeperEngine, token};
use crate::keys::parent;
use crate::names::{Key, reader_nodes};
use crate::reads::if_there;
use crate::session::ZooKeeperSession;
use crate::wire::{
    Code, CreateMode, Delete, Exists, Fault, GetChildren, GetData, Multi, Op, SetData, Stat,
};

impl ZooKeeperEngine {
    /// Deletes the nodes of an entry, and writes to the audit record and the session's loss channel, all or
    /// nothing.
    ///
    /// The entry may be downgraded after it was listed, which adds nodes to it and writes to the first one.
    /// So the first one's version is read, then those nodes are looked for, and the version is compared.
    pub(crate) async fn try_evict(
        &self,
        session: &ZooKeeperSession,
        eviction: &Eviction,
        entry: &Entry<Key>,
        held: bool,
    ) -> Result<(), Fault> {
        let name = &eviction.name;
        let seen = session.wire.send(Exists::new(self.path(name, entry))).await?;
        let stat = seen.ok_or(Fault::Refused(Code::NoNode))?;
        if entry.mode == Mode::Exclusive && entry.owner.is_some() {
            let lock = self.layout.lock(name);
            let added = reader_nodes(&entry.key).into_iter().filter(|it| !entry.key.contains(it));
            let added = added.map(|node| session.wire.send(Exists::new(format!("{lock}/{node}"))));
            for added in added.collect::<Vec<_>>() {
                if added.await?.is_some() {
                    return Err(Fault::Refused(Code::BadVersion));
                }
            }
        }
        let channel = self.layout.loss_channel(stat.ephemeral_owner);
        let audit = self.layout.audit(name);
        let told = session.wire.send(GetData::new(channel.as_str()));
        let recorded = held.then(|| session.wire.send(GetData::new(audit.as_str())));
        let paths = self.paths(name, entry).into_iter();
        let version = |place: usize| (place == 0).then_some(stat.version);
        let delete = |(place, path)| Op::Delete(Delete { path, version: version(place) });
        let mut ops: Vec<Op> = paths.enumerate().map(delete).collect();
        // A session of another client has no loss channel.
        if let Some((content, known)) = if_there(told.await)? {
            let data = with_loss(&content, &eviction.owner, token(&stat));
            ops.push(Op::SetData(SetData { path: channel, data, version: Some(known.version) }));
        }
        if let Some(recorded) = recorded {
            let record = eviction.clone().with_token(token(&stat)).record();
            let older = if_there(recorded.await)?;
            ops.push(self.recording(session, audit, older, &record).await?);
        }
        let done = session.wire.send(Multi { ops }).await?;
        done.map(drop).map_err(|failed| Fault::Refused(failed.code))
    }

    pub(crate) async fn try_record(
        &self,
        session: &ZooKeeperSession,
        name: &LockName,
        record: &AuditRecord,
    ) -> Result<(), Fault> {
        let audit = self.layout.audit(name);
        let older = if_there(session.wire.send(GetData::new(audit.as_str())).await)?;
        let op = self.recording(session, audit, older, record).await?;
        let done = session.wire.send(Multi { ops: vec![op] }).await?;
        done.map(drop).map_err(|failed| Fault::Refused(failed.code))
    }

    /// Deletes records that are old, in the background, after one of this lock was written: ZooKeeper does not
    /// end a node at a time. If it fails, the next record that is written deletes them.
    pub(crate) fn forget_old_records(&self, session: &Arc<ZooKeeperSession>, written: &LockName) {
        let (session, audit) = (Arc::clone(session), self.layout.audit(written));
        drop(self.background.runtime().spawn(async move {
            if let Err(error) = delete_old_records(&session, &audit, AUDIT_KEPT).await {
                tracing::debug!(%error, "old audit records stay for now");
            }
        }));
    }

    /// The write that adds a record to the older ones of a lock, if these are still as they were read.
    async fn recording(
        &self,
        session: &ZooKeeperSession,
        path: String,
        older: Option<(Vec<u8>, Stat)>,
        record: &AuditRecord,
    ) -> Result<Op, Fault> {
        Ok(match older {
            Some((older, known)) => {
                let data = record.before(&older);
                Op::SetData(SetData { path, data, version: Some(known.version) })
            }
            None => {
                session.make_folder(parent(&path)).await?;
                let data = record.before(b"");
                Op::Create(self.layout.create(&path, &data, CreateMode::Persistent))
            }
        })
    }
}

/// How many records are looked at when one was written. One in this many is new at the most, so old ones do not
/// pile up.
const OTHERS: usize = 16;

/// Deletes some of the records beside the one at `audit` that were not written to for longer than `kept`, by
/// the servers' clock as of the last write to `audit`.
pub(crate) async fn delete_old_records(
    session: &ZooKeeperSession,
    audit: &str,
    kept: Duration,
) -> Result<(), Fault> {
    let folder = parent(audit);
    let written = session.wire.send(Exists::new(audit));
    let listed = session.wire.send(GetChildren::new(folder)).await;
    let (Some(written), Some((mut others, _))) = (written.await?, if_there(listed)?) else {
        return Ok(());
    };
    let kept = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
    let is_old = |stat: &Stat| written.mtime.saturating_sub(stat.mtime) > kept;
    // The number of the transaction, which differs each time, chooses which.
    let first = usize::try_from(written.mzxid.unsigned_abs()).unwrap_or_default();
    let length = others.len().max(1);
    others.rotate_left(first % length);
    others.truncate(OTHERS);
    let paths: Vec<String> = others.iter().map(|other| format!("{folder}/{other}")).collect();
    let looks = paths.iter().map(|path| session.wire.send(Exists::new(path.as_str())));
    let seen = join_all(looks.collect::<Vec<_>>()).await;
    let delete = |(path, seen): (String, Result<Option<Stat>, Fault>)| {
        let stat = seen.ok().flatten().filter(is_old)?;
        // Unless it is written to meanwhile.
        Some(session.wire.send(Delete { path, version: Some(stat.version) }))
    };
    let deleted: Vec<_> = paths.into_iter().zip(seen).filter_map(delete).collect();
    for deleted in deleted {
        match deleted.await {
            Ok(()) | Err(Fault::Refused(Code::NoNode | Code::BadVersion)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
