//! TLS certificates for tests.

#[cfg(feature = "certificates")]
use std::io;
#[cfg(feature = "certificates")]
use std::path::Path;
use std::path::PathBuf;

#[cfg(feature = "certificates")]
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

#[cfg(feature = "certificates")]
use crate::temp_dir;

/// A new certificate authority, a server certificate for `localhost` and 127.0.0.1, and a client certificate,
/// as PEM files that are removed when it is dropped.
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// Creates the certificates.
    ///
    /// # Errors
    /// If the files cannot be created or written.
    #[cfg(feature = "certificates")]
    pub fn make() -> io::Result<Self> {
        let folder = temp_dir();
        make(folder.path()).map_err(io::Error::other)?;
        Ok(Self { folder })
    }

    /// The authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The certificate and key of `server` or `client`.
    pub fn of(&self, role: &str) -> (PathBuf, PathBuf) {
        let file = |end: &str| self.folder.path().join(format!("{role}{end}"));
        (file(".pem"), file(".key"))
    }
}

#[cfg(feature = "certificates")]
fn make(folder: &Path) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut authority = named("tenure test authority", &[])?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    std::fs::write(folder.join("ca.pem"), authority.pem())?;
    for (whom, names) in [("server", &["localhost", "127.0.0.1"][..]), ("client", &["client"])] {
        let key = KeyPair::generate()?;
        let certificate = named(whom, names)?.signed_by(&key, &authority)?;
        std::fs::write(folder.join(format!("{whom}.pem")), certificate.pem())?;
        std::fs::write(folder.join(format!("{whom}.key")), key.serialize_pem())?;
    }
    Ok(())
}

#[cfg(feature = "certificates")]
fn named(name: &str, hosts: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
