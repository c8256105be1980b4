//! Store URLs: one grammar for all engines, parsed here alone.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::connecting::PASSWORD_FILE;
use crate::duration::{parse_duration, write_duration};
use crate::factory::{Scheme, Shape, StoreFactory, UrlOption};
use crate::{Error, ErrorKind, Result};

/// Where a store is: `local:/dir`, `redis://host`, …
///
/// A registry of engines parses it: which schemes and options there are depends on the engines.
/// [`Display`](fmt::Display) and [`Debug`](fmt::Debug) leave the password out. What they show parses
/// as the same store, whose password then comes from the environment.
#[derive(Clone)]
pub struct StoreUrl {
    scheme: &'static Scheme,
    tls: bool,
    location: Location,
    timeout: Option<Duration>,
    /// No part of the URL.
    ttl: Option<Duration>,
    /// The engine's own options, in the order given.
    options: Vec<(&'static UrlOption, String)>,
}

/// What the URL says between scheme and query.
#[derive(Clone, PartialEq, Eq)]
enum Location {
    Nothing,
    /// `None`: the default one.
    Path(Option<PathBuf>),
    Servers(Servers),
}

#[derive(Clone, PartialEq, Eq)]
struct Servers {
    user: Option<String>,
    /// Empty where the URL says so (`user:@host`).
    password: Option<Secret>,
    /// `host` or `host:port`, one or more with commas between. Empty where the path is a socket's.
    hosts: String,
    /// What follows the hosts, with its slash, decoded. May be empty.
    path: String,
}

/// Text that no output shows.
#[derive(Clone, PartialEq, Eq)]
struct Secret(String);

/// What errors say was being done.
const READ: &str = "read the store's URL";

impl StoreUrl {
    /// Parses a URL of one of these engines. Of two engines with the same scheme, the later one counts.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], with the schemes or the options that are known. No error repeats a
    /// password.
    pub fn parse(text: &str, engines: &[Arc<dyn StoreFactory>]) -> Result<Self> {
        let (name, rest) = text.split_at(text.find([':', '?']).unwrap_or(text.len()));
        for engine in engines.iter().rev() {
            for scheme in engine.schemes() {
                let tls = scheme.tls_name == Some(name);
                if tls || scheme.name == name {
                    return Self::parse_rest(rest, scheme, tls, &**engine);
                }
            }
        }
        let schemes = engines.iter().flat_map(|engine| engine.schemes());
        let known: Vec<_> = schemes.flat_map(Scheme::names).collect();
        let unknown = match spelled(name) {
            Some(name) => format!("there is no store {name:?}"),
            None => "it begins with no scheme".into(),
        };
        Err(invalid(&format!("{unknown}: use one of {}", known.join(", "))))
    }

    /// The scheme in front of a URL, if there may be one: text of another form may be a password.
    pub fn scheme_of(text: &str) -> Option<&str> {
        spelled(text.split([':', '?']).next().unwrap_or_default())
    }

    /// Which form of URL it is.
    pub const fn scheme(&self) -> &'static Scheme {
        self.scheme
    }

    /// Whether its scheme asks for TLS.
    pub const fn tls(&self) -> bool {
        self.tls
    }

    /// How long one call to the store may take, where the URL says so (`timeout=`).
    pub const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The user to log in as.
    pub fn user(&self) -> Option<&str> {
        self.servers_part()?.user.as_deref()
    }

    /// The password in the URL, if there is one. Keep it out of output, logs and errors.
    pub fn password(&self) -> Option<&str> {
        self.servers_part()?.password.as_ref().map(|secret| secret.0.as_str())
    }

    /// Whether the URL says which password to use: it has one, or names a file with one.
    pub fn says_password(&self) -> bool {
        self.option(PASSWORD_FILE).is_some() || self.password().is_some()
    }

    /// Whether the store is kept by servers, which may ask for a password.
    pub const fn has_servers(&self) -> bool {
        matches!(self.location, Location::Servers(_))
    }

    /// The servers' hosts and ports, with the scheme's default where the URL has none.
    pub fn servers(&self) -> Vec<(String, u16)> {
        let Shape::Servers { default_port } = self.scheme.shape else { return Vec::new() };
        let address = |text: &str| {
            let (host, port) = split_port(text);
            let port = port.and_then(|port| port.parse().ok()).unwrap_or(default_port);
            (host.trim_matches(['[', ']']).to_owned(), port)
        };
        self.hosts().split(',').map(address).collect()
    }

    /// The servers as the URL spells them: `host:port,host`. Empty where it has none.
    pub fn hosts(&self) -> &str {
        self.servers_part().map_or("", |servers| &servers.hosts)
    }

    /// What follows the servers, decoded, with its leading slash. Empty where nothing does.
    pub fn path(&self) -> &str {
        self.servers_part().map_or("", |servers| &servers.path)
    }

    /// The file, directory or socket that the URL names. `None` for servers, and where the URL
    /// [leaves it to the environment](Self::resolved).
    pub fn file(&self) -> Option<&Path> {
        match (&self.location, self.scheme.shape) {
            (Location::Path(path), _) => path.as_deref(),
            (Location::Servers(servers), Shape::Socket) => Some(Path::new(&servers.path)),
            (Location::Servers(_) | Location::Nothing, _) => None,
        }
    }

    /// The value of one of the engine's own options. Given twice, the last one counts.
    pub fn option(&self, name: &str) -> Option<&str> {
        let found = self.options.iter().rev().find(|(known, _)| known.name == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The value of an option that is a duration.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else, and for zero.
    pub fn duration(&self, name: &str) -> Result<Option<Duration>> {
        self.option(name).map(|value| duration(name, value)).transpose()
    }

    /// The same URL with what it leaves to the environment filled in: for `local` the default
    /// directory, for files (`ca=` …) the current one, and for a login the password. What
    /// it shows then leads to the same store from anywhere on this machine.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the environment does not say where the default directory is.
    pub fn resolved(mut self) -> Result<Self> {
        if let (Location::Path(None), Shape::Path { default: Some(find) }) =
            (&self.location, self.scheme.shape)
        {
            self.location = Location::Path(Some(find()?));
        }
        let in_file = self.option(PASSWORD_FILE).is_some() && self.password().is_none();
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let password = self.password_in(variable).filter(|_| !in_file).map(Secret);
        if let Location::Servers(servers) = &mut self.location {
            servers.password = password;
        }
        for (option, value) in &mut self.options {
            // An empty path and one that is not UTF-8 stay as they are: opening the file fails then.
            if option.is_file
                && let Ok(path) = std::path::absolute(&value)
                && let Some(path) = path.to_str()
            {
                *value = path.to_owned();
            }
        }
        Ok(self)
    }

    /// The same URL for a client whose claims will have this TTL. The engine may prepare for them when it
    /// connects: ZooKeeper's opens a session that fits. Other TTLs work as well.
    #[must_use]
    pub const fn for_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The TTL that the first claims will have, if it is known ([`for_ttl`](Self::for_ttl)).
    pub const fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// Whether both name the same locks: the same store and options, apart from those that are
    /// [cosmetic](UrlOption::cosmetic), such as `timeout=`.
    pub fn same_store(&self, other: &Self) -> bool {
        let mut urls = [self.clone(), other.clone()];
        for url in &mut urls {
            url.timeout = None;
            url.options.retain(|(option, _)| !option.is_cosmetic);
            if let Location::Servers(servers) = &mut url.location {
                servers.password = None;
            }
        }
        urls[0] == urls[1]
    }

    /// Text that is equal for URLs which name the same locks: without the user, the password, options that are
    /// [cosmetic](UrlOption::cosmetic) or say what counts by default, and with the servers and options in order.
    /// `None` where the URL alone names no store.
    pub(crate) fn identity(&self) -> Option<String> {
        let mut url = self.clone().resolved().ok()?;
        match &mut url.location {
            Location::Nothing => return None,
            Location::Path(_) => {}
            Location::Servers(servers) => {
                let mut hosts: Vec<String> =
                    self.servers().iter().map(|(host, port)| format!("{host}:{port}")).collect();
                hosts.sort();
                (servers.user, servers.password, servers.hosts) = (None, None, hosts.join(","));
            }
        }
        url.timeout = None;
        let mut last = BTreeMap::new();
        for (option, value) in url.options {
            last.insert(option.name, (option, value));
        }
        let counts = |(option, value): &(&UrlOption, String)| {
            !option.is_cosmetic && !option.is_file && option.default != Some(value)
        };
        url.options = last.into_values().filter(counts).collect();
        Some(url.to_string())
    }

    /// The error of a URL that makes no sense. `why` must not repeat a password.
    pub fn invalid(&self, why: impl AsRef<str>) -> Error {
        invalid(why.as_ref())
    }

    /// The password to log in with: the URL's own, which may be empty; else `TENURE_STORE_PASSWORD` if
    /// it belongs to this server; else `TENURE_PASSWORD`. None for an engine that has no password
    /// without a user, unless there is one.
    ///
    /// `tenure run` sets `TENURE_STORE_PASSWORD` for its command to the password of the server in
    /// `TENURE_STORE_PASSWORD_FOR`. No other server is sent it, also where the command sets another
    /// `TENURE_STORE`.
    pub(crate) fn password_in(&self, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
        let servers = self.servers_part()?;
        if let Some(password) = &servers.password {
            return Some(password.0.clone());
        }
        if self.scheme.needs_user && servers.user.is_none() {
            return None;
        }
        let is_bound = || {
            let url = variable("TENURE_STORE_PASSWORD_FOR")?;
            let rest = url.strip_prefix(self.scheme_name())?.strip_prefix(':')?;
            let (place, query) = split_query(rest);
            let theirs = read_servers(self.scheme, self.tls, place, query).ok()?;
            let is_socket = matches!(self.scheme.shape, Shape::Socket);
            let same_path = !is_socket || theirs.path == servers.path;
            Some(theirs.user == servers.user && theirs.hosts == servers.hosts && same_path)
        };
        let bound = variable("TENURE_STORE_PASSWORD").filter(|_| is_bound() == Some(true));
        bound.or_else(|| variable("TENURE_PASSWORD"))
    }

    /// The scheme, as the URL spells it.
    fn scheme_name(&self) -> &'static str {
        name_of(self.scheme, self.tls)
    }

    const fn servers_part(&self) -> Option<&Servers> {
        match &self.location {
            Location::Servers(servers) => Some(servers),
            Location::Nothing | Location::Path(_) => None,
        }
    }

    fn parse_rest(
        rest: &str,
        scheme: &'static Scheme,
        tls: bool,
        engine: &dyn StoreFactory,
    ) -> Result<Self> {
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        let (place, query) = split_query(rest);
        let form = scheme.form_of(name_of(scheme, tls));
        let location = match scheme.shape {
            Shape::Nothing if place.is_empty() => Location::Nothing,
            Shape::Nothing => {
                return Err(invalid(&format!("nothing goes after {}: but options", scheme.name)));
            }
            Shape::Path { default: Some(_) } if place.is_empty() => Location::Path(None),
            Shape::Path { .. } => {
                let path = path_from(percent_decode_str(place).collect());
                if !path.is_absolute() {
                    return Err(invalid(&format!("the path must be absolute: write {form}")));
                }
                Location::Path(Some(path))
            }
            Shape::Servers { .. } | Shape::Socket => {
                Location::Servers(read_servers(scheme, tls, place, query)?)
            }
        };
        let mut url = Self { scheme, tls, location, timeout: None, ttl: None, options: Vec::new() };
        url.read_options(query.unwrap_or_default(), engine)?;
        Ok(url)
    }

    fn read_options(&mut self, query: &str, engine: &dyn StoreFactory) -> Result<()> {
        let known = engine.options();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if name == UrlOption::TIMEOUT.name {
                self.timeout = Some(duration(name, value)?);
                continue;
            }
            let Some(option) = known.iter().find(|known| known.name == name) else {
                return Err(self.unknown_option(name, known));
            };
            if option.needs_tls && !self.tls {
                let secure = engine.schemes().iter().filter_map(Scheme::tls_name);
                let secure: Vec<_> = secure.map(|name| format!("{name}://")).collect();
                return Err(invalid(&format!("{name}= needs {}", secure.join(" or "))));
            }
            let value = percent_decode_str(value).decode_utf8();
            let value = value.map_err(|_| invalid("an option's value is not UTF-8"))?;
            self.options.push((option, value.into_owned()));
        }
        Ok(())
    }

    fn unknown_option(&self, name: &str, known: &[UrlOption]) -> Error {
        let scheme = self.scheme_name();
        if let Some(option) = known.iter().find(|known| known.formerly == Some(name)) {
            let new = option.name;
            return invalid(&format!("the option {name}= of {scheme} is called {new}= now"));
        }
        let all = std::iter::once(UrlOption::TIMEOUT.name).chain(known.iter().map(|one| one.name));
        let all: Vec<_> = all.collect();
        let known = all.join("=, ");
        invalid(&format!("{scheme} has no option {name:?}: it knows {known}="))
    }
}

impl PartialEq for StoreUrl {
    fn eq(&self, other: &Self) -> bool {
        let options = |url: &Self| -> Vec<(&str, String)> {
            url.options.iter().map(|(option, value)| (option.name, value.clone())).collect()
        };
        self.scheme_name() == other.scheme_name()
            && self.location == other.location
            && self.timeout == other.timeout
            && options(self) == options(other)
    }
}

impl Eq for StoreUrl {}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme_name())?;
        match &self.location {
            Location::Nothing => f.write_str(":")?,
            Location::Path(None) => {}
            Location::Path(Some(path)) => {
                write!(f, ":{}", encode(path.as_os_str().as_encoded_bytes(), PLAIN))?;
            }
            Location::Servers(Servers { user, password, hosts, path }) => {
                f.write_str("://")?;
                if let Some(user) = user {
                    // An empty password is no secret, and without it another would be looked for.
                    let empty = password.as_ref().is_some_and(|secret| secret.0.is_empty());
                    let colon = if empty { ":" } else { "" };
                    write!(f, "{}{colon}@", encode(user.as_bytes(), USER))?;
                }
                write!(f, "{hosts}{}", encode(path.as_bytes(), PATH))?;
            }
        }
        let timeout = self.timeout.map(|limit| (UrlOption::TIMEOUT.name, write_duration(limit)));
        let options = self.options.iter();
        let options = options.map(|(option, value)| (option.name, encode(value.as_bytes(), VALUE)));
        for (place, (name, value)) in timeout.into_iter().chain(options).enumerate() {
            let before = if place == 0 { '?' } else { '&' };
            write!(f, "{before}{name}={value}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// `host:port`, `host` and `[v6]:port`, split at the colon of the port.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn split_query(text: &str) -> (&str, Option<&str>) {
    match text.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (text, None),
    }
}

fn name_of(scheme: &'static Scheme, tls: bool) -> &'static str {
    scheme.tls_name.filter(|_| tls).unwrap_or(scheme.name)
}

/// The text, if it has the form of a scheme.
fn spelled(name: &str) -> Option<&str> {
    let form = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    Some(name).filter(|name| name.len() <= 20 && name.chars().all(form))
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

/// Reads `//[user[:password]@]hosts[/path]`, or without hosts where the path is a socket's. Its errors
/// repeat nothing of the text: where it is malformed, any part of it may be a password.
fn read_servers(
    scheme: &'static Scheme,
    tls: bool,
    place: &str,
    query: Option<&str>,
) -> Result<Servers> {
    let (name, is_socket) = (name_of(scheme, tls), matches!(scheme.shape, Shape::Socket));
    let form = if is_socket { "/path/of/socket" } else { "host:port" };
    let malformed = |why: &str| invalid(&format!("{why}: write {name}://[user:password@]{form}"));
    let place = place.strip_prefix("//").ok_or_else(|| malformed("`//` is missing"))?;
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    if path.contains('@') || query.is_some_and(|query| query.contains('@')) {
        return Err(malformed("`/`, `?` and `@` in a password are %2F, %3F and %40"));
    }
    let (credentials, hosts) = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => (Some(credentials), hosts),
        None => (None, authority),
    };
    match is_socket {
        true if !hosts.is_empty() => return Err(malformed("a socket has no host")),
        true if path.len() < 2 => return Err(malformed("the path of the socket is missing")),
        false if !hosts.split(',').all(is_host) => {
            return Err(malformed("a host or its port is malformed"));
        }
        _ => {}
    }
    let (user, password) = credentials.map_or(Ok((None, None)), |text| login(text, malformed))?;
    if scheme.needs_user && user.is_none() && password.is_some() {
        return Err(malformed("a password needs a user"));
    }
    let path = percent_decode_str(path).decode_utf8();
    let path = path.map_err(|_| malformed("the path is not UTF-8"))?.into_owned();
    Ok(Servers { user, password, hosts: hosts.into(), path })
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
        // Sent as a password, `***` would fail, and repeated failures may lock the user out.
        let why = "`***` stands where a password was hidden; put the password there (one that is \
                   `***` is written %2A%2A%2A), or leave it out and set TENURE_PASSWORD";
        return Err(malformed(why));
    }
    let decode = |text: &str| {
        let text = percent_decode_str(text).decode_utf8();
        let text = text.map_err(|_| malformed("the user or the password is not UTF-8"))?;
        Ok::<_, Error>(text.into_owned())
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
    let (host, port) = split_port(text);
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    !host.is_empty()
        && (v6.is_some() || host.chars().all(plain))
        && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn duration(name: &str, value: &str) -> Result<Duration> {
    match parse_duration(value) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(invalid(&format!("{name}= takes a duration above zero, such as {name}=2s"))),
    }
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, READ, why)
}

/// What would end a path, or what a terminal would act on.
const PLAIN: &AsciiSet = &CONTROLS.add(b'%').add(b'?');
/// Also what would make a path look like a part of a login.
const PATH: &AsciiSet = &PLAIN.add(b'@');
/// Also what would end an option.
const VALUE: &AsciiSet = &PLAIN.add(b'&').add(b'#').add(b'@');
/// Also what would end a user's name.
const USER: &AsciiSet = &PLAIN.add(b':').add(b'@').add(b'/').add(b'#');

/// A text that decodes to the same bytes. Letters of all languages stay readable.
fn encode(bytes: &[u8], special: &'static AsciiSet) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_ascii() || character.is_control() {
                text.extend(utf8_percent_encode(character.encode_utf8(&mut [0; 4]), special));
            } else {
                text.push(character);
            }
        }
        text.extend(percent_encoding::percent_encode(chunk.invalid(), special));
    }
    text
}

#[cfg(test)]
#[path = "url_tests.rs"]
pub(crate) mod tests;
