//! From a URL to a ZooKeeper store.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::Result;
use tenure_core::store::{Connecting, Scheme, Store, StoreFactory, StoreUrl, UrlOption};
use tenure_tls::Tls;

use crate::{Access, Compat, ZooKeeperConfig, ZooKeeperStore};

/// The engine behind `zk://` and `zks://`.
#[derive(Debug)]
pub struct ZooKeeperFactory;

static SCHEMES: [Scheme; 1] =
    [Scheme::servers("zk", "[user:pass@]h1:2181,h2,h3[/chroot]", "a ZooKeeper ensemble", 2181)
        .or_with_tls("zks")];

static OPTIONS: [UrlOption; 8] = [
    UrlOption::PREFIX.defaults_to("tenure/"),
    UrlOption::new(
        "acl",
        "creator|world",
        "access to the nodes: for the user that created them, or for all; by default `creator` if the URL \
         has a user",
    ),
    UrlOption::new(
        "compat",
        "curator-rw,kazoo",
        "also lock against these clients: Curator's `InterProcessReadWriteLock`, kazoo's locks. \
         Curator's mutex needs no option",
    )
    .formerly("neighbours"),
    UrlOption::PASSWORD_FILE,
    Tls::CA,
    Tls::CERT,
    Tls::KEY,
    Tls::SERVER_NAME,
];

#[async_trait]
impl StoreFactory for ZooKeeperFactory {
    fn name(&self) -> &'static str {
        "ZooKeeper"
    }

    fn schemes(&self) -> &'static [Scheme] {
        &SCHEMES
    }

    fn options(&self) -> &'static [UrlOption] {
        &OPTIONS
    }

    async fn connect(&self, url: &StoreUrl, context: &Connecting) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(ZooKeeperStore::connect(config(url, context)?).await?))
    }
}

fn config(url: &StoreUrl, context: &Connecting) -> Result<ZooKeeperConfig> {
    let mut config = ZooKeeperConfig::new(url.servers());
    config.chroot = url.path().trim_end_matches('/').to_owned();
    config.username = url.user().map(str::to_owned);
    config.password = context.password().cloned();
    config.access = access(url)?;
    config.compat = compat(url)?;
    config.tls = Tls::of(url)?;
    config.timeout = context.timeout();
    if let Some(ttl) = url.ttl() {
        config.ttl = ttl;
    }
    if let Some(prefix) = url.option("prefix") {
        config.prefix = prefix.into();
    }
    Ok(config)
}

/// What a user creates is the user's own, unless the URL says otherwise.
fn access(url: &StoreUrl) -> Result<Access> {
    match (url.option("acl"), url.user()) {
        (None | Some("creator"), Some(_)) => Ok(Access::Creator),
        (None, None) | (Some("world"), _) => Ok(Access::World),
        (Some("creator"), None) => {
            Err(url.invalid("acl=creator needs a user: write zk://user:password@host"))
        }
        (Some(_), _) => {
            Err(url.invalid("acl= is creator (the user that created the nodes) or world"))
        }
    }
}

fn compat(url: &StoreUrl) -> Result<Compat> {
    let mut clients = Compat::default();
    let names = url.option("compat").unwrap_or_default().split(',');
    for name in names.filter(|name| !name.is_empty()) {
        match name {
            // Curator's mutex and tenure's see each other without more nodes.
            "curator" => {}
            "curator-rw" => clients.curator_rw = true,
            "kazoo" => clients.kazoo = true,
            _ => return Err(url.invalid("compat= is a list of curator, curator-rw, kazoo")),
        }
    }
    Ok(clients)
}

#[cfg(test)]
mod tests {
    use tenure_core::ErrorKind;

    use super::*;

    fn config(url: &str) -> Result<ZooKeeperConfig> {
        let url = StoreUrl::parse(url, &[Arc::new(ZooKeeperFactory)])?;
        super::config(&url, &Connecting::new(&url)?)
    }

    #[test]
    fn a_url_says_where_the_servers_are() {
        let one = config("zk://app:p%40ss@[::1]:7000,b/apps/locks/?prefix=&timeout=500ms").unwrap();
        assert_eq!(one.servers, [("::1".into(), 7000), ("b".into(), 2181)]);
        assert_eq!(one.username.as_deref(), Some("app"));
        assert_eq!(one.password, Some("p@ss".into()));
        assert_eq!((one.chroot.as_str(), one.prefix.as_str()), ("/apps/locks", ""));
        assert_eq!((one.timeout.as_millis(), one.access), (500, Access::Creator));
        assert!(one.tls.is_none());
        let secure = config("zks://h?ca=a.pem&cert=c.pem&key=k.pem&compat=kazoo").unwrap();
        assert_eq!((secure.chroot.as_str(), secure.prefix.as_str()), ("", "tenure/"));
        assert_eq!(secure.access, Access::World);
        assert_eq!(secure.compat, Compat { kazoo: true, curator_rw: false });
        let identity = Some(("c.pem".into(), "k.pem".into()));
        assert_eq!(secure.tls, Some(Tls { ca: Some("a.pem".into()), identity, ..Tls::default() }));
    }

    #[test]
    fn invalid_urls_are_refused() {
        for bad in [
            "zk://h?ca=x",
            "zks://h?key=x",
            "zk://h?fencing=off",
            "zk://h?acl=creator",
            "zk://h?acl=everybody",
            "zk://h?compat=consul",
            "zk://:secret@h",
        ] {
            assert_eq!(config(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }

    #[test]
    fn the_earlier_name_of_compat_is_refused_with_a_hint() {
        let error = config("zk://h?neighbours=kazoo").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("called compat= now"), "{error}");
    }
}
