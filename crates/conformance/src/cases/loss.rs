//! A holder hears of its loss before another can hold the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::store::{Moment, now};
use tenure_core::{Chaos, Client, ErrorKind, Faults, Guard, LockName, LossReason, Options};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::disturbance::undisturbed;
use crate::fixture::{client, let_go, long, name, raw};

/// A holder whose connection can be cut.
struct Remote {
    line: Arc<Chaos>,
    client: Client,
    guard: Arc<Guard>,
}

impl Remote {
    async fn holding(fixture: &dyn Fixture, name: &LockName) -> Self {
        let line = Arc::new(Chaos::new(fixture.store().await, Faults::new(1)));
        let client = Client::new(line.clone()).unwrap();
        let options = Options::new().ttl(fixture.ttl());
        let guard = client.mutex(name.as_str()).unwrap().with(options).acquire().await.unwrap();
        Self { line, client, guard: Arc::new(guard) }
    }

    /// One whose lease has been renewed. On a starved machine it may take more than one try.
    async fn renewed(fixture: &dyn Fixture, name: &LockName) -> Self {
        for _ in 0..10 {
            let remote = Self::holding(fixture, name).await;
            let first = now() + remote.guard.remaining() + Duration::from_millis(1);
            let later =
                || async { now() + remote.guard.remaining() > first || !remote.guard.is_valid() };
            assert!(eventually(GENEROUS, later).await, "no renewal was confirmed");
            if remote.guard.is_valid() {
                return remote;
            }
            remote.mend().await;
        }
        panic!("no lease was renewed in time")
    }

    /// Cuts the connection. The answer is the deadline the guard knows from then on.
    fn cut(&self) -> Moment {
        self.line.pause();
        now() + self.guard.remaining()
    }

    /// Waits for the signal, in a task that nothing but the signal wakes.
    async fn danger(&self) {
        let guard = Arc::clone(&self.guard);
        signal(async move { guard.danger().await }).await;
    }

    /// Waits for the signal, in a task that nothing but the signal wakes.
    async fn lost(&self) -> LossReason {
        let guard = Arc::clone(&self.guard);
        signal(async move { guard.lost().await }).await
    }

    async fn mend(self) {
        self.line.resume();
        drop(self.guard);
        self.client.close().await;
    }
}

async fn signal<T: Send + 'static>(signal: impl Future<Output = T> + Send + 'static) -> T {
    tokio::time::timeout(GENEROUS, tokio::spawn(signal)).await.expect("a signal").unwrap()
}

/// A holder that is cut off stops being valid by its own clock before the store lets the next in.
pub async fn a_holder_that_is_cut_off_knows_before_another_holds(fixture: &dyn Fixture) {
    let name = name("cut-off");
    let (raw, other) = (raw(fixture).await, client(fixture).await);
    let other = other.mutex(name.as_str()).unwrap().with(long());
    for round in 0..3 {
        let remote = match round {
            0 => Remote::holding(fixture, &name).await,
            _ => Remote::renewed(fixture, &name).await,
        };
        let deadline = remote.cut();
        let next = other.acquire_within(GENEROUS).await.unwrap();
        let valid = remote.guard.is_valid();
        let granted = now();
        assert!(!valid, "two were valid at once");
        assert!(granted >= deadline, "granted before the holder's own deadline");
        assert!(remote.guard.remaining().is_zero());
        let reason = remote.lost().await;
        assert_eq!(reason, LossReason::Expired);
        remote.mend().await;
        // The old holder's late release must not take the lock away from the new one.
        assert_eq!(raw.owners(&name).await.0, [next.owner().to_string()]);
        let_go(next).await;
    }
}

/// The news of the loss does not wait for the store: it comes while the store is silent.
pub async fn a_loss_is_told_while_the_store_is_silent(fixture: &dyn Fixture) {
    let remote = Remote::holding(fixture, &name("silence")).await;
    let deadline = remote.cut();
    let reason = remote.lost().await;
    assert_eq!(reason, LossReason::Expired);
    assert!(now() >= deadline, "lost before its time");
    assert!(!remote.guard.is_valid());
    remote.mend().await;
}

/// Danger is told at half the term, while there is still time to stop in order.
pub async fn danger_is_told_before_loss(fixture: &dyn Fixture) {
    undisturbed(fixture.ttl() / 4, || async {
        let remote = Remote::holding(fixture, &name("danger")).await;
        remote.cut();
        remote.danger().await;
        let in_time = remote.guard.is_valid();
        let warned = now();
        remote.lost().await;
        assert!(now() >= warned);
        remote.mend().await;
        if in_time { Ok(()) } else { Err("danger was told when all was lost".into()) }
    })
    .await;
}

/// A holder that gets through again in time is neither lost nor still in danger.
pub async fn a_renewal_after_danger_saves_the_lease(fixture: &dyn Fixture) {
    undisturbed(fixture.ttl() / 8, || async {
        let name = name("saved");
        let remote = Remote::holding(fixture, &name).await;
        let deadline = remote.cut();
        remote.danger().await;
        // The renewal under way fails first, so that another must follow.
        tokio::time::sleep(fixture.ttl() / 8).await;
        remote.line.resume();
        while now() <= deadline {
            tokio::time::sleep(fixture.ttl() / 20).await;
        }
        let saved = remote.guard.is_valid();
        remote.mend().await;
        if saved { Ok(()) } else { Err("the lease was lost although the line was mended".into()) }
    })
    .await;
}

/// Work that runs under a guard is dropped on loss, and the caller told.
pub async fn work_under_a_guard_is_aborted_on_loss(fixture: &dyn Fixture) {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let remote = Remote::holding(fixture, &name("work")).await;
    assert_eq!(remote.guard.run(async { 6 * 7 }).await.unwrap(), 42);
    let dropped = Arc::new(AtomicBool::new(false));
    let mark = Dropped(Arc::clone(&dropped));
    remote.cut();
    let guard = Arc::clone(&remote.guard);
    let work = async move {
        let _mark = mark;
        std::future::pending::<()>().await;
    };
    let error = signal(async move { guard.run(work).await }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(dropped.load(Ordering::SeqCst), "the work goes on without the lock");
    assert!(!remote.guard.is_valid());
    let refused = remote.guard.run(async { 6 * 7 }).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Lost, "work was begun under a lost guard");
    remote.mend().await;
}

/// A lease that is renewed all the time still ends at its max-hold, and the lock goes on.
pub async fn max_hold_ends_a_lease_that_is_renewed(fixture: &dyn Fixture) {
    let name = name("max-hold");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let max_hold = fixture.ttl() * 2;
    let options = Options::new().ttl(fixture.ttl()).max_hold(max_hold);
    undisturbed(fixture.ttl() / 4, || async {
        let before = now();
        let mutex = client.mutex(name.as_str()).unwrap().with(options.clone());
        let guard = mutex.acquire().await.unwrap();
        let reason = tokio::time::timeout(GENEROUS, guard.lost()).await.unwrap();
        assert!(!guard.is_valid());
        drop(guard);
        client.close().await;
        raw.assert_free(&name).await;
        match reason {
            LossReason::MaxHold if now().since(before) >= max_hold => Ok(()),
            other => Err(format!("{other:?} after {:?}", now().since(before))),
        }
    })
    .await;
}
