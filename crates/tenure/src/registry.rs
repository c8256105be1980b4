//! The engines that a URL can name.

use std::sync::Arc;

use tenure_core::store::{
    Connecting, MemoryFactory, Scheme, Store, StoreFactory, UrlOption, require_runtime,
};
use tenure_core::{Client, Error, ErrorKind, Result};

use crate::StoreUrl;

/// Lists the engines of this crate, a line each: when it is compiled in, the feature, what its schemes
/// begin with, and its factories. A feature that is off still has its name in error messages.
macro_rules! engines {
    ($(#[$compiled_in:meta] $feature:literal: $stems:expr => [$($factory:expr),*],)*) => {
        const FEATURES: &[(&str, &[&str])] = &[$(($feature, &$stems)),*];

        fn compiled_in() -> Vec<Arc<dyn StoreFactory>> {
            let mut engines: Vec<Arc<dyn StoreFactory>> = Vec::new();
            $(
                #[$compiled_in]
                engines.extend([$(Arc::new($factory) as Arc<dyn StoreFactory>),*]);
            )*
            engines.extend([Arc::new(MemoryFactory) as Arc<dyn StoreFactory>]);
            engines
        }
    };
}

engines! {
    #[cfg(all(feature = "local", target_os = "linux"))] "local": ["local"] => [crate::local::Factory],
    #[cfg(feature = "redis")] "redis": ["redis", "redlock"] => [crate::redis::Factory, crate::redis::RedlockFactory],
    #[cfg(feature = "etcd")] "etcd": ["etcd"] => [crate::etcd::Factory],
    #[cfg(feature = "zookeeper")] "zookeeper": ["zk"] => [crate::zookeeper::Factory],
}

/// The engines that a store's URL can name. The default has those that are compiled in; others are
/// added [by their factories](Registry::with).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::Registry;
/// # use tenure::store::MemoryFactory as MyFactory;
///
/// let registry = Registry::default().with(MyFactory);
/// let client = registry.connect("memory:").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Registry {
    engines: Vec<Arc<dyn StoreFactory>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { engines: compiled_in() }
    }
}

impl Registry {
    /// The same registry with one more engine. Its schemes count before equal ones of engines that
    /// were there.
    #[must_use]
    pub fn with(mut self, factory: impl StoreFactory) -> Self {
        self.engines.push(Arc::new(factory));
        self
    }

    /// Parses a URL.
    ///
    /// ```
    /// let url = tenure::Registry::default().parse("memory:?timeout=500ms")?;
    /// assert_eq!(url.timeout(), Some(std::time::Duration::from_millis(500)));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a URL that makes no sense, with the schemes or options that
    /// are known; [`Unsupported`](ErrorKind::Unsupported) for an engine that is not part of this build.
    pub fn parse(&self, url: &str) -> Result<StoreUrl> {
        let scheme = StoreUrl::scheme_of(url).unwrap_or_default();
        match feature_of(scheme) {
            Some(feature) if !self.schemes().any(|known| known.names().any(|it| it == scheme)) => {
                Err(not_compiled_in(feature))
            }
            _ => StoreUrl::parse(url, &self.engines),
        }
    }

    /// Connects to the store behind a URL, and makes a client of it. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse), and whatever keeps the store from being opened.
    pub async fn connect(&self, url: &str) -> Result<Client> {
        self.connect_to(&self.parse(url)?).await
    }

    /// [`connect`](Self::connect) for a URL that has been parsed.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub async fn connect_to(&self, url: &StoreUrl) -> Result<Client> {
        Client::at(url, self.open(url).await?)
    }

    /// [`connect`](Self::connect) for threads: see [`blocking`](crate::blocking).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_blocking(&self, url: &str) -> Result<crate::blocking::Client> {
        let url = self.parse(url)?;
        crate::blocking::Client::open_at(&url, self.open(&url))
    }

    /// Connects to the store behind a URL, for programs that talk to the store itself. Call it inside a
    /// tokio runtime. A `memory:` store is a new one every time.
    ///
    /// # Errors
    /// Whatever keeps the store from being opened;
    /// [`Unsupported`](ErrorKind::Unsupported) for a URL of an engine that is not in this registry.
    pub async fn open(&self, url: &StoreUrl) -> Result<Arc<dyn Store>> {
        require_runtime("open the store")?;
        let name = url.scheme().name();
        let has_scheme = |engine: &&Arc<dyn StoreFactory>| {
            engine.schemes().iter().any(|scheme| scheme.name() == name)
        };
        match self.engines.iter().rev().find(has_scheme) {
            Some(engine) => engine.connect(url, &Connecting::new(url)?).await,
            None => Err(not_compiled_in(name)),
        }
    }

    /// The schemes of all engines.
    pub fn schemes(&self) -> impl Iterator<Item = &'static Scheme> {
        self.engines.iter().flat_map(|engine| engine.schemes())
    }

    /// The options of all engines, each with the names of the engines that have it. All engines have
    /// the first one.
    pub fn options(&self) -> Vec<(UrlOption, Vec<&'static str>)> {
        let mut all = vec![(UrlOption::TIMEOUT, Vec::new())];
        for engine in &self.engines {
            all[0].1.push(engine.name());
            for option in engine.options() {
                let alike = |(known, _): &&mut (UrlOption, Vec<_>)| {
                    known.name() == option.name()
                        && known.help() == option.help()
                        && known.default() == option.default()
                };
                match all.iter_mut().find(alike) {
                    Some((_, engines)) => engines.push(engine.name()),
                    None => all.push((*option, vec![engine.name()])),
                }
            }
        }
        all
    }

    /// The tables of URLs and options as Markdown, for an engine's own documentation.
    pub fn to_markdown(&self) -> String {
        let mut text = String::from("| URL | store |\n|---|---|\n");
        for scheme in self.schemes() {
            let bare = scheme.has_default_path().then(|| format!("`{}`, ", scheme.name()));
            let tls = scheme.tls_name().map(|name| format!(", with TLS `{name}://`"));
            let (bare, tls) = (bare.unwrap_or_default(), tls.unwrap_or_default());
            text += &format!("| {bare}`{}`{tls} | {} |\n", scheme.form(), scheme.meaning());
        }
        text += "\nOptions go in the query, as in `?timeout=5s&prefix=app`:\n\n";
        text += "| option | engines | meaning | default |\n|---|---|---|---|\n";
        for (index, (option, engines)) in self.options().into_iter().enumerate() {
            let engines = if index == 0 { "all".into() } else { engines.join(", ") };
            let engines = if option.needs_tls() { engines + ", with TLS" } else { engines };
            let (name, value, help) = (option.name(), option.value(), option.help());
            let value = value.replace('|', "\\|");
            let default = match option.default() {
                Some(words) if words.contains(' ') => words.to_owned(),
                Some(value) => format!("`{value}`"),
                None => String::new(),
            };
            text += &format!("| `{name}={value}` | {engines} | {help} | {default} |\n");
        }
        text
    }
}

/// The feature that has the engine of this scheme, in builds with all engines.
fn feature_of(scheme: &str) -> Option<&'static str> {
    let base = scheme.split('+').next().unwrap_or(scheme);
    let names = |stem: &&str| base == *stem || base.strip_suffix('s') == Some(stem);
    let found = FEATURES.iter().find(|(_, stems)| stems.iter().any(names));
    found.map(|(feature, _)| *feature)
}

fn not_compiled_in(engine: &str) -> Error {
    if engine == "local" && !cfg!(target_os = "linux") {
        let why = "the local engine works on Linux only: use another store";
        return Error::new(ErrorKind::Unsupported, "open the store", why);
    }
    let why = format!(
        "this build of tenure has no {engine} engine: enable its feature `{engine}`, or use another store"
    );
    Error::new(ErrorKind::Unsupported, "open the store", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_lists_the_known_ones() {
        let error = Registry::default().parse("http://h").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        for scheme in Registry::default().schemes().flat_map(Scheme::names) {
            assert!(error.to_string().contains(scheme), "{error}");
        }
    }

    #[test]
    fn an_engine_outside_this_build_is_unsupported_and_says_so() {
        let empty = Registry { engines: Vec::new() };
        for (url, feature) in [
            ("zks://h?prefix=x", "zookeeper"),
            ("redis://u:hunter2@h", "redis"),
            ("rediss+cluster://h", "redis"),
            ("redlocks://h", "redis"),
            ("etcd+srv://h", "etcd"),
            ("local", "local"),
        ] {
            let error = empty.parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}");
            let message = error.to_string();
            let wanted = format!("this build of tenure has no {feature} engine");
            assert!(message.contains(&wanted) && !message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn a_store_is_not_opened_outside_a_tokio_runtime() {
        let registry = Registry::default();
        let opening = std::pin::pin!(registry.connect("memory:"));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(Err(error)) = opening.poll(&mut context) else {
            panic!("it was opened");
        };
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }

    #[tokio::test]
    async fn an_engine_that_is_added_counts_before_those_that_were_there() {
        #[derive(Debug)]
        struct Closed;

        #[async_trait::async_trait]
        impl StoreFactory for Closed {
            fn name(&self) -> &'static str {
                "closed"
            }

            fn schemes(&self) -> &'static [Scheme] {
                const { &[Scheme::nothing("memory", "closed"), Scheme::nothing("shut", "closed")] }
            }

            fn options(&self) -> &'static [UrlOption] {
                const { &[UrlOption::new("until", "TIME", "when it opens")] }
            }

            async fn connect(&self, url: &StoreUrl, _: &Connecting) -> Result<Arc<dyn Store>> {
                Err(url.invalid("it is closed"))
            }
        }

        let registry = Registry::default().with(Closed);
        for url in ["memory:", "shut:?until=noon"] {
            let error = registry.connect(url).await.unwrap_err().to_string();
            assert!(error.contains("it is closed"), "{error}");
        }
        let text = registry.to_markdown();
        assert!(text.contains("| `shut:` | closed |"), "{text}");
        assert!(text.contains("| `until=TIME` | closed | when it opens |"), "{text}");
        assert!(registry.parse("memory:?til=x").unwrap_err().to_string().contains("until="));
    }

    #[tokio::test]
    async fn clients_of_memory_urls_share_nothing() {
        let connect = async || crate::connect("memory:").await.unwrap();
        let (one, two) = (connect().await, connect().await);
        let _held = one.mutex("a").unwrap().acquire().await.unwrap();
        assert!(two.mutex("a").unwrap().try_acquire().await.is_ok());
    }

    #[tokio::test]
    async fn the_timeout_of_a_url_is_that_of_the_client_and_one_place_has_the_default() {
        let client = crate::connect("memory:?timeout=250ms").await.unwrap();
        assert_eq!(client.call_timeout().as_millis(), 250);
        let default = crate::connect("memory:").await.unwrap().call_timeout();
        assert_eq!(default, tenure_core::store::CALL_TIMEOUT);
        let documented = UrlOption::TIMEOUT.default().map(tenure_core::parse_duration);
        assert_eq!(documented.unwrap().unwrap(), default);
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_connection_that_is_refused_has_a_cause_and_names_the_server() {
        // A port of this machine on which nothing listens: it was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("redis://127.0.0.1:{port}");
        let error = crate::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
        assert!(std::error::Error::source(&error).is_some(), "{error:?}");
        let named = error.about(&"payouts".parse().unwrap()).to_string();
        assert!(
            named.starts_with("could not connect to Redis for the lock \"payouts\": "),
            "{named}"
        );
    }

    /// `TENURE_WRITE_DOCS=1 cargo test -p tenure --all-features` writes them anew.
    #[cfg(all(feature = "local", feature = "redis", feature = "etcd", feature = "zookeeper"))]
    #[test]
    fn the_documentation_has_the_urls_and_options_that_the_engines_have() {
        let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let tables = Registry::default().to_markdown();
        let page = include_str!("urls_page.md").replace("{tables}", &tables);
        let write = std::env::var_os("TENURE_WRITE_DOCS").is_some();
        for (path, wanted) in [("src/urls.md", &tables), ("../../docs/urls.md", &page)] {
            let path = here.join(path);
            // The packaged crate has no documents beside it.
            if !path.parent().unwrap().exists() {
                continue;
            }
            if write {
                std::fs::write(&path, wanted).unwrap();
            }
            let found = std::fs::read_to_string(&path).unwrap();
            let remedy = "run TENURE_WRITE_DOCS=1 cargo test -p tenure --all-features";
            assert_eq!(&found, wanted, "{} is out of date: {remedy}", path.display());
        }
    }
}
