//! What the URLs of all stores on servers have in common.

use std::path::PathBuf;

use tenure_core::{Error, ErrorKind, Result};

use crate::StoreUrl;
use crate::engine::READ;
use crate::url::Servers;

/// `host`, `host:port` and `[v6]:port`, as the URL was checked to have them.
pub(crate) fn addresses(hosts: &str, default: u16) -> Vec<(String, u16)> {
    let address = |text: &str| {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().unwrap_or(default)),
            _ => (text, default),
        };
        (host.trim_matches(['[', ']']).to_owned(), port)
    };
    hosts.split(',').map(address).collect()
}

/// The URL's password, else the one in `TENURE_PASSWORD`.
pub(crate) fn password(servers: &Servers) -> Result<Option<String>> {
    match &servers.password {
        Some(secret) => match String::from_utf8(secret.0.clone()) {
            Ok(password) => Ok(Some(password)),
            Err(_) => Err(invalid("the password is not UTF-8")),
        },
        None => Ok(std::env::var("TENURE_PASSWORD").ok().filter(|text| !text.is_empty())),
    }
}

/// A certificate and its key.
type Identity = (PathBuf, PathBuf);

/// The files that `ca=`, `cert=` and `key=` name.
pub(crate) fn files(url: &StoreUrl) -> Result<(Option<PathBuf>, Option<Identity>)> {
    let file = |name: &str| url.option(name).map(PathBuf::from);
    let identity = match (file("cert"), file("key")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(invalid("cert= and key= go together")),
    };
    Ok((file("ca"), identity))
}

pub(crate) fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, READ, why)
}
