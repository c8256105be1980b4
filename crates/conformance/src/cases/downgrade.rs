//! A writer becomes a reader without letting another writer in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::store::{Claim, Downgraded, Renewal};
use tenure_core::{ErrorKind, LockName, LossReason, Mode, RwLock};
use tenure_testkit::{GENEROUS, eventually};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::cases::cancel::{POLLS, drop_after_polls};
use crate::fixture::{LONG, claim, claim_for, client, long, name, raw};
use crate::holder_process::HolderProcess;
use crate::raw::{LONG_WAIT, Raw};

fn claims<const N: usize>(name: &LockName, mode: Mode) -> [Claim; N] {
    [(); N].map(|()| claim(name, mode))
}

/// The same claim, as it is passed after its downgrade.
fn as_reader(writer: &Claim) -> Claim {
    let mut reader = writer.clone();
    reader.mode = Mode::Shared;
    reader
}

async fn mode_of(raw: &Raw, claim: &Claim) -> Option<Mode> {
    let holders = raw.inspect(&claim.name).await.holders;
    holders.iter().find(|holder| holder.owner == claim.owner.to_string()).map(|holder| holder.mode)
}

/// A store downgrades if it declares that it does; otherwise it is `Unsupported`, and the lock is given
/// back.
pub async fn downgrades_are_supported_exactly_as_declared(fixture: &dyn Fixture) {
    let name = name("downgrade");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let declared = raw.capabilities().downgrade;
    assert!(raw.capabilities().shared || !declared, "there is no reader to become");
    let lock = client.rw_lock(name.as_str()).unwrap().with(long());
    let writer = lock.write().await.unwrap();
    let token = writer.token();
    let validity = writer.validity();
    match writer.downgrade().await {
        Ok(reader) => {
            assert!(declared, "a downgrade that the store does not declare");
            assert_eq!(reader.mode(), Mode::Shared);
            assert!(reader.is_valid() && reader.token() >= token, "{token:?} {reader:?}");
            assert!(!validity.is_valid(), "the write hold is over");
            assert_eq!(raw.inspect(&name).await.holders[0].mode, Mode::Shared);
            let other = lock.read_within(GENEROUS).await.unwrap();
            assert_eq!(raw.inspect(&name).await.holders.len(), 2);
            drop((reader, other));
        }
        Err(error) => {
            assert!(!declared, "{error}");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let writer = claim(&name, Mode::Exclusive);
            client.close().await;
            raw.hold(&writer).await;
            assert_eq!(raw.try_downgrade(&writer).await.unwrap_err().kind(), error.kind());
            raw.release_held(&writer).await;
        }
    }
    client.close().await;
    raw.assert_free(&name).await;
}

/// The readers that wait directly behind the writer hold the lock beside it, the next writer goes on
/// waiting until all of them have left, and the readers behind that writer wait behind it. A repeated
/// downgrade changes nothing.
pub async fn the_readers_behind_a_downgraded_writer_join_it(fixture: &dyn Fixture) {
    let name = name("downgrade-queue");
    let (raw, elsewhere) = (raw(fixture).await, raw(fixture).await);
    if !raw.capabilities().downgrade {
        return;
    }
    let [first, second] = claims(&name, Mode::Exclusive);
    let [one, two, late, newcomer] = claims(&name, Mode::Shared);
    let grant = raw.hold(&first).await;
    raw.queue(&one, LONG_WAIT).await;
    elsewhere.queue(&two, LONG_WAIT).await;
    elsewhere.queue(&second, LONG_WAIT).await;
    raw.queue(&late, LONG_WAIT).await;
    let shared = raw.downgrade(&first).await;
    assert!(raw.token(&shared) >= raw.token(&grant), "{grant:?} {shared:?}");
    assert_eq!(raw.downgrade(&first).await.token, shared.token, "a repeated one is the same hold");
    if !raw.capabilities().fifo {
        raw.hold(&one).await;
        elsewhere.hold(&two).await;
    }
    raw.assert_owners(&name, &[&first, &one, &two], &[&second, &late]).await;
    assert_eq!(mode_of(&raw, &first).await, Some(Mode::Shared));
    if raw.capabilities().fifo {
        raw.assert_busy(&newcomer).await;
    }
    raw.assert_busy(&claim(&name, Mode::Exclusive)).await;
    raw.release_held(&one).await;
    elsewhere.release_held(&two).await;
    raw.assert_owners(&name, &[&first], &[&second, &late]).await;
    assert_eq!(raw.renew(&as_reader(&first)).await, Renewal::Renewed);
    raw.release_held(&as_reader(&first)).await;
    elsewhere.assert_handed_to(&name, &[&second], &[&late]).await;
    elsewhere.release_held(&second).await;
    raw.assert_handed_to(&name, &[&late], &[]).await;
}

/// A waiting reader is notified when the writer before it becomes a reader, on this connection and on
/// another one; a waiting writer is not let in.
pub async fn waiting_readers_are_notified_of_a_downgrade(fixture: &dyn Fixture) {
    let name = name("downgrade-wake");
    let (raw, elsewhere) = (raw(fixture).await, raw(fixture).await);
    if !raw.capabilities().downgrade || !raw.capabilities().push {
        return;
    }
    let [writer, next] = claims(&name, Mode::Exclusive);
    let [here, there] = claims(&name, Mode::Shared);
    raw.hold(&writer).await;
    let tickets = (raw.queue(&here, LONG_WAIT).await, elsewhere.queue(&there, LONG_WAIT).await);
    elsewhere.queue(&next, LONG_WAIT).await;
    let woken =
        async { tokio::join!(raw.wait(&here, &tickets.0), elsewhere.wait(&there, &tickets.1)) };
    let downgraded = async {
        // The waits are under way, or begin later: both must end.
        tokio::task::yield_now().await;
        raw.downgrade(&writer).await
    };
    tokio::join!(woken, downgraded);
    raw.acquire(&here).await;
    elsewhere.acquire(&there).await;
    raw.assert_owners(&name, &[&writer, &here, &there], &[&next]).await;
}

/// Under load, what a writer wrote is what it reads after its downgrade: no other writer was there in
/// between.
pub async fn no_writer_gets_in_between_under_load(fixture: &dyn Fixture) {
    let name = name("downgrade-load");
    if !raw(fixture).await.capabilities().downgrade {
        return;
    }
    let written = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for number in 0..2 {
        let client = client(fixture).await;
        for task in 0..3 {
            let lock = client.rw_lock(name.as_str()).unwrap().with(long());
            tasks.spawn(write_and_read(lock, 1 + number * 10 + task, Arc::clone(&written)));
        }
    }
    tasks.join_all().await;
}

async fn write_and_read(lock: RwLock, own: u64, written: Arc<AtomicU64>) {
    for _ in 0..5 {
        // A fault that outlasts the retries of a downgrade gives the lock back: then it begins again.
        let reader = loop {
            let writer = lock.write().await.unwrap();
            written.store(own, Ordering::SeqCst);
            tokio::task::yield_now().await;
            match writer.downgrade().await {
                Ok(reader) => break reader,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        };
        for _ in 0..3 {
            assert_eq!(written.load(Ordering::SeqCst), own, "another writer was there");
            tokio::task::yield_now().await;
        }
        if let Err(error) = reader.release().await {
            assert!(error.is_transient(), "{error}");
        }
    }
}

/// A downgrade that is dropped after 0, 1, 2 … polls leaves the lock free.
pub async fn dropping_a_downgrade_leaves_the_lock_free(fixture: &dyn Fixture) {
    let name = name("downgrade-drop");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    if !raw.capabilities().downgrade {
        return;
    }
    let lock = client.rw_lock(name.as_str()).unwrap().with(long());
    for polls in 0..POLLS {
        let writer = lock.write().await.unwrap();
        drop(drop_after_polls(writer.downgrade(), polls).await);
        client.close().await;
        raw.assert_free(&name).await;
    }
}

/// A claim that waits, was released, evicted or never made is not downgraded, and no hold comes of it.
pub async fn only_a_hold_is_downgraded(fixture: &dyn Fixture) {
    let name = name("downgrade-held");
    let raw = raw(fixture).await;
    if !raw.capabilities().downgrade {
        return;
    }
    let [holder, waiter, stranger] = claims(&name, Mode::Exclusive);
    let lost = async |claim| assert_eq!(raw.try_downgrade(claim).await.unwrap(), Downgraded::Lost);
    lost(&stranger).await;
    raw.assert_free(&name).await;
    raw.hold(&holder).await;
    raw.queue(&waiter, LONG_WAIT).await;
    lost(&stranger).await;
    lost(&waiter).await;
    raw.assert_owners(&name, &[&holder], &[&waiter]).await;
    raw.downgrade(&holder).await;
    raw.evict_owner(&name, holder.owner).await;
    lost(&holder).await;
    raw.assert_handed_to(&name, &[&waiter], &[]).await;
    raw.release_held(&waiter).await;
    lost(&waiter).await;
    raw.assert_free(&name).await;
}

/// A downgraded hold is renewed by its guard, and ends as any other: after its TTL without a renewal,
/// or by force, of which the guard is told.
pub async fn a_downgraded_hold_is_renewed_and_ends_as_any_other(fixture: &dyn Fixture) {
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    if !raw.capabilities().downgrade {
        return;
    }
    let name = name("downgrade-end");
    let short = claim_for(&name, Mode::Exclusive, fixture.ttl());
    raw.hold(&short).await;
    raw.downgrade(&short).await;
    let next = claim(&name, Mode::Exclusive);
    let expired = tokio::time::timeout(GENEROUS, raw.acquire(&next)).await;
    expired.expect("a downgraded hold expires");
    raw.assert_owners(&name, &[&next], &[]).await;
    raw.release_held(&next).await;

    let ttl = fixture.ttl().max(Duration::from_secs(2));
    let lock = client.rw_lock(name.as_str()).unwrap();
    let lock = lock.with(tenure_core::Options::new().ttl(ttl));
    let reader = loop {
        match lock.write().await.unwrap().downgrade().await {
            Ok(reader) => break reader,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    };
    let before = tokio::time::Instant::now();
    let renewed = || async { before.elapsed() > ttl + ttl / 2 };
    assert!(eventually(GENEROUS, renewed).await);
    // A starved machine may lose it; then the store must have let it go as well.
    if reader.is_valid() {
        assert_eq!(raw.owners(&name).await.0, [reader.owner().to_string()]);
        raw.evict_owner(&name, reader.owner()).await;
    }
    let lost = tokio::time::timeout(GENEROUS, reader.lost())
        .await
        .expect("the reader is notified in time");
    assert!(matches!(lost, LossReason::NotHeld | LossReason::Expired), "{lost:?}");
    drop(reader);
    client.close().await;
    raw.assert_free(&name).await;
}

/// When a process is killed that has downgraded its hold, nothing of the hold is left.
pub async fn a_killed_process_leaves_nothing_of_its_downgraded_hold(fixture: &dyn Fixture) {
    let (name, raw) = (name("downgrade-kill"), raw(fixture).await);
    let Some(url) = fixture.url().filter(|_| raw.capabilities().downgrade) else { return };
    let ttl = if raw.capabilities().detects_death { LONG } else { fixture.ttl() };
    let mut victim = HolderProcess::start(&url).await;
    victim.send(&format!("acquire {name} downgraded {}", ttl.as_millis()));
    victim.expect_line("waiting").await;
    victim.wait_until_held().await;
    assert_eq!(raw.inspect(&name).await.holders[0].mode, Mode::Shared);
    let reader = claim(&name, Mode::Shared);
    raw.hold(&reader).await;
    let writer = claim(&name, Mode::Exclusive);
    raw.queue(&writer, LONG_WAIT).await;
    victim.process.kill9().unwrap();
    raw.release_held(&reader).await;
    raw.acquire(&writer).await;
    raw.release_held(&writer).await;
    raw.assert_free(&name).await;
}
