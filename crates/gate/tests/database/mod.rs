//! A PostgreSQL server of the test's own, and clients for it.

use std::sync::Mutex;

use tenure_testkit::{GENEROUS, PostgresServer, eventually, skip};
use tokio_postgres::{Client, NoTls};

/// Starts a server. Reports the test as skipped if PostgreSQL is not installed.
pub(crate) fn server(test: &str) -> Option<PostgresServer> {
    if !PostgresServer::is_installed() {
        skip(test, "postgres is not installed");
        return None;
    }
    Some(PostgresServer::start().unwrap())
}

/// A client. The server may refuse its first clients while it starts.
pub(crate) async fn connect(server: &PostgresServer) -> Client {
    let slot = Mutex::new(None);
    let connected = || async {
        let connected = tokio_postgres::connect(&server.settings(), NoTls).await.ok();
        *slot.lock().unwrap() = connected;
        slot.lock().unwrap().is_some()
    };
    assert!(eventually(GENEROUS, connected).await, "the server does not serve");
    let (client, connection) = slot.into_inner().unwrap().unwrap();
    tokio::spawn(connection);
    client
}
