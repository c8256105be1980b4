//! Read-write locks: readers share the lock, a writer holds it alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tenure_core::store::Claim;
use tenure_core::{ErrorKind, LockName, Mode, RwLock};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{claim, client, long, name, raw, release_guard};
use crate::raw::{LONG_WAIT, Raw};

/// Whether the store declares no shared mode. Asserts that it then refuses it; the case ends there.
async fn lacks_shared(raw: &Raw, name: &LockName) -> bool {
    let lacks = !raw.capabilities().shared;
    if lacks {
        assert_eq!(raw.refusal(&claim(name, Mode::Shared)).await, ErrorKind::Unsupported);
    }
    lacks
}

fn readers<const N: usize>(name: &LockName) -> [Claim; N] {
    [(); N].map(|()| claim(name, Mode::Shared))
}

/// Several readers hold the lock at once; a writer gets it when the last reader has released it, and
/// then holds it alone.
pub async fn readers_share_the_lock_and_a_writer_holds_it_alone(fixture: &dyn Fixture) {
    let name = name("shared");
    let raw = raw(fixture).await;
    if lacks_shared(&raw, &name).await {
        return;
    }
    let [one, two, three] = readers(&name);
    let writer = claim(&name, Mode::Exclusive);
    for reader in [&one, &two, &three] {
        raw.hold(reader).await;
    }
    raw.assert_owners(&name, &[&one, &two, &three], &[]).await;
    raw.assert_busy(&writer).await;
    raw.queue(&writer, LONG_WAIT).await;
    raw.release_held(&two).await;
    raw.release_held(&one).await;
    raw.assert_owners(&name, &[&three], &[&writer]).await;
    raw.release_held(&three).await;
    raw.assert_handed_to(&name, &[&writer], &[]).await;
    raw.assert_busy(&one).await;
    raw.assert_busy(&claim(&name, Mode::Exclusive)).await;
}

/// A reader that arrives after a waiting writer waits behind it, although other readers hold, if the store
/// keeps waiters in the order of their arrival.
pub async fn readers_wait_behind_a_waiting_writer(fixture: &dyn Fixture) {
    let name = name("writer-first");
    let raw = raw(fixture).await;
    if lacks_shared(&raw, &name).await || !raw.capabilities().waiters {
        return;
    }
    let [reading, late, newcomer] = readers(&name);
    let writer = claim(&name, Mode::Exclusive);
    raw.hold(&reading).await;
    raw.queue(&writer, LONG_WAIT).await;
    raw.assert_busy(&newcomer).await;
    raw.queue(&late, LONG_WAIT).await;
    raw.assert_owners(&name, &[&reading], &[&writer, &late]).await;
    raw.release_held(&reading).await;
    raw.assert_handed_to(&name, &[&writer], &[&late]).await;
    raw.release_held(&writer).await;
    raw.assert_handed_to(&name, &[&late], &[]).await;
}

/// When a writer releases the lock, all readers queued before the next writer get it at once; when a
/// waiting writer leaves the queue, the readers behind it get the lock.
pub async fn queued_readers_are_granted_together(fixture: &dyn Fixture) {
    let name = name("queued-readers");
    let raw = raw(fixture).await;
    if lacks_shared(&raw, &name).await {
        return;
    }
    let [one, two, three, four] = readers(&name);
    let [writer, second] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&writer).await;
    for waiter in [&one, &two, &three, &second, &four] {
        raw.queue(waiter, LONG_WAIT).await;
    }
    raw.release_held(&writer).await;
    raw.assert_handed_to(&name, &[&one, &two, &three], &[&second, &four]).await;
    raw.release(&second).await;
    raw.assert_handed_to(&name, &[&one, &two, &three, &four], &[]).await;
}

/// Under load no writer holds the lock together with a reader or another writer.
pub async fn readers_and_writers_exclude_each_other_under_load(fixture: &dyn Fixture) {
    let name = name("rw-load");
    if lacks_shared(&raw(fixture).await, &name).await {
        return;
    }
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let client = client(fixture).await;
        for task in 0..4 {
            let lock = client.rw_lock(name.as_str()).unwrap().with(long());
            tasks.spawn(acquire_repeatedly(lock, task == 0, Arc::clone(&inside)));
        }
    }
    tasks.join_all().await;
}

/// Each reader adds 1 to `inside` while it holds the lock, a writer a number that readers never
/// reach.
async fn acquire_repeatedly(lock: RwLock, writes: bool, inside: Arc<AtomicI64>) {
    const WRITING: i64 = -1_000;
    for _ in 0..8 {
        let guard = match writes {
            true => lock.write().await.unwrap().into(),
            false => lock.read().await.unwrap().into(),
        };
        let step = if writes { WRITING } else { 1 };
        let before = inside.fetch_add(step, Ordering::SeqCst);
        assert!(if writes { before == 0 } else { before >= 0 }, "holders before: {before}");
        tokio::task::yield_now().await;
        inside.fetch_sub(step, Ordering::SeqCst);
        release_guard(guard).await;
    }
}
