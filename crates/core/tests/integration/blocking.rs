//! The API for threads, on the memory store.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tenure_core::blocking::{Client, Guard, MultiLock, Mutex, OnceStart};
use tenure_core::{
    Chaos, Error, ErrorKind, Faults, LossReason, MemoryStore, OnceOutcome, Options, Rate,
    WatchEvent,
};
use tokio::runtime::{Builder, Runtime};

const GENEROUS: Duration = Duration::from_secs(20);

fn client() -> Client {
    Client::new(Arc::new(MemoryStore::new())).unwrap()
}

fn single_threaded() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_threaded() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Runs `test` on a thread of its own, and fails if it hangs.
fn in_time(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(GENEROUS) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => thread.join().unwrap(),
    }
}

/// A holder on a thread of its own that releases the lock as soon as another claim waits for it.
fn hold_until_waited_for(client: &Client, name: &str) -> thread::JoinHandle<()> {
    let guard = client.mutex(name).unwrap().acquire().unwrap();
    let (client, name) = (client.clone(), name.to_owned());
    thread::spawn(move || {
        let start = Instant::now();
        while client.inspect(&name).unwrap().waiters.is_empty() {
            assert!(start.elapsed() < GENEROUS, "no claim waits");
            thread::sleep(Duration::from_millis(2));
        }
        guard.release().unwrap();
    })
}

fn wait_for_a_lock(client: &Client, name: &str) -> Guard {
    let holder = hold_until_waited_for(client, name);
    let guard = client.mutex(name).unwrap().acquire().unwrap();
    holder.join().unwrap();
    assert!(guard.is_valid() && guard.token().is_some());
    guard
}

#[test]
fn a_call_waits_outside_a_runtime_and_on_any_of_its_threads() {
    in_time(|| {
        let client = client();
        wait_for_a_lock(&client, "outside").release().unwrap();

        let inside = client.clone();
        single_threaded().block_on(async move { wait_for_a_lock(&inside, "a").release().unwrap() });

        let (runtime, inside) = (multi_threaded(), client.clone());
        runtime.block_on(async move {
            let outer = inside.clone();
            wait_for_a_lock(&outer, "b").release().unwrap();
            let worker = inside.clone();
            tokio::spawn(async move { wait_for_a_lock(&worker, "c").release().unwrap() })
                .await
                .unwrap();
            let blocking = move || wait_for_a_lock(&inside, "d").release().unwrap();
            tokio::task::spawn_blocking(blocking).await.unwrap();
        });
    });
}

#[test]
fn a_call_inside_a_task_without_budget_still_ends() {
    in_time(|| {
        let mutex = client().mutex("a").unwrap();
        let _guard = mutex.acquire().unwrap();
        single_threaded().block_on(poll_fn(|context| {
            while let Poll::Ready(step) = tokio::task::coop::poll_proceed(context) {
                step.made_progress();
            }
            let late = mutex.acquire_within(Duration::from_millis(20)).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::TimedOut);
            Poll::Ready(())
        }));
    });
}

#[test]
fn a_guard_that_is_dropped_anywhere_releases_the_lock() {
    in_time(|| {
        let client = client();
        let mutex = client.mutex("a").unwrap();
        drop(mutex.acquire().unwrap());
        single_threaded().block_on(async { drop(mutex.acquire().unwrap()) });
        let runtime = multi_threaded();
        let guard = mutex.acquire().unwrap();
        runtime.block_on(async { tokio::spawn(async move { drop(guard) }).await.unwrap() });
        let guard = mutex.acquire().unwrap();
        runtime.block_on(runtime.spawn_blocking(move || drop(guard))).unwrap();
        // A runtime that ends with the guard in a task of it.
        let guard = mutex.acquire().unwrap();
        let ending = single_threaded();
        ending.spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        ending.block_on(tokio::task::yield_now());
        drop(ending);
        mutex.acquire().unwrap().release().unwrap();
        client.close();
        assert!(client.inspect("a").unwrap().is_free());
    });
}

#[test]
fn a_client_may_be_made_and_dropped_inside_a_runtime() {
    in_time(|| {
        single_threaded().block_on(async {
            let client = client();
            let guard = client.mutex("a").unwrap().acquire().unwrap();
            drop(client);
            assert!(guard.is_valid());
            guard.release().unwrap();
        });
    });
}

#[test]
fn a_panic_releases_the_lock_and_the_next_holder_gets_it() {
    in_time(|| {
        let client = client();
        let mutex = client.mutex("a").unwrap();
        let broken = mutex.clone();
        let thread = thread::spawn(move || {
            let run = broken.run(|_| panic!("the work breaks"));
            drop::<tenure_core::Result<()>>(run);
        });
        assert!(thread.join().is_err());
        mutex.acquire().unwrap().release().unwrap();

        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _guard = mutex.acquire().unwrap();
            panic!("the work breaks");
        }));
        assert!(caught.is_err());
        mutex.acquire().unwrap().release().unwrap();

        let account = client.reentrant_mutex("b").unwrap().by_thread();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _outer = account.acquire().unwrap();
            let _inner = account.acquire().unwrap();
            panic!("the work breaks");
        }));
        assert!(caught.is_err());
        assert!(!account.is_held_by_this_thread());
        let other = account.clone();
        thread::spawn(move || other.acquire().unwrap().release().unwrap()).join().unwrap();
    });
}

#[test]
fn a_loss_wakes_the_waiting_thread_and_fails_the_work_and_the_release() {
    in_time(|| {
        let chaos = Arc::new(Chaos::new(Arc::new(MemoryStore::new()), Faults::new(1)));
        let client = Client::new(chaos.clone()).unwrap();
        let mutex = client.mutex("a").unwrap();
        let guard = mutex.acquire().unwrap();
        let validity = guard.validity();
        let cancelled = validity.cancellation_token();
        let watcher = thread::spawn(move || validity.lost());
        let lost = guard.run(|| single_threaded().block_on(chaos.lose("a")).unwrap());
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.lost(), LossReason::NotHeld);
        assert_eq!(watcher.join().unwrap(), LossReason::NotHeld);
        assert!(cancelled.is_cancelled() && !guard.is_valid());
        let not_begun = guard.run(|| panic!("the work must not begin"));
        assert_eq!(not_begun.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
    });
}

#[test]
fn a_thread_enters_its_own_hold_and_another_waits() {
    in_time(|| {
        let client = client();
        let account = || client.reentrant_mutex("account/7").unwrap().by_thread();
        let outer = account().acquire().unwrap();
        let inner = account().try_acquire().unwrap();
        assert_eq!((inner.entries(), inner.token()), (2, outer.token()));
        assert!(account().is_held_by_this_thread());
        let other = account();
        let (tried, busy) = mpsc::channel();
        let thread = thread::spawn(move || {
            tried.send(other.try_acquire().unwrap_err().kind()).unwrap();
            assert!(!other.is_held_by_this_thread());
            other.acquire().unwrap().token()
        });
        assert_eq!(busy.recv().unwrap(), ErrorKind::Busy);
        outer.release().unwrap();
        // The inner entry still holds it.
        assert!(inner.is_valid() && inner.entries() == 1);
        assert_eq!(client.inspect("account/7").unwrap().holders.len(), 1);
        let first = inner.token();
        drop(inner);
        assert!(thread.join().unwrap() > first);
        // Another client is another holder.
        let guard = account().acquire().unwrap();
        let stranger = Client::new(Arc::clone(client.store())).unwrap();
        let theirs = stranger.reentrant_mutex("account/7").unwrap().by_thread();
        assert_eq!(theirs.try_acquire().unwrap_err().kind(), ErrorKind::Busy);
        guard.release().unwrap();
    });
}

#[test]
fn clones_of_a_reentrant_handle_share_a_hold_across_threads() {
    let client = client();
    let account = client.reentrant_mutex("a").unwrap();
    let outer = account.acquire().unwrap();
    let clone = account.clone();
    let inner = thread::spawn(move || clone.acquire().unwrap()).join().unwrap();
    assert_eq!(inner.entries(), 2);
    let other = client.reentrant_mutex("a").unwrap();
    assert_eq!(other.try_acquire().unwrap_err().kind(), ErrorKind::Busy);
    outer.release().unwrap();
    inner.release().unwrap();
    other.acquire_within(GENEROUS).unwrap().release().unwrap();
}

#[test]
fn readers_writers_permits_and_several_locks_work_as_in_the_async_api() {
    let client = client();
    let catalogue = client.rw_lock("catalogue").unwrap();
    let (one, two) = (catalogue.read().unwrap(), catalogue.try_read().unwrap());
    assert_eq!(catalogue.try_write().unwrap_err().kind(), ErrorKind::Busy);
    one.release().unwrap();
    two.release().unwrap();
    catalogue.write().unwrap().release().unwrap();

    let encoders = client.semaphore("encoders", 3).unwrap();
    let (two, one) = (encoders.acquire_many(2).unwrap(), encoders.acquire().unwrap());
    assert_eq!(encoders.try_acquire().unwrap_err().kind(), ErrorKind::Busy);
    two.release().unwrap();
    one.release().unwrap();

    let both = client.multi_lock(["b", "a"]).unwrap().acquire().unwrap();
    let names: Vec<_> = both.tokens().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(both.run(|| 42).unwrap(), 42);
    let taken = client.mutex("a").unwrap().try_acquire();
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::Busy);
    both.release().unwrap();
    assert_eq!(MultiLock::of(Vec::<Mutex>::new()).unwrap_err().kind(), ErrorKind::Invalid);
    let two_stores =
        MultiLock::of([client.mutex("a").unwrap(), self::client().mutex("a").unwrap()]);
    two_stores.unwrap().acquire().unwrap().release().unwrap();

    let payouts =
        client.mutex("payouts").unwrap().with(Options::new().label("x")).fenced().unwrap();
    let token = payouts.run(|guard| guard.token()).unwrap();
    assert!(payouts.acquire().unwrap().token() > token);
}

#[test]
fn values_work_as_in_the_async_api() {
    let client = client();
    let stock = client.counter("stock").unwrap();
    assert_eq!(stock.add(10).unwrap(), 10);
    assert_eq!(stock.subtract(8, 0).unwrap(), 2);
    assert_eq!(stock.subtract(5, 0).unwrap_err().kind(), ErrorKind::OutOfRange);

    let limit = client.rate_limiter("mails", Rate::gcra(1, Duration::from_secs(3600))).unwrap();
    assert!(limit.peek(1).unwrap().allowed && limit.take(1).unwrap().allowed);
    assert!(!limit.take(1).unwrap().allowed);

    let cell = client.cell::<u64>("cell").unwrap();
    let (waiting, other) = (cell.clone(), cell.clone());
    let waiter = thread::spawn(move || waiting.wait_until(|value| value == Some(&3)).unwrap());
    // A change may itself make a blocking call.
    let updated = cell.update(|value| {
        other.get().unwrap();
        value.unwrap_or(0) + 3
    });
    assert_eq!(updated.unwrap().value, 3);
    assert_eq!(waiter.join().unwrap(), Some(3));

    let once = client.once::<String>("payment").unwrap();
    let failed = once.run(|_| Err::<String, _>(Error::new(ErrorKind::Internal, "pay", "no")));
    assert!(failed.is_err());
    let first = once.run(|held| Ok::<_, Error>(held.name().to_string())).unwrap();
    assert_eq!(first, OnceOutcome::Ran("once:payment".into()));
    let second = once.try_run(|_| Ok::<_, Error>("again".into())).unwrap();
    assert_eq!(second, OnceOutcome::Replayed("once:payment".into()));

    let report = client.once::<String>("report").unwrap();
    let lock = client.mutex("report").unwrap().acquire().unwrap();
    let OnceStart::Started(run) = report.start(lock.token()).unwrap() else { panic!("it is new") };
    run.ttl(Duration::from_secs(60)).finish(&"done".into()).unwrap();
    let again = report.start(lock.token()).unwrap();
    assert!(matches!(again, OnceStart::Replayed(done) if done == "done"));
}

#[test]
fn inspect_watch_and_evict_work_as_in_the_async_api() {
    let client = client();
    let mut watch = client.watch("").every(Duration::from_millis(5));
    assert!(matches!(watch.next(), Some(Ok(WatchEvent::Snapshot(locks))) if locks.is_empty()));
    let guard = client.mutex("a").unwrap().acquire().unwrap();
    assert!(matches!(watch.next(), Some(Ok(WatchEvent::Change(_)))));
    assert_eq!(client.list("").unwrap().len(), 1);
    assert_eq!(client.inspect_all("").unwrap().len(), 1);
    let owner = client.inspect("a").unwrap().holders[0].owner.clone();
    assert!(client.evict("a", &owner, "a test").unwrap());
    assert_eq!(guard.lost(), LossReason::NotHeld);
    assert!(!client.release("a", guard.owner()).unwrap());
    assert!(!client.diagnose().unwrap().is_empty());
}

#[test]
fn candidates_lead_one_after_the_other_and_are_observed() {
    in_time(|| {
        let client = client();
        let election = client.election::<String>("scheduler").unwrap();
        let mut leaders = election.observe();
        assert_eq!(leaders.next().unwrap().unwrap(), None);
        let first = election.campaign(&"one".into()).unwrap();
        let second = election.campaign_with(&"two".into(), tenure_core::Wait::NoWait);
        assert_eq!(second.unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(leaders.next().unwrap().unwrap().unwrap().value, "one");
        first.proclaim(&"one, elsewhere".into()).unwrap();
        assert_eq!(election.leader().unwrap().unwrap().value, "one, elsewhere");
        assert_eq!(first.run(|leader| leader.token()).unwrap(), first.token());

        let candidate = election.clone();
        let next = thread::spawn(move || candidate.campaign(&"two".into()).unwrap());
        let (token, validity) = (first.token(), first.validity());
        assert!(validity.is_valid() && !first.remaining().is_zero());
        first.resign().unwrap();
        assert!(!validity.is_valid());
        let second = next.join().unwrap();
        assert!(second.token() > token);

        // An eviction is heard by the leader's thread, and ends its work.
        let owner = second.owner().to_string();
        let evicted = second.run(|_| client.evict("scheduler", &owner, "a test").unwrap());
        assert_eq!(evicted.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(second.lost(), LossReason::NotHeld);
        assert_eq!(second.resign().unwrap_err().kind(), ErrorKind::Lost);
    });
}

#[test]
fn threads_wait_for_latches_and_at_barriers() {
    in_time(|| {
        let client = client();
        let latch = client.latch("imported", 2).unwrap();
        let waiting = latch.clone();
        let waiter = thread::spawn(move || waiting.wait());
        assert_eq!((latch.count_down().unwrap(), latch.count_down().unwrap()), (1, 0));
        waiter.join().unwrap().unwrap();
        assert_eq!(latch.count_down().unwrap_err().kind(), ErrorKind::Invalid);

        let parts = client.latch("parts", 2).unwrap();
        let (one, other) = (parts.join().unwrap(), parts.join().unwrap());
        assert_eq!(parts.join().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(one.count_down().unwrap(), 1);
        drop(other);
        assert_eq!(parts.wait().unwrap_err().kind(), ErrorKind::Broken);

        let mut ours = client.barrier("phase", 2).unwrap();
        assert_eq!(ours.wait_within(Duration::from_millis(10)).unwrap(), None);
        let mut theirs = client.barrier("phase", 2).unwrap();
        let other = thread::spawn(move || {
            let passed = theirs.wait().unwrap();
            // Dropped here: the party leaves.
            passed
        });
        let passed = ours.wait().unwrap();
        assert_eq!(passed.generation(), other.join().unwrap().generation());
        assert_eq!(ours.wait().unwrap_err().kind(), ErrorKind::Broken);
    });
}

#[test]
fn a_write_guard_is_downgraded_and_a_read_guard_is_not_upgraded() {
    in_time(|| {
        let rates = client().rw_lock("rates").unwrap();
        let reader = rates.write().unwrap().downgrade().unwrap();
        let other = rates.try_read().unwrap();
        let (reader, refusal) = reader.upgrade().unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Unsupported);
        assert!(reader.is_valid());
        other.release().unwrap();
        reader.release().unwrap();
        rates.try_write().unwrap().release().unwrap();
    });
}

#[test]
fn a_revoked_holder_releases_the_lock_and_the_request_is_recorded() {
    in_time(|| {
        let client = client();
        let guard = client.mutex("index").unwrap().acquire().unwrap();
        let holder = thread::spawn(move || {
            let request = guard.revoked().unwrap();
            guard.release().unwrap();
            request.reason
        });
        let asked = client.revoke("index", "deploy").grace(GENEROUS).send().unwrap();
        assert!(asked[0].heard && asked[0].released && !asked[0].evicted);
        assert_eq!(holder.join().unwrap(), "deploy");
        assert_eq!(client.audit("index").unwrap()[0].reason, "deploy");

        // A holder that does not listen is evicted after the grace period.
        let guard = client.mutex("index").unwrap().acquire().unwrap();
        let unheard = client.revoke("index", "again").within(Duration::ZERO).send().unwrap();
        assert!(!unheard[0].released && guard.is_valid());
        let forced = client.revoke("index", "now").grace(Duration::ZERO).send().unwrap();
        assert!(forced[0].evicted);
        assert_eq!(guard.lost(), LossReason::NotHeld);
    });
}

#[test]
fn a_busy_lock_names_the_place_in_the_program_where_it_was_acquired() {
    let client = client();
    let mutex = client.mutex("a").unwrap();
    let (_guard, line) = (mutex.acquire().unwrap(), line!());
    let busy = mutex.try_acquire().unwrap_err().to_string();
    assert!(busy.contains(&format!("{}:{line}", file!())), "{busy}");
    let account = client.reentrant_mutex("b").unwrap().by_thread();
    let (_guard, line) = (account.acquire().unwrap(), line!());
    let busy = client.mutex("b").unwrap().try_acquire().unwrap_err().to_string();
    assert!(busy.contains(&format!("{}:{line}", file!())), "{busy}");
}
