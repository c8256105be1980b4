//! Leases: the sessions of etcd. All entries of one client with the same TTL share one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tenure_core::Result;
use tenure_core::store::{Background, Moment, now};
use tenure_ordered::Session;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tonic::{Code, Status};

use crate::endpoints::{Endpoints, IfUnanswered};
use crate::fault::is_lease_gone;
use crate::keys::Keys;
use crate::rpc::lease_client::LeaseClient;
use crate::rpc::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    RangeRequest, TxnRequest,
};
use crate::txn::put;

/// One lease in etcd.
#[derive(Debug)]
pub struct Lease {
    id: i64,
    life: Duration,
    confirmed: AtomicU64,
    /// A moment before the latest read was sent that a server has answered.
    read: AtomicU64,
    over: watch::Sender<bool>,
    /// Held by the call that keeps it alive, for all calls that wait for that.
    keep_alive: AsyncMutex<()>,
    /// Held by the call that moves the write fence, for all calls that wait for that.
    move_fence: AsyncMutex<()>,
    /// The revision that last wrote the write fence.
    fence: AtomicI64,
    /// A moment before the last request was sent that moved the write fence.
    fenced: AtomicU64,
}

#[async_trait]
impl Session for Lease {
    fn id(&self) -> i64 {
        self.id
    }

    fn life(&self) -> Duration {
        self.life
    }

    fn confirmed(&self) -> Moment {
        Moment::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    async fn ended(&self) {
        // This fails only if the lease was dropped, and it is borrowed here.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }
}

impl Lease {
    fn end(&self) {
        self.over.send_replace(true);
    }

    /// The revision that a write compares with that of the write fence's last write.
    pub(crate) fn fence(&self) -> i64 {
        self.fence.load(Ordering::Acquire)
    }

    /// Notes that the write fence was written by this revision.
    pub(crate) fn fence_moved(&self, revision: i64) {
        self.fence.fetch_max(revision, Ordering::AcqRel);
    }

    /// Counts the lease as confirmed by a read that was sent at this moment, and a keep-alive after that.
    fn confirm(&self, read: Moment) {
        self.confirmed.fetch_max(read.as_nanos(), Ordering::AcqRel);
    }
}

/// The leases of one client, by their length in seconds.
pub(crate) struct Leases {
    endpoints: Arc<Endpoints>,
    keys: Keys,
    background: Background,
    by_seconds: Mutex<HashMap<i64, Arc<Slot>>>,
}

/// The lease of one length. Locked by the call that replaces it, for all calls that wait for that.
type Slot = AsyncMutex<Option<Arc<Lease>>>;

impl Leases {
    pub(crate) fn new(endpoints: Arc<Endpoints>, keys: Keys, background: Background) -> Arc<Self> {
        Arc::new(Self { endpoints, keys, background, by_seconds: Mutex::default() })
    }

    /// A lease for claims of this TTL, of which at most a quarter has passed.
    pub(crate) async fn get(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Lease>> {
        let seconds = whole_seconds(ttl);
        let slot = Arc::clone(self.by_seconds.lock().entry(seconds).or_default());
        if let Ok(slot) = slot.try_lock()
            && let Some(lease) = slot.as_ref().filter(|lease| is_young(lease, ttl))
        {
            return Ok(Arc::clone(lease));
        }
        let leases = Arc::clone(self);
        let renewed = async move {
            let mut slot = slot.lock().await;
            if let Some(lease) = &*slot
                && leases.is_good(lease, ttl).await?
            {
                return Ok(Arc::clone(lease));
            }
            let lease = leases.grant(seconds).await?;
            *slot = Some(Arc::clone(&lease));
            Ok(lease)
        };
        // All claims of this length wait for it, so it must not depend on one caller.
        self.background.run(ACQUIRE, renewed).await
    }

    /// Whether the lease can be used, once it has been confirmed if need be.
    async fn is_good(&self, lease: &Arc<Lease>, ttl: Duration) -> Result<bool> {
        if is_young(lease, ttl) {
            return Ok(true);
        }
        // Later than this, a new lease is as cheap as finding out whether this one is still there.
        let old = now().since(lease.confirmed()) >= lease.life.mul_f64(0.8);
        Ok(!old && !lease.is_over() && self.confirm(ACQUIRE, lease).await?)
    }

    async fn grant(&self, seconds: i64) -> Result<Arc<Lease>> {
        let sent = now();
        let ask = |link| async move {
            LeaseClient::new(link).lease_grant(LeaseGrantRequest { ttl: seconds }).await
        };
        // If the request is carried out twice, the other lease expires.
        let reply = self.endpoints.call(ACQUIRE, IfUnanswered::AskAnother, ask).await?;
        self.endpoints.check_cluster(ACQUIRE, reply.header)?;
        let life = u64::try_from(reply.ttl.max(seconds)).unwrap_or_default();
        let lease = Arc::new(Lease {
            id: reply.id,
            life: Duration::from_secs(life),
            confirmed: AtomicU64::new(sent.as_nanos()),
            read: AtomicU64::new(sent.as_nanos()),
            over: watch::Sender::new(false),
            keep_alive: AsyncMutex::new(()),
            move_fence: AsyncMutex::new(()),
            fence: AtomicI64::new(0),
            fenced: AtomicU64::new(0),
        });
        self.fence_writes(&lease, now()).await?;
        Ok(lease)
    }

    /// Confirms the lease by requests that are sent after this was called. See
    /// [`Engine::confirm`](tenure_ordered::Engine::confirm).
    pub(crate) async fn confirm(
        &self,
        operation: &'static str,
        lease: &Arc<Lease>,
    ) -> Result<bool> {
        let sent = now();
        self.read_anything(operation).await?;
        self.confirm_after_read(operation, lease, sent).await
    }

    /// As [`confirm`](Self::confirm), for a caller that has read something: its request was sent after
    /// `read`.
    ///
    /// A leader that stood still and was replaced still confirms leases, which counts for nothing. It
    /// cannot serve a read. A leader that is elected after the read was served keeps the lease for its
    /// whole term from then on. So the term counts from the read, and not from the keep-alive.
    pub(crate) async fn confirm_after_read(
        &self,
        operation: &'static str,
        lease: &Arc<Lease>,
        read: Moment,
    ) -> Result<bool> {
        lease.read.fetch_max(read.as_nanos(), Ordering::AcqRel);
        let _turn = lease.keep_alive.lock().await;
        if lease.is_over() || lease.confirmed() >= read {
            return Ok(!lease.is_over());
        }
        // The reads of all callers that wait for their turn have been answered.
        let read = Moment::from_nanos(lease.read.load(Ordering::Acquire));
        let id = lease.id;
        let ask = |link| async move {
            let once = futures_util::stream::iter([LeaseKeepAliveRequest { id }]);
            let mut replies = LeaseClient::new(link).lease_keep_alive(once).await?.into_inner();
            let ended = || Status::new(Code::Unavailable, "the stream ended without a reply");
            Ok(tonic::Response::new(replies.message().await?.ok_or_else(ended)?))
        };
        let reply = self.endpoints.call(operation, IfUnanswered::AskAnother, ask).await?;
        self.endpoints.check_cluster(operation, reply.header)?;
        let alive = reply.ttl > 0;
        if alive {
            lease.confirm(read);
        } else {
            lease.end();
        }
        Ok(alive)
    }

    /// Ends a lease that a server does not know, if the servers belong to the cluster that granted it.
    pub(crate) async fn believe_gone(&self, operation: &'static str, lease: &Lease) -> Result<()> {
        self.read_anything(operation).await?;
        lease.end();
        Ok(())
    }

    async fn read_anything(&self, operation: &'static str) -> Result<()> {
        let (key, _) = self.keys.all("");
        let anything = RangeRequest { key, limit: 1, keys_only: true, ..Default::default() };
        self.endpoints.range(operation, anything).await.map(drop)
    }

    /// Moves the write fence. See [`Engine::fence_writes`](tenure_ordered::Engine::fence_writes).
    pub(crate) async fn fence_writes(&self, lease: &Arc<Lease>, began: Moment) -> Result<bool> {
        let _turn = lease.move_fence.lock().await;
        let fenced = Moment::from_nanos(lease.fenced.load(Ordering::Acquire));
        if lease.is_over() || fenced >= began {
            return Ok(!lease.is_over());
        }
        let sent = now();
        let success = vec![put(&self.keys.fence(lease.id), Vec::new(), lease.id)];
        let request = TxnRequest { success, ..Default::default() };
        let written = self.endpoints.txn(ACQUIRE, IfUnanswered::AskAnother, request).await;
        if written.as_ref().is_err_and(is_lease_gone) {
            self.believe_gone(ACQUIRE, lease).await?;
            return Ok(false);
        }
        lease.fence_moved(written?.revision);
        lease.fenced.fetch_max(sent.as_nanos(), Ordering::AcqRel);
        Ok(true)
    }

    /// How much longer a lease lasts; `None` if it has ended.
    pub(crate) async fn time_left(&self, id: i64) -> Result<Option<Duration>> {
        let ask = |link| async move {
            LeaseClient::new(link).lease_time_to_live(LeaseTimeToLiveRequest { id }).await
        };
        let reply = self.endpoints.call("inspect", IfUnanswered::AskAnother, ask).await?;
        // Whole seconds, rounded down: the lease ends within one more.
        Ok(u64::try_from(reply.ttl).ok().map(|left| Duration::from_secs(left + 1)))
    }

    /// Ends the leases that no claim uses.
    pub(crate) async fn end_unused(&self) {
        let slots: Vec<Arc<Slot>> = self.by_seconds.lock().values().cloned().collect();
        for slot in slots {
            let mut slot = slot.lock().await;
            // No other call can take the lease while its slot is locked.
            let Some(lease) = slot.take_if(|lease| Arc::strong_count(lease) == 1) else { continue };
            drop(slot);
            lease.end();
            let id = lease.id;
            let ask = |link| async move {
                LeaseClient::new(link).lease_revoke(LeaseRevokeRequest { id }).await
            };
            let revoked = self.endpoints.call("end a lease", IfUnanswered::AskAnother, ask).await;
            if let Err(error) = revoked {
                tracing::debug!(lease = id, %error, "the lease was not ended: it will expire");
            }
        }
    }
}

const ACQUIRE: &str = "acquire";

fn is_young(lease: &Lease, ttl: Duration) -> bool {
    !lease.is_over() && now().since(lease.confirmed()) <= ttl / 4
}

/// The TTL in etcd's unit: whole seconds, rounded up.
pub(crate) fn whole_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use tenure_testkit::{EtcdServer, GENEROUS, eventually};

    use super::*;
    use crate::config::EtcdConfig;

    /// The leader may be replaced between the read and the keep-alive: its reply to the keep-alive then
    /// counts for nothing.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lease_counts_from_the_read_and_not_from_the_keep_alive() {
        if tenure_testkit::lacks("etcd", "a_lease_counts_from_the_read_and_not_from_the_keep_alive")
        {
            return;
        }
        let server = EtcdServer::start(&[]).unwrap();
        let config = EtcdConfig::new(vec![("127.0.0.1".into(), server.port())]);
        let background = Background::start("test").unwrap();
        let keys = Keys::new(&config.prefix);
        let endpoints = Endpoints::connect(&config, keys.all("").0, &background).await.unwrap();
        let leases = Leases::new(endpoints, keys, background);
        let lease = leases.get(Duration::from_secs(60)).await.unwrap();
        let granted = lease.confirmed();
        let another_keeps_it_alive = lease.keep_alive.lock().await;
        let confirming = tokio::spawn({
            let (leases, lease) = (Arc::clone(&leases), Arc::clone(&lease));
            async move { leases.confirm(ACQUIRE, &lease).await }
        });
        let read = || std::future::ready(lease.read.load(Ordering::Acquire) > granted.as_nanos());
        assert!(eventually(GENEROUS, read).await);
        let later = now();
        drop(another_keeps_it_alive);
        assert!(confirming.await.unwrap().unwrap());
        assert!(lease.confirmed() > granted && lease.confirmed() < later);
    }
}
