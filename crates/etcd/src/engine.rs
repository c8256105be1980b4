//! etcd as an engine of ordered entries: each call of [`Engine`] as a transaction, a read or a watch.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use tenure_core::store::{Background, Cells, Claim, Eviction, Fencing, Moment, Store, now};
use tenure_core::{AuditRecord, Error, ErrorKind, Fence, Finding, LockName, Mode, Result, Token};
use tenure_ordered::{
    Change, Details, Engine, Entered, Entry, Listing, OrderedStore, Session, Watching,
};

use crate::config::EtcdConfig;
use crate::diagnose;
use crate::endpoints::{Endpoints, IfUnanswered};
use crate::entry::{EntryKey, delete_entry, entry, listing, may_be_marked, token};
use crate::fault::is_lease_gone;
use crate::keys::{Keys, Queue, mark_of};
use crate::lease::{Lease, Leases};
use crate::rpc::{KeyValue, RangeRequest, TxnRequest};
use crate::txn::{created_at, delete, get, look, names_of, oldest_names_of, put, written_at};
use crate::watch::Watches;

/// Locks on etcd.
pub type EtcdStore = OrderedStore<EtcdEngine>;

/// etcd as an [`Engine`].
pub struct EtcdEngine {
    pub(crate) config: EtcdConfig,
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) keys: Keys,
    leases: Arc<Leases>,
    pub(crate) watches: Watches,
    pub(crate) background: Background,
}

/// How many keys of a queue an arrival reads. Longer queues are listed by one task for all waiters.
const GLANCE: i64 = 16;

/// How often an arrival is tried again when the write fence was moved meanwhile.
const ROUNDS: usize = 5;

/// How many keys are read one by one, in one transaction: etcd allows 128 by default.
const FEW: usize = 64;

/// How many keys are listed, and how many leases are asked for, at once.
const PAGE: i64 = 2_000;
const AT_ONCE: usize = 32;

#[async_trait]
impl Engine for EtcdEngine {
    type Config = EtcdConfig;
    type Session = Lease;
    type Key = EntryKey;

    async fn connect(config: EtcdConfig, background: &Background) -> Result<Self> {
        let keys = Keys::new(&config.prefix);
        let (probe, _) = keys.all("");
        let endpoints = Endpoints::connect(&config, probe, background).await?;
        let background = background.clone();
        Ok(Self {
            leases: Leases::new(Arc::clone(&endpoints), keys.clone(), background.clone()),
            watches: Watches::new(Arc::clone(&endpoints), background.clone()),
            endpoints,
            keys,
            config,
            background,
        })
    }

    fn fencing(&self) -> Fencing {
        let fault = "etcd is restored from an older snapshot without raising its revision";
        Fencing::Until { fault }
    }

    async fn session(&self, ttl: Duration) -> Result<Arc<Lease>> {
        self.leases.get(ttl).await
    }

    async fn confirm(&self, lease: &Arc<Lease>, _: Moment) -> Result<bool> {
        let (leases, lease) = (Arc::clone(&self.leases), Arc::clone(lease));
        let confirm = async move { leases.confirm(RENEW, &lease).await };
        self.background.run(RENEW, confirm).await
    }

    async fn enter(
        &self,
        lease: &Arc<Lease>,
        claim: &Claim,
        record: Vec<u8>,
        look: bool,
    ) -> Result<Entered<EntryKey>> {
        let queue = self.keys.queue(&claim.name);
        let key = self.keys.entry(claim);
        for _ in 0..ROUNDS {
            if let Some(entered) =
                self.try_to_enter(lease, claim, &queue, &key, &record, look).await?
            {
                return Ok(entered);
            }
        }
        let why = "the session changed each time it was read: try again";
        Err(Error::new(ErrorKind::Unreachable, ACQUIRE, why))
    }

    async fn fence_writes(&self, lease: &Arc<Lease>, began: Moment) -> Result<bool> {
        let (leases, lease) = (Arc::clone(&self.leases), Arc::clone(lease));
        let fence = async move { leases.fence_writes(&lease, began).await };
        self.background.run(ACQUIRE, fence).await
    }

    async fn find(
        &self,
        lease: &Arc<Lease>,
        claim: &Claim,
    ) -> Result<Option<(Entry<EntryKey>, Token)>> {
        let found = self.endpoints.get(ACQUIRE, &self.keys.entry(claim)).await?;
        let own = found.filter(|kv| kv.lease == lease.id());
        let queue = self.keys.queue(&claim.name);
        Ok(own.map(|kv| (entry(&queue, &kv), token(kv.create_revision))))
    }

    async fn is_free(&self, name: &LockName) -> Result<Option<bool>> {
        let queue = self.keys.queue(name);
        let request = RangeRequest { limit: 1, ..names_of(&queue) };
        let (found, _) = self.endpoints.range(ACQUIRE, request).await?;
        // A mark may remain after its key was deleted by hand, so only the other keys count.
        let marked = found.kvs.iter().any(|kv| queue.is_mark(&kv.key));
        Ok((!marked).then_some(found.kvs.is_empty()))
    }

    async fn list(&self, name: &LockName) -> Result<Listing<EntryKey>> {
        let queue = self.keys.queue(name);
        let (found, revision) = self.endpoints.range(LIST, names_of(&queue)).await?;
        Ok(listing(&queue, &found.kvs, revision))
    }

    async fn first(&self, name: &LockName, limit: usize) -> Result<(Vec<Entry<EntryKey>>, bool)> {
        let queue = self.keys.queue(name);
        let (found, revision) = self.endpoints.range(LIST, oldest_names_of(&queue, limit)).await?;
        let mut entries = listing(&queue, &found.kvs, revision).entries;
        // A mark is younger than its key, and may be younger than all keys of this page. Only an entry
        // that holds is marked, so of several exclusive ones only the first may be.
        if found.more
            && let Some(first) = entries.first_mut().filter(|first| may_be_marked(first))
            && let Some(mark) = self.endpoints.get(LIST, &mark_of(&first.key.key)).await?
            && mark.create_revision > first.key.revision
        {
            first.mode = Mode::Shared;
        }
        Ok((entries, found.more))
    }

    async fn watch_queue(
        &self,
        name: &LockName,
    ) -> Result<(Listing<EntryKey>, BoxFuture<'static, Result<()>>)> {
        let queue = self.keys.queue(name);
        let (first, end) = (queue.first(), queue.end());
        let watch = self.watches.start_range(first, end, Watching::Removal).await?;
        let listing = self.list(name).await?;
        Ok((listing, Box::pin(async move { watch.changed().await.map(drop) })))
    }

    async fn watch(
        &self,
        _: &LockName,
        entry: &Entry<EntryKey>,
        watching: Watching,
    ) -> Result<Option<BoxFuture<'static, Result<Change>>>> {
        let EntryKey { key, revision, .. } = &entry.key;
        // The same claim may have had this key before: the removal of that entry is not this one's.
        let watch = self.watches.start(key, watching, *revision).await?;
        let there = self.endpoints.get(WATCH, key).await?;
        let there = there.is_some_and(|kv| kv.create_revision == *revision);
        Ok(there.then(|| Box::pin(watch.changed()) as _))
    }

    async fn remove(&self, _: &LockName, entry: &Entry<EntryKey>) -> Result<bool> {
        let EntryKey { key, revision, .. } = &entry.key;
        let compare = vec![created_at(key, *revision)];
        // Only an entry that was, or was to be, downgraded has a mark: another one costs no more than
        // its key.
        let marked = entry.mode == Mode::Shared;
        let success = if marked { delete_entry(entry) } else { vec![delete(key)] };
        let request = TxnRequest { compare, success, failure: Vec::new() };
        // A second answer would not tell whether the first request removed it.
        Ok(self.endpoints.txn("release", IfUnanswered::Fail, request).await?.succeeded)
    }

    async fn renew(
        &self,
        lease: &Arc<Lease>,
        _: &LockName,
        entry: &Entry<EntryKey>,
        record: Option<Vec<u8>>,
    ) -> Result<bool> {
        let began = now();
        let there = match record {
            Some(record) => self.replace(RENEW, entry, record).await?,
            None => {
                let found = self.endpoints.get(RENEW, &entry.key.key).await?;
                found.is_some_and(|kv| kv.create_revision == entry.key.revision)
            }
        };
        let (leases, lease) = (Arc::clone(&self.leases), Arc::clone(lease));
        let confirm = async move { leases.confirm_after_read(RENEW, &lease, began).await };
        Ok(there && self.background.run(RENEW, confirm).await?)
    }

    fn as_reader(&self, entry: &Entry<EntryKey>) -> Entry<EntryKey> {
        Entry { mode: Mode::Shared, ..entry.clone() }
    }

    async fn downgrade(
        &self,
        _: &Arc<Lease>,
        _: &LockName,
        entry: &Entry<EntryKey>,
        record: Vec<u8>,
    ) -> Result<bool> {
        let EntryKey { key, revision, lease } = &entry.key;
        let request = TxnRequest {
            compare: vec![created_at(key, *revision)],
            success: vec![put(key, record, *lease), put(&mark_of(key), Vec::new(), *lease)],
            failure: Vec::new(),
        };
        match self.endpoints.txn("downgrade", IfUnanswered::AskAnother, request).await {
            Err(error) if is_lease_gone(&error) => Ok(false),
            outcome => Ok(outcome?.succeeded),
        }
    }

    async fn write(&self, _: &LockName, entry: &Entry<EntryKey>, record: Vec<u8>) -> Result<()> {
        self.replace("write", entry, record).await.map(drop)
    }

    async fn open_loss_channel(
        &self,
        lease: &Arc<Lease>,
    ) -> Result<Option<(Vec<u8>, BoxFuture<'static, Result<Change>>)>> {
        let key = self.keys.losses(lease.id());
        let watch = self.watches.start(&key, Watching::Change, 0).await?;
        let request = TxnRequest {
            compare: vec![created_at(&key, 0)],
            success: vec![put(&key, Vec::new(), lease.id())],
            failure: vec![get(&key)],
        };
        let seen = self.endpoints.txn(HEAR, IfUnanswered::AskAnother, request).await;
        // A channel that was deleted by hand exists again now, if its lease does.
        if seen.as_ref().is_err_and(is_lease_gone) {
            self.leases.believe_gone(HEAR, lease).await?;
            return Ok(None);
        }
        let content = seen?.found(0).map(|kv| kv.value).unwrap_or_default();
        Ok(Some((content, Box::pin(watch.changed()))))
    }

    async fn evict(
        &self,
        eviction: &Eviction,
        entry: &Entry<EntryKey>,
        held: bool,
    ) -> Result<bool> {
        match self.try_evict(eviction, entry, held).await {
            // The entry is gone with its lease.
            Err(error) if is_lease_gone(&error) => Ok(false),
            outcome => outcome,
        }
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<u8>> {
        let found = self.endpoints.get(READ_AUDIT, &self.keys.audit(name)).await;
        let found = found.map_err(|error| error.about(name))?;
        Ok(found.map(|found| found.value).unwrap_or_default())
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<bool> {
        self.try_record(name, record).await.map_err(|error| error.about(name))
    }

    async fn details(
        &self,
        name: &LockName,
        entries: &[Entry<EntryKey>],
        holders: usize,
    ) -> Result<Vec<Option<Details>>> {
        let found = self.read_entries(name, entries).await?;
        let mut records: HashMap<i64, Vec<u8>> =
            found.into_iter().map(|kv| (kv.create_revision, kv.value)).collect();
        let left = self.time_left(&entries[..holders]).await?;
        let details = |(place, entry): (usize, &Entry<EntryKey>)| {
            let EntryKey { revision, lease, .. } = &entry.key;
            let time_left = left.get(lease).copied();
            // The lease has ended, and its entries with it.
            if place < holders && time_left == Some(None) {
                return None;
            }
            let record = records.remove(revision)?;
            Some(Details { record, token: Some(token(*revision)), time_left: time_left.flatten() })
        };
        Ok(entries.iter().enumerate().map(details).collect())
    }

    async fn names(&self, prefix: &str) -> Result<Vec<LockName>> {
        let (mut key, range_end) = self.keys.all(prefix);
        let mut names: Vec<LockName> = Vec::new();
        loop {
            let range_end = range_end.clone();
            let page =
                RangeRequest { key, range_end, limit: PAGE, keys_only: true, ..Default::default() };
            let (page, _) = self.endpoints.range(LIST, page).await?;
            names.extend(page.kvs.iter().filter_map(|kv| self.keys.lock_of(&kv.key)));
            names.dedup();
            match page.kvs.into_iter().last() {
                Some(last) if page.more => {
                    key = last.key;
                    key.push(0);
                }
                _ => break,
            }
        }
        names.retain(|name| name.as_str().starts_with(prefix));
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn foreign_owner(&self, name: &LockName, key: &EntryKey) -> String {
        self.keys.queue(name).name_of(&key.key)
    }

    fn fence(&self, _: &LockName, entry: &Entry<EntryKey>) -> Option<Fence> {
        let EntryKey { key, revision, .. } = &entry.key;
        Some(Fence::CreateRevision {
            key: String::from_utf8(key.clone()).ok()?,
            revision: *revision,
        })
    }

    fn cells(&self) -> Result<&dyn Cells> {
        Ok(self)
    }

    async fn diagnose(&self, store: &dyn Store) -> Result<Vec<Finding>> {
        diagnose::diagnose(store, self).await
    }

    async fn end_unused_sessions(&self) {
        self.leases.end_unused().await;
    }
}

impl EtcdEngine {
    /// Adds an entry, if the write fence is where it was. `None`: it was not, or an entry of the same
    /// claim on an earlier lease was in the way.
    async fn try_to_enter(
        &self,
        lease: &Arc<Lease>,
        claim: &Claim,
        queue: &Queue,
        key: &[u8],
        record: &[u8],
        glance: bool,
    ) -> Result<Option<Entered<EntryKey>>> {
        let (sent, fence) = (now(), self.keys.fence(lease.id()));
        let mut success = vec![put(key, record.to_vec(), lease.id())];
        success.extend(glance.then(|| look(queue, GLANCE)));
        let request = TxnRequest {
            compare: vec![written_at(&fence, lease.fence()), created_at(key, 0)],
            success,
            failure: vec![get(&fence), get(key)],
        };
        let mut outcome = match self.endpoints.txn(ACQUIRE, IfUnanswered::Fail, request).await {
            Err(error) if is_lease_gone(&error) => {
                self.leases.believe_gone(ACQUIRE, lease).await?;
                return Err(error);
            }
            outcome => outcome?,
        };
        if outcome.succeeded {
            let revision = outcome.revision;
            let own = EntryKey { key: key.to_vec(), revision, lease: lease.id() };
            let entry = Entry {
                order: revision.into(),
                mode: claim.mode,
                owner: Some(claim.owner),
                key: own,
            };
            // A short queue was read whole.
            let seen = outcome.reads.pop().filter(|seen| !seen.more);
            let listing = seen.map(|seen| listing(queue, &seen.kvs, revision));
            return Ok(Some(Entered { entry, token: token(revision), listing }));
        }
        let (fence_now, own) = (outcome.found(0), outcome.found(1));
        match fence_now {
            Some(fence) => lease.fence_moved(fence.mod_revision),
            // The fence was deleted by hand, or the lease is over.
            None => drop(self.fence_writes(lease, sent).await?),
        }
        if let Some(own) = own {
            self.remove(&claim.name, &entry(queue, &own)).await?;
        }
        Ok(None)
    }

    /// Replaces the value of an entry. False: it is not there.
    async fn replace(
        &self,
        operation: &'static str,
        entry: &Entry<EntryKey>,
        record: Vec<u8>,
    ) -> Result<bool> {
        let EntryKey { key, revision, lease } = &entry.key;
        let request = TxnRequest {
            compare: vec![created_at(key, *revision)],
            success: vec![put(key, record, *lease)],
            failure: Vec::new(),
        };
        match self.endpoints.txn(operation, IfUnanswered::AskAnother, request).await {
            Err(error) if is_lease_gone(&error) => Ok(false),
            outcome => Ok(outcome?.succeeded),
        }
    }

    /// The keys of these entries with their values, as far as they are there: one by one if they are few, else
    /// with the whole queue.
    async fn read_entries(
        &self,
        name: &LockName,
        entries: &[Entry<EntryKey>],
    ) -> Result<Vec<KeyValue>> {
        if entries.len() > FEW {
            let queue = self.keys.queue(name);
            let request = RangeRequest { keys_only: false, ..names_of(&queue) };
            return Ok(self.endpoints.range(INSPECT, request).await?.0.kvs);
        }
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let success = entries.iter().map(|entry| get(&entry.key.key)).collect();
        let request = TxnRequest { success, ..Default::default() };
        let outcome = self.endpoints.txn(INSPECT, IfUnanswered::AskAnother, request).await?;
        Ok(outcome.reads.into_iter().flat_map(|read| read.kvs).collect())
    }

    /// How long each of these entries' leases lasts yet; `None` for one that has ended.
    async fn time_left(
        &self,
        entries: &[Entry<EntryKey>],
    ) -> Result<HashMap<i64, Option<Duration>>> {
        let mut leases: Vec<i64> = entries.iter().map(|entry| entry.key.lease).collect();
        leases.retain(|lease| *lease != 0);
        leases.sort_unstable();
        leases.dedup();
        let ask = |id| async move { Ok((id, self.leases.time_left(id).await?)) };
        let answers = stream::iter(leases).map(ask).buffered(AT_ONCE);
        answers.collect::<Vec<Result<_>>>().await.into_iter().collect()
    }
}

impl fmt::Debug for EtcdEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("config", &self.config).finish_non_exhaustive()
    }
}

const ACQUIRE: &str = "acquire";
const RENEW: &str = "renew";
const READ_AUDIT: &str = "read the records of";
const INSPECT: &str = "inspect";
const LIST: &str = "list locks";
const WATCH: &str = "watch";
const HEAR: &str = "watch for losses";
