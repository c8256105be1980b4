//! What a metrics recorder gets to see.

#![allow(clippy::unwrap_used)]

#[path = "integration/layer.rs"]
mod layer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use layer::{Layer, Layered};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tenure_core::store::{Claim, Eviction, Grant, Renewal, Store};
use tenure_core::{Chaos, Client, Error, ErrorKind, Faults, Guard, MemoryStore, Options, Result};

/// Adds everything up by name; a gauge also remembers its peak.
#[derive(Clone, Default)]
struct Sums(Arc<Mutex<BTreeMap<String, f64>>>);

struct Sum(Sums, String);

impl Sums {
    fn get(&self, name: &str) -> f64 {
        self.0.lock().unwrap().get(name).copied().unwrap_or(0.0)
    }
    fn of(&self, key: &Key) -> Arc<Sum> {
        Arc::new(Sum(self.clone(), key.name().to_owned()))
    }
}

impl Sum {
    fn add(&self, value: f64) {
        let mut sums = self.0.0.lock().unwrap();
        let sum = sums.entry(self.1.clone()).or_default();
        *sum += value;
        let sum = *sum;
        let peak = sums.entry(format!("{} peak", self.1)).or_default();
        *peak = peak.max(sum);
    }
}

impl CounterFn for Sum {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }
    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Sum {
    fn increment(&self, value: f64) {
        self.add(value);
    }
    fn decrement(&self, value: f64) {
        self.add(-value);
    }
    fn set(&self, _: f64) {}
}

impl HistogramFn for Sum {
    fn record(&self, _: f64) {
        self.add(1.0);
    }
}

impl Recorder for Sums {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.of(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.of(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.of(key))
    }
}

/// The recorder is the program's: this is its only test.
#[test]
fn waits_holds_missed_renewals_waiters_and_each_loss_once_are_counted() {
    let sums = Sums::default();
    metrics::set_global_recorder(sums.clone()).unwrap_or_else(|_| panic!("the first recorder"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(use_locks());
    assert_eq!(sums.get("tenure_acquire_wait_seconds"), 2.0);
    assert_eq!(sums.get("tenure_hold_seconds"), 2.0);
    assert_eq!(sums.get("tenure_losses_total"), 1.0);
    assert!(sums.get("tenure_renewals_missed_total") >= 1.0);
    assert_eq!(sums.get("tenure_held"), 0.0);
    assert_eq!(sums.get("tenure_held peak"), 1.0);
    assert_eq!(sums.get("tenure_handoffs_total"), 1.0);
    assert_eq!(sums.get("tenure_renewals_late_total"), 1.0);
    assert_eq!(sums.get("tenure_acquire_failures_total"), 1.0);
    assert_eq!(sums.get("tenure_waiters"), 0.0);
    assert_eq!(sums.get("tenure_waiters peak"), 1.0);

    // A joint claim that fails is counted once for each lock.
    let client = Client::new(Layered::new(&MemoryStore::new(), Refuses)).unwrap();
    let locks = client.multi_lock(["a", "b", "c"]).unwrap();
    block_on(locks.try_acquire()).unwrap_err();
    assert_eq!(sums.get("tenure_acquire_failures_total"), 4.0);

    // However a loss is found, it is counted once: by the clock alone, as after a freeze; by the
    // keeper and the clock; or by the release.
    type Way = (&'static str, fn(Guard, &Client));
    let ways: [Way; 4] = [
        ("by the clock", |guard, _| {
            std::thread::sleep(TTL);
            assert!(!guard.is_valid() && !guard.is_valid());
            drop(guard);
        }),
        ("when it is dropped", |guard, _| {
            std::thread::sleep(TTL);
            drop(guard);
        }),
        ("by the release in the background", |guard, client| {
            block_on(async {
                let eviction = Eviction::new(guard.name().clone(), guard.owner(), "test");
                client.store().evict(&eviction).await.unwrap();
                drop(guard);
                client.close().await;
            });
        }),
        ("by the release", |guard, client| {
            block_on(async {
                let eviction = Eviction::new(guard.name().clone(), guard.owner(), "test");
                client.store().evict(&eviction).await.unwrap();
                guard.release().await.unwrap_err();
            });
        }),
    ];
    for (number, (way, lose)) in (2..).zip(ways) {
        // The keeper stands still from the first renewal on, like everything in a frozen process.
        let client = Client::new(Layered::new(&MemoryStore::new(), Frozen)).unwrap();
        let mutex = client.mutex("a").unwrap().with(Options::new().ttl(TTL));
        lose(block_on(mutex.acquire()).unwrap(), &client);
        assert_eq!(sums.get("tenure_losses_total"), f64::from(number), "{way}");
        assert_eq!(sums.get("tenure_held"), 0.0, "{way}");
    }
    std::thread::sleep(TTL * 2);
    assert_eq!(sums.get("tenure_losses_total"), 5.0, "the keeper counts none again");
}

const TTL: Duration = Duration::from_millis(400);

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Renewals that stop the thread that they are made on.
#[derive(Debug)]
struct Frozen;

#[async_trait::async_trait]
impl Layer for Frozen {
    async fn renew(&self, memory: &MemoryStore, claim: &Claim) -> Result<Renewal> {
        std::thread::sleep(TTL * 2);
        memory.renew(claim).await
    }
}

/// A store whose call for several locks is not allowed.
#[derive(Debug)]
struct Refuses;

#[async_trait::async_trait]
impl Layer for Refuses {
    async fn claim_together(&self, _: &MemoryStore, _: &[Claim]) -> Result<Option<Vec<Grant>>> {
        Err(Error::new(ErrorKind::Denied, "acquire", "not allowed"))
    }
}

async fn use_locks() {
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
    let client = Client::new(chaos.clone()).unwrap();
    let mutex = client.mutex("a").unwrap().with(Options::new().ttl(Duration::from_millis(600)));
    let guard = mutex.acquire().await.unwrap();
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire().await }
    });
    while client.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    mutex.try_acquire().await.unwrap_err();
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    chaos.pause();
    guard.lost().await;
    chaos.resume();
    drop(guard);
    client.close().await;
}
