//! What the URLs of all stores on servers have in common.

use std::path::PathBuf;

use tenure_core::{Error, ErrorKind, Result};
use tenure_tls::{Password, Tls};

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

/// The password to log in with: the URL's own, which may be empty; else `TENURE_STORE_PASSWORD` if
/// it belongs to this server; else `TENURE_PASSWORD`.
///
/// `tenure run` sets `TENURE_STORE_PASSWORD` for its command to the password of the server in
/// `TENURE_STORE_PASSWORD_FOR`. No other server is sent it, also where the command sets another
/// `TENURE_STORE`.
pub(crate) fn password(url: &StoreUrl) -> Option<String> {
    password_in(url, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// As [`password`], or the file that `password-file=` names.
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
pub(crate) fn login_password(url: &StoreUrl) -> Result<Option<Password>> {
    match url.option("password-file") {
        Some(_) if url.password().is_some() => {
            Err(invalid("there is a password in the URL and a password-file=: leave one out"))
        }
        Some(path) => Ok(Some(Password::File(path.into()))),
        None => Ok(password(url).map(Into::into)),
    }
}

fn password_in(url: &StoreUrl, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    if let Some(password) = url.password() {
        return Some(password.to_owned());
    }
    let bound = || {
        let theirs = variable("TENURE_STORE_PASSWORD_FOR")?.parse::<StoreUrl>().ok()?;
        let login = |url: &StoreUrl| {
            let Servers { user, hosts, path, .. } = url.servers()?.clone();
            // Without hosts, the path is the server's socket.
            let socket = Some(path).filter(|_| hosts.is_empty());
            Some((url.scheme(), user, hosts, socket))
        };
        variable("TENURE_STORE_PASSWORD").filter(|_| login(url) == login(&theirs))
    };
    bound().or_else(|| variable("TENURE_PASSWORD"))
}

/// TLS as `ca=`, `cert=`, `key=` and `server-name=` have it, for one of the `secure` schemes. Any
/// other refuses these options, and names the scheme that takes them.
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
pub(crate) fn tls(url: &StoreUrl, secure: &[&str], instead: &str) -> Result<Option<Tls>> {
    let file = |name: &str| url.option(name).map(PathBuf::from);
    let identity = match (file("cert"), file("key")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(invalid("cert= and key= go together")),
    };
    let server_name = url.option("server-name").map(str::to_owned);
    let tls = Tls { ca: file("ca"), identity, server_name };
    if secure.contains(&url.scheme()) {
        return Ok(Some(tls));
    }
    match tls == Tls::default() {
        true => Ok(None),
        false => Err(invalid(&format!("ca=, cert=, key= and server-name= need {instead}"))),
    }
}

pub(crate) fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, READ, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(url: &str, variables: &[(&str, &str)]) -> Option<String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let url = url.parse().unwrap();
        password_in(&url, |name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_password_nearest_to_the_server_is_used() {
        let store = ("TENURE_STORE_PASSWORD_FOR", "rediss://app@h:1/2?prefix=x");
        let (bound, any) = (("TENURE_STORE_PASSWORD", "bound"), ("TENURE_PASSWORD", "any"));
        let all = [store, bound, any];
        assert_eq!(password("rediss://app:own@h:1", &all).as_deref(), Some("own"));
        assert_eq!(password("rediss://app:@h:1", &all).as_deref(), Some(""));
        assert_eq!(password("rediss://app@h:1/3?timeout=1s", &all).as_deref(), Some("bound"));
        for other in ["redis://app@h:1", "rediss://app@h:2", "rediss://h:1", "etcd://app@h:1"] {
            assert_eq!(password(other, &all).as_deref(), Some("any"), "{other}");
            assert_eq!(password(other, &[store, bound]), None, "{other}");
        }
        let socket = ("TENURE_STORE_PASSWORD_FOR", "redis+unix:///run/a.sock?db=1");
        let at = |url: &str| password(url, &[socket, bound]);
        #[cfg(feature = "redis")]
        assert_eq!(at("redis+unix:///run/a.sock").as_deref(), Some("bound"));
        #[cfg(feature = "redis")]
        assert_eq!(at("redis+unix:///run/b.sock"), None);
        let changed = [bound, ("TENURE_STORE", "rediss://app@h:1")];
        assert_eq!(password("rediss://app@h:1", &changed), None, "bound to no server");
        assert_eq!(password("rediss://app@h:1", &[store, any]).as_deref(), Some("any"));
    }

    #[test]
    #[cfg(feature = "redis")]
    fn a_password_file_takes_the_place_of_a_password_in_the_url() {
        let url: StoreUrl = "redis://app@h?password-file=/p".parse().unwrap();
        assert!(url.says_password());
        let file = Password::File("/p".into());
        assert_eq!(login_password(&url).unwrap(), Some(file.clone()));
        let resolved = url.resolved().unwrap();
        assert_eq!(resolved.password(), None, "none from the environment either");
        assert_eq!(login_password(&resolved).unwrap(), Some(file));
        let both: StoreUrl = "redis://app:x@h?password-file=/p".parse().unwrap();
        assert_eq!(login_password(&both).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
