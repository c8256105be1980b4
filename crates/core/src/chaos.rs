//! A store that fails on request, for tests.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};

use crate::cells::contract::{
    Add, Added, CellClock, CellKey, Cells, Stored, Swap, Swapped, Take, Taken, Version,
};
use crate::listener::HandleLoss;
use crate::{
    AuditRecord, Capabilities, ChangeHints, Claim, ClaimOutcome, Downgraded, Error, ErrorKind,
    Eviction, Fence, Finding, Hold, Holder, LockName, LockState, LossListener, LossListeners,
    QueueTicket, Released, Renewal, Result, Store, WaitPolicy,
};

/// A store around a store that delays, loses and repeats calls, stops answering, or loses a lock.
///
/// Put it around a [`MemoryStore`](crate::MemoryStore) to test what your own code does when a lock is lost
/// or the store does not answer.
///
/// [`lose`](Chaos::lose) takes a lock away at a moment that the test chooses, without waiting, so it works
/// with tokio's paused time:
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tenure::{Chaos, Client, ErrorKind, Faults, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tenure::Error> {
/// let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(7)));
/// let client = Client::new(chaos.clone())?;
/// let mutex = client.mutex("orders")?;
///
/// let work = mutex.run(async |_| {
///     tokio::time::sleep(Duration::from_secs(60)).await; // the work under test …
///     chaos.lose("orders").await?; // … loses its lock after a minute
///     std::future::pending::<Result<(), tenure::Error>>().await
/// });
/// assert_eq!(work.await.unwrap_err().kind(), ErrorKind::Lost);
/// # Ok(())
/// # }
/// ```
///
/// With [`pause`](Chaos::pause) the store does not answer, and a lock is lost when its TTL has passed. That
/// takes real time, because leases do not run on tokio's clock.
#[derive(Debug)]
pub struct Chaos {
    store: Arc<dyn Store>,
    network: Arc<Network>,
    listeners: LossListeners,
}

/// What lies between the client and the store.
#[derive(Debug)]
struct Network {
    faults: Faults,
    random: AtomicU64,
    paused: watch::Sender<bool>,
}

/// Which faults a [`Chaos`] has, and how often. The same seed gives the same choices in the same order.
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
    /// No faults; the seed for the choices among those that are added.
    pub const fn new(seed: u64) -> Self {
        let delay = Duration::ZERO..Duration::ZERO;
        Self { seed, delay, lose_requests: 0.0, lose_replies: 0.0, duplicate: 0.0 }
    }

    /// Delays every request and every reply by a time from this range.
    pub const fn delay(mut self, range: Range<Duration>) -> Self {
        self.delay = range;
        self
    }

    /// Loses this share of the requests.
    pub const fn lose_requests(mut self, share: f64) -> Self {
        self.lose_requests = share;
        self
    }

    /// Loses the replies of this share of the calls, which are carried out.
    pub const fn lose_replies(mut self, share: f64) -> Self {
        self.lose_replies = share;
        self
    }

    /// Carries out this share of the calls twice.
    pub const fn duplicate(mut self, share: f64) -> Self {
        self.duplicate = share;
        self
    }
}

impl Chaos {
    /// The store, with faults.
    pub fn new(store: Arc<dyn Store>, faults: Faults) -> Self {
        let random = AtomicU64::new(faults.seed);
        let network = Network { faults, random, paused: watch::Sender::new(false) };
        Self { store, network: Arc::new(network), listeners: LossListeners::default() }
    }

    /// Lets no call through until [`resume`](Chaos::resume).
    pub fn pause(&self) {
        self.network.paused.send_replace(true);
    }

    /// Lets calls through again, also those that are pending.
    pub fn resume(&self) {
        self.network.paused.send_replace(false);
    }

    /// Takes the lock from all its holders, as an operator's eviction does. Their guards are lost when this
    /// returns, for [`NotHeld`](crate::LossReason::NotHeld), and the next waiter gets the lock.
    ///
    /// It is not subject to the faults. On a [`MemoryStore`](crate::MemoryStore) it needs no time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no claim holds the lock, or the name is bad; faults of the store.
    pub async fn lose(&self, name: &str) -> Result<()> {
        let name = LockName::new(name)?;
        let state = self.store.inspect(&name).await?;
        if state.holders.is_empty() {
            let why = "no claim holds it: let the code under test acquire it first";
            return Err(Error::new(ErrorKind::Invalid, "lose", why).about(&name));
        }
        for holder in &state.holders {
            // A guard must be lost before another claim can get the lock.
            if let Ok(owner) = holder.owner.parse() {
                self.listeners.lost(Hold::new(owner, holder.token));
            }
            self.store.evict(&Eviction::new(name.clone(), &holder.owner, "chaos")).await?;
        }
        Ok(())
    }
}

impl Chaos {
    /// The store underneath.
    pub(crate) fn inner(&self) -> &dyn Store {
        &*self.store
    }

    /// Makes a call, with the faults drawn for it.
    pub(crate) async fn call<T, F: Future<Output = Result<T>>>(
        &self,
        call: impl Fn() -> F,
    ) -> Result<T> {
        self.network.call(call).await
    }

    /// Waits for a message. A lost message is silence, not an error.
    pub(crate) async fn message<T>(&self, message: impl Future<Output = T>) -> T {
        self.network.open().await;
        let message = message.await;
        self.network.open().await;
        if self.network.loses_a_reply() {
            std::future::pending::<()>().await;
        }
        message
    }
}

impl Network {
    /// Makes a call, with the faults drawn for it.
    async fn call<T, F: Future<Output = Result<T>>>(&self, call: impl Fn() -> F) -> Result<T> {
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

    /// Resolves when calls get through.
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

/// Passes the losses that the store reports to the task that delays them.
struct Forward(mpsc::UnboundedSender<Hold>);

impl HandleLoss for Forward {
    fn handle_loss(&self, hold: Hold) {
        // The receiver is gone only when the task is.
        let _ = self.0.send(hold);
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
        self.network.call(|| self.store.claim(claim, policy)).await
    }

    async fn wait(&self, claim: &Claim, ticket: &QueueTicket) -> Result<ClaimOutcome> {
        self.message(self.store.wait(claim, ticket)).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal> {
        self.network.call(|| self.store.renew(claim)).await
    }

    async fn downgrade(&self, claim: &Claim) -> Result<Downgraded> {
        self.network.call(|| self.store.downgrade(claim)).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.network.call(|| self.store.release(claim)).await
    }

    fn fence(&self, name: &LockName, hold: Hold) -> Option<Fence> {
        self.store.fence(name, hold)
    }

    fn subscribe_losses(&self, listener: LossListener) {
        self.listeners.add(listener.clone());
        let (sender, mut losses) = mpsc::unbounded_channel();
        let forward = Arc::new(Forward(sender));
        self.store.subscribe_losses(LossListener::new(&forward));
        let network = Arc::clone(&self.network);
        tokio::spawn(async move {
            // The store reports to it as long as this task runs.
            let _forward = forward;
            while let Some(hold) = losses.recv().await {
                if listener.is_closed() {
                    return;
                }
                network.open().await;
                network.travel().await;
                if !network.loses_a_reply() {
                    listener.lost(hold);
                }
            }
        });
    }

    fn changes(&self, prefix: &str) -> Option<ChangeHints> {
        let mut hints = self.store.changes(prefix)?;
        let (sender, forwarded) = ChangeHints::new();
        let network = Arc::clone(&self.network);
        tokio::spawn(async move {
            let forwarding = async {
                while let Some(hint) = hints.next().await {
                    network.open().await;
                    network.travel().await;
                    if network.loses_a_reply() {
                        continue;
                    }
                    if hint.others {
                        sender.any_changed();
                    }
                    hint.names.iter().for_each(|name| sender.changed(name));
                }
            };
            tokio::select! {
                () = forwarding => {}
                () = sender.closed() => {}
            }
        });
        Some(forwarded)
    }

    fn cells(&self) -> Result<&dyn Cells> {
        self.store.cells().map(|_| self as _)
    }

    async fn close_idle(&self) {
        self.store.close_idle().await;
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.network.call(|| self.store.inspect(name)).await
    }

    async fn holders(&self, name: &LockName) -> Result<Vec<Holder>> {
        self.network.call(|| self.store.holders(name)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.network.call(|| self.store.list(prefix)).await
    }

    async fn evict(&self, eviction: &Eviction) -> Result<Released> {
        self.network.call(|| self.store.evict(eviction)).await
    }

    async fn audit(&self, name: &LockName) -> Result<Vec<AuditRecord>> {
        self.network.call(|| self.store.audit(name)).await
    }

    async fn add_audit_record(&self, name: &LockName, record: &AuditRecord) -> Result<()> {
        self.network.call(|| self.store.add_audit_record(name, record)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.network.call(|| self.store.diagnose()).await
    }
}

/// The cells of the store underneath, with the same faults as its locks.
#[async_trait]
impl Cells for Chaos {
    fn max_value_bytes(&self) -> usize {
        self.inner().cells().map_or(0, |cells| cells.max_value_bytes())
    }

    fn clock(&self) -> CellClock {
        self.inner().cells().map_or(CellClock::PerClient, |cells| cells.clock())
    }

    fn pushes(&self) -> bool {
        self.inner().cells().is_ok_and(|cells| cells.pushes())
    }

    async fn time(&self) -> Result<Duration> {
        let cells = self.inner().cells()?;
        self.call(|| cells.time()).await
    }

    async fn read(&self, key: &CellKey) -> Result<Option<Stored>> {
        let cells = self.inner().cells()?;
        self.call(|| cells.read(key)).await
    }

    async fn swap(&self, key: &CellKey, swap: &Swap) -> Result<Swapped> {
        let cells = self.inner().cells()?;
        self.call(|| cells.swap(key, swap)).await
    }

    async fn add(&self, key: &CellKey, add: &Add) -> Result<Option<Added>> {
        let cells = self.inner().cells()?;
        self.call(|| cells.add(key, add)).await
    }

    async fn take(&self, key: &CellKey, take: &Take) -> Result<Option<Taken>> {
        let cells = self.inner().cells()?;
        self.call(|| cells.take(key, take)).await
    }

    async fn changed(&self, key: &CellKey, seen: Option<Version>) -> Result<()> {
        let cells = self.inner().cells()?;
        self.message(cells.changed(key, seen)).await
    }
}
