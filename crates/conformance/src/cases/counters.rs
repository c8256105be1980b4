//! Counters: additions count exactly once, floors hold, and ranges are checked.

use std::collections::HashSet;
use std::time::Duration;

use tenure_core::store::{CellKey, CellSpace, now};
use tenure_core::{Counter, ErrorKind};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::cases::cells::raw_cells;
use crate::fixture::{client, name};

/// Changes of many clients at once each count exactly once, also where replies are lost, and no two see
/// the same value.
pub async fn additions_are_counted_exactly_once_under_load(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    const CLIENTS: i64 = 4;
    const ADDITIONS: i64 = 25;
    let name = name("counter-load");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let counter = client(fixture).await.counter(name.as_str()).unwrap();
        tasks.spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..ADDITIONS {
                seen.push(counter.add(1).await.unwrap());
            }
            seen
        });
    }
    let seen: Vec<i64> = tasks.join_all().await.into_iter().flatten().collect();
    let counter = client(fixture).await.counter(name.as_str()).unwrap();
    assert_eq!(counter.get().await.unwrap(), CLIENTS * ADDITIONS);
    // Asked again after a lost reply, a store may tell a later value than the first.
    if !fixture.injects_faults() {
        let distinct: HashSet<i64> = seen.iter().copied().collect();
        assert_eq!(distinct.len(), seen.len(), "two additions got the same value");
    }
}

/// A counter with a floor is never below it, however many clients subtract at once.
pub async fn a_counter_is_never_below_its_floor(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    const STOCK: i64 = 20;
    let name = name("counter-floor");
    let counter = client(fixture).await.counter(name.as_str()).unwrap();
    counter.add(STOCK).await.unwrap();
    let mut buyers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let counter = client(fixture).await.counter(name.as_str()).unwrap();
        buyers.spawn(async move {
            let mut sold = 0;
            loop {
                match counter.subtract(3, 0).await {
                    Ok(left) => assert!(left >= 0, "{left}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
                        return sold;
                    }
                }
                sold += 3;
            }
        });
    }
    let sold: i64 = buyers.join_all().await.into_iter().sum();
    assert_eq!((sold, counter.get().await.unwrap()), (18, 2));
}

/// A change that is invalid or out of range is refused with its kind, and changes nothing.
pub async fn a_counter_refuses_what_is_out_of_range(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    let counter = client(fixture).await.counter(name("counter-range").as_str()).unwrap();
    assert_eq!(counter.get().await.unwrap(), 0);
    let kind = |refused: tenure_core::Result<i64>| refused.unwrap_err().kind();
    assert_eq!(kind(counter.subtract(1, 0).await), ErrorKind::OutOfRange);
    assert_eq!(kind(counter.subtract(-1, 0).await), ErrorKind::Invalid);
    assert_eq!(kind(counter.add(Counter::MAX + 1).await), ErrorKind::OutOfRange);
    assert_eq!(kind(counter.add(i64::MIN).await), ErrorKind::OutOfRange);
    assert_eq!(counter.get().await.unwrap(), 0);
    assert_eq!(counter.add(Counter::MAX - 1).await.unwrap(), Counter::MAX - 1);
    assert_eq!(counter.add(1).await.unwrap(), Counter::MAX, "every number is exact");
    for beyond in [1, i64::MAX] {
        assert_eq!(kind(counter.add(beyond).await), ErrorKind::OutOfRange);
    }
    assert_eq!(counter.subtract(Counter::MAX, i64::MIN).await.unwrap(), 0);
    assert_eq!(counter.add(-Counter::MAX).await.unwrap(), -Counter::MAX);
    assert_eq!(kind(counter.subtract(1, i64::MIN).await), ErrorKind::OutOfRange);
}

/// A counter expires after its first change, whatever changes follow, and begins anew.
pub async fn a_counter_expires_after_its_first_change(fixture: &dyn Fixture) {
    if raw_cells(fixture).await.is_none() {
        return;
    }
    const TTL: Duration = Duration::from_secs(1);
    let counter = client(fixture).await.counter(name("counter-ttl").as_str()).unwrap().ttl(TTL);
    let sent = now();
    assert_eq!(counter.add(5).await.unwrap(), 5);
    // Changes that follow do not prolong it: at some time it begins anew, and not early.
    let began_anew = || async { counter.add(1).await.unwrap() == 1 };
    assert!(eventually(GENEROUS, began_anew).await, "the counter never expired");
    assert!(now().since(sent) >= TTL, "the counter expired early");
}

/// A counter whose stored bytes are no number is reported as damaged, and not overwritten.
pub async fn a_counter_that_holds_no_number_is_damaged(fixture: &dyn Fixture) {
    let Some(raw) = raw_cells(fixture).await else { return };
    let name = name("counter-damaged");
    let key = CellKey::new(CellSpace::Counter, name.clone());
    for (number, bytes) in [&b"hello"[..], b"", b"T\x01\0\0what"].into_iter().enumerate() {
        let version = raw.read(&key).await.map(|stored| stored.version);
        raw.write(&key, version, bytes).await;
        let counter = client(fixture).await.counter(name.as_str()).unwrap();
        assert_eq!(counter.add(1).await.unwrap_err().kind(), ErrorKind::Damaged, "{number}");
        assert_eq!(counter.get().await.unwrap_err().kind(), ErrorKind::Damaged, "{number}");
        assert_eq!(raw.value(&key).await.unwrap(), bytes);
    }
}
