//! What only a look from inside shows.

use tenure_core::Answer;
use tenure_testkit::ZooKeeperServer;
use zookeeper_client::{Acls, CreateMode};

use crate::config::Neighbours;
use crate::inside::{PATIENT, TTL, bare, claim, inner};
use crate::line::names;
use crate::numbers::Limits;
use crate::tenants::Tenant;

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
