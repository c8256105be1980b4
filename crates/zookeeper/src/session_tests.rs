//! What only a look from inside shows: sessions that others end, and nodes of earlier ones.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Answer, Claim, Client, LockName, LossReason, Mode, Options, Origin, OwnerId, Patience,
};
use tenure_testkit::{GENEROUS, ZooKeeperServer};
use zookeeper_client::{Acls, Client as Bare, CreateMode};

use crate::config::Neighbours;
use crate::inner::Inner;
use crate::line::names;
use crate::tenants::Tenant;
use crate::{ZooKeeperConfig, ZooKeeperStore};

const TTL: Duration = Duration::from_secs(300);

async fn store(server: &ZooKeeperServer) -> (ZooKeeperStore, Arc<Inner>) {
    let config = ZooKeeperConfig::new(vec![("127.0.0.1".into(), server.port())]);
    let store = ZooKeeperStore::connect(config).await.unwrap();
    let inner = store.inner();
    (store, inner)
}

/// Ends a session from elsewhere, as an administrator would.
async fn end(server: &ZooKeeperServer, session: &Bare) {
    let (address, known) = (format!("127.0.0.1:{}", server.port()), session.session().clone());
    drop(Bare::connector().with_session(known).connect(&address).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_session_is_ended_by_another_is_told_at_once() {
    if ZooKeeperServer::is_missing("a_holder_whose_session_is_ended_by_another") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let (store, inner) = store(&server).await;
    let client = Client::new(Arc::new(store));
    let mutex = client.mutex("a").unwrap().with(Options::new().ttl(TTL));
    for _ in 0..2 {
        let guard = mutex.acquire().await.unwrap();
        let session = inner.sessions.get("test", TTL).await.unwrap();
        end(&server, &session.zk).await;
        // Its next renewal would be much later.
        let told = tokio::time::timeout(GENEROUS, guard.lost()).await.expect("it is told");
        assert_eq!(told, LossReason::NotHeld);
        drop(guard);
    }
    mutex.acquire_within(GENEROUS).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_session_is_replaced_and_never_adopted() {
    if ZooKeeperServer::is_missing("a_node_of_another_session_is_replaced") {
        return;
    }
    let server = ZooKeeperServer::start(&[]).unwrap();
    let (_store, inner) = store(&server).await;
    let claim = Claim {
        name: LockName::new("a").unwrap(),
        owner: OwnerId::random(),
        mode: Mode::Exclusive,
        ttl: TTL,
        origin: Origin::here(),
        label: "".into(),
    };
    // A call of unknown outcome, and a node that an earlier session has left.
    let session = inner.sessions.get("test", TTL).await.unwrap();
    let lock = inner.keyring.lock(&claim.name);
    inner.tenants.move_in(Tenant::new(&claim, &lock, &session), tenure_core::now() + TTL);
    let earlier = Bare::connect(&format!("127.0.0.1:{}", server.port())).await.unwrap();
    let folder = CreateMode::Persistent.with_acls(Acls::anyone_all());
    earlier.mkdir(&lock, &folder).await.unwrap();
    let node = format!("{lock}/{}", names(&claim, Neighbours::default())[0]);
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (left, _) = earlier.create(&node, b"", &options).await.unwrap();
    let patience = Patience::queue(TTL);
    let Answer::Granted(grant) = inner.claim(&claim, patience).await.unwrap() else {
        panic!("nobody else is there")
    };
    assert!(grant.token.unwrap().get() > u64::try_from(left.czxid).unwrap());
    assert_eq!(inner.inspect(&claim.name).await.unwrap().holders.len(), 1);
    drop(earlier);
    let again = inner.claim(&claim, patience).await.unwrap();
    assert!(matches!(again, Answer::Granted(same) if same.token == grant.token));
}
