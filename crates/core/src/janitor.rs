//! Releases in the background: dropped guards, abandoned attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_proto::Backoff;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

use crate::lease::Lease;
use crate::{Background, Claim, LossReason, Released, Result, Store, metric, now};

/// Releases claims in the background, each until the store confirmed it or its TTL has passed.
///
/// A part of the store may be down. So a release occupies one of the [`AT_ONCE`](Janitor::AT_ONCE)
/// slots only while its first call is answered promptly: not while it sleeps, not while it waits for
/// a server that is silent, and not when it tries again, for which there are slots of their own.
///
/// Bounded: beyond [`PENDING`](Janitor::PENDING) claims, further ones are left to their TTL.
#[derive(Debug)]
pub(crate) struct Janitor {
    jobs: mpsc::UnboundedSender<ReleaseJob>,
    pending: Arc<Pending>,
}

/// A release that is to be made.
#[derive(Debug)]
struct ReleaseJob {
    claim: Claim,
    /// The guard's lease, where this is its first release: if nothing is held, it was lost.
    lease: Option<Arc<Lease>>,
    _done: Done,
}

#[derive(Debug, Default)]
struct Pending {
    /// Releases that are neither confirmed nor abandoned yet.
    count: AtomicUsize,
    /// Holds that stay taken for a while, and are released then.
    kept: AtomicUsize,
    idle: Notify,
}

impl Janitor {
    /// How many claims can be without a confirmed release: in the queue, on their way, or asleep
    /// before the next attempt.
    const PENDING: usize = 65_536;
    /// How many first attempts are on their way at once, and how many further ones.
    const AT_ONCE: usize = 64;
    /// A call that takes longer goes on without its slot.
    const PROMPT: Duration = Duration::from_millis(50);

    /// Starts on a background thread, which goes on until everything is released that was left to
    /// the janitor, whatever becomes of the client.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        call_timeout: Duration,
        background: &Background,
    ) -> Self {
        let (jobs, received) = mpsc::unbounded_channel();
        let pending = Arc::new(Pending::default());
        background.runtime().spawn(sweep(store, call_timeout, received, background.clone()));
        Self { jobs, pending }
    }

    /// Takes over the release of a claim. Never blocks.
    pub(crate) fn release_later(&self, claim: Claim) {
        self.take_over(claim, None);
    }

    /// Takes over the first release of a dropped guard. Never blocks.
    pub(crate) fn release_dropped(&self, lease: Arc<Lease>) {
        self.take_over(lease.claim.clone(), Some(lease));
    }

    /// Counts as pending what is not released yet, until the answer is dropped.
    pub(crate) fn expect(&self) -> Expected {
        self.pending.kept.fetch_add(1, Ordering::AcqRel);
        Expected(Arc::clone(&self.pending))
    }

    fn take_over(&self, claim: Claim, lease: Option<Arc<Lease>>) {
        let before = self.pending.count.fetch_add(1, Ordering::AcqRel);
        let job = ReleaseJob { claim, lease, _done: Done(Arc::clone(&self.pending)) };
        let refused = match before < Self::PENDING {
            true => self.jobs.send(job).err().map(|refused| refused.0),
            false => Some(job),
        };
        if let Some(ReleaseJob { claim, .. }) = refused {
            let lock = &claim.name;
            tracing::warn!(%lock, "too many releases pending: this one is left to its TTL");
            metric::release_abandoned();
        }
    }

    /// Resolves when nothing is pending.
    pub(crate) async fn flush(&self) {
        loop {
            let idle = self.pending.idle.notified();
            if self.pending.is_idle() {
                return;
            }
            idle.await;
        }
    }
}

/// Goes with a claim from the queue to its release. Counts it as done whichever way that ends.
#[derive(Debug)]
pub(crate) struct Done(Arc<Pending>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.notify_if_idle();
    }
}

/// A release that will be ordered later.
#[derive(Debug)]
pub(crate) struct Expected(Arc<Pending>);

impl Drop for Expected {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(1, Ordering::AcqRel);
        self.0.notify_if_idle();
    }
}

impl Pending {
    fn is_idle(&self) -> bool {
        // In this order: when a hold is no longer kept, its release is pending already.
        self.kept.load(Ordering::Acquire) == 0 && self.count.load(Ordering::Acquire) == 0
    }

    fn notify_if_idle(&self) {
        if self.is_idle() {
            self.idle.notify_waiters();
        }
    }
}

async fn sweep(
    store: Arc<dyn Store>,
    call_timeout: Duration,
    mut jobs: mpsc::UnboundedReceiver<ReleaseJob>,
    background: Background,
) {
    let first = Arc::new(Semaphore::new(Janitor::AT_ONCE));
    let again = Arc::new(Semaphore::new(Janitor::AT_ONCE));
    while let Some(job) = jobs.recv().await {
        let Some(slot) = free(&first).await else { return };
        let (store, background) = (Arc::clone(&store), background.clone());
        let again = Arc::clone(&again);
        tokio::spawn(async move {
            release(&*store, call_timeout, &job, slot, &again).await;
            drop((job, background));
        });
    }
}

/// A slot, as soon as there is one. The semaphore is never closed.
async fn free(slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(slots).acquire_owned().await.ok()
}

async fn release(
    store: &dyn Store,
    call_timeout: Duration,
    job: &ReleaseJob,
    first: OwnedSemaphorePermit,
    again: &Arc<Semaphore>,
) {
    let claim = &job.claim;
    // A release that failed may have had its effect: then a repeated one finds nothing held, which is no
    // loss.
    let mut lease = job.lease.as_ref();
    // By then the TTL has freed the lock.
    let give_up = now() + claim.ttl;
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    let mut slot = Some(first);
    loop {
        match attempt(store, call_timeout, claim, slot.take()).await {
            Some(Ok(Released::Released)) => return,
            Some(Ok(Released::NotHeld)) => {
                if let Some(lease) = lease {
                    lease.lose(LossReason::NotHeld);
                }
                return;
            }
            Some(Err(error)) if !error.is_transient() => {
                tracing::warn!(lock = %claim.name, %error, "release failed: left to its TTL");
                metric::release_abandoned();
                return;
            }
            Some(Err(_)) | None if now() >= give_up => {
                tracing::warn!(lock = %claim.name, "release not confirmed: its TTL has passed");
                metric::release_abandoned();
                return;
            }
            Some(Err(_)) | None => {
                lease = None;
                tokio::time::sleep(backoff.next(claim.owner.chance(now()))).await;
                slot = free(again).await;
            }
        }
    }
}

/// Sends a release, and gives the slot back when it is answered, or when that takes its time.
/// `None`: there was no answer.
async fn attempt(
    store: &dyn Store,
    call_timeout: Duration,
    claim: &Claim,
    slot: Option<OwnedSemaphorePermit>,
) -> Option<Result<Released>> {
    let mut call = store.release(claim);
    let prompt = call_timeout.min(Janitor::PROMPT);
    if let Ok(answer) = tokio::time::timeout(prompt, &mut call).await {
        return Some(answer);
    }
    drop(slot);
    tokio::time::timeout(call_timeout - prompt, call).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chaos, Faults, MemoryStore};

    #[tokio::test]
    async fn releases_beyond_the_bound_are_left_to_the_ttl_and_the_others_are_flushed() {
        let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
        chaos.pause();
        let background = Background::start("tenure-test").unwrap();
        let janitor = Janitor::start(chaos.clone(), Duration::from_secs(60), &background);
        let claim = Claim::sample();
        let excess = 100;
        for _ in 0..Janitor::PENDING + excess {
            janitor.release_later(claim.clone());
        }
        assert_eq!(janitor.pending.count.load(Ordering::Acquire), Janitor::PENDING);
        chaos.resume();
        janitor.flush().await;
        assert_eq!(janitor.pending.count.load(Ordering::Acquire), 0);
    }
}
