//! What only a look from inside shows.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Answer, Claim, LockName, Mode, Origin, OwnerId, Patience};
use tenure_testkit::ZooKeeperServer;
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
