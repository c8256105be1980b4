//! From a URL to a Redis store, or to a quorum of servers.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::Result;
use tenure_core::store::{Connecting, Scheme, Store, StoreFactory, StoreUrl, UrlOption};
use tenure_tls::{Password, Tls};

use crate::{
    CellUpdates, RedisConfig, RedisStore, RedissonStore, RedlockConfig, RedlockStore, Sharded,
    Topology,
};

/// The engine behind `redis://` and its like: one server, Sentinels, a Cluster.
#[derive(Debug)]
pub struct RedisFactory;

/// The engine behind `redlock://` and `redlocks://`: a quorum of independent servers.
#[derive(Debug)]
pub struct RedlockFactory;

const UNIX: &str = "redis+unix";
const SENTINEL: &str = "redis+sentinel";
const CLUSTER: &str = "redis+cluster";

static SCHEMES: [Scheme; 4] = [
    Scheme::servers("redis", "[user:pass@]host[:6379][/db]", "one Redis server", 6379)
        .or_with_tls("rediss")
        .or_password_alone(),
    Scheme::socket(
        UNIX,
        "[user:pass@]/path/of.sock[?db=1]",
        "one Redis server, by its socket on this machine",
    )
    .or_password_alone(),
    Scheme::servers(
        SENTINEL,
        "h1:26379,h2,h3/service[/db]",
        "the Redis master that Sentinels name; more than half of those named must answer",
        26379,
    )
    .or_with_tls("rediss+sentinel")
    .or_password_alone(),
    Scheme::servers(CLUSTER, "h1:7000,h2:7001", "Redis Cluster", 6379)
        .or_with_tls("rediss+cluster")
        .or_password_alone(),
];

static QUORUM_SCHEMES: [Scheme; 1] = [Scheme::servers(
    "redlock",
    "[user:pass@]h1,h2,h3[/db]",
    "a quorum of independent Redis servers (three, five …)",
    6379,
)
.or_with_tls("redlocks")
.or_password_alone()];

const PREFIX: UrlOption = UrlOption::new(
    "prefix",
    "TEXT",
    "what every key begins with; may be empty; no spaces, control characters or braces",
)
.defaults_to("tenure:");

const CLIENT_NAME: UrlOption =
    UrlOption::new("client-name", "NAME", "the name of the connections in `CLIENT LIST`")
        .defaults_to("tenure")
        .cosmetic();

static OPTIONS: [UrlOption; 15] = [
    PREFIX,
    UrlOption::new(
        "dialect",
        "tenure|redisson",
        "how locks are written: with `redisson`, Java programs that use it share them; the prefix is empty \
         then",
    )
    .defaults_to("tenure"),
    UrlOption::new(
        "sharded",
        "auto|on|off",
        "with `dialect=redisson` on a Cluster: as `shardedSubscriptionMode` of the Java programs",
    )
    .defaults_to("auto"),
    UrlOption::new("fencing", "on|off", "without it no tokens, and a free lock costs one `SET`")
        .defaults_to("on"),
    UrlOption::new(
        "replicas",
        "N",
        "a grant or a renewal counts only when N replicas have acknowledged it",
    )
    .defaults_to("0"),
    UrlOption::new(
        "cells",
        "script|watch",
        "how cells are swapped: by a script, or by `WATCH`, `MULTI` and `EXEC` (not on a Cluster)",
    )
    .defaults_to("script")
    .cosmetic(),
    UrlOption::new("db", "N", "the database of `redis+unix://`; elsewhere it follows the host")
        .defaults_to("0"),
    CLIENT_NAME,
    UrlOption::PASSWORD_FILE,
    UrlOption::new(
        "sentinel-user",
        "NAME",
        "the Sentinels' own login; without it they get the servers', if they ask for one",
    ),
    UrlOption::new("sentinel-password-file", "FILE", "the password of `sentinel-user`").file(),
    Tls::CA,
    Tls::CERT,
    Tls::KEY,
    Tls::SERVER_NAME,
];

static QUORUM_OPTIONS: [UrlOption; 10] = [
    PREFIX,
    UrlOption::new("dialect", "tenure", "no other: Redisson keeps a lock on one server")
        .defaults_to("tenure"),
    UrlOption::new("node-timeout", "DURATION", "how long one server may take to answer")
        .defaults_to("a two hundredth of the TTL, from 5 to 50 ms"),
    UrlOption::new("max-ttl", "DURATION", "the longest TTL that any client uses there")
        .defaults_to("1m"),
    CLIENT_NAME,
    UrlOption::PASSWORD_FILE,
    Tls::CA,
    Tls::CERT,
    Tls::KEY,
    Tls::SERVER_NAME,
];

#[async_trait]
impl StoreFactory for RedisFactory {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn schemes(&self) -> &'static [Scheme] {
        &SCHEMES
    }

    fn options(&self) -> &'static [UrlOption] {
        &OPTIONS
    }

    async fn connect(&self, url: &StoreUrl, context: &Connecting) -> Result<Arc<dyn Store>> {
        let config = config(url, context)?;
        Ok(match is_redisson(url)? {
            false => Arc::new(RedisStore::connect(config).await?),
            true => Arc::new(RedissonStore::connect(config).await?),
        })
    }
}

#[async_trait]
impl StoreFactory for RedlockFactory {
    fn name(&self) -> &'static str {
        "Redlock"
    }

    fn schemes(&self) -> &'static [Scheme] {
        &QUORUM_SCHEMES
    }

    fn options(&self) -> &'static [UrlOption] {
        &QUORUM_OPTIONS
    }

    async fn connect(&self, url: &StoreUrl, context: &Connecting) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(RedlockStore::connect(quorum(url, context)?).await?))
    }
}

fn is_redisson(url: &StoreUrl) -> Result<bool> {
    match url.option("dialect") {
        None | Some("tenure") => Ok(false),
        Some("redisson") => Ok(true),
        Some(_) => Err(url.invalid("dialect= is tenure or redisson")),
    }
}

fn config(url: &StoreUrl, context: &Connecting) -> Result<RedisConfig> {
    let (topology, database) = topology(url)?;
    let mut config = server(url, context, topology)?;
    if is_redisson(url)? && url.option("prefix").is_none() {
        config.prefix.clear();
    }
    config.sharded = match url.option("sharded") {
        None | Some("auto") => Sharded::Auto,
        Some("on") => Sharded::On,
        Some("off") => Sharded::Off,
        Some(_) => return Err(url.invalid("sharded= is auto, on or off")),
    };
    if url.option("sharded").is_some() && !(is_redisson(url)? && url.scheme().name() == CLUSTER) {
        return Err(url.invalid("sharded= is for dialect=redisson on redis+cluster://"));
    }
    config.database = database;
    config.fencing = match url.option("fencing") {
        None | Some("on") => true,
        Some("off") => false,
        Some(_) => return Err(url.invalid("fencing= is on or off")),
    };
    config.cells = match url.option("cells") {
        None | Some("script") => CellUpdates::Script,
        Some("watch") => CellUpdates::Watch,
        Some(_) => return Err(url.invalid("cells= is script or watch")),
    };
    if let Some(replicas) = url.option("replicas") {
        let number = replicas.parse();
        config.replicas =
            number.map_err(|_| url.invalid("replicas= takes a number of replicas"))?;
    }
    config.sentinel_username = url.option("sentinel-user").map(str::to_owned);
    config.sentinel_password =
        url.option("sentinel-password-file").map(|path| Password::File(path.into()));
    let has_own_login = config.sentinel_username.is_some() || config.sentinel_password.is_some();
    if has_own_login && url.scheme().name() != SENTINEL {
        return Err(url.invalid(
            "sentinel-user= and sentinel-password-file= need redis+sentinel:// or rediss+sentinel://",
        ));
    }
    Ok(config)
}

/// The same of everything on every server.
fn quorum(url: &StoreUrl, context: &Connecting) -> Result<RedlockConfig> {
    if is_redisson(url)? {
        let why = "Redisson keeps a lock on one server, and a quorum cannot share it: use redis://, \
                   redis+sentinel:// or redis+cluster:// for dialect=redisson";
        return Err(url.invalid(why));
    }
    let number = match segments(url)[..] {
        [] => None,
        [number] => Some(number),
        _ => return Err(url.invalid("write redlock://host1,host2,host3[/db]")),
    };
    let mut nodes = Vec::new();
    for host in url.servers() {
        let mut node = server(url, context, Topology::Single { server: host })?;
        node.database = database(url, number)?;
        nodes.push(node);
    }
    let mut config = RedlockConfig::new(nodes);
    config.node_timeout = url.duration("node-timeout")?;
    config.max_ttl = url.duration("max-ttl")?.unwrap_or(config.max_ttl);
    Ok(config)
}

/// What one server and those of a quorum have in common.
fn server(url: &StoreUrl, context: &Connecting, topology: Topology) -> Result<RedisConfig> {
    let mut config = RedisConfig::new(topology);
    config.username = url.user().map(str::to_owned);
    config.password = context.password().cloned();
    config.tls = Tls::of(url)?;
    config.timeout = context.timeout();
    if let Some(prefix) = url.option("prefix") {
        config.prefix = prefix.into();
    }
    if let Some(name) = url.option("client-name") {
        config.client_name = name.into();
    }
    Ok(config)
}

/// How the servers are arranged, and the database.
fn topology(url: &StoreUrl) -> Result<(Topology, usize)> {
    let scheme = url.scheme().name();
    if scheme != UNIX && url.option("db").is_some() {
        let why = "db= is for redis+unix://: elsewhere the database follows the host";
        return Err(url.invalid(why));
    }
    match (scheme, &segments(url)[..]) {
        // The path of a socket may have any form, so the database is an option.
        (UNIX, _) => {
            let path = url.file().unwrap_or_else(|| url.path().as_ref()).to_owned();
            Ok((Topology::Unix { path }, database(url, url.option("db"))?))
        }
        (SENTINEL, [service, rest @ ..]) if rest.len() < 2 => {
            let topology =
                Topology::Sentinel { sentinels: url.servers(), service: (*service).to_owned() };
            Ok((topology, database(url, rest.first().copied())?))
        }
        (SENTINEL, _) => Err(url.invalid("write redis+sentinel://host:26379,…/service[/db]")),
        (CLUSTER, rest) => {
            let topology = Topology::Cluster { nodes: url.servers() };
            Ok((topology, database(url, rest.first().copied())?))
        }
        (_, rest) => match (<[_; 1]>::try_from(url.servers()), rest.len() < 2) {
            (Ok([server]), true) => {
                Ok((Topology::Single { server }, database(url, rest.first().copied())?))
            }
            _ => Err(url.invalid("write redis://[user:password@]host[:6379][/db]")),
        },
    }
}

fn segments(url: &StoreUrl) -> Vec<&str> {
    url.path().split('/').filter(|part| !part.is_empty()).collect()
}

fn database(url: &StoreUrl, number: Option<&str>) -> Result<usize> {
    let number = number.map_or(Ok(0), str::parse);
    number.map_err(|_| url.invalid("a database is named by its number"))
}

#[cfg(test)]
mod tests {
    use tenure_core::ErrorKind;

    use super::*;

    fn config(url: &str) -> Result<RedisConfig> {
        let url = StoreUrl::parse(url, &[Arc::new(RedisFactory)])?;
        super::config(&url, &Connecting::new(&url)?)
    }

    fn quorum(url: &str) -> Result<RedlockConfig> {
        let url = StoreUrl::parse(url, &[Arc::new(RedlockFactory)])?;
        super::quorum(&url, &Connecting::new(&url)?)
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
        assert_eq!(config("redis://h?cells=watch").unwrap().cells, CellUpdates::Watch);
        assert!(cluster.fencing && !config("redis://h?fencing=off").unwrap().fencing);

        assert_eq!(config("redis://h").unwrap().prefix, "tenure:");
        assert_eq!(config("redis+unix:///s?dialect=redisson").unwrap().prefix, "");
        let off = config("redis+cluster://h?dialect=redisson&prefix=app:&sharded=off").unwrap();
        assert_eq!((off.prefix.as_str(), off.sharded), ("app:", Sharded::Off));

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
            "redlock://a,b,c?dialect=redisson",
            "redlock://a,b,c/0/1",
            "redlock://a,b,c?max-ttl=0s",
        ] {
            assert_eq!(quorum(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
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
            "redis://h?cells=maybe",
            "redis://h?dialect=other",
            "redis://h?dialect=redisson&sharded=on",
            "redis+cluster://h?sharded=on",
            "redis+cluster://h?dialect=redisson&sharded=maybe",
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
