//! etcd: the overhead of tenure over bare transactions, and the time of a hand-off compared with
//! etcd's own Lock RPC.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{Client, Options};
use tenure_etcd::{EtcdConfig, EtcdStore};
use tenure_testkit::EtcdServer;
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::drive::Subject;
use crate::figure::Samples;
use crate::machine::runtime;
use crate::scale::Scale;
use crate::table::Row;
use crate::timing::{each, pairs, reported};
use crate::{Fault, Outcome};

#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated")]
#[rustfmt::skip]
#[path = "../../etcd/src/rpc.rs"]
mod rpc;

use rpc::compare::{CompareTarget, TargetUnion};
use rpc::kv_client::KvClient;
use rpc::lease_client::LeaseClient;
use rpc::request_op::Request;
use rpc::watch_client::WatchClient;
use rpc::watch_create_request::FilterType;
use rpc::watch_request::RequestUnion;
use rpc::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RequestOp, TxnRequest,
    WatchCreateRequest, WatchRequest,
};

/// The key of the bare transactions.
const KEY: &[u8] = b"bench/bare";

const ROUNDS: usize = 9;
const PAIRS: usize = 150;
const HANDOFFS: usize = 12;
/// Why a free lock may cost more than its transactions.
pub(crate) const RECORD: &str =
    "the transaction also reads the queue, and the entry has a record of its holder";
/// Why a hand-off may cost more than its event.
pub(crate) const WAKE_UP: &str = "the store's thread reads the event, so that a blocked runtime loses no lock, and wakes the waiter";

/// Acquiring and releasing a free lock, compared with two transactions that write and delete a key.
pub(crate) fn free(scale: Scale) -> Outcome<Vec<Row>> {
    let server = EtcdServer::start(&[])?;
    let runtime = runtime(1)?;
    let client = connect(&runtime, &server)?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    runtime.block_on(async {
        let mutex = client.mutex("bench")?;
        let bare = Bare::connect(&server).await?;
        for _ in 0..scale.rounds(ROUNDS) {
            let count = scale.count(PAIRS);
            ours.add(pairs(&mutex, count).await?);
            theirs.add(each(count, async || bare.pair().await).await?);
        }
        Outcome::Ok(())
    })?;
    let (what, against) =
        ("etcd: acquire + release, free, one task", "two bare transactions, put and delete");
    Ok(vec![Row::of_times(what, &ours, against, &theirs, Some(1.15)).because(RECORD)])
}

/// The time from the release to the waiter's guard, compared with a bare deletion and its watch
/// event, and with a hand-off by etcd's Lock RPC.
pub(crate) fn handoff(scale: Scale) -> Outcome<Vec<Row>> {
    let server = EtcdServer::start(&[])?;
    let runtime = runtime(2)?;
    let clients = [connect(&runtime, &server)?, connect(&runtime, &server)?];
    let rounds = scale.rounds(ROUNDS);
    let row =
        |what: &str, wait, bound| {
            let (mut ours, mut theirs) = (Samples::default(), Samples::default());
            for _ in 0..scale.rounds(ROUNDS) {
                ours.add(runtime.block_on(reported(HANDOFFS / 3, async || {
                    our_handoff(&clients, wait).await
                }))?);
                theirs.add(runtime.block_on(reported(HANDOFFS / 3, async || {
                    their_handoff(&server, wait).await
                }))?);
            }
            let against = "the Lock and Unlock RPCs of etcd";
            let row = Row::time(what, ours.median()).peer(against, theirs.median());
            Outcome::Ok(row.at_most(bound).because(WAKE_UP))
        };
    let (mut ours, mut events) = (Samples::default(), Samples::default());
    let wait = Duration::from_millis(20);
    for _ in 0..rounds {
        ours.add(runtime.block_on(reported(HANDOFFS, async || our_handoff(&clients, wait).await))?);
        events.add(runtime.block_on(reported(HANDOFFS, async || bare_event(&server, wait).await))?);
    }
    let (what, against) = ("etcd: hand-off to another client", "a bare deletion and its event");
    Ok(vec![
        Row::of_times(what, &ours, against, &events, Some(1.1)).because(WAKE_UP),
        row("etcd: hand-off, the waiter arrived 20 ms before", wait, 0.1)?,
        row("etcd: hand-off, the waiter arrived 500 ms before", Duration::from_millis(500), 1.0)?,
    ])
}

/// The time from the deletion of a key to its watch event on another connection.
async fn bare_event(server: &EtcdServer, wait: Duration) -> Outcome<Duration> {
    let (holder, watcher) = (Bare::connect(server).await?, Bare::connect(server).await?);
    holder.put().await?;
    let create = WatchCreateRequest {
        key: KEY.to_vec(),
        range_end: Vec::new(),
        filters: vec![FilterType::Noput.into()],
        watch_id: 1,
    };
    let (requests, mut requested) = tokio::sync::mpsc::unbounded_channel();
    requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) })?;
    let requested = futures_util::stream::poll_fn(move |context| requested.poll_recv(context));
    let mut replies = WatchClient::new(watcher.channel).watch(requested).await?.into_inner();
    replies.message().await?;
    let waiting = tokio::spawn(async move {
        let event = replies.message().await;
        (Instant::now(), event.map(|event| event.is_some()))
    });
    tokio::time::sleep(wait).await;
    let start = Instant::now();
    holder.delete().await?;
    let (received, event) = waiting.await?;
    drop(requests);
    if event? { Ok(received.duration_since(start)) } else { Err("the stream ended".into()) }
}

async fn our_handoff([holder, waiter]: &[Client; 2], wait: Duration) -> Outcome<Duration> {
    let options = Options::new().ttl(Duration::from_secs(30));
    let guard = holder.mutex("handoff")?.with(options.clone()).acquire().await?;
    let mutex = waiter.mutex("handoff")?.with(options);
    let waiter = tokio::spawn(async move {
        let guard = mutex.acquire().await?;
        let granted = Instant::now();
        guard.release().await?;
        Ok::<_, tenure_core::Error>(granted)
    });
    tokio::time::sleep(wait).await;
    let start = Instant::now();
    guard.release().await?;
    Ok(waiter.await??.duration_since(start))
}

async fn their_handoff(server: &EtcdServer, wait: Duration) -> Outcome<Duration> {
    let (holder, waiter) = (Bare::connect(server).await?, Bare::connect(server).await?);
    let key = holder.lock("handoff").await?;
    let waiting = tokio::spawn(async move {
        let key = waiter.lock("handoff").await.map_err(|error| error.to_string())?;
        let granted = Instant::now();
        waiter.unlock(key).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(granted)
    });
    tokio::time::sleep(wait).await;
    let start = Instant::now();
    holder.unlock(key).await?;
    Ok(waiting.await??.duration_since(start))
}

pub(crate) fn connect(runtime: &Runtime, server: &EtcdServer) -> Outcome<Client> {
    let config = EtcdConfig::new(vec![("127.0.0.1".into(), server.port())]);
    let store = runtime.block_on(EtcdStore::connect(config))?;
    let _inside = runtime.enter();
    Ok(Client::new(Arc::new(store))?)
}

/// A connection that uses only the gRPC stubs, with a lease of its own.
#[derive(Clone)]
pub(crate) struct Bare {
    channel: Channel,
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

/// The replies of the Lock service, as far as they are used here.
#[derive(Clone, PartialEq, prost::Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

impl Bare {
    async fn connect(server: &EtcdServer) -> Outcome<Self> {
        Self::to(server.port(), 30).await
    }

    /// Connects to a port of this machine. The lease lasts so many seconds, and is not renewed.
    async fn to(port: u16, ttl: i64) -> Outcome<Self> {
        let address = format!("http://127.0.0.1:{port}");
        let channel = Endpoint::from_shared(address)?.connect().await?;
        let grant = LeaseGrantRequest { ttl };
        let lease = LeaseClient::new(channel.clone()).lease_grant(grant).await?.into_inner().id;
        Ok(Self { channel, lease })
    }

    async fn pair(&self) -> Outcome<()> {
        self.put().await?;
        self.delete().await
    }

    async fn put(&self) -> Outcome<()> {
        let key = KEY.to_vec();
        let mut kv = KvClient::new(self.channel.clone());
        let put = PutRequest { key: key.clone(), value: vec![b'v'; 80], lease: self.lease };
        let free = Compare {
            target: CompareTarget::Create.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            ..Default::default()
        };
        let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
        kv.txn(TxnRequest { compare: vec![free], success, failure: Vec::new() }).await?;
        Ok(())
    }

    async fn delete(&self) -> Outcome<()> {
        let delete = DeleteRangeRequest { key: KEY.to_vec() };
        let success = vec![RequestOp { request: Some(Request::RequestDeleteRange(delete)) }];
        let mut kv = KvClient::new(self.channel.clone());
        kv.txn(TxnRequest { success, ..Default::default() }).await?;
        Ok(())
    }

    async fn lock(&self, name: &str) -> Outcome<Vec<u8>> {
        let request = LockRequest { name: name.into(), lease: self.lease };
        let reply: LockResponse = self.call("/v3lockpb.Lock/Lock", request).await?;
        Ok(reply.key)
    }

    async fn unlock(&self, key: Vec<u8>) -> Outcome<()> {
        let _: LockResponse = self.call("/v3lockpb.Lock/Unlock", UnlockRequest { key }).await?;
        Ok(())
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Outcome<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut client = Grpc::new(self.channel.clone());
        client.ready().await?;
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let path = PathAndQuery::from_static(path);
        Ok(client.unary(tonic::Request::new(request), path, codec).await?.into_inner())
    }
}

/// The Lock RPC as a client of its own.
impl Subject for Bare {
    type Held = Vec<u8>;

    async fn connect(port: &str) -> Outcome<Self> {
        Self::to(port.parse()?, 3_600).await
    }

    async fn acquire(&self, name: &str) -> Result<Vec<u8>, Fault> {
        Ok(self.lock(name).await.map_err(|error| error.to_string())?)
    }

    async fn release(&self, key: Vec<u8>) -> Result<(), Fault> {
        Ok(self.unlock(key).await.map_err(|error| error.to_string())?)
    }
}
