//! From a configuration to a connection.

use std::path::Path;
use std::sync::Arc;

use rustis::client::{
    Client, ClusterConfig, Config, ReconnectionConfig, SentinelConfig, ServerConfig, TlsConfig,
};
use rustis::commands::SentinelCommands;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tenure_core::{Error, ErrorKind, Result};

use crate::config::{RedisConfig, Tls, Topology};
use crate::fault::unmade;

/// One multiplexed connection (per node, on a Cluster) that comes back by itself for ever.
pub(crate) async fn connect(config: &RedisConfig) -> Result<Client> {
    let attempt = async {
        match dial(config).await {
            Err(error) => Err(reason(config).await.unwrap_or(error)),
            connected => connected,
        }
    };
    tokio::time::timeout(config.timeout, attempt).await.unwrap_or_else(|_| {
        let why = format!(
            "no answer from {} within {:?}: check host, port and firewall",
            place(&config.topology),
            config.timeout
        );
        Err(Error::new(ErrorKind::Unreachable, CONNECT, why))
    })
}

const CONNECT: &str = "connect to Redis";

async fn dial(config: &RedisConfig) -> Result<Client> {
    // Boxed: the library's future is large, and every one that awaits it would be as large.
    let connecting = Box::pin(Client::connect(translate(config)?));
    connecting.await.map_err(|error| unmade(CONNECT, error))
}

/// Why the servers turned us away, where trying again would not help. Among several, the client
/// library says only that none was any good: so each is asked by itself.
async fn reason(config: &RedisConfig) -> Option<Error> {
    let servers = match &config.topology {
        Topology::Single { .. } => return None,
        Topology::Cluster { .. } => return None,
        Topology::Sentinel { sentinels, service } => {
            let mut masters = Vec::new();
            for sentinel in sentinels {
                masters.extend(master(config, sentinel, service).await);
            }
            masters
        }
    };
    for server in servers {
        let topology = Topology::Single { server };
        let refusal = dial(&RedisConfig { topology, ..config.clone() }).await.err();
        if let Some(error) = refusal.filter(|error| !error.is_transient()) {
            return Some(error);
        }
    }
    None
}

/// The master that this Sentinel names. A Sentinel has users of its own.
async fn master(
    config: &RedisConfig,
    sentinel: &(String, u16),
    service: &str,
) -> Option<(String, u16)> {
    let topology = Topology::Single { server: sentinel.clone() };
    let (username, password, database) = (None, None, 0);
    let asked = RedisConfig { topology, username, password, database, ..config.clone() };
    let client = dial(&asked).await.ok()?;
    client.sentinel_get_master_addr_by_name(service).await.ok()?
}

fn translate(config: &RedisConfig) -> Result<Config> {
    let mut translated = Config::default();
    translated.server = server(config);
    translated.username = config.username.clone();
    translated.password = config.password.clone();
    translated.database = config.database;
    // Half of it, so that there is time to try another when the first of several is gone.
    let several = !matches!(config.topology, Topology::Single { .. });
    translated.connect_timeout = if several { config.timeout / 2 } else { config.timeout };
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
