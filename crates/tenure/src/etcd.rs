//! From a URL to an etcd store.

use std::sync::Arc;

use tenure_core::Result;
use tenure_core::store::Store;
use tenure_etcd::{EtcdConfig, EtcdStore, Srv};

use crate::StoreUrl;
use crate::engine::Engine;
use crate::servers::{addresses, invalid, login_password, tls};

pub(crate) async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(EtcdStore::connect(configuration(url)?).await?))
}

fn configuration(url: &StoreUrl) -> Result<EtcdConfig> {
    let servers = url.servers().ok_or_else(|| Engine::Etcd.missing())?;
    if !servers.path.trim_matches('/').is_empty() {
        return Err(invalid("nothing goes after the members but options: write ?prefix=…"));
    }
    let mut config = match url.scheme().strip_suffix("+srv") {
        None => EtcdConfig::new(addresses(&servers.hosts, 2379)),
        Some(_) if servers.hosts.contains([',', ':']) => {
            return Err(invalid("name one domain: its SRV records have the hosts and ports"));
        }
        Some(_) => {
            let srv = Srv { domain: servers.hosts.clone(), name_server: None };
            EtcdConfig { srv: Some(srv), ..EtcdConfig::new(Vec::new()) }
        }
    };
    config.username = servers.user.clone();
    config.password = login_password(url)?;
    if config.username.is_some() && config.password.is_none() {
        return Err(invalid(
            "a user needs a password: in the URL, in TENURE_PASSWORD, or password-file=",
        ));
    }
    if config.username.is_none() && servers.password.is_some() {
        return Err(invalid("a password needs a user: write etcd://user:password@host"));
    }
    config.tls = tls(url, &["etcds", "etcds+srv"], "etcds:// or etcds+srv://")?;
    if let Some(prefix) = url.option("prefix") {
        config.prefix = prefix.into();
    }
    if let Some(timeout) = url.timeout() {
        config.timeout = timeout;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use tenure_tls::Tls;

    fn config(url: &str) -> Result<EtcdConfig> {
        configuration(&url.parse()?)
    }

    #[test]
    fn a_url_says_where_the_members_are() {
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
    fn what_makes_no_sense_is_refused() {
        for bad in [
            "etcd+srv://a,b",
            "etcd+srv://a:1",
            "etcd://h/locks",
            "etcd://h?ca=x",
            "etcds://h?key=x",
            "etcd://h?fencing=off",
        ] {
            assert_eq!(config(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
