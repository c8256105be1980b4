//! A guard becomes invalid before another client can hold the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::store::{Moment, now};
use tenure_core::{Chaos, Client, ErrorKind, Faults, Guard, LockName, LossReason, Options};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::fixture::{client, long, name, raw, release_guard};
use crate::starvation::retry_if_starved;

/// A holder that cannot reach the store becomes invalid by its own clock before the store grants the
/// lock to the next waiter.
pub async fn a_partitioned_holder_is_invalid_before_the_next_grant(fixture: &dyn Fixture) {
    let name = name("cut-off");
    let (raw, other) = (raw(fixture).await, client(fixture).await);
    let other = other.mutex(name.as_str()).unwrap().with(long());
    for round in 0..3 {
        let holder = match round {
            0 => IsolatableHolder::acquire(fixture, &name).await,
            _ => IsolatableHolder::acquire_and_renew(fixture, &name).await,
        };
        let deadline = holder.partition();
        let next = other.acquire_within(GENEROUS).await.unwrap();
        let valid = holder.guard.is_valid();
        let granted = now();
        assert!(!valid, "two guards were valid at once");
        assert!(granted >= deadline, "granted before the holder's own deadline");
        assert!(holder.guard.remaining().is_zero());
        let reason = holder.lost().await;
        assert_eq!(reason, LossReason::Expired);
        holder.heal().await;
        // The old holder's late release must not release the lock of the new one.
        assert_eq!(raw.owners(&name).await.0, [next.owner().to_string()]);
        release_guard(next).await;
    }
}

/// The loss is reported at the deadline, without an answer of the store.
pub async fn a_loss_is_reported_while_the_store_does_not_answer(fixture: &dyn Fixture) {
    let holder = IsolatableHolder::acquire(fixture, &name("silence")).await;
    let deadline = holder.partition();
    let reason = holder.lost().await;
    assert_eq!(reason, LossReason::Expired);
    assert!(now() >= deadline, "reported as lost before its deadline");
    assert!(!holder.guard.is_valid());
    holder.heal().await;
}

/// Danger is reported at half the TTL, while the guard is still valid.
pub async fn danger_is_reported_before_loss(fixture: &dyn Fixture) {
    retry_if_starved(fixture.ttl() / 4, || async {
        let holder = IsolatableHolder::acquire(fixture, &name("danger")).await;
        holder.partition();
        holder.danger().await;
        let in_time = holder.guard.is_valid();
        let warned = now();
        holder.lost().await;
        assert!(now() >= warned);
        holder.heal().await;
        if in_time { Ok(()) } else { Err("danger was reported after the loss".into()) }
    })
    .await;
}

/// A holder that reaches the store again before its deadline keeps the lock.
pub async fn a_renewal_after_danger_keeps_the_lease(fixture: &dyn Fixture) {
    retry_if_starved(fixture.ttl() / 8, || async {
        let name = name("late-renewal");
        let holder = IsolatableHolder::acquire(fixture, &name).await;
        let deadline = holder.partition();
        holder.danger().await;
        // Lets the renewal under way fail, so that the client must send another one.
        tokio::time::sleep(fixture.ttl() / 8).await;
        holder.link.resume();
        while now() <= deadline {
            tokio::time::sleep(fixture.ttl() / 20).await;
        }
        let kept = holder.guard.is_valid();
        holder.heal().await;
        if kept {
            Ok(())
        } else {
            Err("the lease was lost although the store answered again".into())
        }
    })
    .await;
}

/// `Guard::run` drops its future on loss and returns an error.
pub async fn work_under_a_guard_is_aborted_on_loss(fixture: &dyn Fixture) {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let holder = IsolatableHolder::acquire(fixture, &name("work")).await;
    assert_eq!(holder.guard.run(async { 6 * 7 }).await.unwrap(), 42);
    let dropped = Arc::new(AtomicBool::new(false));
    let mark = Dropped(Arc::clone(&dropped));
    holder.partition();
    let guard = Arc::clone(&holder.guard);
    let work = async move {
        let _mark = mark;
        std::future::pending::<()>().await;
    };
    let error = in_own_task(async move { guard.run(work).await }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(dropped.load(Ordering::SeqCst), "the work continues without the lock");
    assert!(!holder.guard.is_valid());
    let refused = holder.guard.run(async { 6 * 7 }).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Lost, "work was started under a lost guard");
    holder.heal().await;
}

/// A lease that is renewed in time still ends at its max-hold, and the lock becomes free.
pub async fn max_hold_ends_a_renewed_lease(fixture: &dyn Fixture) {
    let name = name("max-hold");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let max_hold = fixture.ttl() * 2;
    let options = Options::new().ttl(fixture.ttl()).max_hold(max_hold);
    retry_if_starved(fixture.ttl() / 4, || async {
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

/// A holder whose connection to the store can be interrupted.
struct IsolatableHolder {
    link: Arc<Chaos>,
    client: Client,
    guard: Arc<Guard>,
}

impl IsolatableHolder {
    async fn acquire(fixture: &dyn Fixture, name: &LockName) -> Self {
        let link = Arc::new(Chaos::new(fixture.store().await, Faults::new(1)));
        let client = Client::new(link.clone()).unwrap();
        let options = Options::new().ttl(fixture.ttl());
        let guard = client.mutex(name.as_str()).unwrap().with(options).acquire().await.unwrap();
        Self { link, client, guard: Arc::new(guard) }
    }

    /// A holder whose lease has been renewed. On a starved machine this may take several tries.
    async fn acquire_and_renew(fixture: &dyn Fixture, name: &LockName) -> Self {
        for _ in 0..10 {
            let holder = Self::acquire(fixture, name).await;
            let first = now() + holder.guard.remaining() + Duration::from_millis(1);
            let later =
                || async { now() + holder.guard.remaining() > first || !holder.guard.is_valid() };
            assert!(eventually(GENEROUS, later).await, "no renewal was confirmed");
            if holder.guard.is_valid() {
                return holder;
            }
            holder.heal().await;
        }
        panic!("no lease was renewed in time")
    }

    /// Interrupts the connection. Returns the deadline of the guard, which no renewal can move now.
    fn partition(&self) -> Moment {
        self.link.pause();
        now() + self.guard.remaining()
    }

    async fn danger(&self) {
        let guard = Arc::clone(&self.guard);
        in_own_task(async move { guard.danger().await }).await;
    }

    async fn lost(&self) -> LossReason {
        let guard = Arc::clone(&self.guard);
        in_own_task(async move { guard.lost().await }).await
    }

    /// Restores the connection and drops the guard.
    async fn heal(self) {
        self.link.resume();
        drop(self.guard);
        self.client.close().await;
    }
}

/// Waits for `event` in a task of its own, so that only the event itself can wake it.
async fn in_own_task<T: Send + 'static>(event: impl Future<Output = T> + Send + 'static) -> T {
    tokio::time::timeout(GENEROUS, tokio::spawn(event)).await.expect("the event occurs").unwrap()
}
