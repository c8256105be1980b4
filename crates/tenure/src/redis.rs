//! From a URL to a Redis store, or to a quorum of them.

use std::sync::Arc;

use tenure_core::Result;
use tenure_core::store::Store;
use tenure_redis::{Password, RedisConfig, RedisStore, RedlockConfig, RedlockStore, Topology};

use crate::engine::Engine;
use crate::servers::{addresses, invalid, login_password, tls};
use crate::url::{Servers, UNIX};
use crate::{StoreUrl, parse_duration, percent};

pub(crate) async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(RedisStore::connect(configuration(url)?).await?))
}

pub(crate) async fn open_quorum(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(RedlockStore::connect(quorum(url)?).await?))
}

/// The same of everything on every server.
fn quorum(url: &StoreUrl) -> Result<RedlockConfig> {
    let servers = url.servers().ok_or_else(|| Engine::Redlock.missing())?;
    let mut nodes = Vec::new();
    for server in addresses(&servers.hosts, 6379) {
        let database = database_of(&parts(servers), "write redlock://host1,host2,host3[/db]")?;
        nodes.push(of_server(url, servers, Topology::Single { server }, database)?);
    }
    let mut config = RedlockConfig::new(nodes);
    let time = |name: &str| match url.option(name).map(parse_duration) {
        Some(Ok(time)) if !time.is_zero() => Ok(Some(time)),
        Some(_) => Err(invalid(&format!("{name}= takes a duration above zero"))),
        None => Ok(None),
    };
    config.node_timeout = time("node-timeout")?;
    config.max_ttl = time("max-ttl")?.unwrap_or(config.max_ttl);
    Ok(config)
}

fn configuration(url: &StoreUrl) -> Result<RedisConfig> {
    let servers = url.servers().ok_or_else(|| Engine::Redis.missing())?;
    let (topology, database) = match url.scheme() {
        UNIX => socket(url, servers)?,
        _ if url.option("db").is_some() => {
            return Err(invalid(
                "db= is for redis+unix://: elsewhere the database follows the host",
            ));
        }
        scheme => topology(scheme, servers)?,
    };
    let mut config = of_server(url, servers, topology, database)?;
    config.sentinel_username = url.option("sentinel-user").map(str::to_owned);
    config.sentinel_password =
        url.option("sentinel-password-file").map(|path| Password::File(path.into()));
    let theirs = config.sentinel_username.is_some() || config.sentinel_password.is_some();
    if theirs && !matches!(config.topology, Topology::Sentinel { .. }) {
        return Err(invalid(
            "sentinel-user= and sentinel-password-file= need redis+sentinel:// or rediss+sentinel://",
        ));
    }
    Ok(config)
}

fn of_server(
    url: &StoreUrl,
    servers: &Servers,
    topology: Topology,
    database: usize,
) -> Result<RedisConfig> {
    let mut config = RedisConfig::new(topology);
    config.database = database;
    config.username = servers.user.clone();
    config.password = login_password(url)?;
    let secure = ["rediss", "rediss+sentinel", "rediss+cluster", "redlocks"];
    config.tls =
        tls(url, &secure, "rediss://, rediss+sentinel://, rediss+cluster:// or redlocks://")?;
    if let Some(prefix) = url.option("prefix") {
        config.prefix = prefix.into();
    }
    if let Some(name) = url.option("client-name") {
        config.client_name = name.into();
    }
    config.fencing = match url.option("fencing") {
        None | Some("on") => true,
        Some("off") => false,
        Some(_) => return Err(invalid("fencing= is on or off")),
    };
    if let Some(replicas) = url.option("replicas") {
        config.replicas =
            replicas.parse().map_err(|_| invalid("replicas= takes a number of replicas"))?;
    }
    if let Some(timeout) = url.timeout() {
        config.timeout = timeout;
    }
    Ok(config)
}

fn parts(servers: &Servers) -> Vec<&str> {
    servers.path.split('/').filter(|part| !part.is_empty()).collect()
}

/// A socket in the file system. Its path may have any form, so the database is an option.
fn socket(url: &StoreUrl, servers: &Servers) -> Result<(Topology, usize)> {
    let path = String::from_utf8(percent::decode(&servers.path));
    let path = path.map_err(|_| invalid("the path of the socket is not UTF-8"))?;
    let database = database_of(url.option("db").as_slice(), "")?;
    Ok((Topology::Unix { path: path.into() }, database))
}

fn database_of(parts: &[&str], form: &str) -> Result<usize> {
    match parts {
        [] => Ok(0),
        [number] => number.parse().map_err(|_| invalid("a database is named by its number")),
        _ => Err(invalid(form)),
    }
}

fn topology(scheme: &str, servers: &Servers) -> Result<(Topology, usize)> {
    let parts = parts(servers);
    let database = |text: Option<&&str>| match text {
        Some(text) => text.parse().map_err(|_| invalid("a database is named by its number")),
        None => Ok(0),
    };
    match scheme {
        "redis+sentinel" | "rediss+sentinel" => {
            let (Some(service), 1..=2) = (parts.first(), parts.len()) else {
                return Err(invalid("write redis+sentinel://host:26379,…/service[/db]"));
            };
            let sentinels = addresses(&servers.hosts, 26379);
            let topology = Topology::Sentinel { sentinels, service: (*service).to_owned() };
            Ok((topology, database(parts.get(1))?))
        }
        "redis+cluster" | "rediss+cluster" => {
            let nodes = addresses(&servers.hosts, 6379);
            Ok((Topology::Cluster { nodes }, database(parts.first())?))
        }
        _ => {
            let mut hosts = addresses(&servers.hosts, 6379);
            let (Some(server), true) = (hosts.pop(), hosts.is_empty() && parts.len() < 2) else {
                return Err(invalid("write redis://[user:password@]host[:6379][/db]"));
            };
            Ok((Topology::Single { server }, database(parts.first())?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use tenure_tls::Tls;

    fn config(url: &str) -> Result<RedisConfig> {
        configuration(&url.parse()?)
    }

    #[test]
    fn a_url_says_where_the_servers_are() {
        let one = config("redis://app:p%40ss@cache:7000/3?prefix=&timeout=500ms").unwrap();
        assert_eq!(one.topology, Topology::Single { server: ("cache".into(), 7000) });
        assert_eq!((one.database, one.prefix.as_str()), (3, ""));
        assert_eq!(one.username.as_deref(), Some("app"));
        assert_eq!(one.password, Some("p@ss".into()));
        assert_eq!(one.timeout.as_millis(), 500);

        let sentinel = config("redis+sentinel://a,b:1/main/2").unwrap();
        let sentinels = vec![("a".into(), 26379), ("b".into(), 1)];
        let topology = Topology::Sentinel { sentinels, service: "main".into() };
        assert_eq!((sentinel.topology, sentinel.database), (topology, 2));

        let cluster = config("redis+cluster://[::1]:7000,b?replicas=2").unwrap();
        let nodes = vec![("::1".into(), 7000), ("b".into(), 6379)];
        assert_eq!(cluster.topology, Topology::Cluster { nodes });
        assert_eq!(cluster.replicas, 2);
        assert!(cluster.fencing && !config("redis://h?fencing=off").unwrap().fencing);

        let named = Some("cache.example".to_owned());
        for secure in ["rediss://h", "rediss+sentinel://h/main", "rediss+cluster://h"] {
            assert_eq!(config(secure).unwrap().tls, Some(Tls::default()), "{secure}");
            let tls = config(&format!("{secure}?server-name=cache.example")).unwrap().tls;
            assert_eq!(tls, Some(Tls { server_name: named.clone(), ..Tls::default() }), "{secure}");
            let plain = secure.replacen("rediss", "redis", 1);
            assert_eq!(config(&plain).unwrap().tls, None, "{plain}");
        }
    }

    #[test]
    fn a_url_says_where_the_socket_is() {
        let url = "redis+unix://app:pw@/run/a%3Fb.sock?db=2&client-name=orders";
        let socket = config(url).unwrap();
        assert_eq!(socket.topology, Topology::Unix { path: "/run/a?b.sock".into() });
        assert_eq!((socket.database, socket.client_name.as_str()), (2, "orders"));
        assert_eq!((socket.username.as_deref(), socket.password), (Some("app"), Some("pw".into())));
        let plain = config("redis+unix:///s").unwrap();
        assert_eq!((plain.database, plain.client_name.as_str()), (0, "tenure"));
    }

    #[test]
    fn sentinels_can_have_a_user_of_their_own() {
        let url = "redis+sentinel://app:pw@h/main?sentinel-user=w&sentinel-password-file=/p";
        let config = config(url).unwrap();
        assert_eq!(config.username.as_deref(), Some("app"));
        assert_eq!(config.sentinel_username.as_deref(), Some("w"));
        assert_eq!(config.sentinel_password, Some(Password::File("/p".into())));
    }

    #[test]
    fn a_url_says_which_servers_are_a_quorum() {
        let quorum = |url: &str| quorum(&url.parse()?);
        let config = quorum("redlock://:pw@a,b:7000,c/2?node-timeout=20ms&max-ttl=5m").unwrap();
        let servers: Vec<_> = config.nodes.iter().map(|node| node.topology.clone()).collect();
        let single = |host: &str, port| Topology::Single { server: (host.into(), port) };
        assert_eq!(servers, [single("a", 6379), single("b", 7000), single("c", 6379)]);
        let alike = |node: &RedisConfig| node.database == 2 && node.password == Some("pw".into());
        assert!(config.nodes.iter().all(alike));
        assert_eq!(config.node_timeout.unwrap().as_millis(), 20);
        assert_eq!(config.max_ttl.as_secs(), 300);
        assert!(config.nodes.iter().all(|node| node.tls.is_none()));
        let secure = quorum("redlocks://a,b,c?ca=a.pem").unwrap();
        let trusted = Some(Tls { ca: Some("a.pem".into()), ..Tls::default() });
        assert!(secure.nodes.iter().all(|node| node.tls == trusted));
        for bad in [
            "redlock://a,b,c/x",
            "redlock://a,b,c?ca=x",
            "redlock://a,b,c/0/1",
            "redlock://a,b,c?max-ttl=0s",
        ] {
            assert_eq!(quorum(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            "redis://a,b",
            "redis://h/zero",
            "redis://h/0/1",
            "redis+sentinel://h",
            "redis+sentinel://h/a/0/x",
            "redis://h?ca=x",
            "redis://h?server-name=x",
            "redis+sentinel://h/main?ca=x",
            "redis+cluster://h?ca=x",
            "rediss://h?cert=x",
            "redis://h?replicas=many",
            "redis://h?fencing=maybe",
            "redis://h?nonsense=1",
            "redis://h?db=1",
            "redis+unix:///s?db=x",
            "redis+unix:///s?ca=x",
            "redis+unix://host/s",
            "redis+unix://",
            "redis+unix:///",
            "redis://h?sentinel-user=x",
            "redis+cluster://h?sentinel-password-file=x",
        ] {
            assert_eq!(config(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
