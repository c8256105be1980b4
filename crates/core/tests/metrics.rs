//! What a metrics recorder gets to see.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tenure_core::{Chaos, Client, Faults, MemoryStore, Options};

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

#[test]
fn waits_holds_missed_renewals_losses_and_waiters_are_counted() {
    let sums = Sums::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&sums, || runtime.block_on(use_locks()));
    assert_eq!(sums.get("tenure_acquire_wait_seconds"), 2.0);
    assert_eq!(sums.get("tenure_hold_seconds"), 2.0);
    assert_eq!(sums.get("tenure_losses_total"), 1.0);
    assert!(sums.get("tenure_renewals_missed_total") >= 1.0);
    assert_eq!(sums.get("tenure_waiters"), 0.0);
    assert_eq!(sums.get("tenure_waiters peak"), 1.0);
}

async fn use_locks() {
    let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
    let client = Client::new(chaos.clone());
    let mutex = client.mutex("a").unwrap().with(Options::new().ttl(Duration::from_millis(600)));
    let guard = mutex.acquire().await.unwrap();
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire().await }
    });
    while client.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    chaos.pause();
    guard.lost().await;
    chaos.resume();
    drop(guard);
    client.close().await;
}
