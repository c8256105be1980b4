//! Readers together, writers alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tenure_core::store::Claim;
use tenure_core::{ErrorKind, LockName, Mode, RwLock};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{claim, client, let_go, long, name, raw};
use crate::raw::{PATIENT, Raw};

/// A store without shared claims refuses them; the case is over then.
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

/// Readers hold together; a writer gets in when the last of them has left, and then is alone.
pub async fn readers_hold_together_and_a_writer_alone(fixture: &dyn Fixture) {
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
    raw.queue(&writer, PATIENT).await;
    raw.give_up(&two).await;
    raw.give_up(&one).await;
    raw.assert_owners(&name, &[&three], &[&writer]).await;
    raw.give_up(&three).await;
    raw.assert_handed_to(&name, &[&writer], &[]).await;
    raw.assert_busy(&one).await;
    raw.assert_busy(&claim(&name, Mode::Exclusive)).await;
}

/// A reader that comes after a waiting writer waits behind it, though readers hold.
pub async fn readers_wait_behind_a_waiting_writer(fixture: &dyn Fixture) {
    let name = name("writer-first");
    let raw = raw(fixture).await;
    if lacks_shared(&raw, &name).await {
        return;
    }
    let [reading, late, hasty] = readers(&name);
    let writer = claim(&name, Mode::Exclusive);
    raw.hold(&reading).await;
    raw.queue(&writer, PATIENT).await;
    raw.assert_busy(&hasty).await;
    raw.queue(&late, PATIENT).await;
    raw.assert_owners(&name, &[&reading], &[&writer, &late]).await;
    raw.give_up(&reading).await;
    raw.assert_handed_to(&name, &[&writer], &[&late]).await;
    raw.give_up(&writer).await;
    raw.assert_handed_to(&name, &[&late], &[]).await;
}

/// When a writer leaves, all readers up to the next writer go in at once; when a waiting writer
/// gives up, the readers behind it go in.
pub async fn readers_in_line_go_in_together(fixture: &dyn Fixture) {
    let name = name("readers-in-line");
    let raw = raw(fixture).await;
    if lacks_shared(&raw, &name).await {
        return;
    }
    let [one, two, three, four] = readers(&name);
    let [writer, second] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&writer).await;
    for waiter in [&one, &two, &three, &second, &four] {
        raw.queue(waiter, PATIENT).await;
    }
    raw.give_up(&writer).await;
    raw.assert_handed_to(&name, &[&one, &two, &three], &[&second, &four]).await;
    raw.release(&second).await;
    raw.assert_handed_to(&name, &[&one, &two, &three, &four], &[]).await;
}

/// Under load no reader ever sees a writer at work, and no writer another.
pub async fn readers_and_writers_never_meet_under_load(fixture: &dyn Fixture) {
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
            tasks.spawn(visits(lock, task == 0, Arc::clone(&inside)));
        }
    }
    tasks.join_all().await;
}

/// Readers count up from zero; a writer marks the room with a number readers never reach.
async fn visits(lock: RwLock, writes: bool, inside: Arc<AtomicI64>) {
    const WRITING: i64 = -1_000;
    for _ in 0..8 {
        let guard = match writes {
            true => lock.write().await.unwrap().into(),
            false => lock.read().await.unwrap().into(),
        };
        let step = if writes { WRITING } else { 1 };
        let before = inside.fetch_add(step, Ordering::SeqCst);
        assert!(if writes { before == 0 } else { before >= 0 }, "{before} were inside");
        tokio::task::yield_now().await;
        inside.fetch_sub(step, Ordering::SeqCst);
        let_go(guard).await;
    }
}
