//! Clients that are cut off from their servers.
//!
//! Each scenario takes a server's port, and a function that connects a client to an address.

use std::time::Duration;

use tenure_core::store::now;
use tenure_core::{Client, LossReason, Mode, Options};
use tenure_testkit::{GENEROUS, Proxy, Way, eventually};

use crate::{ELECTION, until_waiting};

/// A proxy, a client behind it, and a client that reaches the server directly.
async fn behind_proxy(
    server: u16,
    connect: impl AsyncFn(&str) -> Client,
) -> (Proxy, Client, Client) {
    let proxy = Proxy::start(server).unwrap();
    let cut_off = connect(&proxy.address()).await;
    (proxy, cut_off, connect(&format!("127.0.0.1:{server}")).await)
}

/// A holder that is cut off is told of its loss before another claim holds the lock, and its late
/// requests harm no later holder, whether its connections are resumed or closed.
///
/// # Panics
/// If not.
pub async fn a_cut_off_holder_loses_its_guard_before_another_claim_holds(
    server: u16,
    connect: impl AsyncFn(&str) -> Client,
) {
    let (proxy, cut_off, other) = behind_proxy(server, connect).await;
    let options = Options::new().ttl(Duration::from_secs(2));
    for round in 0..4 {
        let mutex = cut_off.mutex("a").unwrap().with(options.clone());
        let guard = mutex.acquire_within(ELECTION).await.unwrap();
        proxy.set(Way::Shut);
        let deadline = now() + guard.remaining();
        let next = other.mutex("a").unwrap().acquire_within(GENEROUS).await.unwrap();
        let valid = guard.is_valid();
        assert!(!valid, "two guards are valid at once");
        assert!(now() >= deadline, "granted before the holder's own deadline");
        assert_eq!(guard.lost().await, LossReason::Expired);
        match round % 2 {
            0 => proxy.set(Way::Open),
            _ => proxy.heal(),
        }
        drop(guard);
        cut_off.close().await;
        // The late release must not take the lock away from the new holder.
        let holders = other.inspect("a").await.unwrap().holders;
        assert_eq!(holders[0].owner, next.owner().to_string());
        next.release().await.unwrap();
    }
}

/// A waiter that was cut off while the lock was released to it gets the lock when it is reconnected,
/// whether the notification comes late or was lost.
///
/// # Panics
/// If not.
pub async fn a_waiter_is_served_when_it_is_back(
    server: u16,
    connect: impl AsyncFn(&str) -> Client,
) {
    let (proxy, cut_off, other) = behind_proxy(server, connect).await;
    for fault in [Way::Shut, Way::Deaf] {
        let guard = other.mutex("a").unwrap().acquire_within(ELECTION).await.unwrap();
        let mutex = cut_off.mutex("a").unwrap();
        let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        until_waiting(&other, "a", 1).await;
        proxy.set(fault);
        guard.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        match fault {
            Way::Shut => proxy.set(Way::Open),
            _ => proxy.heal(),
        }
        let next = tokio::time::timeout(ELECTION, waiting).await;
        let next = next.unwrap_or_else(|_| panic!("{fault:?}: the waiter is stuck")).unwrap();
        next.release().await.unwrap();
    }
}

/// A writer has become a reader, and the reply is lost: the client asks again and has its reader. If the
/// caller has gone away meanwhile, the lock is released.
///
/// # Panics
/// If not.
pub async fn a_downgrade_whose_reply_is_lost_is_made_again_or_undone(
    server: u16,
    connect: impl AsyncFn(&str) -> Client,
) {
    let (proxy, cut_off, other) = behind_proxy(server, connect).await;
    let is_reader = || async {
        let state = other.inspect("a").await.unwrap();
        matches!(&state.holders[..], [holder] if holder.mode == Mode::Shared)
    };
    for is_dropped in [false, true] {
        let lock = cut_off.rw_lock("a").unwrap();
        let writer = lock.write_within(ELECTION).await.unwrap();
        let owner = writer.owner().to_string();
        proxy.set(Way::Deaf);
        let downgrade = tokio::spawn(writer.downgrade());
        assert!(eventually(GENEROUS, is_reader).await, "the downgrade was not carried out");
        if is_dropped {
            downgrade.abort();
        }
        proxy.heal();
        if is_dropped {
            cut_off.close().await;
            drop(other.mutex("a").unwrap().acquire_within(GENEROUS).await.unwrap());
            other.close().await;
            continue;
        }
        let reader = tokio::time::timeout(ELECTION, downgrade).await.unwrap().unwrap().unwrap();
        assert!(reader.is_valid());
        let beside = other.rw_lock("a").unwrap().read_within(GENEROUS).await.unwrap();
        let state = other.inspect("a").await.unwrap();
        assert_eq!(state.holders.len(), 2, "{state:?}");
        assert!(state.holders.iter().any(|holder| holder.owner == owner), "{state:?}");
        beside.release().await.unwrap();
        reader.release().await.unwrap();
        assert!(other.inspect("a").await.unwrap().is_free(), "the lock is still taken");
    }
}
