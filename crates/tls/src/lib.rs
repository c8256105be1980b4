//! Sockets and encrypted connections, as all stores set them up: always verified, from PEM files.

mod connector;
mod stream;

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use connector::{TlsConnector, secure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
pub use stream::Stream;
pub use tenure_core::store::Password;
use tenure_core::store::{StoreUrl, UrlOption};
use tenure_core::{Error, ErrorKind, Result};
pub use tokio_rustls::client::TlsStream;

const SET_UP: &str = "set up TLS";

/// How to trust a server, and how to be trusted by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A file with the authorities to trust (PEM). Without it, those that the system trusts
    /// (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others); the public ones where it has none.
    pub ca: Option<PathBuf>,
    /// Files with a certificate and a key of our own (PEM).
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must be for, and that the server is asked for (SNI),
    /// instead of the host that is connected to: for a server behind a tunnel or a proxy.
    pub server_name: Option<String>,
}

impl Tls {
    /// `ca=` of a URL.
    pub const CA: UrlOption = UrlOption::new(
        "ca",
        "FILE",
        "the authorities to trust (PEM), instead of the system's; SSL_CERT_FILE and SSL_CERT_DIR name \
         others for all programs",
    )
    .file()
    .only_with_tls();
    /// `cert=` of a URL.
    pub const CERT: UrlOption =
        UrlOption::new("cert", "FILE", "a certificate of our own (PEM)").file().only_with_tls();
    /// `key=` of a URL.
    pub const KEY: UrlOption =
        UrlOption::new("key", "FILE", "the key of that certificate (PEM)").file().only_with_tls();
    /// `server-name=` of a URL.
    pub const SERVER_NAME: UrlOption = UrlOption::new(
        "server-name",
        "NAME",
        "the name that the server's certificate must be for, instead of the host",
    )
    .only_with_tls();

    /// TLS as a URL has it: `None` where its scheme asks for none.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a certificate without its key, or the other way round.
    pub fn of(url: &StoreUrl) -> Result<Option<Self>> {
        let file = |option: UrlOption| url.option(option.name()).map(PathBuf::from);
        let identity = match (file(Self::CERT), file(Self::KEY)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(url.invalid("cert= and key= go together")),
        };
        let server_name = url.option(Self::SERVER_NAME.name()).map(str::to_owned);
        Ok(url.tls().then(|| Self { ca: file(Self::CA), identity, server_name }))
    }

    /// What opens connections. It always verifies. The provider is named, so that other users of TLS
    /// in the same program cannot make the choice ambiguous.
    ///
    /// # Errors
    /// If a file cannot be read, or holds something else than it should; if the server's name is none.
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
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| useless(&error))?
            .with_root_certificates(self.authorities()?);
        let mut config = match &self.identity {
            Some((certificate, key)) => {
                let (chain, key) = (certificates(certificate)?, private_key(key)?);
                builder.with_client_auth_cert(chain, key).map_err(|error| useless(&error))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let server_name = self.server_name.as_ref().map(|name| server_name(name)).transpose()?;
        Ok(TlsConnector::new(config, server_name))
    }

    fn authorities(&self) -> Result<RootCertStore> {
        let Some(path) = &self.ca else {
            return Ok(trusted_by(rustls_native_certs::load_native_certs().certs));
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| useless(&error))?;
        }
        Ok(roots)
    }
}

/// The authorities of a system. A container may have none: then the public ones.
fn trusted_by(system: Vec<CertificateDer<'static>>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Systems keep some that are too old to be understood.
    let (added, _) = roots.add_parsable_certificates(system);
    if added == 0 {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
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

fn server_name(name: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).map_err(|_| {
        let why = format!("{name:?} is no server name: write a host name or an IP address");
        Error::new(ErrorKind::Invalid, SET_UP, why)
    })
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
    fn a_system_without_authorities_trusts_the_public_ones() {
        let public = webpki_roots::TLS_SERVER_ROOTS.len();
        assert_eq!(trusted_by(Vec::new()).len(), public);
        assert_eq!(trusted_by(vec![b"no certificate".to_vec().into()]).len(), public);
        let files = tenure_testkit::Certificates::make().unwrap();
        assert_eq!(trusted_by(certificates(&files.ca()).unwrap()).len(), 1, "its own suffice");
    }

    #[test]
    fn a_server_name_that_is_none_is_refused() {
        let named = |name: &str| Tls { server_name: Some(name.into()), ..Tls::default() };
        assert_eq!(named("a b").connector().err().unwrap().kind(), ErrorKind::Invalid);
        assert!(named("cache.example").connector().is_ok() && named("::1").connector().is_ok());
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
            let refused = Tls { ca: Some(ca.clone()), ..Tls::default() }.connector().err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            assert!(refused.to_string().contains(&ca.display().to_string()), "{refused}");
        }
        let nonsense = Tls { ca: None, identity: Some((key.clone(), key)), ..Tls::default() };
        assert_eq!(nonsense.connector().err().unwrap().kind(), ErrorKind::Invalid);
        assert!(Tls::default().connector().is_ok(), "the public authorities will do");
    }
}
