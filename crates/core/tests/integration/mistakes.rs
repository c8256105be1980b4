//! A program that waits for itself, or takes locks in conflicting orders, is told so.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Client, ErrorKind, Guard, LossReason, MemoryStore};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// The warnings of this thread, as long as the guard lives.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut Text(&mut text));
        self.0.lock().push(text);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Warnings {
    fn listen() -> (Self, DefaultGuard) {
        let warnings = Self::default();
        let listens = tracing::subscriber::set_default(warnings.clone());
        (warnings, listens)
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

fn client() -> Client {
    Client::new(Arc::new(MemoryStore::new())).unwrap()
}

/// A place in this file.
fn at(line: u32) -> String {
    format!("{}:{line}:", file!())
}

const LONG: Duration = Duration::from_secs(5);
/// For what a faulty lock would wait for without end.
const GENEROUS: Duration = Duration::from_secs(20);

#[tokio::test(start_paused = true)]
async fn a_busy_error_says_that_this_client_holds_the_lock_and_where() {
    let store = Arc::new(MemoryStore::new());
    let [client, other] = [(); 2].map(|()| Client::new(store.clone()).unwrap());
    let mutex = client.mutex("a").unwrap();
    let (guard, line) = (mutex.acquire().await.unwrap(), line!());
    for attempt in [mutex.try_acquire().await, mutex.acquire_within(LONG).await] {
        let error = attempt.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut), "{error}");
        let text = error.to_string();
        assert!(text.contains("this client holds it itself") && text.contains(&at(line)), "{text}");
    }
    let read = client.rw_lock("a").unwrap().try_read().await.unwrap_err().to_string();
    assert!(read.contains("this client holds it itself"), "{read}");
    let foreign = other.mutex("a").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::Busy);
    assert!(foreign.to_string().contains("another claim holds it"), "{foreign}");
    guard.release().await.unwrap();
    // After the release, the hold of another client is named as such.
    let guard = other.mutex("a").unwrap().acquire().await.unwrap();
    let text = mutex.try_acquire().await.unwrap_err().to_string();
    assert!(text.contains("another claim holds it"), "{text}");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hold_of_this_client_that_does_not_block_the_attempt_is_not_named() {
    let store = Arc::new(MemoryStore::new());
    let [client, other] = [(); 2].map(|()| Client::new(store.clone()).unwrap());
    let permits = client.semaphore("p", 2).unwrap();
    let _own = permits.acquire().await.unwrap();
    let _foreign = other.semaphore("p", 2).unwrap().acquire().await.unwrap();
    let text = permits.try_acquire().await.unwrap_err().to_string();
    assert!(text.contains("another claim holds it"), "{text}");
    let lock = client.rw_lock("r").unwrap();
    let _reads = lock.read().await.unwrap();
    let waits = other.rw_lock("r").unwrap();
    let writer = tokio::spawn(async move { waits.write().await });
    while client.inspect("r").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    let text = lock.try_read().await.unwrap_err().to_string();
    assert!(text.contains("another claim holds it"), "{text}");
    let text = lock.try_write().await.unwrap_err().to_string();
    assert!(text.contains("this client holds it itself"), "{text}");
    writer.abort();
}

#[tokio::test(start_paused = true)]
async fn work_that_acquires_the_lock_it_runs_under_fails_at_once_with_both_places() {
    let (warnings, _listens) = Warnings::listen();
    let client = client();
    let mutex = client.mutex("a").unwrap();
    let first = line!() + 1;
    let nested = mutex.run(async |_| mutex.acquire().await.map(drop));
    let nested = tokio::time::timeout(GENEROUS, nested).await.expect("it does not wait for itself");
    let error = nested.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lock().unwrap().as_str()), (ErrorKind::Invalid, "a"));
    assert_eq!(error.to_string().matches(&at(first)).count(), 2, "{error}");
    let [warning] = &warnings.take()[..] else { panic!("one warning") };
    assert!(warning.contains("wait for itself") && warning.contains("lock=a"), "{warning}");
    assert!(warning.contains(&format!("held_at={}", at(first))), "{warning}");
    assert!(warning.contains(&format!("waits_at={}", at(first))), "{warning}");
    // Another lock, and a task of its own, are no fault.
    let other = client.mutex("b").unwrap();
    mutex.run(async |_| other.acquire().await.unwrap().release().await).await.unwrap().unwrap();
    let waits = mutex.clone();
    let task = mutex.run(async |_| tokio::spawn(async move { waits.acquire().await })).await;
    task.unwrap().await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(warnings.take(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_acquires_a_mutex_twice_is_warned_with_both_places() {
    let (warnings, _listens) = Warnings::listen();
    let mutex = client().mutex("a").unwrap();
    let (guard, held) = (mutex.acquire().await.unwrap(), line!());
    let (again, waits) = (mutex.acquire_within(LONG).await, line!());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::TimedOut);
    let [warning] = &warnings.take()[..] else { panic!("one warning") };
    assert!(warning.contains("may wait for itself"), "{warning}");
    assert!(warning.contains(&format!("held_at={}", at(held))), "{warning}");
    assert!(warning.contains(&format!("waits_at={}", at(waits))), "{warning}");
    guard.release().await.unwrap();
    // A lock that this task releases in time is no fault.
    mutex.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(warnings.take(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_moved_to_another_task_raises_no_alarm() {
    let (warnings, _listens) = Warnings::listen();
    let mutex = client().mutex("a").unwrap();
    let works: [fn(Guard) -> tokio::task::JoinHandle<()>; 3] = [
        |guard| {
            tokio::spawn(async move {
                let _ = guard.run(tokio::time::sleep(LONG)).await;
            })
        },
        |guard| {
            tokio::spawn(async move {
                assert!(guard.is_valid());
                tokio::time::sleep(LONG).await;
            })
        },
        // It is not used there at all, and held for less than a second.
        |guard| {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(900)).await;
                drop(guard);
            })
        },
    ];
    for work in works {
        let task = work(mutex.acquire().await.unwrap());
        mutex.acquire().await.unwrap().release().await.unwrap();
        task.await.unwrap();
    }
    // Two tasks that contend are no fault either.
    let guard = mutex.acquire().await.unwrap();
    let waits = mutex.clone();
    let waiter = tokio::spawn(async move { waits.acquire().await.unwrap().release().await });
    tokio::time::sleep(LONG).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap();
    assert_eq!(warnings.take(), Vec::<String>::new());
}

/// Takes both locks, one after the other, in a task of its own. Returns the lines.
async fn take_both(client: &Client, first: &str, then: &str) -> (u32, u32) {
    let (first, then) = (client.mutex(first).unwrap(), client.mutex(then).unwrap());
    let take = async move {
        let (one, first) = (first.acquire().await.unwrap(), line!());
        let (two, then) = (then.acquire().await.unwrap(), line!());
        two.release().await.unwrap();
        one.release().await.unwrap();
        (first, then)
    };
    tokio::spawn(take).await.unwrap()
}

#[tokio::test]
async fn locks_that_are_taken_in_both_orders_are_reported_once_with_all_places() {
    let (warnings, _listens) = Warnings::listen();
    let unchecked = client();
    for (first, then) in [("a", "b"), ("b", "a")] {
        take_both(&unchecked, first, then).await;
    }
    assert_eq!(warnings.take(), Vec::<String>::new(), "only by option");
    let client = unchecked.with_order_check().unwrap().with_call_timeout(LONG).unwrap();
    take_both(&client, "a", "b").await;
    take_both(&client, "a", "b").await;
    take_both(&client, "b", "c").await;
    assert_eq!(warnings.take(), Vec::<String>::new(), "one order is no fault");
    let (first, then) = take_both(&client, "b", "a").await;
    let [warning] = &warnings.take()[..] else { panic!("one warning") };
    assert!(warning.contains("two locks are taken in both orders"), "{warning}");
    for place in [
        format!("first=b then=a first_at={}", at(first)),
        format!("then_at={}", at(then)),
        format!("opposite_first_at={}", at(first)),
        format!("opposite_then_at={}", at(then)),
    ] {
        assert!(warning.contains(&place), "{place}: {warning}");
    }
    for (first, then) in [("a", "b"), ("b", "a"), ("a", "b")] {
        take_both(&client, first, then).await;
    }
    assert_eq!(warnings.take(), Vec::<String>::new(), "once per pair");
    take_both(&client, "c", "b").await;
    assert_eq!(warnings.take().len(), 1, "another pair");
}

/// Waits for the second lock while it holds the first one.
async fn take_across(first: (&Client, &str), then: (&Client, &str)) {
    let held = first.0.mutex(first.1).unwrap().acquire().await.unwrap();
    then.0.mutex(then.1).unwrap().acquire().await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn orders_of_locks_are_compared_across_clients_and_stores() {
    let (warnings, _listens) = Warnings::listen();
    let checked = |store: &Arc<MemoryStore>| {
        Client::new(Arc::clone(store) as _).unwrap().with_order_check().unwrap()
    };
    let stores = [(); 2].map(|()| Arc::new(MemoryStore::new()));
    let [one, again, other] = [&stores[0], &stores[0], &stores[1]].map(checked);
    take_across((&one, "a"), (&other, "b")).await;
    take_across((&other, "a"), (&one, "b")).await;
    assert_eq!(warnings.take(), Vec::<String>::new(), "these are four locks");
    take_across((&other, "b"), (&again, "a")).await;
    assert_eq!(warnings.take().len(), 1);
    // One name on two stores.
    take_across((&one, "c"), (&other, "c")).await;
    take_across((&other, "c"), (&one, "c")).await;
    assert_eq!(warnings.take().len(), 1);
}

#[tokio::test]
async fn a_multi_lock_that_is_waited_for_under_a_lock_counts_in_the_order() {
    let (warnings, _listens) = Warnings::listen();
    let client = client().with_order_check().unwrap();
    take_both(&client, "b", "z").await;
    let held = client.mutex("z").unwrap().acquire().await.unwrap();
    let both = client.multi_lock(["a", "b"]).unwrap();
    both.try_acquire().await.unwrap().release().await.unwrap();
    assert_eq!(warnings.take(), Vec::<String>::new(), "it did not wait");
    both.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(warnings.take().len(), 1);
    held.release().await.unwrap();
}

#[tokio::test]
async fn lock_orders_that_cannot_deadlock_are_not_reported() {
    let (warnings, _listens) = Warnings::listen();
    let client = client().with_order_check().unwrap();
    let [a, b] = ["a", "b"].map(|name| client.mutex(name).unwrap());
    take_both(&client, "a", "b").await;
    // An attempt that does not wait.
    let held = b.acquire().await.unwrap();
    a.try_acquire().await.unwrap().release().await.unwrap();
    // A guard that was moved to another task.
    let task = tokio::spawn(async move {
        assert!(held.is_valid());
        held
    });
    let held = task.await.unwrap();
    a.acquire().await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
    // A guard that was released before.
    b.acquire().await.unwrap().release().await.unwrap();
    a.acquire().await.unwrap().release().await.unwrap();
    // Several locks taken as one.
    client.multi_lock(["b", "a"]).unwrap().acquire().await.unwrap().release().await.unwrap();
    assert_eq!(warnings.take(), Vec::<String>::new());
}

#[tokio::test]
async fn a_handle_that_outlives_its_hold_does_no_work_and_can_be_used_for_the_next() {
    let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
    let (mutex, latch) = (client.mutex("a").unwrap(), client.latch("b", 1).unwrap());
    let guard = mutex.acquire().await.unwrap();
    let mut outlived = vec![guard.validity()];
    guard.release().await.unwrap();
    let party = latch.join().await.unwrap();
    outlived.push(party.validity());
    assert_eq!(party.count_down().await.unwrap(), 0);
    let account = client.reentrant_mutex("c").unwrap();
    let entry = account.acquire().await.unwrap();
    outlived.push(entry.validity());
    drop(entry);
    for validity in outlived {
        let mut worked = false;
        let refused = validity.run(async { worked = true }).await.unwrap_err();
        assert!(!worked, "there is no hold");
        assert_eq!(refused.kind(), ErrorKind::Lost, "{refused}");
        assert_eq!(refused.loss_reason(), Some(LossReason::GivenUp), "{refused}");
    }
    // After `close`, too: it ends nothing that is in use.
    client.close().await;
    mutex.try_acquire().await.unwrap().release().await.unwrap();
    account.try_acquire().await.unwrap().release().await.unwrap();
}
