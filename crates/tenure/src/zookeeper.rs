//! From a URL to a ZooKeeper store.

use std::sync::Arc;

use tenure_core::Result;
use tenure_core::store::Store;
use tenure_zookeeper::{Access, Compat, ZooKeeperConfig, ZooKeeperStore};

use crate::StoreUrl;
use crate::engine::Engine;
use crate::percent;
use crate::servers::{addresses, invalid, login_password, tls};

pub(crate) async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(ZooKeeperStore::connect(configuration(url)?).await?))
}

fn configuration(url: &StoreUrl) -> Result<ZooKeeperConfig> {
    let servers = url.servers().ok_or_else(|| Engine::ZooKeeper.missing())?;
    let mut config = ZooKeeperConfig::new(addresses(&servers.hosts, 2181));
    let chroot = String::from_utf8(percent::decode(servers.path.trim_end_matches('/')));
    config.chroot = chroot.map_err(|_| invalid("the chroot is not UTF-8"))?;
    config.username = servers.user.clone();
    config.password = login_password(url)?.filter(|_| config.username.is_some());
    if config.username.is_some() && config.password.is_none() {
        return Err(invalid(
            "a user needs a password: in the URL, in TENURE_PASSWORD, or password-file=",
        ));
    }
    if config.username.is_none() && servers.password.is_some() {
        return Err(invalid("a password needs a user: write zk://user:password@host"));
    }
    config.access = access(url.option("acl"), config.username.is_some())?;
    config.compat = neighbours(url.option("neighbours").unwrap_or_default())?;
    config.tls = tls(url, &["zks"], "zks://")?;
    if let Some(prefix) = url.option("prefix") {
        config.prefix = prefix.into();
    }
    if let Some(timeout) = url.timeout() {
        config.timeout = timeout;
    }
    Ok(config)
}

/// What a user creates is the user's own, unless it says otherwise.
fn access(option: Option<&str>, logs_in: bool) -> Result<Access> {
    match option {
        None if logs_in => Ok(Access::Creator),
        None | Some("world") => Ok(Access::World),
        Some("creator") if logs_in => Ok(Access::Creator),
        Some("creator") => Err(invalid("acl=creator needs a user: write zk://user:password@host")),
        Some(_) => Err(invalid("acl= is creator (whoever logs in as the same user) or world")),
    }
}

fn neighbours(option: &str) -> Result<Compat> {
    let mut neighbours = Compat::default();
    for name in option.split(',').filter(|name| !name.is_empty()) {
        match name {
            // Its mutex is seen by everybody, and sees everybody.
            "curator" => {}
            "curator-rw" => neighbours.curator_rw = true,
            "kazoo" => neighbours.kazoo = true,
            _ => return Err(invalid("neighbours= is a list of curator, curator-rw, kazoo")),
        }
    }
    Ok(neighbours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use tenure_tls::Tls;

    fn config(url: &str) -> Result<ZooKeeperConfig> {
        configuration(&url.parse()?)
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
        let secure = config("zks://h?ca=a.pem&cert=c.pem&key=k.pem&neighbours=kazoo").unwrap();
        assert_eq!((secure.chroot.as_str(), secure.prefix.as_str()), ("", "tenure/"));
        assert_eq!(secure.access, Access::World);
        assert_eq!(secure.compat, Compat { kazoo: true, curator_rw: false });
        let identity = Some(("c.pem".into(), "k.pem".into()));
        assert_eq!(secure.tls, Some(Tls { ca: Some("a.pem".into()), identity, ..Tls::default() }));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            "zk://h?ca=x",
            "zks://h?key=x",
            "zk://h?fencing=off",
            "zk://h?acl=creator",
            "zk://h?acl=everybody",
            "zk://h?neighbours=consul",
            "zk://:secret@h",
        ] {
            assert_eq!(config(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
