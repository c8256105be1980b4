//! Semaphores: at most as many permits are held as exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::store::{ClaimOutcome, WaitPolicy};
use tenure_core::{ErrorKind, LockName, Mode, Semaphore};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{claim, client, long, name, raw, release_guard};
use crate::raw::{LONG_WAIT, Raw};

const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// Whether the store declares no permits. Asserts that it then refuses them; the case ends there.
async fn lacks_permits(raw: &Raw, name: &LockName) -> bool {
    let lacks = !raw.capabilities().permits;
    if lacks {
        assert_eq!(raw.refusal(&claim(name, permits(1, 2))).await, ErrorKind::Unsupported);
    }
    lacks
}

/// Claims are granted while enough permits are free, and waiters as permits are released.
pub async fn permits_are_granted_while_enough_are_free(fixture: &dyn Fixture) {
    let name = name("permits");
    let raw = raw(fixture).await;
    if lacks_permits(&raw, &name).await {
        return;
    }
    let [one, another] = [(); 2].map(|()| claim(&name, permits(1, 3)));
    let [two, late] = [(); 2].map(|()| claim(&name, permits(2, 3)));
    raw.hold(&one).await;
    raw.hold(&two).await;
    raw.assert_busy(&another).await;
    raw.queue(&late, LONG_WAIT).await;
    raw.assert_owners(&name, &[&one, &two], &[&late]).await;
    raw.release_held(&one).await;
    raw.assert_owners(&name, &[&two], &[&late]).await;
    raw.release_held(&two).await;
    raw.assert_handed_to(&name, &[&late], &[]).await;
    raw.hold(&another).await;
    raw.assert_busy(&claim(&name, permits(1, 3))).await;
    let exclusive = claim(&name, Mode::Exclusive);
    if raw.capabilities().mixed_modes {
        raw.assert_busy(&exclusive).await;
    } else {
        assert_eq!(raw.refusal(&exclusive).await, ErrorKind::Damaged);
    }
}

/// Permits of a name that a mutex has are refused for as long as it is held, or wait for it, as declared.
pub async fn a_mutex_keeps_permits_of_its_name_out(fixture: &dyn Fixture) {
    let name = name("mutex-and-permits");
    let raw = raw(fixture).await;
    if lacks_permits(&raw, &name).await {
        return;
    }
    let (mutex, permit) = (claim(&name, Mode::Exclusive), claim(&name, permits(1, 2)));
    raw.hold(&mutex).await;
    if raw.capabilities().mixed_modes {
        raw.assert_busy(&permit).await;
    } else {
        assert_eq!(raw.refusal(&permit).await, ErrorKind::Damaged);
    }
    raw.assert_owners(&name, &[&mutex], &[]).await;
    raw.release_held(&mutex).await;
    raw.hold(&permit).await;
}

/// Smaller claims that would fit do not overtake a claim for many permits at the head of the queue.
pub async fn a_claim_for_many_permits_is_not_starved(fixture: &dyn Fixture) {
    let name = name("large-take");
    let raw = raw(fixture).await;
    if lacks_permits(&raw, &name).await {
        return;
    }
    let [holder, large] = [2, 3].map(|take| claim(&name, permits(take, 3)));
    let [small, newcomer] = [(); 2].map(|()| claim(&name, permits(1, 3)));
    raw.hold(&holder).await;
    raw.queue(&large, LONG_WAIT).await;
    if !raw.capabilities().fifo {
        // What is free goes to the claim that asks first.
        raw.hold(&newcomer).await;
        raw.release_held(&newcomer).await;
        raw.release_held(&holder).await;
        raw.assert_handed_to(&name, &[&large], &[]).await;
        return;
    }
    raw.assert_busy(&newcomer).await;
    raw.queue(&small, LONG_WAIT).await;
    raw.release_held(&holder).await;
    raw.assert_owners(&name, &[&large], &[&small]).await;
    raw.release_held(&large).await;
    raw.assert_owners(&name, &[&small], &[]).await;
}

/// A claim for zero permits, or for more than exist, is refused and leaves the lock free.
pub async fn invalid_permit_counts_are_refused(fixture: &dyn Fixture) {
    let name = name("invalid-permits");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    if lacks_permits(&raw, &name).await {
        return;
    }
    for (take, of) in [(0, 3), (4, 3), (1, 0), (0, 0), (u32::MAX, 1)] {
        let semaphore = client.semaphore(name.as_str(), of);
        let refused = match semaphore.map(|semaphore| semaphore.with(long())) {
            Ok(semaphore) => semaphore.try_acquire_many(take).await.unwrap_err(),
            Err(refused) => refused,
        };
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{take} of {of}: {refused}");
        assert_never_granted(&raw, &name, permits(take, of)).await;
        raw.assert_free(&name).await;
    }
}

/// The client refuses such a claim before it calls the store. A store that gets one nevertheless may
/// answer with `Invalid` or `Busy`.
async fn assert_never_granted(raw: &Raw, name: &LockName, mode: Mode) {
    match raw.try_claim(&claim(name, mode), WaitPolicy::NoWait).await {
        Ok(outcome) => assert_eq!(outcome, ClaimOutcome::Busy, "{mode:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
    }
}

/// Under load the permits held at any moment never exceed the permits that exist.
pub async fn no_more_permits_are_held_than_exist_under_load(fixture: &dyn Fixture) {
    let name = name("permit-load");
    if lacks_permits(&raw(fixture).await, &name).await {
        return;
    }
    let held = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let client = client(fixture).await;
        for take in [1, 1, 2, 3] {
            let semaphore = client.semaphore(name.as_str(), 4).unwrap().with(long());
            tasks.spawn(acquire_repeatedly(semaphore, take, Arc::clone(&held)));
        }
    }
    tasks.join_all().await;
}

async fn acquire_repeatedly(semaphore: Semaphore, take: u32, held: Arc<AtomicU32>) {
    for _ in 0..8 {
        let guard = semaphore.acquire_many(take).await.unwrap();
        let before = held.fetch_add(take, Ordering::SeqCst);
        assert!(before + take <= 4, "{} of 4 permits are held", before + take);
        tokio::task::yield_now().await;
        held.fetch_sub(take, Ordering::SeqCst);
        release_guard(guard).await;
    }
}
