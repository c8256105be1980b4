//! From a configuration to a connection.

use std::path::Path;
use std::sync::Arc;

use rustis::client::{
    Client, ClusterConfig, Config, ReconnectionConfig, SentinelConfig, ServerConfig, TlsConfig,
};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tenure_core::{Error, ErrorKind, Result};

use crate::config::{RedisConfig, Tls, Topology};
use crate::fault::fault;

/// One multiplexed connection (per node, on a Cluster) that comes back by itself for ever.
pub(crate) async fn connect(config: &RedisConfig) -> Result<Client> {
    let client_config = translate(config)?;
    let attempt = tokio::time::timeout(config.timeout, Client::connect(client_config));
    match attempt.await {
        Ok(connected) => connected.map_err(|error| fault(CONNECT, error)),
        Err(_) => {
            let why = format!(
                "no answer from {} within {:?}: check host, port and firewall",
                place(&config.topology),
                config.timeout
            );
            Err(Error::new(ErrorKind::Unreachable, CONNECT, why))
        }
    }
}

const CONNECT: &str = "connect to Redis";

fn translate(config: &RedisConfig) -> Result<Config> {
    let mut translated = Config::default();
    translated.server = server(config);
    translated.username = config.username.clone();
    translated.password = config.password.clone();
    translated.database = config.database;
    translated.connect_timeout = config.timeout;
    translated.command_timeout = config.timeout;
    translated.connection_name = "tenure".into();
    // A cap on attempts would end the client for good.
    translated.reconnection = ReconnectionConfig::new_exponential(0, 20, 1000, 2);
    if let Some(tls) = &config.tls {
        translated.tls_config = Some(TlsConfig::new(Arc::new(trust(tls)?)));
    }
    Ok(translated)
}

fn server(config: &RedisConfig) -> ServerConfig {
    match &config.topology {
        Topology::Single { server: (host, port) } => {
            ServerConfig::Standalone { host: host.clone(), port: *port }
        }
        Topology::Sentinel { sentinels, service } => {
            let mut sentinel = SentinelConfig::default();
            sentinel.instances = sentinels.clone();
            sentinel.service_name = service.clone();
            sentinel.master_check_interval = Some(std::time::Duration::from_secs(1));
            ServerConfig::Sentinel(sentinel)
        }
        Topology::Cluster { nodes } => {
            let mut cluster = ClusterConfig::default();
            cluster.nodes = nodes.clone();
            ServerConfig::Cluster(cluster)
        }
    }
}

/// Always verifies. The provider is named, so that other users of TLS in the same program cannot
/// make the choice ambiguous.
fn trust(tls: &Tls) -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let broken = |error: rustls::Error| {
        Error::new(ErrorKind::Invalid, "set up TLS", format!("{error}: check cert and key"))
    };
    let mut roots = rustls::RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(broken)?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(broken)?
        .with_root_certificates(roots);
    match &tls.identity {
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            builder.with_client_auth_cert(chain, private_key(key)?).map_err(broken)
        }
        None => Ok(builder.with_no_client_auth()),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(unreadable(path, "there is no certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(unreadable(path, &error.to_string())),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|error: PemError| unreadable(path, &error.to_string()))
}

fn unreadable(path: &Path, why: &str) -> Error {
    let why = format!("{}: {why}; it must be a PEM file", path.display());
    Error::new(ErrorKind::Invalid, "set up TLS", why)
}

fn place(topology: &Topology) -> String {
    let list = |servers: &[(String, u16)]| {
        let named: Vec<_> = servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        named.join(",")
    };
    match topology {
        Topology::Single { server } => list(std::slice::from_ref(server)),
        Topology::Sentinel { sentinels, .. } => list(sentinels),
        Topology::Cluster { nodes } => list(nodes),
    }
}
