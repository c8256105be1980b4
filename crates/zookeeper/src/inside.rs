//! What tests that look from inside share.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Answer, Claim, Error, LockName, Mode, Origin, OwnerId, Patience};
use tenure_testkit::ZooKeeperServer;
use zookeeper_client::{Acls, Client as Bare, CreateMode, Error as Fault};

use crate::ZooKeeperConfig;
use crate::inner::Inner;
use crate::numbers::Limits;

pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) const PATIENT: Patience = Patience::queue(TTL);

/// A claim of somebody new on the lock `a`.
pub(crate) fn claim() -> Claim {
    Claim {
        name: LockName::new("a").unwrap(),
        owner: OwnerId::random(),
        mode: Mode::Exclusive,
        ttl: TTL,
        origin: Origin::here(),
        label: "".into(),
    }
}

pub(crate) async fn inner(server: &ZooKeeperServer, limits: Limits) -> Arc<Inner> {
    let config = ZooKeeperConfig::new(vec![("127.0.0.1".into(), server.port())]);
    Inner::connect(config, limits).await.unwrap().0
}

/// Takes the lock, which is free.
pub(crate) async fn take(inner: &Arc<Inner>) -> Result<Claim, Error> {
    let claim = claim();
    match inner.claim(&claim, PATIENT).await? {
        Answer::Granted(_) => Ok(claim),
        other => panic!("it was free: {other:?}"),
    }
}

/// A session that knows nothing of locks.
pub(crate) async fn bare(server: &ZooKeeperServer) -> Bare {
    Bare::connect(&format!("127.0.0.1:{}", server.port())).await.unwrap()
}

/// Makes a child of the lock `a`, as others do, and says where.
pub(crate) async fn stand(bare: &Bare) -> String {
    try_to_stand(bare).await.unwrap()
}

/// The same, where the lock's node may be gone.
pub(crate) async fn try_to_stand(bare: &Bare) -> Result<String, Fault> {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = bare.create("/tenure/a/x-lock-", b"", &options).await?;
    Ok(format!("/tenure/a/x-lock-{number}"))
}
