//! From a configuration to a session.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::{Error, ErrorKind, Result, now};
use tokio::net::TcpStream;
use zookeeper_client::{Client, Connector, Error as Fault, TlsOptions};

use crate::config::{Tls, ZooKeeperConfig};
use crate::fault::fault;

pub(crate) const CONNECT: &str = "connect to ZooKeeper";

/// A server that is silent for so long is left for another. A sign of life is sent about once
/// a second, so that the leader's idea of when we were last heard of is never far behind.
const SILENCE: Duration = Duration::from_millis(2500);

/// How long to wait before all servers are tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Opens a session of this length, or whatever the servers make of it.
pub(crate) async fn open(config: &ZooKeeperConfig, life: Duration) -> Result<Client> {
    if config.servers.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, CONNECT, "name at least one server"));
    }
    let connector = connector(config, life)?;
    let cluster = cluster(config);
    let attempt = || {
        let (connector, cluster) = (connector.clone(), cluster.as_str());
        async move {
            match config.tls {
                Some(_) => connector.secure_connect(cluster).await,
                None => connector.connect(cluster).await,
            }
        }
    };
    let give_up = now() + config.timeout;
    let mut failed = Fault::Timeout;
    let mut attempts = FuturesUnordered::from_iter([attempt()]);
    loop {
        let left = give_up.since(now());
        if left.is_zero() {
            return Err(explain(config, failed).await);
        }
        let outcome = tokio::time::timeout(left.min(hedge(config)), attempts.next()).await;
        match outcome {
            Ok(Some(Ok(client))) => return Ok(client),
            Ok(Some(Err(error @ Fault::AuthFailed))) => return Err(fault(CONNECT, error)),
            Ok(Some(Err(error))) => {
                failed = error;
                tokio::time::sleep(PAUSE).await;
            }
            // It was silent, and is left to go on: another attempt begins with another server.
            Ok(None) | Err(_) => {}
        }
        attempts.push(attempt());
    }
}

/// The servers, as the client library reads them.
///
/// It pauses longer each time it has tried all of them, twice as long as before. With a single one
/// that is soon longer than anybody waits, or than a lock lasts. Named several times, it is tried
/// about once a second.
fn cluster(config: &ZooKeeperConfig) -> String {
    const TIMES: usize = 20;
    let mut cluster: Vec<_> = config.servers.iter().map(address).collect();
    if let [alone] = &cluster[..] {
        cluster = vec![alone.clone(); TIMES];
    }
    cluster.join(",")
}

/// How long an attempt may be silent before another is begun beside it. The client library tries
/// servers one after the other, in any order, and waits longer for each than a caller may want to.
fn hedge(config: &ZooKeeperConfig) -> Duration {
    let several = config.servers.len() > 1;
    if several { config.timeout / 8 } else { config.timeout / 2 }
}

/// `host:port`, with the brackets that an address of version 6 needs.
pub(crate) fn address((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn connector(config: &ZooKeeperConfig, life: Duration) -> Result<Connector> {
    let mut connector = Client::connector()
        .with_session_timeout(life)
        .with_connection_timeout(SILENCE)
        .with_fail_eagerly();
    if let (Some(user), Some(password)) = (&config.username, &config.password) {
        connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
    }
    match &config.tls {
        Some(tls) => Ok(connector.with_tls(trust(tls)?)),
        None => Ok(connector),
    }
}

/// Always verifies. Without a provider that the program chose for itself, it is `ring`.
fn trust(tls: &Tls) -> Result<TlsOptions> {
    // It fails only where there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let refused = |error: Fault| {
        let why = format!("{error}: check ca, cert and key");
        Error::new(ErrorKind::Invalid, "set up TLS", why).caused_by(error)
    };
    let Some(ca) = &tls.ca else {
        let why = "name the file with the certificates to trust: ca=";
        return Err(Error::new(ErrorKind::Invalid, "set up TLS", why));
    };
    let options = TlsOptions::new().with_pem_ca(&pem(ca)?).map_err(refused)?;
    match &tls.identity {
        Some((certificate, key)) => {
            options.with_pem_identity(&pem(certificate)?, &pem(key)?).map_err(refused)
        }
        None => Ok(options),
    }
}

fn pem(path: &Path) -> Result<String> {
    let unreadable = |why: &str| {
        let why = format!("{}: {why}; it must be a PEM file", path.display());
        Error::new(ErrorKind::Invalid, "set up TLS", why)
    };
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&error.to_string()))?;
    match text.contains("-----BEGIN ") {
        true => Ok(text),
        false => Err(unreadable("there is nothing in it")),
    }
}

/// Why no session could be opened: the client library does not say.
async fn explain(config: &ZooKeeperConfig, failed: Fault) -> Error {
    let mut unreached = Vec::new();
    let limit = config.timeout.min(Duration::from_millis(500));
    for server in &config.servers {
        let address = address(server);
        let why = match tokio::time::timeout(limit, TcpStream::connect(&address)).await {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no reply".into(),
        };
        unreached.push(format!("{address} ({why})"));
    }
    if unreached.len() == config.servers.len() {
        let unreached = unreached.join(", ");
        let why = format!("no server can be reached: {unreached}; check that they run");
        return Error::new(ErrorKind::Unreachable, CONNECT, why);
    }
    let (kind, why) = if config.tls.is_some() {
        let why = "a server takes connections, but no session comes of it: check ca, cert and key, \
                   that the port speaks TLS, and that enough servers are up";
        (ErrorKind::Denied, why)
    } else {
        let why = "a server takes connections, but opens no session: too few servers are up, they \
                   elect a leader, this machine has too many connections (maxClientCnxns), or the \
                   port wants TLS (zks://)";
        (ErrorKind::QuorumLost, why)
    };
    let why = match &unreached[..] {
        [] => why.into(),
        _ => format!("{why}; not reached: {}", unreached.join(", ")),
    };
    Error::new(kind, CONNECT, why).caused_by(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_alone_is_named_so_often_that_it_is_tried_often() {
        let config = |names: &[&str]| {
            ZooKeeperConfig::new(names.iter().map(|name| ((*name).into(), 7)).collect())
        };
        let alone = cluster(&config(&["h"]));
        assert!(alone.split(',').count() > 10 && alone.split(',').all(|name| name == "h:7"));
        // One of several that is silent must not be tried twice in a row.
        assert_eq!(cluster(&config(&["h", "::1"])), "h:7,[::1]:7");
    }
}
