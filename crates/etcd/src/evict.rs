//! Eviction, and the audit record of a lock: each is one transaction, on a lease that is granted before.

use tenure_core::store::{AUDIT_KEPT, Eviction};
use tenure_core::{AuditRecord, LockName, Result};
use tenure_ordered::{Entry, with_loss};

use crate::endpoints::IfUnanswered;
use crate::engine::EtcdEngine;
use crate::entry::{EntryKey, delete_entry, token};
use crate::rpc::{Compare, RequestOp, TxnRequest};
use crate::txn::{created_at, put, written_at};

const EVICT: &str = "evict";
const RECORD: &str = "write a record of";

/// The part of a transaction that adds a record to those of a lock, if these are still as they were read.
struct Recording {
    compare: Compare,
    put: RequestOp,
    /// The lease that the records are to be on, and the one that they are on; 0: none.
    lease: i64,
    older: i64,
}

impl EtcdEngine {
    /// Deletes the keys of an entry, and writes to the audit record and the loss channel of its lease, all or
    /// nothing. False: one of them has changed.
    pub(crate) async fn try_evict(
        &self,
        eviction: &Eviction,
        entry: &Entry<EntryKey>,
        held: bool,
    ) -> Result<bool> {
        let EntryKey { key, revision, lease } = &entry.key;
        let mut request = TxnRequest {
            compare: vec![created_at(key, *revision)],
            success: delete_entry(entry),
            failure: Vec::new(),
        };
        // Another program's lease has no channel.
        let losses = self.keys.losses(*lease);
        if let Some(known) = self.endpoints.get(EVICT, &losses).await? {
            request.compare.push(written_at(&losses, known.mod_revision));
            let content = with_loss(&known.value, &eviction.owner, Some(token(*revision)));
            request.success.push(put(&losses, content, *lease));
        }
        if !held {
            let outcome = self.endpoints.txn(EVICT, IfUnanswered::Fail, request).await;
            return Ok(outcome?.succeeded);
        }
        let record = eviction.clone().with_token(Some(token(*revision))).record();
        let recording = self.recording(EVICT, &eviction.name, &record).await?;
        self.write_with(EVICT, request, recording).await
    }

    /// Adds a record to those of a lock. False: they have changed.
    pub(crate) async fn try_record(&self, name: &LockName, record: &AuditRecord) -> Result<bool> {
        let recording = self.recording(RECORD, name, record).await?;
        self.write_with(RECORD, TxnRequest::default(), recording).await
    }

    async fn recording(
        &self,
        operation: &'static str,
        name: &LockName,
        record: &AuditRecord,
    ) -> Result<Recording> {
        let audit = self.keys.audit(name);
        let older = self.endpoints.get(operation, &audit).await?.unwrap_or_default();
        let lease = self.grant_lease(operation, AUDIT_KEPT).await?;
        Ok(Recording {
            compare: written_at(&audit, older.mod_revision),
            put: put(&audit, record.before(&older.value), lease),
            lease,
            older: older.lease,
        })
    }

    /// Carries out a transaction with a recording. The lease that has no key then is ended.
    async fn write_with(
        &self,
        operation: &'static str,
        mut request: TxnRequest,
        recording: Recording,
    ) -> Result<bool> {
        let Recording { compare, put, lease, older } = recording;
        request.compare.push(compare);
        request.success.push(put);
        let outcome = self.endpoints.txn(operation, IfUnanswered::Fail, request).await?;
        let unused = if outcome.succeeded { older } else { lease };
        if unused != 0 {
            self.revoke_lease(unused);
        }
        Ok(outcome.succeeded)
    }
}
