//! First come, first served.

use std::sync::{Arc, Mutex};

use tenure_core::Mode;
use tenure_core::store::{ClaimOutcome, WaitPolicy};
use tenure_testkit::{GENEROUS, eventually};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::fixture::{LONG, claim, claim_for, client, let_go, long, name, raw};
use crate::raw::PATIENT;

const WAITERS: usize = 8;

/// Waiters of two clients, queued one after the other, are served in that order.
pub async fn waiters_are_served_in_the_order_they_came(fixture: &dyn Fixture) {
    let name = name("fifo");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let clients = [client(fixture).await, client(fixture).await];
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for place in 0..WAITERS {
        let mutex = clients[place % 2].mutex(name.as_str()).unwrap().with(long());
        let served = Arc::clone(&served);
        waiters.spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            served.lock().unwrap().push(place);
            let_go(guard).await;
        });
        raw.until_waiting(&name, place + 1).await;
    }
    raw.give_up(&holder).await;
    waiters.join_all().await;
    let mut served = std::mem::take(&mut *served.lock().unwrap());
    if !raw.capabilities().fifo {
        served.sort_unstable();
    }
    assert_eq!(served, (0..WAITERS).collect::<Vec<_>>());
}

/// Who does not want to wait is turned away while others do, also in the moment when the lock has
/// been handed to one that has not yet heard of it.
pub async fn nobody_overtakes_those_who_wait(fixture: &dyn Fixture) {
    let name = name("overtake");
    let raw = raw(fixture).await;
    let [first, second, third] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    let hasty = claim(&name, Mode::Exclusive);
    raw.hold(&first).await;
    raw.queue(&second, PATIENT).await;
    raw.assert_busy(&hasty).await;
    raw.queue(&third, PATIENT).await;
    raw.assert_owners(&name, &[&first], &[&second, &third]).await;
    raw.give_up(&first).await;
    if raw.capabilities().fifo {
        raw.assert_busy(&hasty).await;
    }
    raw.assert_handed_to(&name, &[&second], &[&third]).await;
    raw.assert_busy(&hasty).await;
}

/// Asking again keeps a waiter's place: it neither falls back nor stands in line twice.
pub async fn asking_again_keeps_the_place_in_line(fixture: &dyn Fixture) {
    let name = name("place");
    let raw = raw(fixture).await;
    let [holder, first, second] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    raw.queue(&first, PATIENT).await;
    raw.queue(&second, PATIENT).await;
    raw.queue(&first, PATIENT).await;
    raw.assert_owners(&name, &[&holder], &[&first, &second]).await;
}

/// A waiter that has not asked again within its policy is passed over.
pub async fn a_waiter_that_never_asks_again_is_skipped(fixture: &dyn Fixture) {
    let name = name("dead-waiter");
    let raw = raw(fixture).await;
    let [holder, dead, alive] = [(); 3].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    raw.queue(&dead, WaitPolicy::queue(fixture.ttl())).await;
    raw.queue(&alive, PATIENT).await;
    let only_one_waits = || async { raw.inspect(&name).await.waiters.len() == 1 };
    assert!(eventually(GENEROUS, only_one_waits).await, "a dead waiter stays in line");
    raw.give_up(&holder).await;
    raw.assert_handed_to(&name, &[&alive], &[]).await;
    assert!(matches!(raw.claim(&alive, PATIENT).await, ClaimOutcome::Granted(_)));
}

/// A lock that was handed to a waiter that died in line is free again after that waiter's TTL.
pub async fn a_grant_that_nobody_picks_up_expires(fixture: &dyn Fixture) {
    let name = name("dead-heir");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    let dead = claim_for(&name, Mode::Exclusive, fixture.ttl());
    raw.hold(&holder).await;
    raw.queue(&dead, WaitPolicy::queue(LONG)).await;
    let waiter = client(fixture).await.mutex(name.as_str()).unwrap().with(long());
    let waiter = tokio::spawn(async move { waiter.acquire_within(GENEROUS).await });
    raw.until_waiting(&name, 2).await;
    raw.give_up(&holder).await;
    let_go(waiter.await.unwrap().unwrap()).await;
}
