//! From a URL to an etcd store.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::Result;
use tenure_core::store::{Connecting, Scheme, Store, StoreFactory, StoreUrl, UrlOption};
use tenure_tls::Tls;

use crate::{EtcdConfig, EtcdStore, Srv};

/// The engine behind `etcd://` and its like.
#[derive(Debug)]
pub struct EtcdFactory;

const SRV: &str = "etcd+srv";

static SCHEMES: [Scheme; 2] = [
    Scheme::servers(
        "etcd",
        "[user:pass@]h1:2379,h2,h3",
        "an etcd cluster; members that are not named are found",
        2379,
    )
    .or_with_tls("etcds"),
    Scheme::servers(
        SRV,
        "[user:pass@]domain",
        "the same, its servers from DNS (`_etcd-client._tcp`, `_etcd-client-ssl._tcp`)",
        0,
    )
    .or_with_tls("etcds+srv"),
];

static OPTIONS: [UrlOption; 6] = [
    UrlOption::PREFIX.defaults_to("tenure/"),
    UrlOption::PASSWORD_FILE,
    Tls::CA,
    Tls::CERT,
    Tls::KEY,
    Tls::SERVER_NAME,
];

#[async_trait]
impl StoreFactory for EtcdFactory {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn schemes(&self) -> &'static [Scheme] {
        &SCHEMES
    }

    fn options(&self) -> &'static [UrlOption] {
        &OPTIONS
    }

    async fn connect(&self, url: &StoreUrl, context: &Connecting) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(EtcdStore::connect(config(url, context)?).await?))
    }
}

fn config(url: &StoreUrl, context: &Connecting) -> Result<EtcdConfig> {
    if !url.path().trim_matches('/').is_empty() {
        return Err(url.invalid("nothing goes after the servers but options: write ?prefix=…"));
    }
    let mut config = match url.scheme().name() {
        SRV if url.hosts().contains([',', ':']) => {
            return Err(url.invalid("name one domain: its SRV records have the hosts and ports"));
        }
        SRV => {
            let srv = Srv { domain: url.hosts().to_owned(), name_server: None };
            EtcdConfig { srv: Some(srv), ..EtcdConfig::new(Vec::new()) }
        }
        _ => EtcdConfig::new(url.servers()),
    };
    config.username = url.user().map(str::to_owned);
    config.password = context.password().cloned();
    config.tls = Tls::of(url)?;
    config.timeout = context.timeout();
    if let Some(prefix) = url.option("prefix") {
        config.prefix = prefix.into();
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use tenure_core::ErrorKind;

    use super::*;

    fn config(url: &str) -> Result<EtcdConfig> {
        let url = StoreUrl::parse(url, &[Arc::new(EtcdFactory)])?;
        super::config(&url, &Connecting::new(&url)?)
    }

    #[test]
    fn a_url_says_where_the_servers_are() {
        let one = config("etcd://app:p%40ss@[::1]:7000,b?prefix=&timeout=500ms").unwrap();
        assert_eq!(one.servers, [("::1".into(), 7000), ("b".into(), 2379)]);
        assert_eq!(one.username.as_deref(), Some("app"));
        assert_eq!(one.password, Some("p@ss".into()));
        assert_eq!((one.prefix.as_str(), one.timeout.as_millis()), ("", 500));
        assert!(one.tls.is_none());
        let found = config("etcds+srv://example.com").unwrap();
        assert_eq!(found.srv.unwrap().domain, "example.com");
        assert!(found.servers.is_empty() && found.tls.is_some());
        let secure = config("etcds://h?ca=a.pem&cert=c.pem&key=k.pem").unwrap();
        assert_eq!(secure.prefix, "tenure/");
        let identity = Some(("c.pem".into(), "k.pem".into()));
        assert_eq!(secure.tls, Some(Tls { ca: Some("a.pem".into()), identity, ..Tls::default() }));
    }

    #[test]
    fn invalid_urls_are_refused() {
        for bad in [
            "etcd+srv://a,b",
            "etcd+srv://a:1",
            "etcd://h/locks",
            "etcd://h?ca=x",
            "etcds://h?key=x",
            "etcd://h?fencing=off",
            "etcd://:secret@h",
        ] {
            assert_eq!(config(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
