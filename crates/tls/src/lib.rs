//! Sockets and TLS connections for all engines. Certificates are always verified; trust and identity come
//! from PEM files.

mod stream;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
pub use stream::Stream;
pub use tenure_core::store::Password;
use tenure_core::store::{StoreUrl, UrlOption};
use tenure_core::{Error, ErrorKind, Result};
use tokio::net::TcpStream;
pub use tokio_rustls::client::TlsStream;

const SET_UP: &str = "set up TLS";

/// Which servers to trust, and which certificate to present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A PEM file with the certificate authorities to trust. Without it, those of the system are trusted
    /// (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others), or the public ones if the system has none.
    pub ca: Option<PathBuf>,
    /// PEM files with the client certificate and its key.
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
        UrlOption::new("cert", "FILE", "the certificate of this client (PEM)")
            .file()
            .only_with_tls();
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

    /// The TLS settings of a URL. `None` if its scheme has no TLS.
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

    /// Makes a connector, which always verifies the server's certificate. It names its cryptography
    /// provider, so that other users of rustls in the same program cannot make the choice ambiguous.
    ///
    /// # Errors
    /// If a file cannot be read or has the wrong content, or if the server's name is not valid.
    pub fn connector(&self) -> Result<TlsConnector> {
        self.connector_for(&[])
    }

    /// As [`connector`](Self::connector), for a connection that negotiates one of these protocols (ALPN).
    ///
    /// # Errors
    /// Likewise.
    pub fn connector_for(&self, protocols: &[&[u8]]) -> Result<TlsConnector> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?
            .with_root_certificates(self.authorities()?);
        let mut config = match &self.identity {
            Some((certificate, key)) => {
                let (chain, key) = (certificates(certificate)?, private_key(key)?);
                builder.with_client_auth_cert(chain, key).map_err(|error| unusable(&error))?
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
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
        Ok(roots)
    }
}

/// The system's certificate authorities, or the public ones if it has none, as in many containers.
fn trusted_by(system: Vec<CertificateDer<'static>>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Some system certificates are too old to be parsed.
    let (added, _) = roots.add_parsable_certificates(system);
    if added == 0 {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// The reason why one side did not trust the other, if this is such an error.
pub fn distrust(error: &(dyn StdError + 'static)) -> Option<String> {
    // The TLS error is wrapped in an I/O error, which does not return it as its source.
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let inner = wrapped.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.or_else(|| error.downcast_ref()).map(ToString::to_string)
}

/// The text of a PEM file. Comments between its parts may be in any encoding.
///
/// # Errors
/// If it cannot be read, or is not a PEM file.
pub fn pem(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.contains("-----BEGIN ") {
        true => Ok(text),
        false => Err(unreadable(path, &"it has no line that begins with -----BEGIN")),
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
        let why = format!("{name:?} is not a valid server name: use a host name or an IP address");
        Error::new(ErrorKind::Invalid, SET_UP, why)
    })
}

fn unusable(error: &rustls::Error) -> Error {
    Error::new(ErrorKind::Invalid, SET_UP, format!("{error}: check ca, cert and key"))
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    let why = format!("{}: {why}; it must be a PEM file", path.display());
    Error::new(ErrorKind::Invalid, SET_UP, why)
}

/// Opens TLS connections with the settings of a [`Tls`].
#[derive(Clone)]
pub struct TlsConnector {
    connector: tokio_rustls::TlsConnector,
    server_name: Option<ServerName<'static>>,
}

impl TlsConnector {
    pub(crate) fn new(config: ClientConfig, server_name: Option<ServerName<'static>>) -> Self {
        Self { connector: Arc::new(config).into(), server_name }
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// Performs the TLS handshake. The server's certificate must be for this host, or for
/// [`Tls::server_name`] if that is set.
///
/// # Errors
/// If the connection breaks, or one side does not trust the other ([`distrust`]).
pub async fn secure(
    tls: &TlsConnector,
    host: &str,
    socket: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let name = match &tls.server_name {
        Some(name) => name.clone(),
        None => ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
    };
    tls.connector.connect(name, socket).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_in_another_encoding_are_ignored() {
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
        assert_eq!(trusted_by(certificates(&files.ca()).unwrap()).len(), 1, "its own are enough");
    }

    #[test]
    fn an_invalid_server_name_is_refused() {
        let named = |name: &str| Tls { server_name: Some(name.into()), ..Tls::default() };
        assert_eq!(named("a b").connector().err().unwrap().kind(), ErrorKind::Invalid);
        assert!(named("cache.example").connector().is_ok() && named("::1").connector().is_ok());
    }

    #[test]
    fn an_error_names_the_unusable_file() {
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
        assert!(
            Tls::default().connector().is_ok(),
            "without files, the default authorities are used"
        );
    }
}
