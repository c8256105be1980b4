//! Re-entrant mutexes: a holder acquires its lock again.

use tenure_core::{Client, ErrorKind, LockName, Mode, Options, ReentrantMutex};
use tenure_testkit::GENEROUS;

use crate::Fixture;
use crate::fixture::{LONG, client, long, name, raw};

fn handle(client: &Client, name: &LockName, options: Options) -> ReentrantMutex {
    client.reentrant_mutex(name.as_str()).unwrap().with(options)
}

/// The clones of a handle share one hold, with one token, until its last guard has gone; every other handle
/// is kept out, also one of the same client.
pub async fn a_holder_enters_again_and_the_last_guard_releases(fixture: &dyn Fixture) {
    if fixture.injects_faults() {
        return;
    }
    let name = name("reentrant");
    let (raw, ours, theirs) = (raw(fixture).await, client(fixture).await, client(fixture).await);
    let account = handle(&ours, &name, long());
    let outer = account.acquire().await.unwrap();
    let inner = account.clone().try_acquire().await.unwrap();
    assert_eq!((inner.entries(), inner.token()), (2, outer.token()));
    assert_eq!(raw.inspect(&name).await.holders.len(), 1);
    let others = [handle(&ours, &name, long()), handle(&theirs, &name, long())];
    for other in &others {
        assert_eq!(other.try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    }
    outer.release().await.unwrap();
    assert!(inner.is_valid());
    assert_eq!(others[1].try_acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    inner.release().await.unwrap();
    raw.assert_free(&name).await;
    for other in &others {
        other.try_acquire().await.unwrap().release().await.unwrap();
    }
}

/// A hold is renewed until the last of its guards has gone, whichever was the first.
pub async fn a_hold_is_renewed_as_long_as_a_guard_of_it_exists(fixture: &dyn Fixture) {
    if fixture.injects_faults() {
        return;
    }
    let name = name("reentrant-renewed");
    let (raw, ours) = (raw(fixture).await, client(fixture).await);
    // Enough for a machine that is starved for a while.
    let ttl = fixture.ttl().max(LONG / 20);
    let account = handle(&ours, &name, Options::new().ttl(ttl));
    let outer = account.acquire().await.unwrap();
    let inner = account.acquire().await.unwrap();
    drop(outer);
    tokio::time::sleep(ttl + ttl / 4).await;
    assert!(inner.is_valid(), "the hold was not renewed");
    let late = crate::fixture::claim(&name, Mode::Exclusive);
    raw.assert_busy(&late).await;
    drop(inner);
    ours.close().await;
    raw.assert_free(&name).await;
}

/// A hold that is taken away is lost to all its guards. The handle can be used again when they are gone.
pub async fn an_evicted_hold_is_lost_to_all_its_guards(fixture: &dyn Fixture) {
    if fixture.injects_faults() {
        return;
    }
    let name = name("reentrant-evicted");
    let (raw, ours) = (raw(fixture).await, client(fixture).await);
    let account = handle(&ours, &name, Options::new().ttl(fixture.ttl()));
    let (outer, inner) = (account.acquire().await.unwrap(), account.acquire().await.unwrap());
    let first = outer.token();
    raw.evict_owner(&name, outer.owner()).await;
    for guard in [&outer, &inner] {
        tokio::time::timeout(GENEROUS, guard.lost()).await.expect("every guard is lost");
    }
    assert_eq!(account.acquire().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(inner.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let again = account.acquire_within(GENEROUS).await.unwrap();
    assert!(first.is_none() || again.token() > first);
    again.release().await.unwrap();
}
