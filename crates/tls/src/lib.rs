//! Sockets and encrypted connections, as all stores set them up: always verified, from PEM files.

mod password;
mod stream;

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use password::Password;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
pub use stream::Stream;
use tenure_core::{Error, ErrorKind, Result};
use tokio::net::TcpStream;
pub use tokio_rustls::TlsConnector;
pub use tokio_rustls::client::TlsStream;

const SET_UP: &str = "set up TLS";

/// How to trust a server, and how to be trusted by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A file with the certificates to trust (PEM), instead of the public ones.
    pub ca: Option<PathBuf>,
    /// Files with a certificate and a key of our own (PEM).
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// What opens connections. It always verifies. The provider is named, so that other users of TLS
    /// in the same program cannot make the choice ambiguous.
    ///
    /// # Errors
    /// If a file cannot be read, or holds something else than it should.
    pub fn connector(&self) -> Result<TlsConnector> {
        self.connector_for(&[])
    }

    /// As [`connector`](Self::connector), for a connection that is to carry one of these protocols
    /// (ALPN).
    ///
    /// # Errors
    /// Likewise.
    pub fn connector_for(&self, protocols: &[&[u8]]) -> Result<TlsConnector> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| useless(&error))?;
                }
            }
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| useless(&error))?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            Some((certificate, key)) => {
                let (chain, key) = (certificates(certificate)?, private_key(key)?);
                builder.with_client_auth_cert(chain, key).map_err(|error| useless(&error))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Speaks TLS with the host at the other end.
///
/// # Errors
/// If the connection breaks, or one side does not trust the other ([`distrust`]).
pub async fn secure(
    connector: &TlsConnector,
    host: &str,
    socket: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    connector.connect(name, socket).await
}

/// What one side did not like about the other, if that is what the error tells of.
pub fn distrust(error: &(dyn StdError + 'static)) -> Option<String> {
    // It is wrapped in an IO error, which does not name it as its source.
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let inner = wrapped.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.or_else(|| error.downcast_ref()).map(ToString::to_string)
}

/// The text of a PEM file. What stands between its parts is for people, and may be in any encoding.
///
/// # Errors
/// If it cannot be read, or is none.
pub fn pem(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.contains("-----BEGIN ") {
        true => Ok(text),
        false => Err(unreadable(path, &"nothing in it begins with -----BEGIN")),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found =
        CertificateDer::pem_slice_iter(pem(path)?.as_bytes()).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if found.is_empty() => Err(unreadable(path, &"there is no certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem(path)?.as_bytes()).map_err(|error| unreadable(path, &error))
}

fn useless(error: &rustls::Error) -> Error {
    Error::new(ErrorKind::Invalid, SET_UP, format!("{error}: check ca, cert and key"))
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    let why = format!("{}: {why}; it must be a PEM file", path.display());
    Error::new(ErrorKind::Invalid, SET_UP, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_another_encoding_do_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca");
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&path, [b"Autorit\xe9 Ra\xedz\n", certificate.as_bytes()].concat()).unwrap();
        assert_eq!(certificates(&path).unwrap().len(), 1);
    }

    #[test]
    fn files_that_will_not_do_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let empty = file("empty", "");
        let key = file("key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
        let torn = file("torn", "-----BEGIN CERTIFICATE-----\nAAAA\n");
        let missing = folder.path().join("missing");
        for ca in [&empty, &key, &torn, &missing] {
            let refused = Tls { ca: Some(ca.clone()), identity: None }.connector().err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            assert!(refused.to_string().contains(&ca.display().to_string()), "{refused}");
        }
        let nonsense = Tls { ca: None, identity: Some((key.clone(), key)) };
        assert_eq!(nonsense.connector().err().unwrap().kind(), ErrorKind::Invalid);
        assert!(Tls::default().connector().is_ok(), "the public authorities will do");
    }
}
