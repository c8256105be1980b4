//! Transactions and reads, in words.

use tenure_core::{Error, ErrorKind, Result};

use crate::keys::Line;
use crate::members::{Again, Members};
use crate::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::rpc::kv_client::KvClient;
use crate::rpc::range_request::{SortOrder, SortTarget};
use crate::rpc::request_op::Request;
use crate::rpc::response_op::Response;
use crate::rpc::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse,
};

/// Lines and lists can be long; what is longer than this is no lock.
const MOST_BYTES: usize = 64 << 20;

impl Members {
    /// A linearizable read.
    pub(crate) async fn range(
        &self,
        operation: &'static str,
        request: RangeRequest,
    ) -> Result<RangeResponse> {
        let ask = |link| {
            let request = request.clone();
            let mut client = KvClient::new(link).max_decoding_message_size(MOST_BYTES);
            async move { client.range(request).await }
        };
        self.call(operation, Again::Harmless, ask).await
    }

    pub(crate) async fn txn(
        &self,
        operation: &'static str,
        again: Again,
        doubt: &mut bool,
        request: TxnRequest,
    ) -> Result<Outcome> {
        let ask = |link| {
            let request = request.clone();
            let mut client = KvClient::new(link).max_decoding_message_size(MOST_BYTES);
            async move { client.txn(request).await }
        };
        let reply = self.call_noting(operation, again, doubt, ask).await?;
        Outcome::read(operation, reply)
    }

    /// Several reads of one moment.
    pub(crate) async fn look(
        &self,
        operation: &'static str,
        reads: Vec<RequestOp>,
    ) -> Result<Outcome> {
        let request = TxnRequest { success: reads, ..Default::default() };
        self.txn(operation, Again::Harmless, &mut false, request).await
    }
}

/// What came of a transaction.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    pub(crate) revision: i64,
    /// The answers of its reads, and what its deletions found, in their order.
    pub(crate) reads: Vec<Vec<KeyValue>>,
}

impl Outcome {
    fn read(operation: &'static str, reply: TxnResponse) -> Result<Self> {
        let nonsense = || {
            let why = "the reply makes no sense: is this an etcd server?";
            Error::new(ErrorKind::Unreachable, operation, why).with_unknown_effect()
        };
        let revision = reply.header.ok_or_else(nonsense)?.revision;
        let reads = reply.responses.into_iter().filter_map(|part| match part.response {
            Some(Response::ResponseRange(range)) => Some(range.kvs),
            Some(Response::ResponseDeleteRange(deleted)) => Some(deleted.prev_kvs),
            _ => None,
        });
        Ok(Self { succeeded: reply.succeeded, revision, reads: reads.collect() })
    }

    /// The answer of one read; nothing where there is none.
    pub(crate) fn found(&mut self, read: usize) -> Vec<KeyValue> {
        self.reads.get_mut(read).map(std::mem::take).unwrap_or_default()
    }
}

pub(crate) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    op(Request::RequestPut(PutRequest { key: key.to_vec(), value, lease }))
}

/// Deletes a key, and answers what it held.
pub(crate) fn delete(key: &[u8]) -> RequestOp {
    op(Request::RequestDeleteRange(DeleteRangeRequest { key: key.to_vec(), prev_kv: true }))
}

pub(crate) fn get(key: &[u8]) -> RequestOp {
    op(Request::RequestRange(RangeRequest { key: key.to_vec(), ..Default::default() }))
}

/// The one that was first in line.
pub(crate) fn get_first(line: &Line) -> RequestOp {
    op(Request::RequestRange(RangeRequest {
        limit: 1,
        keys_only: true,
        sort_order: SortOrder::Ascend.into(),
        ..in_order(line)
    }))
}

/// The one that came last before `revision`.
pub(crate) fn get_last_before(line: &Line, revision: i64) -> RequestOp {
    op(Request::RequestRange(RangeRequest {
        limit: 1,
        keys_only: true,
        sort_order: SortOrder::Descend.into(),
        max_create_revision: revision - 1,
        ..in_order(line)
    }))
}

/// All of a line, first come first.
pub(crate) fn get_line(line: &Line) -> RequestOp {
    op(Request::RequestRange(in_order(line)))
}

fn in_order(line: &Line) -> RangeRequest {
    RangeRequest {
        key: line.first(),
        range_end: line.end(),
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..Default::default()
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// The key was created by this revision; 0: there is no such key.
pub(crate) fn created_at(key: &[u8], revision: i64) -> Compare {
    compare(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

/// The key was last written by this revision; 0: there is no such key.
pub(crate) fn written_at(key: &[u8], revision: i64) -> Compare {
    compare(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

/// The key hangs on this lease.
pub(crate) fn hangs_on(key: &[u8], lease: i64) -> Compare {
    compare(key, CompareTarget::Lease, TargetUnion::Lease(lease))
}

/// Nobody is in line: a comparison with a range is one with every key in it, and for an empty one
/// with a key that does not exist.
pub(crate) fn nobody_in(line: &Line) -> Compare {
    Compare { range_end: line.end(), ..created_at(&line.first(), 0) }
}

/// Nobody is in line who came before `revision`.
pub(crate) fn nobody_before(line: &Line, revision: i64) -> Compare {
    let created = created_at(&line.first(), revision - 1);
    Compare { result: CompareResult::Greater.into(), range_end: line.end(), ..created }
}

fn compare(key: &[u8], target: CompareTarget, union: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.to_vec(),
        range_end: Vec::new(),
        target_union: Some(union),
    }
}
