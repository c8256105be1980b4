//! Several locks at once: all or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::store::Fencing;
use tenure_core::{Client, ErrorKind, LockName, Mode, MultiLock, Options};
use tenure_testkit::GENEROUS;

use crate::Fixture;
use crate::cases::cancel::{POLLS, drop_after_polls};
use crate::fixture::{claim, client, long, name, raw};

fn multi(client: &Client, names: &[LockName], options: Options) -> MultiLock {
    client.multi_lock(names.iter().map(LockName::as_str)).unwrap().with(options)
}

/// An attempt that does not get all locks holds none; one that does holds each of them, and gives all back
/// together. A name that is given twice is refused.
pub async fn several_locks_are_held_together_or_not_at_all(fixture: &dyn Fixture) {
    if fixture.injects_faults() {
        return;
    }
    let names = ["multi-a", "multi-b", "multi-c"].map(name);
    let (raw, ours) = (raw(fixture).await, client(fixture).await);
    let all = multi(&ours, &names, long());
    let other = claim(&names[1], Mode::Exclusive);
    raw.hold(&other).await;
    let busy = all.try_acquire().await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(busy.to_string().contains(names[1].as_str()), "{busy}");
    raw.assert_free(&names[0]).await;
    raw.assert_free(&names[2]).await;
    raw.release_held(&other).await;

    let guard = all.try_acquire().await.unwrap();
    for name in &names {
        raw.assert_busy(&claim(name, Mode::Exclusive)).await;
    }
    let tokens = guard.guards().iter().map(tenure_core::Guard::token);
    let fenced = raw.capabilities().fencing != Fencing::None;
    assert!(tokens.into_iter().all(|token| token.is_some() == fenced));
    guard.run(async {}).await.unwrap();
    guard.release().await.unwrap();
    for name in &names {
        raw.assert_free(name).await;
    }
    let twice = ours.multi_lock([names[0].as_str(), names[1].as_str(), names[0].as_str()]);
    assert_eq!(twice.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(ours.multi_lock([]).unwrap_err().kind(), ErrorKind::Invalid);
}

/// Tasks that name the same locks in different orders, or only some of them, all get their turn, one at a
/// time for each lock.
pub async fn locks_named_in_any_order_do_not_deadlock_under_load(fixture: &dyn Fixture) {
    const ROUNDS: u32 = 6;
    if fixture.injects_faults() {
        return;
    }
    let names = ["order-a", "order-b", "order-c"].map(name);
    let [a, b, c] = names.each_ref().map(|name| name.clone());
    let inside: Arc<[AtomicU32; 3]> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    let orders = [vec![&a, &b, &c], vec![&c, &b, &a], vec![&b, &a], vec![&c, &a], vec![&b]];
    for order in orders {
        let order: Vec<LockName> = order.into_iter().cloned().collect();
        let (client, inside, names) = (client(fixture).await, Arc::clone(&inside), names.clone());
        tasks.spawn(async move {
            let locks = multi(&client, &order, long());
            let slots: Vec<usize> = order
                .iter()
                .map(|one| names.iter().position(|name| name == one).unwrap())
                .collect();
            for _ in 0..ROUNDS {
                let guard = locks.acquire().await.unwrap();
                for slot in &slots {
                    assert_eq!(
                        inside[*slot].fetch_add(1, Ordering::SeqCst),
                        0,
                        "two claims hold one lock"
                    );
                }
                tokio::task::yield_now().await;
                for slot in &slots {
                    inside[*slot].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await.unwrap();
            }
            client.close().await;
        });
    }
    tokio::time::timeout(2 * GENEROUS, tasks.join_all())
        .await
        .expect("the tasks wait for each other");
}

/// One lock that is taken away loses the whole hold; the others are given back with it.
pub async fn losing_one_of_several_locks_loses_the_hold(fixture: &dyn Fixture) {
    if fixture.injects_faults() {
        return;
    }
    let names = ["multi-lost-a", "multi-lost-b"].map(name);
    let (raw, ours) = (raw(fixture).await, client(fixture).await);
    let guard = multi(&ours, &names, Options::new().ttl(fixture.ttl())).acquire().await.unwrap();
    let victim = &guard.guards()[1];
    let lost = victim.name().clone();
    raw.evict_owner(&lost, victim.owner()).await;
    let run = guard.run(std::future::pending::<()>());
    let ended = tokio::time::timeout(GENEROUS, run).await.expect("the work ends");
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(guard.lost().await.0, lost);
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    for name in &names {
        raw.assert_free(name).await;
    }
}

/// An attempt that is dropped while it waits for one of its locks leaves none of them held or waited for.
pub async fn dropping_a_wait_for_several_locks_leaves_all_free(fixture: &dyn Fixture) {
    if fixture.injects_faults() {
        return;
    }
    let names = ["multi-drop-a", "multi-drop-b", "multi-drop-c"].map(name);
    let (raw, ours) = (raw(fixture).await, client(fixture).await);
    let other = claim(&names[1], Mode::Exclusive);
    raw.hold(&other).await;
    let all = multi(&ours, &names, long());
    let waiting = tokio::spawn(async move { all.acquire().await.map(drop) });
    raw.wait_for_waiters(&names[1], 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    ours.close().await;
    raw.assert_owners(&names[1], &[&other], &[]).await;
    raw.release_held(&other).await;
    for name in &names {
        raw.assert_free(name).await;
    }
}

/// An attempt at several free locks, and their release, are dropped after 0, 1, 2 … polls.
pub async fn dropping_an_attempt_or_a_release_of_several_locks_leaves_all_free(
    fixture: &dyn Fixture,
) {
    let names = ["multi-poll-a", "multi-poll-b", "multi-poll-c"].map(name);
    let (raw, ours) = (raw(fixture).await, client(fixture).await);
    let all = multi(&ours, &names, long());
    for polls in 0..POLLS {
        drop(drop_after_polls(all.acquire(), polls).await);
        ours.close().await;
        for name in &names {
            raw.assert_free(name).await;
        }
        let guard = all.acquire().await.unwrap();
        drop(drop_after_polls(guard.release(), polls).await);
        ours.close().await;
        for name in &names {
            raw.assert_free(name).await;
        }
    }
}
