//! The blocking API, which threads use without a runtime, and synchronous code inside one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_core::blocking::{Client, Guard, Mutex};
use tenure_core::{ErrorKind, LockName};
use tenure_testkit::GENEROUS;
use tokio::runtime::Builder;

use crate::Fixture;
use crate::fixture::{long, name};

/// Calls block a plain thread and the only thread of a runtime alike: the client's own thread serves the
/// connection, wakes the waiters, and releases the lock of a caller that panics.
pub async fn calls_block_a_thread_with_and_without_a_runtime(fixture: &dyn Fixture) {
    let names = ["blocking", "blocking-inside"].map(name);
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| use_locks(fixture, &names[0]));
            scope.spawn(|| {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async { use_locks(fixture, &names[1]) });
            });
        });
    });
}

fn open(fixture: &dyn Fixture) -> Client {
    Client::open(async { Ok(fixture.store().await) }).unwrap()
}

fn acquire(mutex: &Mutex) -> Guard {
    mutex.acquire_within(GENEROUS).unwrap()
}

fn release(guard: Guard) {
    if let Err(error) = guard.release() {
        assert!(error.is_transient(), "{error}");
    }
}

fn use_locks(fixture: &dyn Fixture, name: &LockName) {
    let (client, other) = (open(fixture), open(fixture));
    let mutex = client.mutex(name.as_str()).unwrap().with(long());
    let guard = acquire(&mutex);
    assert_eq!(guard.run(|| 2 + 2).unwrap(), 4);
    let waits = other.mutex(name.as_str()).unwrap().with(long());
    let refused = waits.try_acquire().unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Busy || fixture.injects_faults() && refused.is_transient(),
        "{refused}"
    );
    let waiter = std::thread::spawn(move || acquire(&waits));
    release(guard);
    // What a caller holds when it panics is released while the stack unwinds.
    let granted = waiter.join().unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _held = granted;
        std::panic::resume_unwind(Box::new("the work fails"));
    }));
    assert!(panicked.is_err());
    release(acquire(&mutex));

    let account = client.reentrant_mutex(name.as_str()).unwrap().with(long()).by_thread();
    let outer = account.acquire_within(GENEROUS).unwrap();
    let inner = account.acquire().unwrap();
    assert_eq!((inner.entries(), inner.token()), (2, outer.token()));
    drop((outer, inner));
    if client.store().cells().is_ok() {
        let counter = client.counter(name.as_str()).unwrap();
        counter.add(3).unwrap();
        assert_eq!(counter.subtract(1, 0).unwrap(), 2);
    }
    client.close();
    other.close();
}
