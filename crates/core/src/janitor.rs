//! Releases in the background: dropped guards, abandoned attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_proto::Backoff;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::lease::Lease;
use crate::{Background, Claim, LossReason, Released, Store, metric, now};

/// Releases claims in the background, each until the store confirmed it or its TTL has passed.
///
/// Bounded: beyond [`QUEUE`](Janitor::QUEUE) claims, further ones are left to their TTL.
#[derive(Debug)]
pub(crate) struct Janitor {
    orders: mpsc::Sender<Order>,
    pending: Arc<Pending>,
}

/// A release that is to be made.
#[derive(Debug)]
struct Order {
    claim: Claim,
    /// The guard's lease, where this is its first release: if nothing is held, it was lost.
    lease: Option<Arc<Lease>>,
    _done: Done,
}

#[derive(Debug, Default)]
struct Pending {
    count: AtomicUsize,
    idle: Notify,
}

impl Janitor {
    /// How many claims can wait for their release.
    const QUEUE: usize = 65_536;
    /// How many releases are under way at once.
    const AT_ONCE: usize = 64;

    /// Starts on a background thread, which goes on until everything is released that was left to
    /// the janitor, whatever becomes of the client.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        call_timeout: Duration,
        background: &Background,
    ) -> Self {
        let (orders, received) = mpsc::channel(Self::QUEUE);
        let pending = Arc::new(Pending::default());
        background.runtime().spawn(sweep(store, call_timeout, received, background.clone()));
        Self { orders, pending }
    }

    /// Takes over the release of a claim. Never blocks.
    pub(crate) fn release_later(&self, claim: Claim) {
        self.take_over(claim, None);
    }

    /// Takes over the first release of a dropped guard. Never blocks.
    pub(crate) fn release_dropped(&self, lease: Arc<Lease>) {
        self.take_over(lease.claim.clone(), Some(lease));
    }

    fn take_over(&self, claim: Claim, lease: Option<Arc<Lease>>) {
        self.pending.count.fetch_add(1, Ordering::AcqRel);
        let _done = Done(Arc::clone(&self.pending));
        if let Err(refused) = self.orders.try_send(Order { claim, lease, _done }) {
            let lock = refused.into_inner().claim.name;
            tracing::warn!(%lock, "too many releases pending: this one is left to its TTL");
            metric::release_abandoned();
        }
    }

    /// Resolves when nothing is pending.
    pub(crate) async fn flush(&self) {
        loop {
            let idle = self.pending.idle.notified();
            if self.pending.count.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Goes with a claim from the queue to its release. Counts it as done whichever way that ends.
#[derive(Debug)]
struct Done(Arc<Pending>);

impl Drop for Done {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

async fn sweep(
    store: Arc<dyn Store>,
    call_timeout: Duration,
    mut orders: mpsc::Receiver<Order>,
    background: Background,
) {
    let slots = Arc::new(Semaphore::new(Janitor::AT_ONCE));
    while let Some(order) = orders.recv().await {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        let (store, background) = (Arc::clone(&store), background.clone());
        tokio::spawn(async move {
            release(&*store, call_timeout, &order).await;
            drop((slot, order, background));
        });
    }
}

async fn release(store: &dyn Store, call_timeout: Duration, order: &Order) {
    let claim = &order.claim;
    // A release that failed may have had its effect: then a second one finds nothing.
    let mut lease = order.lease.as_ref();
    // Later than this the TTL has done the work.
    let give_up = now() + claim.ttl;
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        match tokio::time::timeout(call_timeout, store.release(claim)).await {
            Ok(Ok(Released::Released)) => return,
            Ok(Ok(Released::NotHeld)) => {
                if let Some(lease) = lease {
                    lease.lose(LossReason::NotHeld);
                }
                return;
            }
            Ok(Err(error)) if !error.is_transient() => {
                tracing::warn!(lock = %claim.name, %error, "release failed: left to its TTL");
                metric::release_abandoned();
                return;
            }
            Ok(Err(_)) | Err(_) if now() >= give_up => {
                tracing::warn!(lock = %claim.name, "release not confirmed: its TTL has passed");
                metric::release_abandoned();
                return;
            }
            Ok(Err(_)) | Err(_) => {
                lease = None;
                tokio::time::sleep(backoff.next(claim.owner.chance(now()))).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chaos, Faults, MemoryStore};

    #[tokio::test]
    async fn what_is_beyond_the_bound_is_left_to_its_ttl_and_the_rest_is_flushed() {
        let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
        chaos.pause();
        let background = Background::start("tenure-test").unwrap();
        let janitor = Janitor::start(chaos.clone(), Duration::from_secs(60), &background);
        let claim = Claim::sample();
        let excess = 100;
        for _ in 0..Janitor::QUEUE + excess {
            janitor.release_later(claim.clone());
        }
        // One more than those under way may have left the queue.
        let bound = Janitor::QUEUE..=Janitor::QUEUE + Janitor::AT_ONCE + 1;
        assert!(bound.contains(&janitor.pending.count.load(Ordering::Acquire)));
        chaos.resume();
        janitor.flush().await;
        assert_eq!(janitor.pending.count.load(Ordering::Acquire), 0);
    }
}
