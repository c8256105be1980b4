//! The queue of waiters: first come, first served.

use std::sync::{Arc, Mutex};

use tenure_core::Mode;
use tenure_core::store::{ClaimOutcome, WaitPolicy};
use tenure_testkit::{GENEROUS, eventually};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{LONG, claim, claim_for, client, long, name, raw, release_guard};
use crate::raw::LONG_WAIT;

const WAITERS: usize = 8;

/// Waiters of two clients, queued one after the other, are granted the lock in that order.
pub async fn waiters_are_granted_in_arrival_order(fixture: &dyn Fixture) {
    let name = name("fifo");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let clients = [client(fixture).await, client(fixture).await];
    let granted = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for position in 0..WAITERS {
        let mutex = clients[position % 2].mutex(name.as_str()).unwrap().with(long());
        let granted = Arc::clone(&granted);
        waiters.spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            granted.lock().unwrap().push(position);
            release_guard(guard).await;
        });
        raw.wait_for_waiters(&name, position + 1).await;
    }
    raw.release_held(&holder).await;
    waiters.join_all().await;
    let mut granted = std::mem::take(&mut *granted.lock().unwrap());
    if !raw.capabilities().fifo {
        granted.sort_unstable();
    }
    assert_eq!(granted, (0..WAITERS).collect::<Vec<_>>());
}

/// A claim without waiting finds the lock busy while others wait for it, even after the lock was
/// handed to a waiter that has not claimed again yet.
pub async fn a_newcomer_does_not_overtake_waiters(fixture: &dyn Fixture) {
    let name = name("overtake");
    let raw = raw(fixture).await;
    let [first, second, third] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    let newcomer = claim(&name, Mode::Exclusive);
    raw.hold(&first).await;
    raw.queue(&second, LONG_WAIT).await;
    raw.assert_busy(&newcomer).await;
    raw.queue(&third, LONG_WAIT).await;
    raw.assert_owners(&name, &[&first], &[&second, &third]).await;
    raw.release_held(&first).await;
    if raw.capabilities().fifo {
        raw.assert_busy(&newcomer).await;
    }
    raw.assert_handed_to(&name, &[&second], &[&third]).await;
    raw.assert_busy(&newcomer).await;
}

/// A waiter that claims again keeps its queue position, and is in the queue once.
pub async fn claiming_again_keeps_the_queue_position(fixture: &dyn Fixture) {
    let name = name("position");
    let raw = raw(fixture).await;
    let [holder, first, second] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    raw.queue(&first, LONG_WAIT).await;
    raw.queue(&second, LONG_WAIT).await;
    raw.queue(&first, LONG_WAIT).await;
    raw.assert_owners(&name, &[&holder], &[&first, &second]).await;
}

/// A waiter that does not claim again within the time of its wait policy is skipped.
pub async fn a_waiter_that_stops_claiming_is_skipped(fixture: &dyn Fixture) {
    let name = name("dead-waiter");
    let raw = raw(fixture).await;
    let [holder, dead, alive] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    raw.queue(&dead, WaitPolicy::queue(fixture.ttl())).await;
    raw.queue(&alive, LONG_WAIT).await;
    if raw.capabilities().waiters {
        let only_one_waits = || async { raw.inspect(&name).await.waiters.len() == 1 };
        assert!(eventually(GENEROUS, only_one_waits).await, "a dead waiter stays in the queue");
    }
    raw.release_held(&holder).await;
    raw.assert_handed_to(&name, &[&alive], &[]).await;
    assert!(matches!(raw.claim(&alive, LONG_WAIT).await, ClaimOutcome::Granted(_)));
}

/// A lock that was handed to a dead waiter becomes free after that waiter's TTL.
pub async fn a_grant_to_a_dead_waiter_expires_after_its_ttl(fixture: &dyn Fixture) {
    let name = name("dead-grantee");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    let dead = claim_for(&name, Mode::Exclusive, fixture.ttl());
    raw.hold(&holder).await;
    raw.queue(&dead, WaitPolicy::queue(LONG)).await;
    let waiter = client(fixture).await.mutex(name.as_str()).unwrap().with(long());
    let waiter = tokio::spawn(async move { waiter.acquire_within(GENEROUS).await });
    raw.wait_for_waiters(&name, 2).await;
    raw.release_held(&holder).await;
    release_guard(waiter.await.unwrap().unwrap()).await;
}
