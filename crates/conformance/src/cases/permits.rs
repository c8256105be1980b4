//! As many as there are permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::store::{ClaimOutcome, WaitPolicy};
use tenure_core::{ErrorKind, LockName, Mode, Semaphore};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{claim, client, let_go, long, name, raw};
use crate::raw::{PATIENT, Raw};

const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// A store without permits refuses them; the case is over then.
async fn lacks_permits(raw: &Raw, name: &LockName) -> bool {
    let lacks = !raw.capabilities().permits;
    if lacks {
        assert_eq!(raw.refusal(&claim(name, permits(1, 2))).await, ErrorKind::Unsupported);
    }
    lacks
}

/// Claims are admitted while their permits fit, and come in as permits come back.
pub async fn permits_are_given_out_as_long_as_there_are_some(fixture: &dyn Fixture) {
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
    raw.queue(&late, PATIENT).await;
    raw.assert_owners(&name, &[&one, &two], &[&late]).await;
    raw.give_up(&one).await;
    raw.assert_owners(&name, &[&two], &[&late]).await;
    raw.give_up(&two).await;
    raw.assert_owners(&name, &[&late], &[]).await;
    raw.hold(&another).await;
    raw.assert_busy(&claim(&name, permits(1, 3))).await;
    raw.assert_busy(&claim(&name, Mode::Exclusive)).await;
}

/// A claim for many permits at the head of the line is not passed by small ones that would fit.
pub async fn a_large_take_at_the_head_is_not_starved(fixture: &dyn Fixture) {
    let name = name("large-take");
    let raw = raw(fixture).await;
    if lacks_permits(&raw, &name).await {
        return;
    }
    let [holder, large] = [2, 3].map(|take| claim(&name, permits(take, 3)));
    let [small, hasty] = [(); 2].map(|()| claim(&name, permits(1, 3)));
    raw.hold(&holder).await;
    raw.queue(&large, PATIENT).await;
    raw.assert_busy(&hasty).await;
    raw.queue(&small, PATIENT).await;
    raw.give_up(&holder).await;
    raw.assert_owners(&name, &[&large], &[&small]).await;
    raw.give_up(&large).await;
    raw.assert_owners(&name, &[&small], &[]).await;
}

/// To take none, or more than there are, is refused and leaves nothing.
pub async fn unsound_numbers_of_permits_are_refused(fixture: &dyn Fixture) {
    let name = name("unsound");
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

/// The client refuses an unsound claim before it leaves; a store that gets one all the same may
/// call it invalid or never admit it.
async fn assert_never_granted(raw: &Raw, name: &LockName, mode: Mode) {
    match raw.try_claim(&claim(name, mode), WaitPolicy::NoWait).await {
        Ok(answer) => assert_eq!(answer, ClaimOutcome::Busy, "{mode:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
    }
}

/// Under load there are never more permits out than there are.
pub async fn permits_are_never_overdrawn_under_load(fixture: &dyn Fixture) {
    let name = name("permit-load");
    if lacks_permits(&raw(fixture).await, &name).await {
        return;
    }
    let out = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let client = client(fixture).await;
        for take in [1, 1, 2, 3] {
            let semaphore = client.semaphore(name.as_str(), 4).unwrap().with(long());
            tasks.spawn(visits(semaphore, take, Arc::clone(&out)));
        }
    }
    tasks.join_all().await;
}

async fn visits(semaphore: Semaphore, take: u32, out: Arc<AtomicU32>) {
    for _ in 0..8 {
        let guard = semaphore.acquire_many(take).await.unwrap();
        let before = out.fetch_add(take, Ordering::SeqCst);
        assert!(before + take <= 4, "{} of 4 permits are out", before + take);
        tokio::task::yield_now().await;
        out.fetch_sub(take, Ordering::SeqCst);
        let_go(guard).await;
    }
}
