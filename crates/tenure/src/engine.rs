//! The engines a URL can name, and what each understands.

use tenure_core::{Error, ErrorKind, Result};

/// An engine, named by one or more schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Local,
    Memory,
    Redis,
    Redlock,
    Etcd,
    ZooKeeper,
}

/// Every scheme there is. The order is the one messages list them in.
const SCHEMES: [(&str, Engine); 17] = [
    ("local", Engine::Local),
    ("memory", Engine::Memory),
    ("redis", Engine::Redis),
    ("rediss", Engine::Redis),
    ("redis+sentinel", Engine::Redis),
    ("redis+cluster", Engine::Redis),
    ("rediss+sentinel", Engine::Redis),
    ("rediss+cluster", Engine::Redis),
    ("redis+unix", Engine::Redis),
    ("redlock", Engine::Redlock),
    ("redlocks", Engine::Redlock),
    ("etcd", Engine::Etcd),
    ("etcds", Engine::Etcd),
    ("etcd+srv", Engine::Etcd),
    ("etcds+srv", Engine::Etcd),
    ("zk", Engine::ZooKeeper),
    ("zks", Engine::ZooKeeper),
];

impl Engine {
    /// The engine behind a scheme, with the scheme as we spell it.
    pub(crate) fn of(scheme: &str) -> Result<(&'static str, Self)> {
        let known = SCHEMES.iter().find(|(known, _)| *known == scheme);
        known.copied().ok_or_else(|| {
            let schemes: Vec<_> = SCHEMES.iter().map(|(known, _)| *known).collect();
            let known = schemes.join(", ");
            // Without the form of a scheme it may be anything, also a password: not repeated.
            let form = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
            let unknown = match scheme.len() <= 20 && scheme.chars().all(form) {
                true => format!("there is no store {scheme:?}"),
                false => "it begins with no scheme".into(),
            };
            Error::new(ErrorKind::Invalid, READ, format!("{unknown}: use one of {known}"))
        })
    }

    /// What messages call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
        }
    }

    /// The options its URLs may carry in the query. `None`: nobody here knows, because the engine
    /// is not part of this build.
    pub(crate) const fn options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Memory => Some(&["timeout"]),
            Self::Local => Some(&["timeout", "group", "owner", "filesystem"]),
            Self::Redis if cfg!(feature = "redis") => Some(&[
                "prefix",
                "fencing",
                "replicas",
                "db",
                "client-name",
                "timeout",
                "password-file",
                "sentinel-user",
                "sentinel-password-file",
                "ca",
                "cert",
                "key",
                "server-name",
            ]),
            Self::Etcd if cfg!(feature = "etcd") => {
                Some(&["prefix", "timeout", "password-file", "ca", "cert", "key", "server-name"])
            }
            Self::Redlock if cfg!(feature = "redis") => Some(&[
                "prefix",
                "timeout",
                "node-timeout",
                "max-ttl",
                "client-name",
                "password-file",
                "ca",
                "cert",
                "key",
                "server-name",
            ]),
            Self::ZooKeeper if cfg!(feature = "zookeeper") => Some(&[
                "prefix",
                "timeout",
                "acl",
                "neighbours",
                "password-file",
                "ca",
                "cert",
                "key",
                "server-name",
            ]),
            Self::Redis | Self::Redlock | Self::Etcd | Self::ZooKeeper => None,
        }
    }

    /// The error of opening an engine that is not part of this build.
    pub(crate) fn missing(self) -> Error {
        let name = self.name();
        if self == Self::Local && !cfg!(target_os = "linux") {
            let why = "the local engine works on Linux only: use another store";
            return Error::new(ErrorKind::Unsupported, "open the store", why);
        }
        let why = format!(
            "this build of tenure has no {name} engine: use a build that has it, or another store"
        );
        Error::new(ErrorKind::Unsupported, "open the store", why)
    }
}

/// What is being done while a URL is read, as errors say it.
pub(crate) const READ: &str = "read the store's URL";
