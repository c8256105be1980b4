//! From a configuration to channels, one a member. A channel connects when it is first used, and
//! again whenever its connection is gone.

use std::time::Duration;

use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::{Tls, pem};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

use crate::config::EtcdConfig;

/// Adds to every call who asks, and that a member without a leader shall say so at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ticket(pub(crate) Option<MetadataValue<Ascii>>);

impl Interceptor for Ticket {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.0 {
            metadata.insert("token", token.clone());
        }
        Ok(request)
    }
}

/// How to reach each member.
pub(crate) fn endpoints(config: &EtcdConfig) -> Result<Vec<Endpoint>> {
    if config.members.is_empty() {
        return Err(invalid("name at least one member"));
    }
    let tls = config.tls.as_ref().map(trust).transpose()?;
    let endpoint = |(host, port): &(String, u16)| {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{host}:{port}"))
            .map_err(|_| invalid("a member's host is malformed"))?
            .connect_timeout(config.timeout)
            // etcd takes more than one ping in five seconds for abuse.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true);
        match &tls {
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(|error| {
                Error::new(ErrorKind::Invalid, "set up TLS", format!("{error}: check cert and key"))
                    .caused_by(error)
            }),
            None => Ok(endpoint),
        }
    };
    config.members.iter().map(endpoint).collect()
}

/// Always verifies. Without a provider that the program chose for itself, it is `ring`, whichever
/// others are compiled in.
fn trust(tls: &Tls) -> Result<ClientTlsConfig> {
    let trusted = match &tls.ca {
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem(path)?)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    };
    match &tls.identity {
        Some((certificate, key)) => {
            Ok(trusted.identity(Identity::from_pem(pem(certificate)?, pem(key)?)))
        }
        None => Ok(trusted),
    }
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, "use this etcd store", why)
}
