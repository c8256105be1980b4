//! Asking a holder to let go, and the records of that.

use std::time::Duration;

use tenure_core::{AuditEvent, Client, ErrorKind, Guard, LockName, RevokedHolder};
use tenure_testkit::{GENEROUS, eventually};
use tokio::time::timeout;

use crate::Fixture;
use crate::cases::cells::raw_cells;
use crate::fixture::{LONG, client, long, name, raw, release_guard};

/// A grace period that no holder which is asked reaches, however slow the machine is.
const GRACE: Duration = LONG;

async fn hold(client: &Client, name: &LockName) -> Guard {
    client.mutex(name.as_str()).unwrap().with(long()).acquire().await.unwrap()
}

/// A client and another one, on a store that can carry a request. `None`: the store cannot, and both the
/// asker and the holder get an error that says so.
async fn clients(fixture: &dyn Fixture) -> Option<(Client, Client)> {
    let (ours, theirs) = (client(fixture).await, client(fixture).await);
    if raw_cells(fixture).await.is_some() {
        return Some((ours, theirs));
    }
    let name = name("unsupported");
    let guard = hold(&ours, &name).await;
    assert_eq!(guard.revoked().await.unwrap_err().kind(), ErrorKind::Unsupported);
    let refused = theirs.revoke(name.as_str(), "test").grace(Duration::ZERO).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(guard.is_valid(), "nothing is evicted without having been asked");
    None
}

async fn asked(
    revoking: impl IntoFuture<Output = tenure_core::Result<Vec<RevokedHolder>>>,
) -> Vec<RevokedHolder> {
    timeout(GENEROUS, revoking.into_future()).await.expect("the holder is gone").unwrap()
}

/// A holder that listens hears the reason and the time that it has, also if it begins to listen after the
/// request was sent. It still holds the lock then, and the asker's call returns when it has released the
/// lock.
pub async fn a_revoked_holder_hears_the_request_and_keeps_the_lock_until_it_releases(
    fixture: &dyn Fixture,
) {
    let Some((ours, theirs)) = clients(fixture).await else { return };
    let name = name("asked");
    assert!(asked(theirs.revoke(name.as_str(), "test")).await.is_empty(), "the lock is not held");
    for (grace, late) in [(None, false), (Some(GRACE), false), (Some(GRACE), true)] {
        let guard = hold(&ours, &name).await;
        let mut revoke = theirs.revoke(name.as_str(), "a deploy");
        if let Some(grace) = grace {
            revoke = revoke.grace(grace);
        }
        let asking = tokio::spawn(asked(revoke));
        if late {
            // The request is written before its record.
            let written = async || {
                let records = theirs.audit(name.as_str()).await;
                records.is_ok_and(|records| records.len() == 3) || fixture.injects_faults()
            };
            assert!(eventually(GENEROUS, written).await);
        }
        for _ in 0..2 {
            let request = timeout(GENEROUS, guard.revoked())
                .await
                .expect("the holder hears the request")
                .unwrap();
            assert_eq!(request.reason, "a deploy");
            assert_eq!(request.by.pid, std::process::id());
            assert_eq!(request.remaining().is_some(), grace.is_some());
            assert!(request.remaining().unwrap_or_default() <= GRACE);
        }
        assert!(guard.is_valid() && !asking.is_finished());
        let owner = guard.owner().to_string();
        release_guard(guard).await;
        ours.close().await;
        let asked = asking.await.unwrap();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].holder.owner, owner);
        assert!(!asked[0].evicted, "{asked:?}");
        assert!(asked[0].heard || fixture.injects_faults(), "{asked:?}");
    }
}

/// A writer that becomes a reader after it was asked hears the request, is still waited for, and is evicted
/// after the grace period.
pub async fn a_downgrade_does_not_answer_a_request(fixture: &dyn Fixture) {
    let Some((ours, theirs)) = clients(fixture).await else { return };
    if fixture.injects_faults() || !raw(fixture).await.capabilities().downgrade {
        return;
    }
    let name = name("asked-downgrade");
    let catalogue = ours.rw_lock(name.as_str()).unwrap().with(long());
    let writer = catalogue.write().await.unwrap();
    let grace = Duration::from_secs(2);
    let asking = tokio::spawn(asked(theirs.revoke(name.as_str(), "now").grace(grace)));
    let recorded = async || theirs.audit(name.as_str()).await.unwrap().len() == 1;
    assert!(eventually(GENEROUS, recorded).await);
    let reader = writer.downgrade().await.unwrap();
    let request =
        timeout(GENEROUS, reader.revoked()).await.expect("the holder hears the request").unwrap();
    assert_eq!(request.reason, "now");
    let asked = asking.await.unwrap();
    assert!(asked.len() == 1 && asked[0].heard && asked[0].evicted, "{asked:?}");
    drop(reader);
    ours.close().await;
    raw(fixture).await.assert_free(&name).await;
}

/// A holder that does not release the lock is evicted after the grace period, and the next one has a
/// higher token.
pub async fn a_holder_that_stays_is_evicted_after_the_grace(fixture: &dyn Fixture) {
    let Some((ours, theirs)) = clients(fixture).await else { return };
    let name = name("stays");
    for listens in [false, true] {
        // A request that arrives late may find the holder evicted.
        if listens && fixture.injects_faults() {
            continue;
        }
        let guard = hold(&ours, &name).await;
        let limited = theirs.revoke(name.as_str(), "please").within(Duration::from_millis(10));
        let limited = asked(limited.grace(GRACE)).await;
        assert!(limited.len() == 1 && !limited[0].released && !limited[0].evicted, "{limited:?}");
        assert!(guard.is_valid(), "nothing is forced before the grace is over");
        let grace = Duration::from_secs(if listens { 4 } else { 0 });
        let asking = tokio::spawn(asked(theirs.revoke(name.as_str(), "now").grace(grace)));
        if listens {
            let request = timeout(GENEROUS, guard.revoked())
                .await
                .expect("the holder hears the request")
                .unwrap();
            assert!(request.remaining().unwrap() <= grace);
        }
        let asked = asking.await.unwrap();
        assert!(asked.len() == 1 && asked[0].evicted && asked[0].released, "{asked:?}");
        assert!(asked[0].heard == listens || fixture.injects_faults(), "{asked:?}");
        let next = hold(&theirs, &name).await;
        assert!(guard.token().is_none() || guard.token() < next.token());
        drop(guard);
        release_guard(next).await;
        theirs.close().await;
    }
}

/// A request is for the holds that the asker saw: a later holder does not hear it, and is not evicted by
/// it.
pub async fn a_request_does_not_reach_a_later_holder(fixture: &dyn Fixture) {
    let Some((ours, theirs)) = clients(fixture).await else { return };
    let name = name("later");
    let guard = hold(&ours, &name).await;
    let asking = theirs.revoke(name.as_str(), "for the first").grace(GRACE);
    let asking = tokio::spawn(asking.into_future());
    timeout(GENEROUS, guard.revoked()).await.expect("the holder hears the request").unwrap();
    // The request stays in the store if its asker dies.
    asking.abort();
    release_guard(guard).await;
    ours.close().await;
    let later = hold(&ours, &name).await;
    // Longer than it takes to look for a request on a store that does not push.
    let heard = timeout(Duration::from_millis(2_500), later.revoked()).await;
    assert!(heard.is_err(), "a request for another hold was heard: {heard:?}");
    assert!(later.is_valid());
    release_guard(later).await;
    ours.close().await;
}

/// All holders of a shared lock are asked.
pub async fn all_holders_of_a_shared_lock_are_asked(fixture: &dyn Fixture) {
    let Some((ours, theirs)) = clients(fixture).await else { return };
    if !raw(fixture).await.capabilities().shared {
        return;
    }
    let name = name("readers");
    let lock = ours.rw_lock(name.as_str()).unwrap().with(long());
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let reader = lock.read().await.unwrap();
        readers.spawn(async move {
            timeout(GENEROUS, reader.revoked())
                .await
                .expect("the holder hears the request")
                .unwrap();
            release_guard(reader.into()).await;
        });
    }
    let asked = asked(theirs.revoke(name.as_str(), "a writer waits").grace(GRACE)).await;
    readers.join_all().await;
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked.iter().all(|asked| !asked.evicted), "{asked:?}");
}

/// Evictions and revocations are recorded, newest first, if the store declares it; otherwise the call is
/// refused with the reason.
pub async fn evictions_and_revocations_are_recorded_as_declared(fixture: &dyn Fixture) {
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let (name, other) = (name("audit"), name("audit-other"));
    if fixture.injects_faults() {
        return;
    }
    if !raw.capabilities().audits {
        let refused = client.audit(name.as_str()).await.unwrap_err();
        return assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }
    assert_eq!(client.audit(name.as_str()).await.unwrap(), []);
    let first = hold(&client, &name).await;
    raw.evict_owner(&name, first.owner()).await;
    drop(first);
    let hostile = "tabs\tand\nlines, é»";
    let second = hold(&client, &name).await;
    let owner = second.owner().to_string();
    assert!(client.evict(name.as_str(), &owner, hostile).await.unwrap());
    drop(second);
    let records = client.audit(name.as_str()).await.unwrap();
    let seen: Vec<_> = records.iter().map(|one| (one.event, one.reason.as_str())).collect();
    assert_eq!(seen[0], (AuditEvent::Evicted, "tabs and lines, é»"));
    assert_eq!((seen.len(), records[0].owner.as_str()), (2, owner.as_str()));
    assert_eq!(records[0].by.pid, std::process::id());
    let age = records[0].at.unwrap().elapsed().unwrap_or_default();
    assert!(age < Duration::from_secs(600), "{age:?}");
    if raw_cells(fixture).await.is_some() {
        let third = hold(&client, &name).await;
        let owner = third.owner().to_string();
        asked(client.revoke(name.as_str(), "asked").grace(Duration::ZERO)).await;
        let records = client.audit(name.as_str()).await.unwrap();
        let seen: Vec<_> = records.iter().take(3).map(|one| (one.event, &one.owner)).collect();
        // One record of each kind: the eviction came last.
        assert_eq!(seen[0], (AuditEvent::Evicted, &owner));
        assert_eq!(seen[1], (AuditEvent::Revoked, &owner));
        assert_eq!((seen[2].0, records.len()), (AuditEvent::Evicted, 4));
        assert_eq!(records[1].token, third.token());
    }
    assert_eq!(client.audit(other.as_str()).await.unwrap(), [], "the records of another lock");
}
