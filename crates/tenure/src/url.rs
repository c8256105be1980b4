//! Store URLs, parsed once.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::{Error, ErrorKind, Result};

use crate::directory::default_directory;
use crate::engine::{Engine, READ};
use crate::{duration, parse_duration, percent};

/// Where a store is: `local`, `local:/dir`, `memory:`, `redis://host`, …
///
/// [`Display`](fmt::Display) and [`Debug`](fmt::Debug) leave the password out. What they show parses
/// as the same store, whose password then comes from the environment.
///
/// ```
/// let url: tenure::StoreUrl = "redis://app:secret@cache:6379/0".parse()?;
/// assert_eq!(url.to_string(), "redis://app@cache:6379/0");
/// assert!("http://cache".parse::<tenure::StoreUrl>().is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: &'static str,
    engine: Engine,
    place: Place,
    timeout: Option<Duration>,
    /// The engine's own options, in the order given.
    options: Vec<(String, String)>,
}

/// The options that name files.
const FILES: [&str; 5] = ["ca", "cert", "key", "password-file", "sentinel-password-file"];

/// What the URL says between scheme and query.
#[derive(Clone, PartialEq, Eq)]
enum Place {
    /// Nothing is needed.
    Here,
    /// A directory. `None`: the default one.
    Directory(Option<PathBuf>),
    Servers(Servers),
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Servers {
    pub(crate) user: Option<String>,
    /// Empty where the URL says so (`user:@host`).
    pub(crate) password: Option<Secret>,
    /// `host` or `host:port`, one or more with commas between. Empty where the path is a socket's.
    pub(crate) hosts: String,
    /// What follows the hosts, with its slash. May be empty.
    pub(crate) path: String,
}

/// Text that no output shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl StoreUrl {
    /// How long one call to the store may take, where the URL says so (`timeout=`).
    pub const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The password in the URL, if there is one. Keep it out of output, logs and errors.
    pub fn password(&self) -> Option<&str> {
        match &self.place {
            Place::Servers(servers) => servers.password.as_ref().map(|secret| secret.0.as_str()),
            Place::Here | Place::Directory(_) => None,
        }
    }

    /// Whether the URL says which password to use: it has one, or names a file with one.
    pub fn says_password(&self) -> bool {
        let in_file = self.options.iter().any(|(name, _)| name == "password-file");
        in_file || self.password().is_some()
    }

    /// The same URL with what it leaves to the environment filled in: for `local` the default
    /// directory, for files (`ca=` …) the current one, and for a login the password. What
    /// it shows then leads to the same store from anywhere on this machine.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the environment does not say where the default directory is.
    pub fn resolved(mut self) -> Result<Self> {
        if self.place == Place::Directory(None) {
            self.place = Place::Directory(Some(default_directory()?));
        }
        #[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
        {
            let in_file = self.password().is_none() && self.says_password();
            let password = crate::servers::password(&self).filter(|_| !in_file).map(Secret);
            if let Place::Servers(servers) = &mut self.place {
                // Only Redis knows a password without a user.
                let logs_in = servers.user.is_some()
                    || matches!(self.engine, Engine::Redis | Engine::Redlock);
                servers.password = password.filter(|_| logs_in);
            }
        }
        for (name, value) in &mut self.options {
            // An empty path and one that is not UTF-8 stay as they are: opening the file fails then.
            if FILES.contains(&name.as_str())
                && let Ok(path) = std::path::absolute(&value)
                && let Some(path) = path.to_str()
            {
                *value = path.to_owned();
            }
        }
        Ok(self)
    }

    /// Whether both name the same locks: the same store and options, apart from `timeout=` and
    /// `client-name=`.
    pub fn same_store(&self, other: &Self) -> bool {
        let mut servers = (self.clone(), other.clone());
        for url in [&mut servers.0, &mut servers.1] {
            url.timeout = None;
            url.options.retain(|(name, _)| name != "client-name");
            if let Place::Servers(servers) = &mut url.place {
                servers.password = None;
            }
        }
        servers.0 == servers.1
    }

    /// The value of one of the engine's own options.
    #[cfg(any(feature = "local", feature = "redis", feature = "etcd", feature = "zookeeper"))]
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        let found = self.options.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The scheme, as we spell it.
    #[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
    pub(crate) const fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Where the servers are, for an engine that has some.
    #[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
    pub(crate) const fn servers(&self) -> Option<&Servers> {
        match &self.place {
            Place::Servers(servers) => Some(servers),
            Place::Here | Place::Directory(_) => None,
        }
    }

    pub(crate) const fn engine(&self) -> Engine {
        self.engine
    }

    /// The directory of a local store that has been [`resolved`](Self::resolved).
    #[cfg(any(test, all(feature = "local", target_os = "linux")))]
    pub(crate) fn directory(&self) -> Option<&std::path::Path> {
        match &self.place {
            Place::Directory(directory) => directory.as_deref(),
            Place::Here | Place::Servers(_) => None,
        }
    }
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_at(text.find([':', '?']).unwrap_or(text.len()));
        let (scheme, engine) = Engine::of(scheme)?;
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        let (place, query) = match rest.split_once('?') {
            Some((place, query)) => (place, Some(query)),
            None => (rest, None),
        };
        let place = match engine {
            Engine::Memory if place.is_empty() => Place::Here,
            Engine::Memory => return Err(invalid("nothing goes after memory: but options")),
            Engine::Local => Place::Directory(directory(place)?),
            _ => Place::Servers(servers(scheme, place, query)?),
        };
        let mut url = Self { scheme, engine, place, timeout: None, options: Vec::new() };
        if let (Some(query), Some(known)) = (query, engine.options()) {
            url.read_options(query, known)?;
        }
        Ok(url)
    }
}

impl StoreUrl {
    fn read_options(&mut self, query: &str, known: &[&str]) -> Result<()> {
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match known.iter().find(|known| **known == name) {
                Some(&"timeout") => self.timeout = Some(timeout(value)?),
                Some(_) => {
                    let value = String::from_utf8(percent::decode(value));
                    let value = value.map_err(|_| invalid("an option's value is not UTF-8"))?;
                    self.options.push((name.to_owned(), value));
                }
                None => {
                    let (scheme, known) = (self.scheme, known.join("=, "));
                    let why = format!("{scheme} has no option {name:?}: it knows {known}=");
                    return Err(invalid(&why));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme)?;
        match &self.place {
            Place::Here => f.write_str(":")?,
            Place::Directory(None) => {}
            Place::Directory(Some(directory)) => {
                let bytes = directory.as_os_str().as_encoded_bytes();
                write!(f, ":{}", percent::encode(bytes))?;
            }
            Place::Servers(servers) => write!(f, "://{servers}")?,
        }
        let timeout = self.timeout.map(|limit| ("timeout", duration::write_duration(limit)));
        let options = self.options.iter();
        let options = options.map(|(name, value)| (name.as_str(), percent::encode_value(value)));
        for (place, (name, value)) in timeout.into_iter().chain(options).enumerate() {
            let before = if place == 0 { '?' } else { '&' };
            write!(f, "{before}{name}={value}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            // An empty password is no secret, and without it another would be looked for.
            let empty = self.password.as_ref().is_some_and(|secret| secret.0.is_empty());
            write!(f, "{}{}@", percent::encode_user(user), if empty { ":" } else { "" })?;
        }
        write!(f, "{}{}", self.hosts, self.path)
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

fn directory(place: &str) -> Result<Option<PathBuf>> {
    if place.is_empty() {
        return Ok(None);
    }
    let path = path_from(percent::decode(place));
    match path.is_absolute() {
        true => Ok(Some(path)),
        false => Err(invalid("the directory must be absolute: write local:/dir")),
    }
}

#[cfg(unix)]
fn path_from(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(not(unix))]
fn path_from(bytes: Vec<u8>) -> PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// The scheme of a socket in the file system.
pub(crate) const UNIX: &str = "redis+unix";

/// Reads `//[user[:password]@]hosts[/path]`, or without hosts where the path is a socket's. Its errors repeat nothing of the text: where it is
/// malformed, any part of it may be a password.
fn servers(scheme: &str, place: &str, query: Option<&str>) -> Result<Servers> {
    let form = if scheme == UNIX { "/path/of/socket" } else { "host:port" };
    let malformed = |why: &str| invalid(&format!("{why}: write {scheme}://[user:password@]{form}"));
    let place = place.strip_prefix("//").ok_or_else(|| malformed("`//` is missing"))?;
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    if path.contains('@') || query.is_some_and(|query| query.contains('@')) {
        return Err(malformed("`/`, `?` and `@` in a password are %2F, %3F and %40"));
    }
    let (credentials, hosts) = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => (Some(credentials), hosts),
        None => (None, authority),
    };
    match scheme {
        UNIX if !hosts.is_empty() => return Err(malformed("a socket has no host")),
        UNIX if path.len() < 2 => return Err(malformed("the path of the socket is missing")),
        UNIX => {}
        _ if hosts.split(',').all(is_host) => {}
        _ => return Err(malformed("a host or its port is malformed")),
    }
    let (user, password) = credentials.map_or(Ok((None, None)), |text| login(text, malformed))?;
    Ok(Servers { user, password, hosts: hosts.into(), path: path.into() })
}

/// Reads `user`, `user:password`, `user:` (an empty password) and `:password`.
fn login(
    text: &str,
    malformed: impl Fn(&str) -> Error,
) -> Result<(Option<String>, Option<Secret>)> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (text, None),
    };
    if user == "***" || password == Some("***") {
        // Tried as a password it would fail, and may lock the user out.
        let why = "`***` stands where a password was hidden; put the password there (one that is \
                   `***` is written %2A%2A%2A), or leave it out and set TENURE_PASSWORD";
        return Err(malformed(why));
    }
    let decode = |text: &str| {
        let text = String::from_utf8(percent::decode(text));
        text.map_err(|_| malformed("the user or the password is not UTF-8"))
    };
    let user = Some(decode(user)?).filter(|user| !user.is_empty());
    let password = match password {
        Some("") if user.is_none() => None,
        password => password.map(decode).transpose()?,
    };
    Ok((user, password.map(Secret)))
}

/// Whether it is a `host`, `host:port` or `[v6]:port`.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    !host.is_empty()
        && (v6.is_some() || host.chars().all(plain))
        && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn timeout(value: &str) -> Result<Duration> {
    match parse_duration(value) {
        Ok(timeout) if !timeout.is_zero() => Ok(timeout),
        _ => Err(invalid("timeout= takes a duration above zero, such as timeout=2s")),
    }
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, READ, why)
}

#[cfg(test)]
#[path = "url_tests.rs"]
mod tests;
