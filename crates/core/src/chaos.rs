//! Trouble to order, for tests.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::{
    Capabilities, Cells, Claim, ClaimOutcome, Error, ErrorKind, Eviction, Fence, Finding, Hold,
    LockName, LockState, LossListener, QueueTicket, Released, Renewal, Result, Store, WaitPolicy,
};

/// A store around a store that delays, loses and repeats calls, or stops answering.
///
/// Put it around [`MemoryStore`](crate::MemoryStore) to see how your own code takes it when locks
/// are lost or the store is away.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tenure_core::{Chaos, Client, Faults, MemoryStore, Options};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure_core::Error> {
/// let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(7)));
/// let client = Client::new(chaos.clone())?;
/// let options = Options::new().ttl(Duration::from_millis(200));
/// let guard = client.mutex("orders")?.with(options).acquire().await?;
///
/// chaos.pause(); // the network is cut: renewals get no answer …
/// guard.lost().await; // … and the guard knows before the store lets another in
/// assert!(!guard.is_valid());
/// # chaos.resume();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Chaos {
    store: Arc<dyn Store>,
    road: Arc<Road>,
}

/// The way to the store and back.
#[derive(Debug)]
struct Road {
    faults: Faults,
    random: AtomicU64,
    paused: watch::Sender<bool>,
}

/// Which trouble, and how often. The same seed gives the same choices in the same order.
#[derive(Clone, Debug)]
#[must_use]
pub struct Faults {
    seed: u64,
    delay: Range<Duration>,
    lose_requests: f64,
    lose_replies: f64,
    duplicate: f64,
}

impl Faults {
    /// No trouble yet, and the seed for what is to come.
    pub const fn new(seed: u64) -> Self {
        let delay = Duration::ZERO..Duration::ZERO;
        Self { seed, delay, lose_requests: 0.0, lose_replies: 0.0, duplicate: 0.0 }
    }

    /// Every request, and every reply, arrives late by a time from this range.
    pub const fn delay(mut self, range: Range<Duration>) -> Self {
        self.delay = range;
        self
    }

    /// This share of calls never arrives.
    pub const fn lose_requests(mut self, share: f64) -> Self {
        self.lose_requests = share;
        self
    }

    /// This share of calls is carried out, but the reply never comes.
    pub const fn lose_replies(mut self, share: f64) -> Self {
        self.lose_replies = share;
        self
    }

    /// This share of calls is carried out twice.
    pub const fn duplicate(mut self, share: f64) -> Self {
        self.duplicate = share;
        self
    }
}

impl Chaos {
    /// The same store, with trouble.
    pub fn new(store: Arc<dyn Store>, faults: Faults) -> Self {
        let random = AtomicU64::new(faults.seed);
        Self { store, road: Arc::new(Road { faults, random, paused: watch::Sender::new(false) }) }
    }

    /// From now on no call gets through, until [`resume`](Chaos::resume).
    pub fn pause(&self) {
        self.road.paused.send_replace(true);
    }

    /// Calls get through again, those that are still waited for included.
    pub fn resume(&self) {
        self.road.paused.send_replace(false);
    }
}

impl Chaos {
    /// The store underneath.
    pub(crate) fn inner(&self) -> &dyn Store {
        &*self.store
    }

    /// Lets a call through, with the trouble that chance has for it.
    pub(crate) async fn trouble<T, F: Future<Output = Result<T>>>(
        &self,
        call: impl Fn() -> F,
    ) -> Result<T> {
        self.road.trouble(call).await
    }

    /// Waits for a message. A lost message is silence, not an error.
    pub(crate) async fn silence<T>(&self, message: impl Future<Output = T>) -> T {
        self.road.open().await;
        let message = message.await;
        self.road.open().await;
        if self.road.loses_a_reply() {
            std::future::pending::<()>().await;
        }
        message
    }
}

impl Road {
    /// Lets a call through, with the trouble that chance has for it.
    async fn trouble<T, F: Future<Output = Result<T>>>(&self, call: impl Fn() -> F) -> Result<T> {
        self.open().await;
        self.travel().await;
        if self.chance() < self.faults.lose_requests {
            return Err(lost("the request was lost"));
        }
        let reply = call().await;
        if self.chance() < self.faults.duplicate {
            // The caller reads the first reply.
            let _ = call().await;
        }
        if self.loses_a_reply() {
            return Err(lost("the reply was lost"));
        }
        self.travel().await;
        self.open().await;
        reply
    }

    fn loses_a_reply(&self) -> bool {
        self.chance() < self.faults.lose_replies
    }

    async fn travel(&self) {
        let span = self.faults.delay.end.saturating_sub(self.faults.delay.start);
        let delay = self.faults.delay.start + span.mul_f64(self.chance());
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    async fn open(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.paused.subscribe().wait_for(|paused| !paused).await;
    }

    /// The next number in [0, 1): splitmix64.
    fn chance(&self) -> f64 {
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn lost(what: &str) -> Error {
    let why = format!("{what} (chaos)");
    Error::new(ErrorKind::Unreachable, "reach the store", why).with_unknown_effect()
}

#[async_trait]
impl Store for Chaos {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn longest_ttl(&self) -> Option<Duration> {
        self.store.longest_ttl()
    }

    async fn claim(&self, claim: &Claim, policy: WaitPolicy) -> Result<ClaimOutcome> {
        self.road.trouble(|| self.store.claim(claim, policy)).await
    }

    async fn wait(&self, claim: &Claim, place: &QueueTicket) -> Result<ClaimOutcome> {
        self.silence(self.store.wait(claim, place)).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        self.road.trouble(|| self.store.renew(claim)).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.road.trouble(|| self.store.release(claim)).await
    }

    fn fence(&self, name: &LockName, hold: Hold) -> Option<Fence> {
        self.store.fence(name, hold)
    }

    fn subscribe_losses(&self, listener: LossListener) {
        let (ear, mut news) = LossListener::new();
        self.store.subscribe_losses(ear);
        let road = Arc::clone(&self.road);
        tokio::spawn(async move {
            let pass_on = async {
                while let Some(told) = news.recv().await {
                    road.open().await;
                    road.travel().await;
                    if !road.loses_a_reply() {
                        listener.lost(told);
                    }
                }
            };
            tokio::select! {
                () = pass_on => {}
                () = listener.closed() => {}
            }
        });
    }

    fn cells(&self) -> Result<&dyn Cells> {
        self.store.cells().map(|_| self as _)
    }

    async fn close_idle(&self) {
        self.store.close_idle().await;
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.road.trouble(|| self.store.inspect(name)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.road.trouble(|| self.store.list(prefix)).await
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.road.trouble(|| self.store.evict(eviction)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.road.trouble(|| self.store.diagnose()).await
    }
}
