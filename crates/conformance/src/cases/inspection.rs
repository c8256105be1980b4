//! What `inspect` and `list` show.

use std::time::Duration;

use tenure_core::store::{Origin, now};
use tenure_core::{Holder, Mode, Options};
use tenure_testkit::{GENEROUS, eventually};

use crate::Fixture;
use crate::fixture::{LONG, claim, claim_for, client, name, raw, release_guard};
use crate::raw::LONG_WAIT;

/// `inspect` shows owner, mode, token, host, pid, label, age and remaining lease of the holder.
pub async fn inspect_shows_every_attribute_of_the_holder(fixture: &dyn Fixture) {
    let name = name("holder");
    let client = client(fixture).await;
    let options = Options::new().ttl(LONG).label("nightly »report« 'x'");
    let before = now();
    let guard = client.mutex(name.as_str()).unwrap().with(options).acquire().await.unwrap();
    let raw = raw(fixture).await;
    let state = raw.inspect(&name).await;
    let longest = now().since(before);
    let [holder] = &state.holders[..] else { panic!("expected one holder: {state:?}") };
    let here = Origin::here();
    assert_eq!(holder.owner, guard.owner().to_string());
    assert_eq!(holder.mode, Mode::Exclusive);
    assert_eq!(holder.token, guard.token());
    assert_eq!(holder.host.as_deref(), Some(here.host.as_str()));
    assert_eq!(holder.pid, Some(here.pid));
    assert_eq!(holder.label, "nightly »report« 'x'");
    assert_eq!(holder.age.is_some(), raw.capabilities().ages);
    let age = holder.age.unwrap_or_default();
    assert!(age <= longest, "{age:?} old after {longest:?}");
    let left = holder.expires_in.unwrap();
    assert!(left <= LONG && left + longest * 2 >= LONG, "{left:?} left after {longest:?}");
    assert!(state.waiters.is_empty());
    release_guard(guard).await;
}

/// `holders` returns the holders that `inspect` shows, and none for a free lock.
pub async fn holders_are_those_that_inspect_shows(fixture: &dyn Fixture) {
    let name = name("holders");
    let raw = raw(fixture).await;
    assert_eq!(raw.holders(&name).await, []);
    let holder = claim(&name, Mode::Exclusive).with_label("nightly report");
    raw.hold(&holder).await;
    let waiter = claim(&name, Mode::Exclusive);
    raw.queue(&waiter, LONG_WAIT).await;
    let shown = |holders: Vec<Holder>| -> Vec<_> {
        let known = |one: Holder| (one.owner, one.mode, one.token, one.host, one.pid, one.label);
        holders.into_iter().map(known).collect()
    };
    let holders = shown(raw.holders(&name).await);
    assert_eq!(holders.len(), 1);
    assert_eq!(holders, shown(raw.inspect(&name).await.holders));
    raw.release(&waiter).await;
    raw.release_held(&holder).await;
}

/// A label with line breaks is shown on one line, with escapes.
pub async fn line_breaks_in_a_label_are_escaped(fixture: &dyn Fixture) {
    let name = name("label");
    let client = client(fixture).await;
    let options = Options::new().ttl(LONG).label("one\ntwo\r\nthree\u{2028}");
    let guard = client.mutex(name.as_str()).unwrap().with(options).acquire().await.unwrap();
    let state = raw(fixture).await.inspect(&name).await;
    let [holder] = &state.holders[..] else { panic!("expected one holder: {state:?}") };
    assert_eq!(holder.owner, guard.owner().to_string());
    assert_eq!(holder.label, r"one\ntwo\r\nthree\u{2028}");
    release_guard(guard).await;
}

/// `inspect` shows owner, mode, host, pid, label and age of every waiter, in queue order, if the store
/// declares that it keeps waiters; otherwise it shows none.
pub async fn inspect_shows_the_waiters_in_queue_order(fixture: &dyn Fixture) {
    let name = name("waiters");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    let before = now();
    let mut waiters: Vec<_> = (0..4).map(|_| claim(&name, Mode::Exclusive)).collect();
    for (position, waiter) in waiters.iter_mut().enumerate() {
        waiter.label = format!("number {position}").into();
        raw.queue(waiter, LONG_WAIT).await;
    }
    let state = raw.inspect(&name).await;
    let longest = now().since(before);
    if !raw.capabilities().waiters {
        waiters.clear();
    }
    assert_eq!(state.waiters.len(), waiters.len());
    for (shown, waiter) in state.waiters.iter().zip(&waiters) {
        assert_eq!(shown.owner, waiter.owner.to_string());
        assert_eq!(shown.mode, waiter.mode);
        assert_eq!(shown.host.as_deref(), Some(waiter.origin.host.as_str()));
        assert_eq!(shown.pid, Some(waiter.origin.pid));
        assert_eq!(shown.label, *waiter.label);
        assert!(shown.age <= longest, "{:?} old after {longest:?}", shown.age);
    }
}

/// The age of a hold counts from its grant, not from its last renewal.
pub async fn renewing_a_hold_does_not_reset_its_age(fixture: &dyn Fixture) {
    let name = name("age");
    let raw = raw(fixture).await;
    let holder = claim(&name, Mode::Exclusive);
    raw.hold(&holder).await;
    if !raw.capabilities().ages {
        assert_eq!(raw.inspect(&name).await.holders[0].age, None);
        return;
    }
    let held = now();
    let older = || async {
        raw.renew(&holder).await;
        raw.inspect(&name).await.holders[0].age.unwrap() >= Duration::from_millis(200)
    };
    assert!(eventually(GENEROUS, older).await, "the age stays low for {:?}", now().since(held));
}

/// A lock that was never taken, and one that was released, have no holders and no waiters.
pub async fn a_free_lock_has_no_holders_and_no_waiters(fixture: &dyn Fixture) {
    let name = name("free");
    let raw = raw(fixture).await;
    raw.assert_free(&name).await;
    let [holder, waiter] = [(); 2].map(|()| claim(&name, Mode::Exclusive));
    raw.hold(&holder).await;
    raw.queue(&waiter, LONG_WAIT).await;
    assert!(!raw.inspect(&name).await.is_free());
    raw.release_held(&holder).await;
    raw.assert_handed_to(&name, &[&waiter], &[]).await;
    raw.release_held(&waiter).await;
    raw.assert_free(&name).await;
    assert_eq!(raw.list(name.as_str()).await, []);
}

/// `list` returns the held locks whose names begin with the prefix, sorted by name, and no others.
pub async fn list_returns_live_locks_with_the_prefix_sorted_by_name(fixture: &dyn Fixture) {
    let prefix = name("list");
    let raw = raw(fixture).await;
    let named = |suffix: &str| format!("{prefix}{suffix}").parse().unwrap();
    let mut live: Vec<_> = ["/b", "/a", "/a/b", "", "*", "%", "_", "/é", "/[a]"].map(named).into();
    for name in &live {
        raw.hold(&claim(name, Mode::Exclusive)).await;
    }
    let released = claim(&named("/released"), Mode::Exclusive);
    raw.hold(&released).await;
    raw.release_held(&released).await;
    let expired = claim_for(&named("/expired"), Mode::Exclusive, fixture.ttl());
    raw.hold(&expired).await;
    let elsewhere = claim(&name("elsewhere"), Mode::Exclusive);
    raw.hold(&elsewhere).await;
    let gone = || async { raw.inspect(&expired.name).await.is_free() };
    assert!(eventually(GENEROUS, gone).await, "the hold never expired");
    live.sort();
    assert_eq!(raw.list(prefix.as_str()).await, live);
    for pattern in ["*", "%", "_"] {
        let found = raw.list(&format!("{prefix}{pattern}")).await;
        let exact: Vec<_> = live.iter().filter(|name| name.as_str().ends_with(pattern)).collect();
        assert_eq!(found.iter().collect::<Vec<_>>(), exact, "{pattern} must not be a wildcard");
    }
    let all = raw.list("").await;
    assert!(all.is_sorted() && all.contains(&elsewhere.name), "{all:?}");
}
