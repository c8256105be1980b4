//! What only a look from inside shows.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::{Answer, Claim, LockName, Mode, Renewal, Store, now};
use tenure_testkit::{GENEROUS, ZooKeeperServer};
use zookeeper_client::{Acls, CreateMode};

use crate::config::Neighbours;
use crate::inner::Inner;
use crate::inside::{PATIENT, TTL, bare, claim, inner, stand, take};
use crate::line::names;
use crate::numbers::Limits;
use crate::place::{Place, Standing};
use crate::tenants::{Stage, Tenant};
use crate::{ZooKeeperConfig, ZooKeeperStore};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_session_is_replaced_and_never_adopted() {
    if ZooKeeperServer::is_missing("a_node_of_another_session_is_replaced") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let inner = inner(&server, Limits::default()).await;
    let claim = claim();
    // A call of unknown outcome, and a node that an earlier session has left.
    let session = inner.sessions.get("test", TTL).await.unwrap();
    let lock = inner.keyring.lock(&claim.name);
    inner.tenants.move_in(Tenant::new(&claim, &lock, &session), tenure_core::now() + TTL);
    let earlier = bare(&server).await;
    let folder = CreateMode::Persistent.with_acls(Acls::anyone_all());
    earlier.mkdir(&lock, &folder).await.unwrap();
    let node = format!("{lock}/{}", names(&claim, Neighbours::default())[0]);
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (left, _) = earlier.create(&node, b"", &options).await.unwrap();
    let Answer::Granted(grant) = inner.claim(&claim, PATIENT).await.unwrap() else {
        panic!("nobody else is there")
    };
    assert!(grant.token.unwrap().get() > u64::try_from(left.czxid).unwrap());
    assert_eq!(inner.inspect(&claim.name).await.unwrap().holders.len(), 1);
    drop(earlier);
    let again = inner.claim(&claim, PATIENT).await.unwrap();
    assert!(matches!(again, Answer::Granted(same) if same.token == grant.token));
}

/// One that waits for the lock `a` behind one that holds it, and its place.
async fn queue(inner: &Arc<Inner>, claim: &Claim) -> Arc<Place> {
    assert!(matches!(inner.claim(claim, PATIENT).await.unwrap(), Answer::Queued(_)));
    match inner.tenants.find(claim.owner).unwrap().0.stage {
        Stage::Waits(place) => place,
        _ => panic!("it waits"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_came_to_hold_while_it_asked_keeps_its_whole_term() {
    if ZooKeeperServer::is_missing("one_that_came_to_hold_while_it_asked") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let inner = inner(&server, Limits::default()).await;
    let (held, waits) = (take(&inner).await.unwrap(), claim());
    let place = queue(&inner, &waits).await;
    inner.release(&held).await.unwrap();
    assert!(matches!(place.news().await, Standing::Holds(_)));
    // It saw that it waits just before that, and asks for its place to be kept for so long.
    inner.stay(&place, Duration::from_millis(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(inner.renew(&waits).await.unwrap(), Renewal::Renewed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_was_not_asked_for_in_time_is_dated_by_what_its_node_has_left() {
    if ZooKeeperServer::is_missing("a_grant_that_was_not_asked_for_in_time") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let config = ZooKeeperConfig::new(vec![("127.0.0.1".into(), server.port())]);
    let store = ZooKeeperStore::connect(config).await.unwrap();
    let short = |name: &str| Claim {
        name: LockName::new(name).unwrap(),
        ttl: Duration::from_secs(3),
        ..claim()
    };
    let (held, waits, other) = (short("a"), short("a"), short("b"));
    store.claim(&held, PATIENT).await.unwrap();
    store.claim(&other, PATIENT).await.unwrap();
    let place = queue(store.inner(), &waits).await;
    store.release(&held).await.unwrap();
    assert!(matches!(place.news().await, Standing::Holds(_)));
    let entered = now();
    // Nobody hears of it for most of the term, while the session is used by others.
    tokio::time::sleep(waits.ttl * 3 / 4).await;
    store.renew(&other).await.unwrap();
    let answer = store.wait(&waits, &tenure_core::Place::default()).await.unwrap();
    let Answer::Granted(grant) = answer else { return };
    let good_until = grant.since.unwrap() + waits.ttl;
    tokio::time::sleep((entered + waits.ttl).since(now()) + Duration::from_millis(300)).await;
    let state = store.inspect(&waits.name).await.unwrap();
    assert!(now() >= good_until || !state.is_free(), "it was removed before its term was over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_is_found_although_the_one_before_stands_still() {
    if ZooKeeperServer::is_missing("a_permit_is_found_although_the_one_before") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let (one, other) =
        (inner(&server, Limits::default()).await, inner(&server, Limits::default()).await);
    let permits = |take| Claim { mode: Mode::Permits { take, of: 2 }, ..claim() };
    let (both, stopped, last) = (permits(2), permits(1), permits(1));
    one.claim(&both, PATIENT).await.unwrap();
    queue(&one, &stopped).await.abandon();
    let place = queue(&other, &last).await;
    one.release(&both).await.unwrap();
    // As it does once a second.
    other.claim(&last, PATIENT).await.unwrap();
    let news = tokio::time::timeout(GENEROUS, place.news()).await;
    assert!(matches!(news, Ok(Standing::Holds(_))), "there is room for both: {news:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_ends_while_its_claim_is_on_its_way_leaves_no_node_behind() {
    if ZooKeeperServer::is_missing("a_place_that_ends_while_its_claim_is_on_its_way") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let inner = inner(&server, Limits::default()).await;
    let holds = take(&inner).await.unwrap();
    let waits = claim();
    assert!(matches!(inner.claim(&waits, PATIENT).await.unwrap(), Answer::Queued(_)));
    let (tenant, _) = inner.tenants.find(waits.owner).unwrap();
    let Stage::Waits(place) = tenant.stage else { panic!("it waits") };
    // The one who removes it waits for a connection, say.
    let (overdue, _) = inner.tenants.overdue(tenure_core::now() + 2 * TTL);
    assert_eq!(overdue.len(), 2, "both, as it happens");
    assert!(inner.stay(&place, TTL).await.unwrap().is_none());
    assert!(matches!(inner.claim(&waits, PATIENT).await.unwrap(), Answer::Queued(_)));
    let nodes = bare(&server).await.list_children("/tenure/a").await.unwrap();
    assert_eq!(nodes.len(), 2, "one each: {nodes:?}");
    inner.release(&holds).await.unwrap();
}

/// One thread: nothing happens while the test does not wait.
#[tokio::test]
async fn one_whose_time_ends_while_it_is_looked_for_holds_no_longer_than_its_node_is_there() {
    if ZooKeeperServer::is_missing("one_whose_time_ends_while_it_is_looked_for") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let inner = inner(&server, Limits::default()).await;
    let first = take(&inner).await.unwrap();
    inner.release(&first).await.unwrap();
    let session = inner.sessions.get("test", TTL).await.unwrap();
    let claim = claim();
    let tenant = Tenant::new(&claim, &inner.keyring.lock(&claim.name), &session);
    inner.tenants.move_in(tenant.clone(), now() + TTL);
    // What came of it was not heard.
    inner.create(&tenant).await.unwrap();
    let soon = now() + Duration::from_millis(200);
    assert!(inner.tenants.update(claim.owner, soon, |_| {}));
    let mut again = Box::pin(inner.claim(&claim, PATIENT));
    // The line, and the node.
    for _ in 0..2 {
        assert!((&mut again).now_or_never().is_none());
        // What is answered now comes after its answer.
        session.zk.sync("/").await.unwrap();
    }
    // It is left alone for a while.
    tokio::time::sleep(Duration::from_millis(600)).await;
    session.zk.sync("/").await.unwrap();
    let left_alone_until = now();
    assert!((&mut again).now_or_never().is_none());
    // The session is confirmed by another.
    session.confirm(now());
    let Ok(Answer::Granted(grant)) = again.await else { panic!("nobody else is there") };
    assert!(grant.since.unwrap() < left_alone_until, "it was not looked for since then");
    assert!(!inner.inspect(&claim.name).await.unwrap().is_free(), "its node is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_earlier_session_of_a_claim_has_left_gives_it_no_place() {
    if ZooKeeperServer::is_missing("what_an_earlier_session_of_a_claim_has_left") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let inner = inner(&server, Limits::default()).await;
    let first = take(&inner).await.unwrap();
    inner.release(&first).await.unwrap();
    // Its session is over for the client, and not yet for the servers.
    let (claim, earlier) = (claim(), bare(&server).await);
    let lock = inner.keyring.lock(&claim.name);
    let node = format!("{lock}/{}", names(&claim, Neighbours::default())[0]);
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    earlier.create(&node, b"", &options).await.unwrap();
    let other = stand(&earlier).await;
    let answer = inner.claim(&claim, PATIENT).await.unwrap();
    assert!(matches!(answer, Answer::Queued(_)), "another came before: {answer:?}");
    let left = earlier.list_children(&lock).await.unwrap();
    assert_eq!(left.len(), 2, "one each: {left:?}");
    earlier.delete(&other, None).await.unwrap();
    inner.release(&claim).await.unwrap();
}
