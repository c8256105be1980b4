//! Handing the lock from its holder to the next waiter.

use std::time::Duration;

use tenure_core::Mode;
use tenure_core::store::ClaimOutcome;
use tenure_testkit::GENEROUS;

use crate::Fixture;
use crate::fixture::{claim, client, long, name, raw, release_guard};
use crate::raw::LONG_WAIT;

/// As soon as the release returns, the first waiter is the holder, without any action of its own; the
/// other waiters keep their positions.
pub async fn a_release_makes_the_first_waiter_the_holder(fixture: &dyn Fixture) {
    let name = name("handover");
    let raw = raw(fixture).await;
    let [holder, first, second, third] = [(); 4].map(|()| claim(&name, Mode::Exclusive));
    let before = raw.hold(&holder).await;
    for waiter in [&first, &second, &third] {
        raw.queue(waiter, LONG_WAIT).await;
    }
    raw.release_held(&holder).await;
    raw.assert_handed_to(&name, &[&first], &[&second, &third]).await;
    let shown = raw.inspect(&name).await.holders[0].token;
    let ClaimOutcome::Granted(grant) = raw.claim(&first, LONG_WAIT).await else {
        panic!("the lock was handed to the first waiter");
    };
    assert_eq!(raw.token(&grant), shown, "the token is issued at the hand-off");
    assert!(grant.token.is_none() || before.token < grant.token);
    raw.queue(&second, LONG_WAIT).await;
    raw.queue(&third, LONG_WAIT).await;
}

/// When the lock is released, exactly one of several waiting tasks gets it.
pub async fn a_release_wakes_exactly_one_waiter(fixture: &dyn Fixture) {
    let name = name("wake-one");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let (sender, mut guards) = tokio::sync::mpsc::unbounded_channel();
    for place in 0..5 {
        let (mutex, sender) = (client.mutex(name.as_str()).unwrap().with(long()), sender.clone());
        tokio::spawn(async move { sender.send(mutex.acquire().await.unwrap()) });
        raw.wait_for_waiters(&name, place + 1).await;
    }
    raw.release_held(&holder).await;
    for left in (0..5).rev() {
        let guard = tokio::time::timeout(GENEROUS, guards.recv()).await.unwrap().unwrap();
        assert!(guards.try_recv().is_err(), "one release woke two waiters");
        let (holders, waiters) = raw.owners(&name).await;
        assert_eq!(holders, [guard.owner().to_string()]);
        assert_eq!(waiters.len(), if raw.capabilities().waiters { left } else { 0 });
        release_guard(guard).await;
    }
    client.close().await;
    raw.assert_free(&name).await;
}

/// A store with push notifies a waiter that does not claim again. A store without push may stay
/// silent, but must grant the next claim.
pub async fn a_waiter_is_notified_of_its_grant(fixture: &dyn Fixture) {
    let name = name("notification");
    let (ours, theirs) = (raw(fixture).await, raw(fixture).await);
    let [holder, waiter] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    theirs.hold(&holder).await;
    let ticket = ours.queue(&waiter, LONG_WAIT).await;
    if ours.capabilities().push {
        tokio::join!(theirs.release_held(&holder), ours.wait(&waiter, &ticket));
    } else {
        theirs.release_held(&holder).await;
    }
    assert!(matches!(ours.claim(&waiter, LONG_WAIT).await, ClaimOutcome::Granted(_)));
}

/// A notification that arrives while no `wait` is pending ends the next `wait`.
pub async fn a_grant_between_two_waits_ends_the_second_wait(fixture: &dyn Fixture) {
    let name = name("between-waits");
    let (ours, theirs) = (raw(fixture).await, raw(fixture).await);
    let [holder, waiter] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    theirs.hold(&holder).await;
    let ticket = ours.queue(&waiter, LONG_WAIT).await;
    let first_wait = tokio::time::timeout(Duration::from_millis(20), ours.wait(&waiter, &ticket));
    drop(first_wait.await);
    theirs.release_held(&holder).await;
    if ours.capabilities().push {
        ours.wait(&waiter, &ticket).await;
    }
    assert!(matches!(ours.claim(&waiter, LONG_WAIT).await, ClaimOutcome::Granted(_)));
}
