//! Sessions with real servers, and with servers that misbehave.

mod fake;
mod misbehaving_servers;
mod operations;
mod reconnect;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::store::Background;
use tenure_core::{Error, Result};
use tenure_testkit::{GENEROUS, eventually};

use super::{Acl, Create, CreateMode, Event, Session, Target, Watch};

/// Long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A session timeout that no test waits for.
const LIFE: Duration = Duration::from_secs(60);

fn target(ports: &[u16]) -> Target {
    Target {
        servers: ports.iter().map(|port| ("127.0.0.1".into(), *port)).collect(),
        tls: None,
        login: None,
        timeout: TIMEOUT,
    }
}

async fn open(target: Target, wanted: Duration) -> Result<Session> {
    let background = Background::start("tenure-test").unwrap();
    Session::open(Arc::new(target), wanted, &background).await
}

/// A session with the server on this port.
async fn session(port: u16) -> Session {
    open(target(&[port]), LIFE).await.unwrap()
}

async fn refusal(target: Target) -> Error {
    open(target, LIFE).await.map(drop).unwrap_err()
}

fn node(path: &str, mode: CreateMode) -> Create {
    Create { path: path.into(), data: b"data".into(), acl: Acl::anyone_all(), mode }
}

/// What a watch reports, within a bound.
async fn reported(watch: Watch) -> Event {
    tokio::time::timeout(GENEROUS, watch).await.unwrap()
}

/// Waits until the session has had more than `before` connections, and has one.
async fn reconnected(session: &Session, before: u64) {
    let reconnected = || async { session.connection() > before && session.is_connected() };
    assert!(eventually(GENEROUS, reconnected).await);
}

async fn over(session: &Session) {
    tokio::time::timeout(GENEROUS, session.ended()).await.unwrap();
    assert!(session.is_over() && !session.is_connected());
}
