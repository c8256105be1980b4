//! Transactions and reads, and how `etcdctl` writes a fence.

use std::sync::Arc;

use tenure_core::{Fence, Result};

use crate::endpoints::{Endpoints, IfUnanswered};
use crate::keys::Queue;
use crate::rpc::compare::{CompareTarget, TargetUnion};
use crate::rpc::kv_client::KvClient;
use crate::rpc::range_request::{SortOrder, SortTarget};
use crate::rpc::request_op::Request;
use crate::rpc::response_op::Response;
use crate::rpc::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse,
};

/// The longest reply that is read: the queue of a million waiters fits.
const MOST_BYTES: usize = 256 << 20;

impl Endpoints {
    /// A linearizable read, and the revision of the store that it shows.
    pub(crate) async fn range(
        self: &Arc<Self>,
        operation: &'static str,
        request: RangeRequest,
    ) -> Result<(RangeResponse, i64)> {
        let ask = |link| {
            let request = request.clone();
            let mut client = KvClient::new(link).max_decoding_message_size(MOST_BYTES);
            async move { client.range(request).await }
        };
        let reply = self.call(operation, IfUnanswered::AskAnother, ask).await?;
        let revision = self.check_cluster(operation, reply.header)?;
        Ok((reply, revision))
    }

    /// One key, if it is there. Linearizable.
    pub(crate) async fn get(
        self: &Arc<Self>,
        operation: &'static str,
        key: &[u8],
    ) -> Result<Option<KeyValue>> {
        let request = RangeRequest { key: key.to_vec(), ..Default::default() };
        Ok(self.range(operation, request).await?.0.kvs.pop())
    }

    pub(crate) async fn txn(
        self: &Arc<Self>,
        operation: &'static str,
        unanswered: IfUnanswered,
        request: TxnRequest,
    ) -> Result<Outcome> {
        let ask = |link| {
            let request = request.clone();
            let mut client = KvClient::new(link).max_decoding_message_size(MOST_BYTES);
            async move { client.txn(request).await }
        };
        let reply = self.call(operation, unanswered, ask).await?;
        let revision = self.check_cluster(operation, reply.header)?;
        Ok(Outcome::read(reply, revision))
    }
}

/// The outcome of a transaction.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    /// The revision of its writes.
    pub(crate) revision: i64,
    /// The answers of its reads, in their order.
    pub(crate) reads: Vec<RangeResponse>,
}

impl Outcome {
    fn read(reply: TxnResponse, revision: i64) -> Self {
        let reads = reply.responses.into_iter().filter_map(|part| match part.response {
            Some(Response::ResponseRange(range)) => Some(range),
            _ => None,
        });
        Self { succeeded: reply.succeeded, revision, reads: reads.collect() }
    }

    /// The key that one of the reads found.
    pub(crate) fn found(&mut self, read: usize) -> Option<KeyValue> {
        self.reads.get_mut(read)?.kvs.pop()
    }
}

pub(crate) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    op(Request::RequestPut(PutRequest { key: key.to_vec(), value, lease }))
}

pub(crate) fn delete(key: &[u8]) -> RequestOp {
    op(Request::RequestDeleteRange(DeleteRangeRequest { key: key.to_vec() }))
}

pub(crate) fn get(key: &[u8]) -> RequestOp {
    op(Request::RequestRange(RangeRequest { key: key.to_vec(), ..Default::default() }))
}

/// The key with its revisions and its lease, without its value.
pub(crate) fn get_without_value(key: &[u8]) -> RequestOp {
    let range = RangeRequest { key: key.to_vec(), keys_only: true, ..Default::default() };
    op(Request::RequestRange(range))
}

/// The names of at most `limit` keys of a queue, in no particular order, and how many there are.
pub(crate) fn look(queue: &Queue, limit: i64) -> RequestOp {
    op(Request::RequestRange(RangeRequest { limit, ..names_of(queue) }))
}

/// The names of all keys of a queue.
pub(crate) fn names_of(queue: &Queue) -> RangeRequest {
    let (key, range_end) = (queue.first(), queue.end());
    RangeRequest { key, range_end, keys_only: true, ..Default::default() }
}

/// The names of the oldest keys of a queue.
pub(crate) fn oldest_names_of(queue: &Queue, limit: usize) -> RangeRequest {
    RangeRequest {
        limit: i64::try_from(limit).unwrap_or(i64::MAX),
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..names_of(queue)
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

fn compare(key: &[u8], target: CompareTarget, union: TargetUnion) -> Compare {
    Compare { result: 0, target: target.into(), key: key.to_vec(), target_union: Some(union) }
}

/// A fence as `etcdctl txn` reads it: a comparison of the key's create revision. `None` for the fence
/// of another store.
pub fn etcdctl(fence: &Fence) -> Option<String> {
    let (key, revision) = fence.create_revision()?;
    Some(format!("create({key:?}) = \"{revision}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_written_as_etcdctl_reads_it() {
        let fence = Fence::CreateRevision { key: "tenure/a \"b\"/1".into(), revision: 7 };
        assert_eq!(etcdctl(&fence).unwrap(), r#"create("tenure/a \"b\"/1") = "7""#);
        assert_eq!(etcdctl(&Fence::Exists { path: "/a".into() }), None);
    }
}
