//! A release gives the lock to one waiter.

use std::time::Duration;

use tenure_core::Mode;
use tenure_core::store::ClaimOutcome;
use tenure_testkit::GENEROUS;

use crate::Fixture;
use crate::fixture::{claim, client, let_go, long, name, raw};
use crate::raw::PATIENT;

/// Right after the release the first in line is the holder, before it has done anything about it;
/// the others stay where they were.
pub async fn a_release_makes_the_first_in_line_the_holder(fixture: &dyn Fixture) {
    let name = name("handover");
    let raw = raw(fixture).await;
    let [holder, first, second, third] = [(); 4].map(|()| claim(&name, Mode::Exclusive));
    let before = raw.hold(&holder).await;
    for waiter in [&first, &second, &third] {
        raw.queue(waiter, PATIENT).await;
    }
    raw.give_up(&holder).await;
    raw.assert_handed_to(&name, &[&first], &[&second, &third]).await;
    let shown = raw.inspect(&name).await.holders[0].token;
    let ClaimOutcome::Granted(grant) = raw.claim(&first, PATIENT).await else {
        panic!("the first in line was handed the lock");
    };
    assert_eq!(raw.token(&grant), shown, "the token was minted at the hand-over");
    assert!(grant.token.is_none() || before.token < grant.token);
    raw.queue(&second, PATIENT).await;
    raw.queue(&third, PATIENT).await;
}

/// Of many waiting tasks exactly one goes on when the lock is released.
pub async fn a_release_wakes_one_waiter_only(fixture: &dyn Fixture) {
    let name = name("wake-one");
    let (raw, client) = (raw(fixture).await, client(fixture).await);
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let (sender, mut guards) = tokio::sync::mpsc::unbounded_channel();
    for place in 0..5 {
        let (mutex, sender) = (client.mutex(name.as_str()).unwrap().with(long()), sender.clone());
        tokio::spawn(async move { sender.send(mutex.acquire().await.unwrap()) });
        raw.until_waiting(&name, place + 1).await;
    }
    raw.give_up(&holder).await;
    for left in (0..5).rev() {
        let guard = tokio::time::timeout(GENEROUS, guards.recv()).await.unwrap().unwrap();
        assert!(guards.try_recv().is_err(), "two were woken by one release");
        let (holders, waiters) = raw.owners(&name).await;
        assert_eq!(holders, [guard.owner().to_string()]);
        assert_eq!(waiters.len(), left);
        let_go(guard).await;
    }
    client.close().await;
    raw.assert_free(&name).await;
}

/// A store with push tells a waiter that does not ask; a store without may stay silent, but tells
/// who asks.
pub async fn a_waiter_hears_of_its_grant(fixture: &dyn Fixture) {
    let name = name("news");
    let (ours, theirs) = (raw(fixture).await, raw(fixture).await);
    let [holder, waiter] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    theirs.hold(&holder).await;
    let place = ours.queue(&waiter, PATIENT).await;
    if ours.capabilities().push {
        let (_, _news) = tokio::join!(theirs.give_up(&holder), ours.wait(&waiter, &place));
    } else {
        theirs.give_up(&holder).await;
    }
    assert!(matches!(ours.claim(&waiter, PATIENT).await, ClaimOutcome::Granted(_)));
}

/// News that came while nobody listened is found by the next wait.
pub async fn news_that_came_between_two_waits_is_found_by_the_second(fixture: &dyn Fixture) {
    let name = name("old-news");
    let (ours, theirs) = (raw(fixture).await, raw(fixture).await);
    let [holder, waiter] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    theirs.hold(&holder).await;
    let place = ours.queue(&waiter, PATIENT).await;
    let given_up = tokio::time::timeout(Duration::from_millis(20), ours.wait(&waiter, &place));
    drop(given_up.await);
    theirs.give_up(&holder).await;
    if ours.capabilities().push {
        ours.wait(&waiter, &place).await;
    }
    assert!(matches!(ours.claim(&waiter, PATIENT).await, ClaimOutcome::Granted(_)));
}
